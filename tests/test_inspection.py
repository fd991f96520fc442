"""What inspect and doctor say is what is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from andrea.engine.model import parameter_count
from andrea.errors import AndreaError
from andrea.inspection import examine, inspect_path
from andrea.plugins.tokenizer.byte import ByteTokenizer
from andrea.tokenfile import TokenWriter


@pytest.fixture
def trained(andrea, experiment):
    """Return the folder of a run of 20 steps."""
    assert andrea("run", experiment, "--out", "run", "--steps", 20, "--device", "cpu").code == 0
    return Path("run")


def test_a_run(trained):
    """Name, model, sources, plugins, checkpoints, the newest step, its parameters and why it ended."""
    from andrea.engine.model import ModelConfig

    value = inspect_path(trained)

    assert (value["name"], value["sources"]) == ("tiny", ["one", "two"])
    assert (value["checkpoints"], value["step"], value["damaged"]) == ([10, 20], 20, [])
    assert value["parameters"] == parameter_count(ModelConfig(1, 2, 8, 16), 257)
    assert value["reasons"] == {"stop.max_steps": "20 steps are done"}
    assert "bandit.ucb1" in value["plugins"]
    assert json.loads(json.dumps(value)) == value


def test_a_run_with_a_damaged_checkpoint(trained):
    """The damaged one is named, and what is said is of the one before."""
    (trained / "checkpoints" / "step_000020.npz").unlink()
    value = inspect_path(trained)

    assert value["step"] == 10
    assert value["damaged"][0].startswith("passing over step_000020")


def test_a_run_that_has_no_checkpoint_yet(trained):
    """A run before its first checkpoint is at step 0 and has no parameters to count."""
    for path in (trained / "checkpoints").iterdir():
        path.unlink()
    value = inspect_path(trained)

    assert (value["step"], value["parameters"], value["checkpoints"]) == (0, None, [])


def test_a_checkpoint(trained):
    """Step, arrays of the engine with their shapes, state fields of every plugin that has state, fingerprint."""
    value = inspect_path(trained / "checkpoints" / "step_000010.json")

    assert value["step"] == 10
    assert value["engine"]["applied_updates"] == [1]
    assert value["engine"]["first_moments"] == [value["parameters"]]
    assert value["plugins"]["sampler.dice"] == ["focus", "joined", "length", "start"]
    assert "weight.epoch_penalty" not in value["plugins"]
    assert value["fingerprint"]["tokenizer"] == ByteTokenizer.fingerprint


def test_a_token_file(tmp_path):
    """Documents, ids, bytes, vocabulary and digests."""
    with TokenWriter(tmp_path / "x.btok", ByteTokenizer()) as writer:
        writer.add(b"seed")
        writer.add(b"rain")
    value = inspect_path(tmp_path / "x.btok")

    assert [value[key] for key in ("documents", "ids", "bytes", "vocabulary")] == [2, 10, 8, 257]
    assert value["tokenizer"] == ByteTokenizer.fingerprint


def test_a_tokenizer(tmp_path):
    """The plugin that can load it, its ids and fingerprint."""
    ByteTokenizer().save(tmp_path)
    value = inspect_path(tmp_path)

    assert (value["plugin"], value["ids"], value["bos"]) == ("tokenizer.byte", 257, 256)
    assert value["fingerprint"] == ByteTokenizer.fingerprint


def test_damaged_files_are_errors_of_the_users(tmp_path):
    """A configuration that is none, a cut token file, a checkpoint that is not there."""
    (tmp_path / "config.json").write_text('{"name": 3}')
    (tmp_path / "x.btok").write_bytes(b"\x93BTOK")
    for path in (tmp_path, tmp_path / "x.btok", tmp_path / "step_000001.json", tmp_path / "nothing"):
        with pytest.raises(AndreaError):
            inspect_path(path)


def test_the_machine(experiment, current_folder):
    """The doctor names versions and the cache, and finds no problem where there is none."""
    value = examine(experiment)

    assert value["problems"] == []
    assert value["experiment"] == experiment
    assert "GiB free" in value["cache"]
    assert json.loads(json.dumps(value)) == value


def test_every_problem_of_an_experiment(current_folder):
    """An experiment that is not there is a problem, not an error of the doctor's."""
    value = examine("quickstrat")

    assert len(value["problems"]) == 1
    assert "did you mean quickstart?" in value["problems"][0]


def test_a_cache_that_cannot_be_written(experiment, current_folder, monkeypatch):
    """It is tried, since a preparation of hours would end there; and nothing is left of the trial."""
    (current_folder / "file").write_text("in the way")
    (current_folder / "there").mkdir()
    for cache, problems in (("file/cache", 1), ("there", 0), ("there/not/yet", 0)):
        monkeypatch.setenv("ANDREA_CACHE", str(current_folder / cache))
        found = examine(experiment)["problems"]
        assert len(found) == problems
        assert all("ANDREA_CACHE=FOLDER" in problem and "Not a directory" in problem for problem in found)
    assert list((current_folder / "there").iterdir()) == []


def test_a_tokenizer_that_cannot_be_loaded(experiment, current_folder):
    """One that is given, and so is not trained, is a problem before a run is begun."""
    value = json.loads(Path(experiment).read_text(encoding="utf-8"))
    for data, plugins, said in (
        ({"tokenizer": "nowhere"}, {"tokenizer.byte": {}}, "data.tokenizer: nowhere does not exist"),
        ({"tokenizer": experiment}, {"tokenizer.byte": {}}, f"data.tokenizer: {experiment} is a file"),
        ({}, {"tokenizer.library": {"path": "nowhere"}}, "nowhere/tokenizer.json does not exist"),
        ({}, {"tokenizer.bpe": {"segments": -1}}, "cannot learn -1 segments"),
    ):
        Path(experiment).write_text(json.dumps({**value, "data": data, "plugins": plugins}), encoding="utf-8")
        (problem,) = examine(experiment)["problems"]
        assert said in problem


def test_a_path_that_does_not_exist(current_folder):
    """What is near it is named, and what could be given."""
    (current_folder / "tokenizer").mkdir()
    with pytest.raises(AndreaError, match="tokeniser does not exist") as caught:
        inspect_path(Path("tokeniser"))
    assert "did you mean tokenizer" in caught.value.hint
    assert "give a run's folder" in caught.value.hint


def test_every_source_that_cannot_be_read(experiment, current_folder):
    """Sources are opened: each that has nothing to read is a problem with its name."""
    value = json.loads(Path(experiment).read_text(encoding="utf-8"))
    for number, source in enumerate(value["sources"]):
        source.pop("inputs", None)
        source["reader"], source["options"] = "source.text", {"path": f"nowhere/{number}.txt"}
    Path(experiment).write_text(json.dumps(value), encoding="utf-8")

    problems = examine(experiment)["problems"]

    assert len(problems) == 2
    for name, number, problem in zip(("one", "two"), (0, 1), problems, strict=True):
        assert problem.startswith(f"source {name}: ")
        assert f"nowhere/{number}.txt does not exist" in problem
