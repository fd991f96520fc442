"""docs/plugins.md says what is: its examples work, its tables are those of the code."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path
from types import ModuleType

import attrs
import pytest

import andrea
from andrea import hookspecs, types
from andrea.hookspecs import hook_names
from andrea.registry import DEFAULTS, EXCLUSIVE, KINDS, available, describe
from andrea.testing.contract import check_plugin_object, contracts_of, fault_of, subject

PAGE = (Path(__file__).parents[1] / "docs" / "plugins.md").read_text(encoding="utf-8")
KIND_OF = {
    "open_source": "source",
    "keep_document": "filter",
    "identify_document": "filter",
    "make_tokenizer": "tokenizer",
    "score_sources": "bandit",
    "weigh_sources": "weight",
    "limit_sources": "limit",
    "select_source": "sampler",
    "reward": "reward",
    "should_stop": "stop",
    "on_signal": "signals",
}
TYPES = ("SourceSpec", "Document", "TokenizerRequest", "Device", "Precision", "Limits", "Choice", "Pull")
TYPES = (*TYPES, "StepRecord", "Sample", "Evaluation", "Run")


def section(title, level):
    """Return the text under a heading, up to the next of the same or a higher level."""
    found = re.search(rf"^{'#' * level} {re.escape(title)}\n(.*?)(?=^#{{1,{level}}} |\Z)", PAGE, re.M | re.S)
    assert found, f"there is no heading {title!r}"
    return found[1]


def blocks(text, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def rows(text):
    """Return the cells of a table's rows, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def module_of(code):
    """Return a module made of an example."""
    module = ModuleType("example")
    exec(compile(code, "docs/plugins.md", "exec", dont_inherit=True), vars(module))
    return module


def plugin_of(code):
    """Return the plugin of an example: its class, or the module."""
    module = module_of(code)
    hooks = [v for v in vars(module).values() if hasattr(v, "andrea_impl")]
    if not hooks:
        return next(v for v in vars(module).values() if isinstance(v, type) and v.__module__ == "example")
    module.__doc__ = module.__doc__ or hooks[0].__doc__
    return module


# -- examples ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("A plugin in ten lines", "weight.fresh"),
        ("Options and state", "bandit.latest"),
        ("Human text", "stop.copies"),
        ("Errors", "stop.threshold"),
    ],
)
def test_a_whole_example_keeps_every_contract(title, name):
    """What the page shows as a plugin is one that the contract kit accepts."""
    (code,) = blocks(section(title, 2))
    check_plugin_object(plugin_of(code), name)


def test_the_first_example_has_ten_lines():
    """As its heading says."""
    (code,) = blocks(section("A plugin in ten lines", 2))
    assert len(code.strip().splitlines()) == 10


@pytest.mark.parametrize("hook", hook_names())
def test_the_example_of_a_hook_keeps_the_contracts_of_its_kind(hook, tmp_path):
    """Each is a module on its own; being without memory, it is not resumed here."""
    (code,) = blocks(section(hook, 3))
    assert f"def {hook}(" in code
    name = "precision.fp32" if hook == "choose_precision" else f"{KIND_OF.get(hook, 'log')}.example"
    (tmp_path / "a.txt").write_text("A text.\n", encoding="utf-8")
    with subject(name, plugin_of(code), {"path": str(tmp_path)} if hook == "open_source" else {}) as tested:
        contracts = [one for one in contracts_of(tested.kind) if one.name not in ("resume_is_exact", "seed_decides")]
        faults = {one.name: fault_of(one, tested) for one in contracts}
    assert {contract: fault for contract, fault in faults.items() if fault} == {}


def test_the_packaging_example_is_a_project_with_entry_points():
    """It parses, and its entry points are of our group and name kinds that exist."""
    (code,) = blocks(section("Packaging", 2), "toml")
    points = tomllib.loads(code)["project"]["entry-points"]["andrea"]
    assert {name.partition(".")[0] for name in points} <= set(KINDS)


