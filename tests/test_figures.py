"""A run as named numbers: each worked by hand."""

from __future__ import annotations

import json
import math

import attrs
import numpy as np
import pytest

from andrea import Evaluation, Limits, Pull, Run, StepRecord
from andrea.figures import configuration, evaluation_figures, step_figures


@pytest.fixture
def run(tmp_path):
    """Return a run over two sources after six pulls."""
    counts = {"documents": np.array([10, 4]), "tokens": np.array([100, 40]), "drawn": np.array([5, 6])}
    counts |= {"distinct": np.array([5, 4]), "pulls": np.array([2, 4])}
    return Run("test", 7, ("a", "b"), **counts, rows=4, context=8, steps=100, warmup_steps=5, folder=tmp_path)


def pull(source, loss, **rewards):
    return Pull(source, (0,), loss, np.ones(2), np.ones(2), Limits(np.zeros(2), np.ones(2)), {}, rewards)


def test_figures_of_a_step(run):
    """Pulls of one source are averaged; a source that was not pulled has no loss, but a share and epochs."""
    record = StepRecord(9, (pull(1, 3.0, x=0.5, y=0.25), pull(1, 2.0, x=0.25)), 2.5, 1.5, 3e-4, False, 32)
    assert step_figures(record, run) == {
        "train/loss": 2.5,
        "train/gradient_norm": 1.5,
        "train/learning_rate": 3e-4,
        "train/tokens": 320.0,
        "train/skipped": 0.0,
        "source/b/loss": 2.5,
        "source/b/reward": 0.5,
        "share/a": 2 / 6,
        "share/b": 4 / 6,
        "epochs/a": 0.5,
        "epochs/b": 1.5,
    }


def test_a_skipped_step_has_no_reward(run):
    """And is marked; a run before its first pull has shares of 0."""
    record = StepRecord(0, (pull(0, math.nan),), math.nan, math.inf, 1e-3, True, 32)
    figures = step_figures(record, attrs.evolve(run, pulls=np.zeros(2, dtype=np.int64)))
    assert "source/a/reward" not in figures
    assert (figures["train/skipped"], figures["share/a"]) == (1.0, 0.0)
    assert math.isnan(figures["train/loss"])


def test_figures_of_an_evaluation():
    """The mean of bits per byte, and both figures of every source."""
    assert evaluation_figures(Evaluation(5, {"a": 1.0, "b": 2.0}, {"a": 0.5, "b": 1.0})) == {
        "held_out/mean": 0.75,
        "held_out/a/bits_per_byte": 0.5,
        "held_out/a/loss": 1.0,
        "held_out/b/bits_per_byte": 1.0,
        "held_out/b/loss": 2.0,
    }


def test_the_configuration_is_the_one_that_is_written(run, tmp_path):
    """Else what the run tells."""
    assert configuration(run)["sources"] == ("a", "b")
    assert configuration(attrs.evolve(run, folder=None))["seed"] == 7
    (tmp_path / "config.json").write_text(json.dumps({"name": "x"}))
    assert configuration(run) == {"name": "x"}
