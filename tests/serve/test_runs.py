"""The runs below a folder: which they are, how they are called, and how many histories are kept."""

from __future__ import annotations

import json
import math
import os

import pytest

from andrea.errors import AndreaError
from andrea.loop import Hooks
from andrea.registry import Chosen, available, create, register
from andrea.serve import runs as module
from andrea.serve.runs import Runs
from andrea.types import TokenizerRequest


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Search for new runs at every look."""
    monkeypatch.setattr(module, "LOOK_EVERY", 0.0)


def names(runs):
    return [brief.model for brief in runs.refresh()]


def test_runs_are_called_by_their_folders(tmp_path, write_run, lines):
    """By the path below the folder that is served; what lies within a run, hidden or too deep is none."""
    write_run(tmp_path / "b", lines.run(5))
    write_run(tmp_path / "a")
    write_run(tmp_path / "trial" / "runs" / "one-0", lines.run(5))
    write_run(tmp_path / "a" / "archive" / "step_000010")
    write_run(tmp_path / ".hidden")
    write_run(tmp_path / "1" / "2" / "3" / "4" / "5")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    (tmp_path / "nothing").mkdir()
    assert names(Runs(tmp_path)) == ["a", "b", "trial/runs/one-0"]


def test_one_run_bears_the_name_of_its_model(tmp_path, write_run, lines):
    """As its files do."""
    folder = write_run(tmp_path / "quick-001", lines.run(5), name="quick")
    assert names(Runs(folder)) == ["quick"]
    (folder / "config.json").write_text("{")
    assert names(Runs(folder)) == ["quick-001"]


def test_runs_come_and_go(tmp_path, write_run, lines):
    """A folder may be empty at first; what was known of a run is kept."""
    runs = Runs(tmp_path / "runs")
    assert names(runs) == []
    write_run(tmp_path / "runs" / "a", lines.run(5))
    (first,) = runs.refresh()
    write_run(tmp_path / "runs" / "b")
    assert runs.refresh()[0] is first
    (tmp_path / "runs" / "a").rename(tmp_path / "gone")
    assert names(runs) == ["b"]


def test_a_link_to_a_run_is_a_run_and_one_in_a_circle_no_trap(tmp_path, write_run, lines):
    """Runs may lie on another disk."""
    write_run(tmp_path / "elsewhere" / "far", lines.run(5))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "far").symlink_to(tmp_path / "elsewhere" / "far")
    (tmp_path / "runs" / "circle").symlink_to(tmp_path / "runs")
    assert names(Runs(tmp_path / "runs")) == ["far"]


def test_a_folder_whose_name_is_no_text_is_served_all_the_same(tmp_path, write_run, lines):
    """Its bytes that are none are replaced, so that the answer is JSON."""
    folder = write_run(tmp_path / os.fsdecode(b"r\xffn"), lines.run(5))
    runs = Runs(tmp_path)
    assert names(runs) == ["r\ufffdn"]
    assert runs.find("r\ufffdn").folder == folder


def test_a_run_is_found_by_its_name_or_by_that_of_its_model(tmp_path, write_run):
    """Where only one has it; else the error says which there are."""
    write_run(tmp_path / "a-001", name="a")
    write_run(tmp_path / "b-001", name="b")
    write_run(tmp_path / "b-002", name="b")
    runs = Runs(tmp_path)
    assert runs.find("a-001") is runs.find("a")
    with pytest.raises(AndreaError, match=r"2 runs are called 'b'\nsay which: b-001, b-002"):
        runs.find("b")
    with pytest.raises(AndreaError, match=r"no run 'a-01'\ndid you mean a-001"):
        runs.find("a-01")


@pytest.mark.parametrize("name", ["", ".", "..", "../secret", "a/../../secret", "/etc", "a\0", "\ud800", "a" * 100_000])
def test_a_name_leads_nowhere_else(tmp_path, write_run, name):
    """It is only compared."""
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "secret", name="hidden")
    with pytest.raises(AndreaError, match="there is no run"):
        Runs(tmp_path / "runs").find(name)


def test_histories_are_kept_while_they_fit(tmp_path, write_run, lines):
    """The one asked for longest ago goes first, the one asked for now never."""
    for name in "abc":
        write_run(tmp_path / name, lines.run(50))
    runs = Runs(tmp_path, budget=0)
    briefs = {brief.model: brief for brief in runs.refresh()}
    first = runs.history(briefs["a"])
    first.update()
    assert runs.history(briefs["a"]) is first
    runs.history(briefs["b"])
    assert runs.history(briefs["a"]) is not first
    roomy = Runs(tmp_path, budget=2 * first.size)
    kept = {}
    for name in "abc":
        kept[name] = roomy.history(briefs[name])
        kept[name].update()
    assert roomy.history(briefs["b"]) is kept["b"]
    assert roomy.history(briefs["a"]) is not kept["a"]


def test_chance_is_that_of_the_tokenizer(tmp_path, write_run):
    """257 ids of single bytes; a tokenizer that cannot be opened leaves it unknown."""
    folder = write_run(tmp_path / "a")
    (folder / "tokenizer").mkdir()
    Hooks(register(create([Chosen(available()["tokenizer.byte"], {})]))).make_tokenizer(
        TokenizerRequest(lambda limit: iter(()))
    ).save(folder / "tokenizer")
    runs = Runs(tmp_path)
    assert runs.chance(runs.find("a")) == pytest.approx(5.549076, abs=1e-6)  # ln 257 to six places
    for number, plugins in enumerate(
        ({"tokenizer.harris": {}}, {"tokenizer.unknown": {}}, {}, None, {"tokenizer.byte": 3})
    ):
        folder = write_run(tmp_path / f"b{number}")
        config = json.loads((folder / "config.json").read_text()) | {"plugins": plugins}
        (folder / "config.json").write_text(json.dumps(config))
        chance = runs.chance(runs.find(f"b{number}"))
        assert chance != chance


def test_chance_is_known_as_soon_as_the_tokenizer_is(tmp_path, write_run, monkeypatch):
    """A run that was looked at too early is asked again; what is known is kept until the configuration changes."""
    folder = write_run(tmp_path / "a")
    runs = Runs(tmp_path)
    assert math.isnan(runs.chance(runs.find("a")))
    (folder / "tokenizer").mkdir()
    Hooks(register(create([Chosen(available()["tokenizer.byte"], {})]))).make_tokenizer(
        TokenizerRequest(lambda limit: iter(()))
    ).save(folder / "tokenizer")
    assert runs.chance(runs.find("a")) == math.log(257)
    asked = []
    monkeypatch.setattr("andrea.serve.runs.chance", lambda *what: asked.append(what) or 3.0)
    assert runs.chance(runs.find("a")) == math.log(257)
    assert asked == []
    config = folder / "config.json"
    config.write_text(config.read_text() + "\n")
    os.utime(config, ns=(1, 1))
    assert runs.chance(runs.find("a")) == 3.0
