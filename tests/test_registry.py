"""How plugins are found, chosen, made and registered, and what is said when they cannot be."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from andrea import AndreaError, hookimpl, option, plugin
from andrea.loop import Hooks
from andrea.registry import (
    DEFAULT_WEIGHTS,
    DEFAULTS,
    Chosen,
    available,
    choose,
    create,
    describe,
    find,
    make,
    own_sources,
    register,
    source_digest,
)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that puts a package with one module and its entry points on the path."""

    def put(package, module, text, points):
        info = tmp_path / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[andrea]\n" + "".join(f"{n} = {t}\n" for n, t in points.items()))
        (tmp_path / f"{module}.py").write_text(text)
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield put
    for name in set(sys.modules) - before:
        del sys.modules[name]


MODULE = '''"""Stops at once."""
from andrea import hookimpl

@hookimpl
def should_stop(record):
    return "enough"
'''


def names(asked=(), without=(), configured=None, readers=()):
    return [one.name for one in choose(asked, without, configured or {}, readers, "precision.fp32")]


# -- finding -----------------------------------------------------------------------------------------------------------


def test_listing_imports_nothing():
    """Names, packages and versions of all plugins are known before any of them is loaded."""
    code = (
        "import sys\nfrom andrea.registry import available\nfound = available()\n"
        "assert found['bandit.ucb1'].package == 'andrea'\n"
        "print(*[m for m in sys.modules if m.startswith('andrea.plugins') or m in ('tokenizers', 'rich')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


def test_a_package_from_outside_enters_by_the_same_door(install):
    """Its plugin is listed with package and version, chosen by name, and asked by the loop's hooks."""
    install("outside", "outside_stop", MODULE, {"stop.outside": "outside_stop"})
    entry = find("stop.outside")
    assert (entry.kind, entry.variant, entry.package, entry.version) == ("stop", "outside", "outside", "1.0")
    made = create([one for one in choose(["stop.outside"], [], {}, [], "precision.fp32") if one.name == entry.name])
    assert list(Hooks(register(made)).ask("should_stop", record=None, run=None)) == [("stop.outside", "enough")]


def test_names_are_sorted():
    """The order does not depend on how packages were installed."""
    assert list(available()) == sorted(available())


def test_two_packages_with_one_name_are_named_both(install):
    """Which of them was meant is for the user to say, by uninstalling one."""
    install("first", "first_stop", MODULE, {"stop.twice": "first_stop"})
    install("second", "second_stop", MODULE, {"stop.twice": "second_stop"})
    with pytest.raises(AndreaError, match=r"offer the plugin stop\.twice: (first and second|second and first)"):
        available()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import a_module_that_nobody_has\n", "No module named 'a_module_that_nobody_has'"),
        ("raise RuntimeError('no such device')\n", "no such device"),
        ("def broken(:\n", "invalid syntax"),
    ],
)
def test_a_broken_plugin_is_a_row_and_an_error_when_used(install, text, reason):
    """The list goes on; whoever uses it learns which package to repair."""
    install("rotten", "rotten_stop", text, {"stop.rotten": "rotten_stop"})
    row = describe(find("stop.rotten"))
    assert row["summary"].startswith("broken: ")
    assert reason in row["summary"]
    assert (row["hooks"], row["options"], row["package"]) == ([], [], "rotten")
    with pytest.raises(AndreaError, match=r"stop\.rotten of rotten 1\.0 is broken") as caught:
        create([one for one in choose(["stop.rotten"], [], {}, [], "precision.fp32") if one.name == "stop.rotten"])
    assert "pip uninstall rotten" in caught.value.hint


def test_a_missing_class_is_a_broken_plugin(install):
    """An entry point that names what is not there is told as any other fault of a package."""
    install("rotten", "rotten_stop", MODULE, {"stop.rotten": "rotten_stop:Missing"})
    assert "Missing" in describe(find("stop.rotten"))["summary"]


def test_a_plugin_whose_types_do_not_exist_is_a_broken_row(install):
    """Annotations are read for the list, and may fail there."""
    text = "from __future__ import annotations\nfrom andrea import plugin, option\n@plugin\nclass A:\n"
    text += '    """A."""\n    a: NoSuchType = option(1, help="a")\n'
    install("rotten", "rotten_stop", text, {"stop.rotten": "rotten_stop:A"})
    assert "NoSuchType" in describe(find("stop.rotten"))["summary"]


# -- choosing ----------------------------------------------------------------------------------------------------------


