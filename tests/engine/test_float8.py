"""Floats of 8 bits: every code, every border between two codes, and the scales that make values fit."""

from __future__ import annotations

import numpy as np
import pytest

from andrea.engine.operations import (
    E4M3,
    E5M2,
    decode_float8,
    encode_float8,
    fp8_scale,
    k_fp8_scales,
    k_fp8_weights,
    round_float8,
)

KINDS = pytest.mark.parametrize("kind", [E4M3, E5M2], ids=lambda kind: kind.name)
CODES = np.arange(256, dtype=np.uint8)
# (kind, code, value), as the paper that defines the formats lists them.
KNOWN = [
    (E4M3, 0x01, 2.0**-9),
    (E4M3, 0x07, 0.875 * 2.0**-6),
    (E4M3, 0x08, 2.0**-6),
    (E4M3, 0x38, 1.0),
    (E4M3, 0x7E, 448.0),
    (E5M2, 0x01, 2.0**-16),
    (E5M2, 0x03, 0.75 * 2.0**-14),
    (E5M2, 0x04, 2.0**-14),
    (E5M2, 0x3C, 1.0),
    (E5M2, 0x7B, 57344.0),
    (E5M2, 0x7C, np.inf),
]


def finite_values(kind):
    """Return the values that are not negative, ascending as their codes are."""
    values = decode_float8(CODES[:128], kind)
    return values[np.isfinite(values)]


@pytest.mark.parametrize(("kind", "code", "value"), KNOWN)
def test_codes_are_those_of_the_format(kind, code, value):
    """Smallest, largest, one, both sides of the normal numbers; the sign is the upper bit."""
    assert decode_float8(np.array([code, code + 128], np.uint8), kind).tolist() == [value, -value]


@KINDS
def test_all_codes_come_back(kind):
    """A value of 8 bits is its own nearest; NaN has one code, and infinity becomes the largest value."""
    values = decode_float8(CODES, kind)
    finite = np.isfinite(values)
    assert finite.sum() == {"e4m3": 254, "e5m2": 248}[kind.name]
    assert (encode_float8(values, kind)[finite] == CODES[finite]).all()
    assert (round_float8(values[finite], kind) == values[finite]).all()
    assert encode_float8(np.array([np.nan, -np.nan], np.float32), kind).tolist() == [0x7F, 0x7F]
    assert round_float8(np.array([np.inf, -np.inf], np.float32), kind).tolist() == [kind.largest, -kind.largest]


@KINDS
@pytest.mark.parametrize("sign", [1, -1])
def test_borders_between_codes(kind, sign):
    """Half-way goes to the even code, a little less down, a little more up, for every pair of neighbours."""
    values = finite_values(kind)
    codes = np.arange(len(values))
    middles = (values[:-1] + values[1:]) / 2  # exact in float32
    lower = codes[:-1]
    expected = {"down": lower, "half": lower + lower % 2, "up": lower + 1}
    given = {
        "down": np.nextafter(middles, np.float32(0)),
        "half": middles,
        "up": np.nextafter(middles, np.float32(1e9)),
    }
    for name, x in given.items():
        assert x.dtype == np.float32
        assert (encode_float8(sign * x, kind) == expected[name] + (128 if sign < 0 else 0)).all(), name
        assert (round_float8(sign * x, kind) == sign * values[expected[name]]).all(), name


@KINDS
def test_too_large_values_become_the_largest(kind):
    """From the largest value up everything is the largest, in both directions."""
    x = kind.largest * np.array([1, 1.01, 1.5, 2, 1e20], dtype=np.float32)
    assert (round_float8(x, kind) == kind.largest).all()
    assert (round_float8(-x, kind) == -kind.largest).all()


@KINDS
def test_scale_is_the_largest_power_of_two_that_fits(kind):
    """Twice the scale would be too much; the same comes from the bits of the float, as the card works it out."""
    random = np.random.Generator(np.random.PCG64(3))
    amaxes = (np.exp2(random.uniform(-70, 70, 500)) * random.uniform(1, 2, 500)).astype(np.float32)
    edges = np.float32(1.75) * np.exp2(np.arange(-40, 40, dtype=np.float32))
    for amax in np.concatenate(
        [amaxes, edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges, np.float32(1e30))]
    ):
        scale = fp8_scale(float(amax), kind.top)
        assert float(amax) * scale <= kind.largest < 2 * float(amax) * scale
        bits = int(amax.view(np.uint32))
        exponent = (bits >> 23) - 127 + ((bits & 0x7FFFFF) > 0x600000)
        assert scale == 2.0 ** (kind.top - exponent)
    assert fp8_scale(0.0, kind.top) == 1.0
    assert fp8_scale(1e-38, kind.top) == 2.0**100  # its inverse is still a normal float32


def test_scales_are_of_the_largest_of_sixteen_updates():
    """An octave below what just fits; a step enters at its place unless it is skipped, and begins anew either way."""
    history = np.zeros((2, 16), np.float32)
    history[:, 5] = 1.0
    amax = np.array([3.0, 0.25], np.float32)
    scales = k_fp8_scales(history, amax, 1, applied=21, record=True)  # update 21 takes the place of update 5
    assert history[:, 5].tolist() == [3.0, 0.25]
    assert scales.tolist() == [[64.0, 1 / 64], [2.0**16, 2.0**-16]]
    assert amax.tolist() == [0, 0]
    amax[:] = np.inf, np.nan
    assert (k_fp8_scales(history, amax, 1, applied=21, record=True) == scales).all()
    amax[:] = 1e9
    assert (k_fp8_scales(history, amax, 1, applied=22, record=False) == scales).all()
    assert amax.tolist() == [0, 0]
    assert k_fp8_scales(np.zeros((2, 16), np.float32), amax, 1, 0, record=False).tolist() == [[1, 1], [1, 1]]


def test_weights_lie_in_both_orders():
    """Codes of a matrix and of its transpose, scaled so that the largest weight just fits."""
    weights = np.random.Generator(np.random.PCG64(5)).standard_normal((32, 96)).astype(np.float32)
    amax = float(np.abs(weights).max())
    straight, turned, factor = k_fp8_weights(weights, amax)
    assert (turned == straight.T).all()
    assert turned.flags.c_contiguous
    assert 224 < amax * factor <= 448
    error = decode_float8(straight, E4M3) / factor - weights
    assert np.abs(error).max() <= amax / 16 / 1.75  # half a step among the largest
