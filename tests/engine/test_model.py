"""Shapes, counts and first weights of the model."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from andrea.engine.model import ModelConfig, initial_weights, layout, parameter_count
from andrea.errors import AndreaError

SMALL = ModelConfig(n_layer=6, n_head=12, d_model=384)
MIDDLE = ModelConfig(n_layer=12, n_head=12, d_model=768)
LARGE = ModelConfig(n_layer=16, n_head=24, d_model=1536)


def variant(model, **changes):
    """Return the model with some fields changed."""
    fields = {name: getattr(model, name) for name in ("n_layer", "n_head", "d_model", "context")}
    return ModelConfig(**fields | changes)


@pytest.mark.parametrize(
    ("model", "vocabulary", "count"),
    [
        (SMALL, 4353, 12_691_584),
        (MIDDLE, 8449, 92_248_320),
        (LARGE, 8449, 467_636_736),
        (variant(MIDDLE, tie_embeddings=False), 8449, 98_737_152),
        (variant(MIDDLE, tie_embeddings=False, norm_affine=False), 8449, 98_698_752),
        (variant(SMALL, tie_embeddings=False, norm_affine=False), 2305, 12_780_288),
    ],
)
def test_parameter_counts(model, vocabulary, count):
    """The counts of the family, tied and untied, are exact."""
    assert parameter_count(model, vocabulary) == count


def test_layout_is_the_published_order():
    """Offsets follow each other without gaps, in the order of the checkpoint file."""
    model = ModelConfig(n_layer=2, n_head=2, d_model=4, context=3, tie_embeddings=False)
    parameters = layout(model, 5)
    block = ["ln1.gamma", "ln1.beta", "w_q", "w_k", "w_v", "w_o", "ln2.gamma", "ln2.beta", "w_1", "w_2"]
    names = [f"layer{i}.{name}" for i in range(2) for name in block]
    assert [p.name for p in parameters] == ["embed", "position", *names, "final.gamma", "final.beta", "head"]
    assert [p.offset for p in parameters] == [0, *[p.end for p in parameters[:-1]]]
    shapes = {p.name: p.shape for p in parameters}
    assert (shapes["embed"], shapes["position"], shapes["head"]) == ((5, 4), (3, 4), (5, 4))
    assert (shapes["layer1.w_1"], shapes["layer1.w_2"], shapes["layer1.w_v"]) == ((4, 16), (16, 4), (4, 4))


def test_decay_is_on_matrices_only():
    """Norms do not decay, everything else does."""
    for p in layout(ModelConfig(n_layer=1, n_head=1, d_model=4), 5):
        assert p.decay == (not p.name.endswith(("gamma", "beta")))


def test_heads_must_divide_the_width():
    """The error names what would fit."""
    with pytest.raises(AndreaError, match=r"12 is not divisible by model\.n_head 5") as caught:
        ModelConfig(n_layer=1, n_head=5, d_model=12)
    assert caught.value.hint == "n_head may be 3 or 4 or 6"


@pytest.mark.parametrize("name", ["n_layer", "n_head", "d_model", "context"])
def test_sizes_must_be_positive(name):
    """A size of 0 is refused by name."""
    with pytest.raises(AndreaError, match=f"model.{name} is 0"):
        ModelConfig(**{"n_layer": 1, "n_head": 1, "d_model": 4} | {name: 0})


def test_initial_weights_have_their_deviations():
    """Embedding 1/sqrt(C), matrices 0.02, W_O and W_2 divided by sqrt(2 n_layer), gamma 1, beta 0."""
    model = ModelConfig(n_layer=2, n_head=4, d_model=64, context=128, tie_embeddings=False)
    weights = initial_weights(model, 500, seed=3)
    expected = {"embed": 1 / 8, "head": 1 / 8, "w_o": 0.02 / 2, "w_2": 0.02 / 2}
    for p in layout(model, 500):
        values, kind = weights[p.offset : p.end], p.name.rsplit(".", 1)[-1]
        if kind in ("gamma", "beta"):
            assert (values == (kind == "gamma")).all()
            continue
        # The deviation of n values errs by 1/sqrt(2n), the mean by 1/sqrt(n) of a deviation; five of each.
        assert values.std() == pytest.approx(expected.get(kind, 0.02), rel=5 / math.sqrt(2 * p.size))
        assert abs(values.mean()) < 5 * expected.get(kind, 0.02) / math.sqrt(p.size)


def test_initial_weights_are_those_of_earlier_versions():
    """Every kind of tensor, as drawn one after the other; a run begins with the same bits wherever it begins."""
    model = ModelConfig(n_layer=2, n_head=4, d_model=64, context=128, tie_embeddings=False)
    digest = hashlib.sha256(initial_weights(model, 500, seed=3).astype("<f4").tobytes()).hexdigest()
    assert digest[:16] == "b714bfcb4bfa5b1a"


def test_initial_weights_are_a_function_of_the_seed():
    """Equal seeds give equal weights, bit for bit; another seed gives others; one shape does not disturb another."""
    model = ModelConfig(n_layer=1, n_head=1, d_model=8, context=4)
    first = initial_weights(model, 7, seed=1)
    assert (first == initial_weights(model, 7, seed=1)).all()
    assert (first[: 7 * 8] != initial_weights(model, 7, seed=2)[: 7 * 8]).any()
    assert (first[-30:] == initial_weights(model, 9, seed=1)[-30:]).all()
    assert first.dtype == np.float32