def test_defaults_are_used_when_nothing_is_said():
    """Every default, the device's precision, and the readers of the sources."""
    assert names(readers=["source.text"]) == [*DEFAULTS, "precision.fp32", "source.text"]


def test_the_order_is_command_line_then_experiment_then_defaults():
    """They are asked in this order, defaults last."""
    found = names(["weight.warmup", "stop.coherence"], configured={"limit.floors": {}, "weight.coverage_bonus": {}})
    assert found[:4] == ["weight.warmup", "stop.coherence", "limit.floors", "weight.coverage_bonus"]
    assert found[4:] == [*(one for one in DEFAULTS if one not in DEFAULT_WEIGHTS), "precision.fp32"]


def test_plugins_are_asked_in_the_order_of_the_list():
    """Pluggy asks the last registered first, which the registry turns round."""
    chosen = choose(["weight.epoch_penalty", "weight.coverage_bonus", "weight.warmup"], [], {}, [], "precision.fp32")
    hooks = Hooks(register(create([one for one in chosen if one.entry.kind == "weight"])))
    arguments = {"step": 0, "run": _RunOfOne()}
    assert [name for name, _ in hooks.ask("weigh_sources", **arguments)] == [
        "weight.epoch_penalty",
        "weight.coverage_bonus",
        "weight.warmup",
    ]


class _RunOfOne:
    sources = ("a",)
    epochs = coverage = 0.0


def test_a_default_weight_that_is_not_there_can_be_left_out():
    """A run that goes on names all that it has, and what it left out; of others it is said that they are not used."""
    assert "weight.size" not in names(["bandit.uniform"], without=["weight.size"])
    with pytest.raises(AndreaError, match="not used"):
        names(["bandit.uniform"], without=["weight.warmup"])


@pytest.mark.parametrize(
    ("asked", "configured", "kept"),
    [
        ([], {}, True),
        (["stop.coherence"], {"tokenizer.bpe": {}}, True),
        ([], {"weight.size": {"exponent": 1.0}}, True),
        (["weight.progress"], {}, True),
        (["bandit.uniform"], {}, False),
        ([], {"limit.floors": {}, "weight.size": {}}, False),
        (["weight.coverage_bonus"], {}, False),
        (["reward.slope"], {}, False),
        ([], {"sampler.dice": {}}, False),
    ],
)
def test_the_default_weights_belong_to_the_default_curriculum(asked, configured, kept):
    """Who names another part of a curriculum has what he names; options of the default weights keep them all."""
    found = [one for one in names(asked, configured=configured) if one in DEFAULT_WEIGHTS]
    named = [one for one in (*asked, *configured) if one in DEFAULT_WEIGHTS]
    assert set(found) == set(DEFAULT_WEIGHTS if kept else named)


@pytest.mark.parametrize(
    ("asked", "configured"),
    [(["bandit.ucb1"], {}), ([], {"bandit.ucb1": {}}), (["bandit.ucb1"], {"bandit.uniform": {}})],
)
def test_naming_an_exclusive_plugin_replaces_the_one_below(asked, configured):
    """The command line replaces the experiment's, both replace the default; the rest stays."""
    found = names(asked, configured=configured)
    assert [name for name in found if name.startswith("bandit.")] == ["bandit.ucb1"]
    assert "sampler.proportional" in found


def test_options_of_a_replaced_plugin_do_not_reach_its_rival():
    """Each keeps its own."""
    chosen = choose(["bandit.uniform"], [], {"bandit.ucb1": {"exploration": 2.0}}, [], "precision.fp32")
    assert {one.name: one.options for one in chosen}["bandit.uniform"] == {}


def test_additive_plugins_add_up():
    """Several weights, limits, stops and logs stand beside each other."""
    found = names(["stop.coherence", "weight.warmup", "weight.epoch_penalty"])
    assert {"stop.coherence", "stop.max_steps", "stop.not_finite", "weight.warmup", "weight.epoch_penalty"} <= {*found}


@pytest.mark.parametrize("level", ["asked", "configured"])
def test_two_of_an_exclusive_kind_exclude_each_other(level):
    """On the command line and in an experiment alike; the error names both and the kind."""
    rivals = ["bandit.ucb1", "bandit.uniform"]
    with pytest.raises(AndreaError, match=r"bandit\.ucb1 and bandit\.uniform exclude each other: a run has one bandit"):
        names(rivals) if level == "asked" else names(configured={name: {} for name in rivals})


