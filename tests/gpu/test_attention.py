"""Attention against its numpy twin in float64, on inputs as the card holds them.

Outputs are poisoned with NaN before each launch. Tolerances: see `close` in conftest, and `near` here.
Axis letters: B rows, T tokens, H heads, D width of a head.
"""

from __future__ import annotations

import numpy as np
import pytest

from andrea.engine import operations as op
from andrea.engine.attention import HEAD_DIMS, ROW_BYTES, Attention

LENGTHS = [1, 7, 64, 65, 127, 128, 129, 1000, 1024]


class Bench:
    """The attention kernels of one cell, and numpy's view of its memory."""

    def __init__(self, card, precision, conversions, head_dim, heads):
        self.card, self.type, self.D, self.H = card, precision.storage, head_dim, heads
        self.tf32 = precision.multiply == "tf32"
        self.width = 4 if precision.storage == "float32" else 2
        self.to, self.back = conversions
        self.random = np.random.Generator(np.random.PCG64(head_dim))
        self.attention = Attention(head_dim, heads, precision, card.architecture)

    def draw(self, *shape):
        """Return (address, values as the card holds them) of random numbers."""
        raw = self.hold(self.random.standard_normal(shape))
        return self.card.put(raw), raw

    def hold(self, values):
        """Return values as a product sees them: in the storage type, and in tf32 with 10 bits behind the point.

        So the twin gets the kernel's own operands in every precision; tests of products cover the rounding of others.
        """
        raw = self.to(values, self.type)
        if self.tf32:
            raw = ((raw.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
        return raw

    def forward(self, qkv, B, T):
        """Return addresses of (out, lse) after a launch into poisoned memory."""
        out, lse = self.card.room(B * T * self.H * self.D * self.width), self.card.room(B * self.H * T * 4)
        self.attention.forward(qkv, out, lse, B, T, 0)
        return out, lse

    def backward(self, qkv, out, lse, dout, B, T):
        """Return the address of dqkv after a launch into poisoned memory."""
        dqkv = self.card.room(B * T * 3 * self.H * self.D * self.width)
        rows = self.card.room(B * self.H * T * ROW_BYTES)
        self.attention.backward(qkv, out, lse, dout, dqkv, rows, B, T, 0)
        return dqkv

    def read(self, address, *shape):
        """Return what stands at an address, as the card holds it."""
        return self.card.get(address, shape, self.type)

    def twin(self, qkv, dout):
        """Return (out, lse, dqkv) in float64; `qkv` [B, T, 3, H, D] and `dout` [B, T, H, D] as the card holds them."""
        B, T, _, H, D = qkv.shape
        qkv_3BTC = np.ascontiguousarray(np.moveaxis(self.back(qkv), 2, 0)).reshape(3, B, T, H * D)
        out, lse = op.k_attn_fwd(qkv_3BTC, H)
        dqkv = op.k_attn_bwd(self.back(dout).reshape(B, T, H * D), qkv_3BTC, out, lse, H)
        return out.reshape(B, T, H, D), lse, np.moveaxis(dqkv.reshape(3, B, T, H, D), 0, 2)


@pytest.fixture(params=HEAD_DIMS)
def bench(request, card, precision, storage):
    """Give the kernels of each width of heads, with three heads."""
    made = Bench(card, precision, storage, request.param, 3)
    yield made
    made.attention.close()


@pytest.fixture
def near(storage):
    """Give a check as `close` is one, in which the largest error of a head at a position is measured by its own size.

    The first positions attend to few keys and are up to sqrt(T) larger than the average; their last bit alone would
    break a bound made from the average. What is smaller than the average is measured by the average.
    """

    def check(result, reference, name):
        tolerance = {"fp32": 1e-5, "tf32": 1e-3, "fp16": 1e-2, "bf16": 1e-2}[name]
        result = storage[1](result)
        assert np.isfinite(result).all(), "an element was not written"
        error = np.abs(result - reference)
        assert np.linalg.norm(error) <= tolerance * np.linalg.norm(reference)
        rms = np.sqrt(np.mean(reference**2, axis=-1, keepdims=True))
        assert (error <= 8 * tolerance * np.maximum(rms, np.sqrt(np.mean(reference**2)))).all()

    return check


@pytest.mark.parametrize("T", LENGTHS)
def test_forward_and_backward_match_the_twin(bench, precision, close, near, T):
    """Out, log-sum-exp and all three gradients are the twin's, at every length, odd or not."""
    B, H, D = (1 if T >= 1000 else 2), bench.H, bench.D
    qkv_at, qkv = bench.draw(B, T, 3, H, D)
    dout_at, dout = bench.draw(B, T, H, D)
    out, lse, dqkv = bench.twin(qkv, dout)
    out_at, lse_at = bench.forward(qkv_at, B, T)
    dqkv_at = bench.backward(qkv_at, out_at, lse_at, dout_at, B, T)
    near(bench.read(out_at, B, T, H, D), out, precision.name)
    close(bench.card.get(lse_at, (B, H, T), "float32"), lse, precision.name)
    result = bench.read(dqkv_at, B, T, 3, H, D)
    for part in range(3):
        # At T = 1 the softmax has one term: dQ and dK are exactly 0 in the twin and rounding noise here.
        if T > 1 or part == 2:
            near(result[:, :, part], dqkv[:, :, part], precision.name)
    assert np.isfinite(bench.back(result)).all()


def test_large_scores_do_not_overflow(bench, precision, close, near):
    """Scores of several hundred give the twin's log-sum-exp, and its output where operands are multiplied exactly."""
    B, T, H, D = 1, 130, bench.H, bench.D
    raw = bench.hold(bench.random.standard_normal((B, T, 3, H, D)) * np.array([8, 8, 1])[:, None, None])
    out, lse, _ = bench.twin(raw, np.zeros((B, T, H, D), dtype=raw.dtype))
    out_at, lse_at = bench.forward(bench.card.put(raw), B, T)
    close(bench.card.get(lse_at, (B, H, T), "float32"), lse, precision.name)
    result = bench.read(out_at, B, T, H, D)
    assert np.isfinite(bench.back(result)).all()
    # The exponential makes a relative error of an absolute one, and a score of 500 is known to 500 x the last bit of
    # float32, 3e-5, which is above fp32's tolerance; tf32 rounds its operands before that.
    if precision.storage != "float32":
        near(result, out, precision.name)


@pytest.mark.parametrize("T", [129, 1024])
def test_repeats_give_the_same_bits(bench, T):
    """Forward and backward give the same bits every time: nothing depends on which block runs first."""
    B, H, D = 4, bench.H, bench.D
    qkv, _ = bench.draw(B, T, 3, H, D)
    dout, _ = bench.draw(B, T, H, D)
    results = []
    for _ in range(5):
        out, lse = bench.forward(qkv, B, T)
        dqkv = bench.backward(qkv, out, lse, dout, B, T)
        parts = bench.read(out, B, T, H, D), bench.card.get(lse, (B, H, T), "float32"), bench.read(dqkv, B, T, 3, H, D)
        results.append(b"".join(part.tobytes() for part in parts))
    assert all(result == results[0] for result in results)


def test_a_thousand_backwards_give_the_same_bits(card, precision, storage):
    """A race that strikes rarely would show among 1,000 backwards of a few tiles."""
    B, T, H, D = 4, 257, 3, 64
    bench = Bench(card, precision, storage, D, H)
    qkv, dout = bench.draw(B, T, 3, H, D)[0], bench.draw(B, T, H, D)[0]
    out, lse = bench.forward(qkv, B, T)
    dqkv, rows = card.room(B * T * 3 * H * D * bench.width), card.room(B * H * T * ROW_BYTES)
    first = None
    for _ in range(1000):
        bench.attention.backward(qkv, out, lse, dout, dqkv, rows, B, T, 0)
        result = bench.read(dqkv, B, T, 3, H, D)
        first = result if first is None else first
        assert result.tobytes() == first.tobytes()
    bench.attention.close()


def test_rows_do_not_depend_on_the_batch(bench):
    """A row alone gives the bits that it gives among others."""
    B, T, H, D = 5, 200, bench.H, bench.D
    _, qkv = bench.draw(B, T, 3, H, D)
    together = bench.read(bench.forward(bench.card.put(qkv), B, T)[0], B, T, H, D)
    alone = bench.read(bench.forward(bench.card.put(qkv[3:4]), 1, T)[0], 1, T, H, D)
    assert together[3:4].tobytes() == alone.tobytes()


def test_large_batch_at_sampled_heads(card, precision, storage, near):
    """B 64, T 1024, 12 heads of 64: sampled (row, head) pairs match, the first and last among them."""
    B, T, H, D = 64, 1024, 12, 64
    bench = Bench(card, precision, storage, D, H)
    pattern = bench.random.standard_normal((7, T, 3, H, D))
    # Seven patterns, so that drawing does not take longer than computing; scales make all rows differ.
    qkv = bench.hold(pattern[np.arange(B) % 7] * (1 - np.arange(B)[:, None, None, None, None] / (2 * B)))
    dout = bench.hold(pattern[np.arange(B) % 7, :, 0])
    qkv_at, dout_at = card.put(qkv), card.put(dout)
    out_at, lse_at = bench.forward(qkv_at, B, T)
    result = bench.read(bench.backward(qkv_at, out_at, lse_at, dout_at, B, T), B, T, 3, H, D)
    out = bench.read(out_at, B, T, H, D)
    for row, head in [(0, 0), (0, 11), (17, 5), (40, 2), (63, 0), (63, 11)]:
        pick = np.s_[row : row + 1, ..., head : head + 1, :]
        reference, _, gradient = bench.twin(qkv[pick], dout[pick])
        near(out[pick], reference, precision.name)
        for part in range(3):
            near(result[pick][:, :, part], gradient[:, :, part], precision.name)
    bench.attention.close()


@pytest.mark.parametrize("length", [1, 5, 64, 65, 300])
def test_decoding_matches_the_forward(bench, precision, close, length):
    """A cached prompt and one new token give what the whole text gives at its last position; an idle row gives 0."""
    rows, H, D, context = 3, bench.H, bench.D, 301
    _, qkv = bench.draw(rows, length, 3, H, D)
    out, _, _ = bench.twin(qkv, np.zeros((rows, length, H, D), dtype=qkv.dtype))
    size = rows * H * context * D * bench.width
    keys, values = bench.card.room(size), bench.card.room(size)
    for row in range(rows):  # one at a time, as prompts of different lengths come
        prompt = bench.card.put(qkv[row : row + 1, : length - 1]) if length > 1 else 0
        if length > 1:
            bench.attention.cache(prompt, keys, values, 1, length - 1, row, context, 0)
    positions = np.array([length - 1, -1, length - 1], dtype=np.int32)
    result_at = bench.card.room(rows * H * D * bench.width)
    new = bench.card.put(qkv[:, -1])
    bench.attention.decode(new, keys, values, bench.card.put(positions), result_at, rows, context, 0)
    result = bench.read(result_at, rows, H, D)
    close(result[[0, 2]], out[[0, 2], -1], precision.name)
    assert (bench.back(result[1]) == 0).all()
    cached = bench.read(keys, rows, H, context, D)
    assert np.array_equal(cached[2, :, :length], np.moveaxis(qkv[2, :, 1], 0, 1))
