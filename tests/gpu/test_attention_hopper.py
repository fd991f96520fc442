"""Attention by wgmma against its numpy twin in float64, against itself, and against the plain kernels.

Outputs are poisoned with NaN before each launch. Tolerances are those of the plain kernels: products take operands of
the storage type, and 1e-2 is above what rounding P and dS to bf16 costs.
"""

from __future__ import annotations

import numpy as np
import pytest

from andrea.engine import operations as op
from andrea.engine.attention import ROW_BYTES, Attention
from andrea.engine.attention_hopper import TILES, HopperAttention, has_kernel

LENGTHS = [1, 2, 7, 63, 64, 65, 127, 128, 129, 191, 192, 193, 1000, 1024, 2048]


class Bench:
    """The kernels of one cell, and numpy's view of their memory."""

    def __init__(self, card, precision, conversions, head_dim, heads, kind=HopperAttention):
        self.card, self.type, self.D, self.H = card, precision.storage, head_dim, heads
        self.to, self.back = conversions
        self.random = np.random.Generator(np.random.PCG64(head_dim))
        self.attention = kind(head_dim, heads, precision, card.architecture)

    def draw(self, *shape):
        """Return random numbers as the card holds them."""
        return self.to(self.random.standard_normal(shape), self.type)

    def run(self, qkv, dout):
        """Return (out, lse, dqkv) as the card holds them, from launches into poisoned memory."""
        B, T, _, H, D = qkv.shape
        card, at, gradient = self.card, self.card.put(qkv), self.card.put(dout)
        out, lse, dqkv = card.room(dout.nbytes), card.room(B * H * T * 4), card.room(qkv.nbytes)
        rows = card.room(B * H * T * ROW_BYTES)
        self.attention.forward(at, out, lse, B, T, 0)
        self.attention.backward(at, out, lse, gradient, dqkv, rows, B, T, 0)
        return (
            card.get(out, (B, T, H, D), self.type),
            card.get(lse, (B, H, T), "float32"),
            card.get(dqkv, (B, T, 3, H, D), self.type),
        )

    def twin(self, qkv, dout):
        """Return (out, lse, dqkv) in float64."""
        B, T, _, H, D = qkv.shape
        qkv_3BTC = np.ascontiguousarray(np.moveaxis(self.back(qkv), 2, 0)).reshape(3, B, T, H * D)
        out, lse = op.k_attn_fwd(qkv_3BTC, H)
        dqkv = op.k_attn_bwd(self.back(dout).reshape(B, T, H * D), qkv_3BTC, out, lse, H)
        return out.reshape(B, T, H, D), lse, np.moveaxis(dqkv.reshape(3, B, T, H, D), 0, 2)


@pytest.fixture(params=sorted(TILES))
def bench(request, card, precision, storage):
    """Give the kernels of each width with three heads, where the card and the precision have them."""
    if not has_kernel(request.param, precision, card.architecture):
        pytest.skip(f"no wgmma kernel for {precision.name} on {card.architecture}")
    made = Bench(card, precision, storage, request.param, 3)
    yield made
    made.attention.close()


def near(result, reference):
    """Check a result as a whole, and each position by its own size: the first positions are larger than the average."""
    assert np.isfinite(result).all(), "an element was not written"
    error = np.abs(result - reference)
    assert np.linalg.norm(error) <= 1e-2 * np.linalg.norm(reference)
    rms = np.sqrt(np.mean(reference**2, axis=-1, keepdims=True))
    assert (error <= 8e-2 * np.maximum(rms, np.sqrt(np.mean(reference**2)))).all()


@pytest.mark.parametrize("T", LENGTHS)
def test_forward_and_backward_match_the_twin(bench, precision, close, T):
    """Out, log-sum-exp and all three gradients are the twin's, at every length, odd or not."""
    B = 1 if T >= 1000 else 2
    qkv, dout = bench.draw(B, T, 3, bench.H, bench.D), bench.draw(B, T, bench.H, bench.D)
    out, lse, dqkv = bench.twin(qkv, dout)
    result, result_lse, gradient = bench.run(qkv, dout)
    near(bench.back(result), out)
    close(result_lse, lse, precision.name)
    gradient = bench.back(gradient)
    assert np.isfinite(gradient).all()
    for part in range(3):
        if T > 1 or part == 2:  # one term of a softmax: dQ and dK are 0 in the twin and rounding noise here
            near(gradient[:, :, part], dqkv[:, :, part])