def test_a_plugin_can_be_left_out():
    """--without takes a default away; what is not used cannot be left out."""
    assert "log.console" not in names(without=["log.console"])
    with pytest.raises(AndreaError, match=r"--without stop\.coherence: it is not used") as caught:
        names(without=["stop.coherence"])
    assert "stop.max_steps" in caught.value.hint


def test_all_wrong_names_are_told_together():
    """Wherever they stand, each with what may have been meant."""
    with pytest.raises(AndreaError) as caught:
        names(["bandit.ucb", "stop.coherense"], ["log.consol"], {"weight.warm": {}}, ["source.txt"])
    told = caught.value.message.splitlines()
    wrong = ["bandit.ucb", "stop.coherense", "log.consol", "weight.warm", "source.txt"]
    assert told == [f"there is no plugin {name}" for name in wrong]
    hints = caught.value.hint.splitlines()
    meant = ["bandit.ucb1", "stop.coherence", "log.console", "weight.warmup", "source.text"]
    for line, name, right in zip(hints, wrong, meant, strict=False):
        assert line.startswith(f"{name}: did you mean {right}")
    assert hints[-1] == "andrea plugins lists them all"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("bandits.ucb1", "bandit.ucb1"),
        ("ucb1", "bandit.ucb1"),
        ("bandit.dice", "sampler.dice"),
        ("sampler.Dice", "sampler.dice"),
    ],
)
def test_what_was_meant_is_found_across_kinds(wrong, right):
    """A misspelled kind, none, or another one."""
    with pytest.raises(AndreaError) as caught:
        find(wrong)
    assert f"{wrong}: did you mean {right}?" in caught.value.hint


@pytest.mark.parametrize("wrong", ["bandit.xyzzy", "xyzzy", "oracle.xyzzy", "bandits.xyzzy", ""])
def test_nothing_is_suggested_when_nothing_is_close(wrong):
    """A list of what exists in its place, and no far-fetched name: a common prefix is no likeness."""
    with pytest.raises(AndreaError) as caught:
        find(wrong)
    assert "did you mean" not in caught.value.hint
    assert ("bandit.ucb1" if wrong == "bandit.xyzzy" else "kinds are tokenizer") in caught.value.hint


# -- making ------------------------------------------------------------------------------------------------------------


@plugin
class Tuned:
    """Has options."""

    exploration: float = option(1.0, help="a number")
    names: list[str] = option(factory=list, help="texts")

    @hookimpl
    def score_sources(self, run):
        return None


def test_options_are_set():
    """Whole numbers are numbers too, and lists are lists."""
    made = make(Tuned, "bandit.tuned", {"exploration": 2, "names": ["a"]})
    assert (made.exploration, made.names) == (2.0, ["a"])
    assert isinstance(made.exploration, float)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"exploratoin": 1}, "bandit.tuned has no option 'exploratoin'", "did you mean exploration?"),
        ({"xyzzy": 1}, "bandit.tuned has no option 'xyzzy'", "options of bandit.tuned: exploration, names"),
        ({"exploration": "much"}, 'bandit.tuned.exploration: "much" is not a number', ""),
        ({"exploration": True}, "bandit.tuned.exploration: true is not a number", ""),
        ({"names": "a"}, 'bandit.tuned.names: "a" is not a list', ""),
    ],
)
def test_wrong_options_are_refused(options, message, hint):
    """An unknown one with its neighbour or the list of all, a wrong type with what it should be."""
    with pytest.raises(AndreaError) as caught:
        make(Tuned, "bandit.tuned", options)
    assert caught.value.message == message
    assert hint in caught.value.hint


def test_a_module_has_no_options():
    """It says so."""
    with pytest.raises(AndreaError, match=r"bandit\.uniform has no option 'a'") as caught:
        make(find("bandit.uniform").load(), "bandit.uniform", {"a": 1})
    assert caught.value.hint == "bandit.uniform has no options"
    with pytest.raises(AndreaError, match=r"source\.text\.encoding is set, but for no source") as caught:
        make(find("source.text").load(), "source.text", {"encoding": "latin-1"})
    assert '"reader": "source.text", "options": {"encoding": ...}' in caught.value.hint


def test_an_option_without_default_must_be_given():
    """The error says what to type."""

    @plugin
    class Needy:
        path: str = option(help="a path")

    with pytest.raises(AndreaError, match=r"log\.needy needs the option 'path'") as caught:
        make(Needy, "log.needy", {})
    assert caught.value.hint == "--set log.needy.path=VALUE"


