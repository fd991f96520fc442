"""docs/ANDREA.md and docs/export.md say what is: counts, commands, options, links."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from andrea.cli import app
from andrea.config import from_json
from andrea.engine.model import ModelConfig, parameter_count
from andrea.experiment_file import read_experiment

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {name: (DOCS / name).read_text(encoding="utf-8") for name in ("ANDREA.md", "export.md")}
SIZES = ("12M", "120M", "480M")


def row(name):
    """Return the cells of a row of the models' table."""
    found = re.search(rf"^\| {re.escape(name)} \|(.*)\|$", PAGES["ANDREA.md"], re.M)
    return [cell.strip() for cell in found[1].split("|")]


def test_the_table_of_models_is_that_of_the_experiments():
    """Every figure: shapes, counts, steps, tokens, rates."""
    for number, size in enumerate(SIZES):
        config = from_json(*read_experiment(f"ANDREA-{size}-TRAIN"))
        model, segments = config.model, config.plugins["tokenizer.harris"]["segments"]
        ids = 257 + segments
        untied = ModelConfig(model.n_layer, model.n_head, model.d_model, tie_embeddings=False)
        want = {
            "width (`d_model`)": f"{model.d_model:,}",
            "layers": f"{model.n_layer}",
            "heads, width of one": f"{model.n_head}, {model.head_dim}",
            "context": f"{model.context:,}",
            "Harris segments": f"{segments:,}",
            "vocabulary": f"{ids:,}",
            "parameters": f"{parameter_count(model, ids):,}",
            "the same, head not tied": f"{parameter_count(untied, ids):,}",
            "rows of a step": f"{config.batch.rows}",
            "steps": f"{config.schedule.steps:,}",
            "tokens read in training": f"{config.schedule.steps * config.batch.rows * model.context:,}",
            "learning rate, peak": f"{config.schedule.peak:.0e}".replace("e-0", "e-"),
        }
        assert {name: row(name)[number] for name in want} == want
        assert len(config.sources) == 10


def test_published_counts():
    """The counts that the page names are those of the shapes that it names."""
    own = {"tie_embeddings": False, "norm_affine": False}
    assert parameter_count(ModelConfig(6, 12, 384, **own), 2305) == 12_780_288
    assert parameter_count(ModelConfig(12, 12, 768, **own), 8449) == 98_698_752
    assert "12,780,288 and 98,698,752 parameters" in PAGES["ANDREA.md"]


def commands():
    """Return every command of a page's blocks, without its remark."""
    blocks = [
        (page, content.replace("\\\n", " "))
        for page, text in PAGES.items()
        for language, content in re.findall(r"^```(\w*)\n(.*?)^```", text, re.S | re.M)
        if not language
    ]
    lines = [(page, line[line.find("andrea ") :]) for page, block in blocks for line in block.splitlines()]
    return [
        (page, re.sub(r"(?<=\S)   +[^-\s].*$", "", line).strip()) for page, line in lines if line.startswith("andrea ")
    ]


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_are_there_with_their_options(page, line):
    """What stands in a block can be typed: the command exists, and every option of it."""
    words = shlex.split(line.split(" < ")[0])[1:]
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        assert words[0] in command.commands, line
        command = command.commands[words.pop(0)]
    options = {name for parameter in command.params for name in parameter.opts}
    for word in words:
        if word.startswith("--"):
            assert word in options, f"{line}: {word}"


def test_there_are_commands():
    """The walk over the pages finds them."""
    names = {line.split()[1] for _, line in commands()}
    assert {"sample", "chat", "evaluate", "export", "import", "run", "prepare", "audit", "doctor"} <= names


def test_options_of_the_table_are_there():
    """Those of `andrea sample`, with their defaults."""
    table = re.findall(r"^\| (`--.*?) \| (.*?) \|", PAGES["export.md"], re.M)
    parameters = {name: p for p in typer.main.get_command(app).commands["sample"].params for name in p.opts}
    named = 0
    for names, defaults in table:
        options = re.findall(r"--[a-z-]+", names)
        values = [value.strip() for value in defaults.split(",")]
        for option in options:
            assert option in parameters
            named += 1
        for option, value in zip(options, values, strict=False):
            if re.fullmatch(r"[0-9.]+", value):
                assert float(value) == parameters[option].default, option
    assert named >= 11


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    """Files exist, and so do their headings."""
    for target in re.findall(r"\]\(([^)]+)\)", PAGES[page]):
        path, _, anchor = target.partition("#")
        file = (DOCS / path).resolve() if path else DOCS / page
        assert file.is_file(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.M)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, target