def test_large_scores_do_not_overflow(bench, precision, close):
    """Scores of several hundred, whose exponentials' base moves often, give the twin's output and log-sum-exp."""
    T = 330
    large = bench.random.standard_normal((1, T, 3, bench.H, bench.D)) * np.array([8, 8, 1])[:, None, None]
    qkv, dout = bench.to(large, bench.type), bench.draw(1, T, bench.H, bench.D)
    out, lse, _ = bench.twin(qkv, dout)
    result, result_lse, gradient = bench.run(qkv, dout)
    close(result_lse, lse, precision.name)
    near(bench.back(result), out)
    assert np.isfinite(bench.back(gradient)).all()


@pytest.mark.parametrize("T", [129, 257, 1024])
def test_repeats_give_the_same_bits(bench, T):
    """Nothing depends on which block runs first: 50 times the same bits."""
    qkv, dout = bench.draw(4, T, 3, bench.H, bench.D), bench.draw(4, T, bench.H, bench.D)
    first = [part.tobytes() for part in bench.run(qkv, dout)]
    for _ in range(50):
        assert [part.tobytes() for part in bench.run(qkv, dout)] == first


def test_rows_do_not_depend_on_the_batch(bench):
    """A row alone gives the bits that it gives among others."""
    qkv, dout = bench.draw(5, 200, 3, bench.H, bench.D), bench.draw(5, 200, bench.H, bench.D)
    together, alone = bench.run(qkv, dout), bench.run(qkv[3:4], dout[3:4])
    for whole, part in zip(together, alone, strict=True):
        assert whole[3:4].tobytes() == part.tobytes()


def test_either_implementation_may_follow_the_other(bench, precision, storage):
    """The plain backward after this forward, and the reverse: the log-sum-exp means the same to both."""
    plain = Bench(bench.card, precision, storage, bench.D, bench.H, Attention)
    B, T, H, D, card = 2, 300, bench.H, bench.D, bench.card
    qkv, dout = bench.draw(B, T, 3, H, D), bench.draw(B, T, H, D)
    _, _, reference = bench.twin(qkv, dout)
    for forward, backward in ((bench, plain), (plain, bench)):
        at, gradient = card.put(qkv), card.put(dout)
        out, lse, dqkv = card.room(dout.nbytes), card.room(B * H * T * 4), card.room(qkv.nbytes)
        forward.attention.forward(at, out, lse, B, T, 0)
        backward.attention.backward(at, out, lse, gradient, dqkv, card.room(B * H * T * ROW_BYTES), B, T, 0)
        near(bench.back(card.get(dqkv, (B, T, 3, H, D), bench.type)), reference)
    plain.attention.close()


def test_large_batch_at_sampled_heads(card, precision, storage):
    """B 64, T 1024, 12 heads of 64: sampled (row, head) pairs match, the first and last among them."""
    if not has_kernel(64, precision, card.architecture):
        pytest.skip(f"no wgmma kernel for {precision.name} on {card.architecture}")
    B, T, H, D = 64, 1024, 12, 64
    bench = Bench(card, precision, storage, D, H)
    pattern = bench.random.standard_normal((7, T, 3, H, D))
    pick_rows = np.arange(B) % 7
    qkv = bench.to(pattern[pick_rows] * (1 - np.arange(B)[:, None, None, None, None] / (2 * B)), bench.type)
    dout = bench.to(pattern[pick_rows, :, 0], bench.type)
    out, _, gradient = bench.run(qkv, dout)
    for row, head in [(0, 0), (0, 11), (17, 5), (40, 2), (63, 0), (63, 11)]:
        pick = np.s_[row : row + 1, ..., head : head + 1, :]
        reference, _, expected = bench.twin(qkv[pick], dout[pick])
        near(bench.back(out[pick]), reference)
        for part in range(3):
            near(bench.back(gradient[pick][:, :, part]), expected[:, :, part])
    bench.attention.close()