def test_an_entry_point_names_a_module_or_a_class():
    """Anything else is told, and not called."""
    with pytest.raises(AndreaError, match=r"stop\.odd is a function"):
        make(lambda: None, "stop.odd", {})


def test_wrong_options_of_several_plugins_are_told_together():
    """One error with every fault."""
    configured = {"bandit.ucb1": {"explore": 1}, "stop.max_steps": {"step": 1}}
    with pytest.raises(AndreaError) as caught:
        create(choose([], [], configured, [], "precision.fp32"))
    assert "bandit.ucb1 has no option 'explore'" in caught.value.message
    assert "stop.max_steps has no option 'step'" in caught.value.message


NAMING = {
    "limit.floors": ("floors", {"x": 0.1, "prose": 0.1, "y": 0.1}),
    "limit.caps": ("caps", {"x": 0.1, "prose": 0.1, "y": 0.1}),
    "bandit.fixed": ("weights", {"x": 1.0, "prose": 1.0, "y": 1.0}),
    "weight.warmup": ("curriculum_warmup_sources", ["x", "prose", "y"]),
}


@pytest.mark.parametrize("name", NAMING)
def test_an_option_names_sources_of_the_run(name):
    """As soon as these are known: the error names every wrong one and lists the right ones."""
    option, value = NAMING[name]
    chosen = [Chosen(find(name), {option: value})]
    assert create(chosen)
    assert create(chosen, ("prose", "x", "y"))
    with pytest.raises(AndreaError) as caught:
        create(chosen, ("prose", "verse"))
    assert caught.value.message == f"{name}.{option} names x, y, no source of this run"
    assert caught.value.hint == "its sources are: prose, verse"


def test_a_source_that_is_nearly_named_is_meant():
    """The nearest one is shown."""
    with pytest.raises(AndreaError) as caught:
        create([Chosen(find("limit.floors"), {"floors": {"pross": 0.1}})], ("prose", "verse"))
    assert caught.value.hint == "did you mean prose? its sources are: prose, verse"


# -- registering -------------------------------------------------------------------------------------------------------


def plugin_with(name, text, **options):
    """Return an object with one hook implementation of the given name and arguments."""
    space = {"hookimpl": hookimpl}
    exec(f"class A:\n    @hookimpl(**{options!r})\n    def {name}(self, {text}):\n        return None\n", space)
    return space["A"]()


def test_an_unknown_hook_is_refused_with_its_neighbour():
    """A plugin whose hook is misspelled would silently do nothing."""
    with pytest.raises(AndreaError, match=r"plugin stop\.odd: there is no hook 'should_stopp'") as caught:
        register([("stop.odd", plugin_with("should_stopp", "record"))])
    assert caught.value.hint == "did you mean should_stop?"


def test_an_unknown_argument_is_refused():
    """It is named, with the plugin and where arguments are listed."""
    with pytest.raises(AndreaError, match="recrod") as caught:
        register([("stop.odd", plugin_with("should_stop", "recrod"))])
    assert "stop.odd" in caught.value.message
    assert "docs/plugins.md" in caught.value.hint


@pytest.mark.parametrize("wish", ["tryfirst", "trylast"])
def test_nobody_is_asked_first(wish):
    """The order is the user's."""
    with pytest.raises(AndreaError, match=r"stop\.odd: should_stop must not ask for tryfirst"):
        register([("stop.odd", plugin_with("should_stop", "record", **{wish: True}))])


def test_nobody_wraps_the_others():
    """A wrapper would change the answers of others unseen."""

    class Wrapper:
        @hookimpl(wrapper=True)
        def should_stop(self):
            return (yield)

    with pytest.raises(AndreaError, match="must not ask for tryfirst, trylast or a wrapper"):
        register([("stop.odd", Wrapper())])


def test_a_plugin_without_hooks_is_refused():
    """It would do nothing; an entry point that names the wrong module is the usual reason."""
    with pytest.raises(AndreaError, match=r"stop\.odd implements no hook"):
        register([("stop.odd", object())])


# -- describing --------------------------------------------------------------------------------------------------------


def test_a_row_says_what_a_plugin_is():
    """Name, kind, first sentence, package, hooks, and options with type, default and help."""
    row = describe(find("stop.max_steps"))
    assert (row["name"], row["kind"], row["package"], row["hooks"]) == (
        "stop.max_steps",
        "stop",
        "andrea",
        ["should_stop"],
    )
    assert row["summary"].startswith("Stop when `steps` updates are done")
    assert row["options"] == [
        {
            "name": "steps",
            "type": "int | None",
            "default": None,
            "help": "total number of steps at which to stop; none: the schedule's",
        }
    ]


