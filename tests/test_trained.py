"""A trained model opened from its folder is the model that was trained."""

from __future__ import annotations

from pathlib import Path

import attrs
import numpy as np
import pytest

from andrea.assembly import open_run
from andrea.checkpoint import read_checkpoint, write_checkpoint
from andrea.engine import GenerateOptions
from andrea.errors import AndreaError
from andrea.interrupts import Interrupts
from andrea.planning import Request, plan
from andrea.trained import evaluate_run, open_model


def quiet(*words):
    """Say nothing."""


@pytest.fixture
def loop(experiment):
    """Return the loop of a run of ten steps in the folder `run`."""
    request = Request(experiment=experiment, device="cpu", out=Path("run"), steps=10)
    loop = open_run(plan(request, quiet), quiet, quiet, Interrupts())
    loop.run()
    return loop


def test_the_model_is_the_one_that_was_trained(loop):
    """Weights, tokenizer, step and configuration are those of the run, and so is what it writes."""
    model = open_model(Path("run"), None, "cpu", quiet)

    assert model.step == 10
    assert model.config == loop.config
    assert model.tokenizer.fingerprint == loop.tokenizer.fingerprint
    assert np.array_equal(model.engine.export_state()["weights"], loop.engine.export_state()["weights"])
    how = loop.config.sampling
    options = GenerateOptions(how.max_tokens, how.temperature, top_p=how.top_p, stop=(256,))
    assert tuple(model.generate(["", ""], options)) == loop.sample(0.0).texts


def test_the_evaluation_is_over_the_whole_held_out_text(loop):
    """All rows by default: every held-out byte counts; fewer rows are another number."""
    whole, files = evaluate_run(Path("run"), None, 0, "cpu", quiet)
    part, _ = evaluate_run(Path("run"), None, 1, "cpu", quiet)

    assert list(files) == ["one", "two"]
    assert whole.step == 10
    assert whole.loss != part.loss
    for name, (_, held_out) in files.items():
        counted = held_out.tokens.size - 1
        # the sum is the mean loss times its targets, rounded once each way
        assert whole.bits_per_byte[name] == pytest.approx(
            whole.loss[name] * counted / np.log(2) / held_out.bytes, rel=1e-12
        )


def test_a_plugin_that_is_gone_is_named(loop, monkeypatch):
    """A run whose tokenizer plugin is not installed any more cannot be used, and says which it was."""
    from andrea import trained

    monkeypatch.setattr(trained, "available", dict)
    with pytest.raises(AndreaError, match=r"the run needs the plugin tokenizer\.byte"):
        open_model(Path("run"), None, "cpu", quiet)


def test_a_damaged_newest_checkpoint_is_passed_over(loop, andrea):
    """The model of the checkpoint before is used, and the damaged one is named."""
    assert andrea("run", "--resume", "--out", "run", "--steps", 20, "--device", "cpu").code == 0
    with Path("run/checkpoints/step_000020.bin").open("r+b") as file:
        file.truncate(50)
    said = []

    assert open_model(Path("run"), None, "cpu", said.append).step == 10
    assert any("passing over step_000020" in line for line in said)
    with pytest.raises(AndreaError, match=r"step_000020\.bin is damaged"):
        open_model(Path("run"), Path("step_000020"), "cpu", quiet)


def test_a_checkpoint_of_another_precision_writes_and_is_measured(loop):
    """What float16 keeps beside the weights is for training only: on the CPU the weights do as before."""
    before, _ = evaluate_run(Path("run"), None, 0, "cpu", quiet)
    saved = read_checkpoint(Path("run/checkpoints/step_000010"))
    scale = {"loss_scale": np.ones(1, np.float32), "loss_scale_growth": np.zeros(1, np.int64)}
    config = {**saved.record["config"], "plugins": dict(saved.record["config"]["plugins"])}
    del config["plugins"]["precision.fp32"]
    config["plugins"]["precision.fp16"] = {}
    write_checkpoint(
        Path("run/checkpoints"),
        attrs.evolve(saved, engine={**saved.engine, **scale}, record={**saved.record, "config": config}),
    )

    model = open_model(Path("run"), None, "cpu", quiet)
    assert len(model.generate([""], GenerateOptions(3))) == 1
    assert evaluate_run(Path("run"), None, 0, "cpu", quiet)[0] == before