def test_the_testing_example_names_what_the_kit_has():
    """Its functions run, on the plugin that another example makes."""
    example = module_of(blocks(section("Testing", 2))[0])
    latest = plugin_of(blocks(section("Options and state", 2))[0])
    assert inspect.signature(example.run_steps).parameters["steps"]
    history = example.run_steps([("bandit.latest", latest()), "sampler.argmax"], steps=20)
    assert history.records[-1].pulls[0].scores.max() > 0


# -- hooks -------------------------------------------------------------------------------------------------------------


def test_hooks_stand_in_the_order_of_a_run():
    """All of them and no others."""
    assert re.findall(r"^### (\w+)$", section("Hooks", 2), re.M) == hook_names()


@pytest.mark.parametrize("hook", hook_names())
def test_a_hook_is_described_as_in_its_specification(hook):
    """Signature, sentence, when and combine are those of hookspecs.py; arguments are named, answers described."""
    text, spec = section(hook, 3), getattr(hookspecs, hook)
    documentation = inspect.getdoc(spec).replace("``", "`")
    assert f"`{hook}{inspect.signature(spec)}`".replace("'", "") in text
    assert documentation.splitlines()[0] in text
    for part in ("When", "Combine"):
        said = next(line for line in documentation.splitlines() if line.startswith(f"{part}: "))
        assert f"- **{part}**: {said.removeprefix(part + ': ')}" in text
    for argument in inspect.signature(spec).parameters:
        assert f"`{argument}" in text.split("- **Arguments**")[1].split("\n")[0] or argument == "run"
    assert ("- **Returns**: " in text) == (not hook.startswith("on_") or hook == "on_signal")


# -- types -------------------------------------------------------------------------------------------------------------


def test_every_type_of_a_hook_is_described():
    """What stands in a signature has a table, but for what plugins only make."""
    signatures = " ".join(str(inspect.signature(getattr(hookspecs, hook))) for hook in hook_names())
    named = {name for name in andrea.__all__ if re.search(rf"\b{name}\b", signatures)}
    assert named - set(TYPES) == {"Tokenizer"}  # described where make_tokenizer is
    assert re.findall(r"^### (\w+)$", section("What hooks are given", 2), re.M) == list(TYPES)


@pytest.mark.parametrize("name", TYPES)
def test_every_field_is_described(name):
    """The table has the fields of the class in their order, each with its type, and then its properties."""
    cls = getattr(types, name)
    fields = [[f"`{field.name}`", f"`{cls.__annotations__[field.name]}`"] for field in attrs.fields(cls)]
    computed = [
        [f"`{key}`", f"`{inspect.signature(value.fget).return_annotation}`"]
        for key, value in vars(cls).items()
        if isinstance(value, property)
    ]
    table = rows(section(name, 3))
    assert [row[:2] for row in table] == fields + computed
    assert all(len(row[2]) > 5 for row in table)


# -- kinds and plugins -------------------------------------------------------------------------------------------------


def test_every_kind_is_named():
    """As exclusive or as additive."""
    text = section("Kinds, order, and what happens to answers", 2)
    exclusive = re.search(r"\*\*Exclusive\*\*: ([\w, ]+)\.", text)[1].split(", ")
    additive = re.search(r"\*\*Additive\*\*: ([\w, ]+)\.", text)[1].split(", ")
    assert exclusive == list(EXCLUSIVE)
    assert [*exclusive, *additive] == list(KINDS)


def test_the_table_of_plugins_is_what_is_installed():
    """Every plugin of the package itself, with its summary and its options."""
    expected = []
    for name, entry in available().items():
        if entry.package == "andrea":
            row = describe(entry)
            options = ", ".join(f"`{option['name']}`" for option in row["options"])
            expected.append(
                [f"`{name}`", row["summary"], options or ("of the source" if entry.kind == "source" else "")]
            )
    assert rows(section("The plugins that andrea brings", 2)) == expected


def test_the_defaults_are_named():
    """Below the table."""
    text = section("The plugins that andrea brings", 2)
    assert [name for name in DEFAULTS if name not in text.rpartition("An experiment names")[2]] == []


def test_links_within_the_page_lead_somewhere():
    """Every anchor is that of a heading."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", PAGE, flags=re.S), re.M)
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= anchors