def test_every_installed_plugin_has_a_whole_row():
    """None is broken, none without a summary, and defaults of factories are shown as values."""
    rows = {name: describe(entry) for name, entry in available().items()}
    for name, row in rows.items():
        assert row["summary"].endswith("."), name
        assert not row["summary"].startswith("broken"), name
        assert row["hooks"], name
    assert rows["limit.floors"]["options"][0]["default"] == {}
    assert rows["limit.floors"]["options"][0]["type"] == "dict[str, float]"


def test_a_reader_says_what_a_source_may_say():
    """Its options belong to a source and are not set by name; one that must be given has no default."""
    row = describe(find("source.text"))
    assert row["options"] == []
    shown = {option["name"]: option for option in row["source_options"]}
    assert list(shown) == ["path", "suffixes", "encoding", "chunk"]
    assert "default" not in shown["path"]
    assert shown["suffixes"]["default"] == [".txt", ".txt.gz", ".txt.zst"]
    assert shown["chunk"]["help"] == "characters of a piece, about; 0 keeps works whole"
    for name, entry in available().items():
        assert bool(describe(entry)["source_options"]) == (entry.kind == "source"), name


def test_all_wrong_options_are_told_at_once():
    """An unknown option, a wrong type and another unknown option are all in one error, each with its hint."""
    with pytest.raises(AndreaError) as caught:
        make(find("bandit.ucb1").load(), "bandit.ucb1", {"exploratio": 1, "exploration": "much", "x": 2})

    for said in ("no option 'exploratio'", "bandit.ucb1.exploration", "no option 'x'"):
        assert said in caught.value.message
    assert "did you mean exploration?" in caught.value.hint


def test_a_plugin_of_several_files_is_hashed_whole(tmp_path, monkeypatch):
    """A change of a module that the plugin imports, however deep, changes its digest; a neighbour's does not."""
    package = tmp_path / "made_up_plugin"
    package.mkdir()
    texts = {
        "__init__": "from made_up_plugin.inner import Inner\n\nclass Outer(Inner):\n    pass\n",
        "inner": "import json\n\nfrom . import deep\n\nclass Inner:\n    depth = deep.DEPTH\n",
        "deep": "DEPTH = 1\n",
        "unused": "DEPTH = 2\n",
    }
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    import made_up_plugin

    before = source_digest(made_up_plugin.Outer())
    assert source_digest(made_up_plugin.Outer) == before != ""
    for name, changes in (("unused", False), ("deep", True), ("inner", True), ("__init__", True)):
        (package / f"{name}.py").write_text(texts[name] + "# another\n")
        assert (source_digest(made_up_plugin.Outer()) != before) is changes
        (package / f"{name}.py").write_text(texts[name])


def test_an_import_counts_wherever_it_stands(tmp_path, monkeypatch):
    """In a function, a branch, a handler or a case: what is imported late decides answers too."""
    package = tmp_path / "made_up_late"
    package.mkdir()
    text = """
def asked(value):
    try:
        if value:
            from made_up_late import one
        else:
            from made_up_late import two
    except ImportError:
        from made_up_late import three
    match value:
        case 1:
            from . import four
"""
    for name in ("one", "two", "three", "four", "unused"):
        (package / f"{name}.py").write_text("")
    (package / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    import made_up_late  # noqa: F401

    names = [name.partition(".")[2] for name in own_sources("made_up_late")]
    assert names == ["", "four", "one", "three", "two"]


def test_the_files_of_a_built_in_are_its_own():
    """Harris is many files; a module of the standard library or of another plugin is none of them."""
    names = [name.rpartition(".")[2] for name in own_sources("andrea.plugins.tokenizer.harris")]
    assert {"harris", "harris_file", "harris_lattice", "harris_training"} <= set(names)
    assert all(name.startswith("harris") or name == "byte_level" for name in names)
    assert list(own_sources("andrea.plugins.bandit.ucb1")) == ["andrea.plugins.bandit.ucb1"]


def test_the_files_of_a_built_in_are_those_that_its_answers_hang_on():
    """The score of coherence lies where others can show it too; a resume must notice that it has changed."""
    names = list(own_sources("andrea.plugins.stop.coherence"))
    assert names == ["andrea.coherence", "andrea.plugins.stop.coherence", "andrea.words"]
