import json

import numpy as np
import pytest
from andrea_log_tensorboard import TensorBoard
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as PluginEventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from andrea import AndreaError, hookimpl
from andrea.plugin import get_state
from andrea.testing import check_plugin, run_steps


def scalars(folder):
    """Return (step, value) of every number by tag, as the reader sees them that programs use."""
    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={SCALARS: 0})
    found.Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def shown(folder):
    """Return (step, array) of everything by tag, as the page of TensorBoard sees it."""
    found = PluginEventAccumulator(str(folder / "tensorboard"), size_guidance={"tensors": 0})
    found.Reload()
    return {
        tag: [(event.step, make_ndarray(event.tensor_proto)) for event in found.Tensors(tag)]
        for tag in found.Tags()["tensors"]
    }


@pytest.mark.parametrize("options", [{}, {"every": 1, "flush": 0.01}])
def test_it_keeps_its_contracts(options):
    """All of the kit; its cut runs have a folder, so files are written."""
    check_plugin("log.tensorboard", **options)


def test_points_are_those_of_the_journal_and_a_resume_doubles_none(log_runs, journal_of):
    """Read back: float32 of every figure at its step; a run that made seven steps twice reads like one that did not."""
    whole, cut = log_runs("--plugin", "log.tensorboard", "--set", "log.tensorboard.every=1")
    assert scalars(cut) == scalars(whole)
    assert len(list((cut / "tensorboard").iterdir())) == 2
    points, lines = scalars(whole), list(journal_of(whole))
    for folder in (whole, cut):
        page = {tag: found for tag, found in shown(folder).items() if tag not in ("samples", "configuration")}
        assert {tag: [(step, value.item()) for step, value in found] for tag, found in page.items()} == points
    steps = [line for line in lines if line["kind"] == "step"]
    assert len(steps) == 30
    for tag, key in (("loss", "loss"), ("gradient_norm", "grad_norm"), ("learning_rate", "learning_rate")):
        assert points[f"train/{tag}"] == [(line["step"] + 1, np.float32(line[key]).item()) for line in steps]
    assert points["train/tokens"][-1] == (30, 30 * 4 * 16)
    rewards = [
        (line["step"] + 1, np.float32(sum(line["pulls"][0]["rewards"].values())).item())
        for line in steps
        if line["pulls"][0]["source"] == "two"
    ]
    assert points["source/two/reward"] == rewards
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    assert points["held_out/one/bits_per_byte"] == [
        (line["step"], np.float32(line["bits_per_byte"]["one"]).item()) for line in evaluations
    ]
    assert [step for step, _ in points["held_out/mean"]] == [5, 10, 15, 20, 25, 30]
    assert {step: round(points["share/one"][step][1] + points["share/two"][step][1], 6) for step in (0, 29)} == {
        0: 1.0,
        29: 1.0,
    }


def test_samples_and_configuration_are_shown_as_they_are(log_runs, journal_of):
    """Indented, so that Markdown leaves them alone."""
    whole, cut = log_runs("--plugin", "log.tensorboard")
    for folder in (whole, cut):
        found, lines = shown(folder), journal_of(folder)
        samples = {line["step"]: line["texts"] for line in lines if line["kind"] == "sample"}
        assert [step for step, _ in found["samples"]] == list(samples) == [6, 12, 18, 24, 30]
        for step, texts in found["samples"]:
            plain = ["\n".join(line[4:] for line in text.decode().split("\n")) for text in texts]
            assert plain == samples[step]
        text = found["configuration"][0][1].item().decode()
        config = json.loads("\n".join(line[4:] for line in text.split("\n")))
        assert config == json.loads((folder / "config.json").read_text())
    assert [step for step, _ in scalars(whole)["train/loss"]] == [1, 10, 20, 30]


def test_an_interruption_closes_the_file(interrupt, tmp_path, journal_of):
    """By SIGTERM, with the points of all steps that were made."""
    arguments = ["--plugin", "log.tensorboard", "--set", "log.tensorboard.every=1", "--steps", "9999", "--out", "run"]
    assert interrupt(arguments, tmp_path / "run" / "journal.jsonl") == 143
    made = sum(line["kind"] == "step" for line in journal_of(tmp_path / "run"))
    assert [step for step, _ in scalars(tmp_path / "run")["train/loss"]] == list(range(1, made + 1))


def test_a_failure_closes_the_file(tmp_path):
    """What was written until then can be read, and the plugin holds no file any more."""

    class Broken:
        """Fail at step 7."""

        @hookimpl
        def weigh_sources(self, step, run):
            """Return ones, or raise."""
            if step == 7:
                raise ZeroDivisionError
            return np.ones(len(run.sources))

    log = TensorBoard(every=1)
    with pytest.raises(ZeroDivisionError):
        run_steps([("log.tensorboard", log), ("weight.broken", Broken())], 20, folder=tmp_path)
    assert [step for step, _ in scalars(tmp_path)["train/loss"]] == list(range(1, 8))
    assert log._writer is None
    assert get_state(log) == {}


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    """A run that writes nothing has no events either."""
    monkeypatch.chdir(tmp_path)
    run_steps({"log.tensorboard": {}}, 5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [{"every": 0}, {"flush": 0.0}])
def test_senseless_options_are_refused(options):
    """The error says what to type instead."""
    with pytest.raises(AndreaError, match=r"log\.tensorboard") as caught:
        TensorBoard(**options).on_start()
    assert "--set" in caught.value.hint
