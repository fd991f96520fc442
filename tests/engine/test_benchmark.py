"""What the benchmark counts: the model's own operations, known peaks, batches that depend on a seed alone."""

from __future__ import annotations

import numpy as np
import pytest

from andrea.engine import EngineConfig
from andrea.engine.benchmark import FAMILY, dense_peak, measure, random_batch, step_operations
from andrea.engine.model import ModelConfig
from andrea.types import Device, Precision


@pytest.mark.parametrize(("name", "million"), [("12M", 87.9), ("120M", 605.2), ("GPT-2", 797.9)])
def test_operations_of_a_token_are_the_familys(name, million):
    """Three times forward: linear layers, head, and attention at its causal half, as counted by hand."""
    model, vocabulary = FAMILY[name]
    config = EngineConfig(model, vocabulary, batch_size=4, accumulation=2)
    assert round(step_operations(config) / (8 * 1024) / 1e6, 1) == million


def test_operations_by_enumeration():
    """On a tiny model the count is that of every multiply-add written out."""
    L, C, T, V = 2, 8, 3, 5
    pairs = sum(query + 1 for query in range(T))
    linear = L * T * (4 * C * C + 2 * C * 4 * C) + T * V * C
    config = EngineConfig(ModelConfig(L, 1, C, context=T), V, batch_size=1)
    assert step_operations(config) == 3 * 2 * (linear + L * 2 * pairs * C)


def test_unknown_peak_is_none():
    """A card that is not in the table has no share of peak, rather than a wrong one."""
    assert dense_peak("NVIDIA H200", "bfloat16") == 989.0
    assert dense_peak("Some Other Card", "bfloat16") is None
    assert dense_peak("NVIDIA H200", "int4") is None


def test_batches_are_functions_of_the_seed():
    """Same seed, same tokens; targets are inputs one later; ids exist."""
    config = EngineConfig(ModelConfig(1, 1, 32, context=16), 50, batch_size=3)
    inputs, targets = random_batch(config, 1)
    again, other = random_batch(config, 1)[0], random_batch(config, 2)[0]
    assert inputs.shape == targets.shape == (3, 16)
    assert inputs.tobytes() == again.tobytes() != other.tobytes()
    assert np.array_equal(inputs[:, 1:], targets[:, :-1])
    assert inputs.min() >= 0
    assert inputs.max() < 50


def test_measures_the_numpy_engine_too():
    """The figures of an engine that knows nothing of a card: times and rates, and nothing about a card."""
    config = EngineConfig(ModelConfig(1, 1, 32, context=16), 50, batch_size=2)
    figures = measure(config, Device("cpu", "cpu"), Precision("fp32"), steps=3, warmup=1)
    assert figures["median_ms"] > 0
    assert figures["p95_ms"] > 0
    assert figures["tokens_per_second"] == pytest.approx(32 / figures["median_ms"] * 1e3)  # rounding of a quotient
    assert figures["share_of_peak"] is None
    assert figures["memory_planned"] > 0
    assert "device_ms" not in figures
