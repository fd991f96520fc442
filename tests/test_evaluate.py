"""Held-out losses: means over counted targets, exact bits per byte, a fixed set, and no change to the engine."""

from __future__ import annotations

import math

import numpy as np
import pytest

from andrea.engine import EngineConfig
from andrea.engine.model import ModelConfig
from andrea.engine.reference import ReferenceEngine
from andrea.evaluate import HeldOut, evaluate, held_out_sets
from andrea.plugins.tokenizer.byte import ByteTokenizer
from andrea.tokenfile import TokenFile, TokenWriter
from andrea.types import Precision


class Fixed:
    """An engine whose row losses are given, in the order of the calls."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def evaluate(self, inputs, targets):
        return np.array(self.answers.pop(0), dtype=np.float32)


def make_set(targets, size):
    """Return a set with these targets whose counted ones stand for so many bytes."""
    array = np.array(targets, dtype=np.int32)
    return HeldOut(np.zeros_like(array), array, size)


def test_loss_is_the_mean_over_targets_and_bits_are_per_byte():
    """A row with two targets counts half as much as one with four; bits per byte is the sum / ln 2 / bytes."""
    held_out = make_set([[1, 2, 3, 4], [1, 2, -1, -1]], size=12)
    evaluation = evaluate(Fixed([2.0, 0.5]), {"one": held_out}, 7)

    assert evaluation.step == 7
    assert evaluation.loss["one"] == (2.0 * 4 + 0.5 * 2) / 6
    assert evaluation.bits_per_byte["one"] == 9.0 / math.log(2) / 12


def test_the_mean_is_of_the_sources_and_not_of_their_tokens():
    """Every source counts once, in the order in which they are given."""
    sets = {"b": make_set([[1]], 1), "a": make_set([[1, 1], [1, 1]], 4)}
    evaluation = evaluate(Fixed([math.log(2)], [2 * math.log(2)] * 2), sets, 0)

    assert list(evaluation.loss) == ["b", "a"]
    # float32 losses carry 24 bits
    assert evaluation.mean == pytest.approx((1 + 2) / 2, rel=1e-7)


@pytest.fixture
def file(tmp_path):
    """Return a held-out token file of a few short documents."""
    with TokenWriter(tmp_path / "held.btok", ByteTokenizer()) as writer:
        for text in ("the seed", "a root", "leaf and stem and leaf"):
            writer.add(text.encode())
    return TokenFile.open(tmp_path / "held.btok")


def test_the_whole_of_a_short_file_is_measured(file):
    """With rows to spare every byte but those of the first token counts, and no row is all padding."""
    found = held_out_sets({"one": file}, context=8, rows=100)["one"]

    assert found.bytes == file.bytes
    assert int((found.targets >= 0).sum()) == file.tokens.size - 1
    assert (found.targets >= 0).any(axis=1).all()


def test_rows_bound_the_set(file):
    """At most so many rows, always the same ones."""
    first, second = (held_out_sets({"one": file}, 8, 2)["one"] for _ in range(2))

    assert first.inputs.shape == (2, 8)
    assert np.array_equal(first.inputs, second.inputs)
    assert first.bytes < file.bytes


def test_measuring_changes_nothing_and_repeats_with_the_same_numbers(file):
    """Two evaluations of one engine are equal with ``==``, and its state is what it was."""
    config = EngineConfig(ModelConfig(1, 2, 8, 8), 257, batch_size=2, options={"threads": 1})
    engine = ReferenceEngine(config, Precision("fp32"))
    before = engine.export_state()
    sets = held_out_sets({"one": file}, 8, 4)
    first, second = (evaluate(engine, sets, 0) for _ in range(2))

    assert first.loss == second.loss
    assert first.bits_per_byte == second.bits_per_byte
    for name, array in engine.export_state().items():
        assert np.array_equal(array, before[name])
