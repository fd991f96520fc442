"""The engine that pretends keeps the protocol of one that does not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from andrea.engine import EngineConfig, GenerateOptions
from andrea.engine.model import ModelConfig
from andrea.rng import Draws
from andrea.testing import FakeEngine

CONFIG = EngineConfig(ModelConfig(1, 1, 4, context=8), vocabulary=257, batch_size=4)


def rows(step, count=4):
    ids = (Draws(1, "test", step).words(count * 9) % np.uint64(257)).astype(np.int32).reshape(count, 9)
    return ids[:, :-1], ids[:, 1:]


def trained(steps, engine=None, first=0):
    engine = engine or FakeEngine(CONFIG)
    return engine, [engine.train_step(step, *rows(step)) for step in range(first, steps)]


def test_losses_fall_with_tokens_and_depend_on_them():
    """It starts at ln V, and goes down; two batches of one engine cost differently."""
    engine, results = trained(50)
    assert results[0].row_losses.tolist() == [np.float32(math.log(257))] * 4
    assert results[-1].row_losses.mean() < results[10].row_losses.mean() < results[0].row_losses.mean()
    assert len(set(engine.evaluate(*rows(99, 8)).tolist())) > 1


def test_state_is_everything():
    """Cut at any step, exported and imported into a new engine, it goes on with the same numbers."""
    _, whole = trained(12)
    for cut in range(12):
        engine, _ = trained(cut)
        other = FakeEngine(CONFIG)
        other.import_state(engine.export_state())
        _, rest = trained(12, other, cut)
        assert [r.row_losses.tolist() for r in rest] == [r.row_losses.tolist() for r in whole[cut:]]
        assert [r.grad_norm for r in rest] == [r.grad_norm for r in whole[cut:]]


def test_questions_change_nothing():
    """Evaluating, generating and exporting leave the next step as it was."""
    (plain, _), (asked, _) = trained(3), trained(3)
    asked.evaluate(*rows(7))
    asked.generate([[1], [2]], GenerateOptions(max_tokens=5))
    asked.export_state()["weights"][:] = 0
    assert trained(4, plain, 3)[1][0].row_losses.tolist() == trained(4, asked, 3)[1][0].row_losses.tolist()


def test_generated_ids_depend_on_seed_row_and_progress():
    """The same question gives the same ids; another seed, row or number of updates gives others."""
    engine, _ = trained(2)
    first = engine.generate([[1], [1]], GenerateOptions(max_tokens=20, seed=1))
    assert [ids.tolist() for ids in engine.generate([[1], [1]], GenerateOptions(max_tokens=20, seed=1))] == [
        ids.tolist() for ids in first
    ]
    assert first[0].tolist() != first[1].tolist()
    assert first[0].tolist() != engine.generate([[1]], GenerateOptions(max_tokens=20, seed=2))[0].tolist()
    trained(3, engine, 2)
    assert first[0].tolist() != engine.generate([[1]], GenerateOptions(max_tokens=20, seed=1))[0].tolist()


def test_a_skipped_update_moves_nothing():
    """It is told by a norm that is not finite, and by NaN losses where the step is odd."""
    engine = FakeEngine(CONFIG, skipped=(1, 2))
    _, (_, odd, even) = trained(3, engine)
    assert odd.skipped
    assert even.skipped
    assert math.isinf(odd.grad_norm)
    assert np.isnan(odd.row_losses).all()
    assert np.isfinite(even.row_losses).all()
    assert engine.export_state()["applied_updates"].tolist() == [1]
    assert engine.export_state()["weights"].tolist() == trained(1)[0].export_state()["weights"].tolist()


def test_targets_of_minus_one_do_not_count():
    """A row costs the mean over its valid targets."""
    engine, _ = trained(3)
    inputs, targets = rows(5, 1)
    masked = targets.copy()
    masked[0, 4:] = -1
    assert engine.evaluate(inputs, masked).tolist() == engine.evaluate(inputs[:, :4], targets[:, :4]).tolist()


def test_probes_are_measured_around_the_update():
    """Before is the loss that evaluate gives before, after the one that it gives after."""
    engine, _ = trained(3)

    def measure():
        return float(engine.evaluate(*rows(8)).mean(dtype=np.float64))  # rows of equal length

    before = measure()
    result = engine.train_step(3, *rows(3), {"a": rows(8)})
    assert result.probe_losses == {"a": pytest.approx((before, measure()), rel=1e-14)}  # two ways to round a sum


def test_a_foreign_state_is_refused():
    """As of any engine, it is a ValueError."""
    engine = FakeEngine(CONFIG)
    with pytest.raises(ValueError, match="not a state"):
        engine.import_state({"weights": np.zeros(16, dtype=np.float32)})
