"""Randomness as a function of (seed, consumer, step, pull): nothing to save, nothing to disturb.

The generator is Philox-4x64: its key is the first 128 bits of blake2b over seed and consumer name, its counter
words are [0, 0, step, pull]. Only raw 64-bit words are drawn, and mapped to numbers by the functions below,
because numpy may change its distributions between versions but not the words of a bit generator.

References
----------
Salmon, Moraes, Dror, Shaw (2011), "Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

import functools
import hashlib
import math
import threading
from bisect import bisect_left, bisect_right
from itertools import accumulate
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
WORDS = 4  # of a block of Philox-4x64
AT_ONCE = 1 << 16  # values of a piece of a long array; a multiple of what one word gives


class Draws:
    """The random values of one consumer at one step and pull.

    Parameters
    ----------
    seed
        Seed of the run.
    consumer
        Name of who draws, for instance ``sampler.dice``; two names never share values.
    step, pull
        Where in the run; any integers in [0, 2**64).
    """

    def __init__(self, seed: int, consumer: str, step: int = 0, pull: int = 0) -> None:
        self._key, self._step, self._pull = _key(seed, consumer), step, pull
        self._drawn = 0

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """Return the next `count` raw 64-bit words, uint64 (count,)."""
        words = self._wound().random_raw(count)
        self._drawn += count
        return np.asarray(words, dtype=np.uint64)

    def word(self) -> int:
        """Return the next word as a number, which takes half as long as an array of one."""
        word = int(self._wound().random_raw())
        self._drawn += 1
        return word

    def _wound(self) -> np.random.Philox:
        """Return a generator that stands in front of the next word."""
        block, within = divmod(self._drawn, WORDS)
        bits = _philox(self._key, (block, 0, self._step, self._pull))
        if within:
            bits.random_raw(within, output=False)
        return bits

    def uniform(self, count: int) -> Floats:
        """Return numbers in [0, 1) with 53 random bits each, float64 (count,)."""
        return np.asarray((self.words(count) >> np.uint64(11)) * 2.0**-53, dtype=np.float64)

    def integer(self, below: int) -> int:
        """Return one integer in [0, below), unbiased: words of the incomplete last interval are drawn again."""
        if not 0 < below < 2**63:
            raise ValueError(f"below must be in [1, 2**63), not {below}")
        limit = 2**64 - 2**64 % below
        while (word := self.word()) >= limit:
            pass
        return word % below

    def permutation(self, count: int) -> npt.NDArray[np.int64]:
        """Return the numbers 0..count-1 in random order, int64 (count,): a stable sort by random keys."""
        return np.argsort(self.words(count), kind="stable").astype(np.int64)

    def choice(self, weights: npt.ArrayLike) -> int:
        """Return an index with probability proportional to its weight (>= 0, not all 0)."""
        # There are tens of weights, and a small model waits: lists are faster than arrays, and add in the same order.
        edges = list(accumulate(np.asarray(weights, dtype=np.float64).tolist()))
        if not (edges and math.isfinite(edges[-1]) and edges[-1] > 0):
            raise ValueError("weights must be finite, not negative and not all zero")
        point = (self.word() >> 11) * 2.0**-53 * edges[-1]
        return min(bisect_right(edges, point), bisect_left(edges, edges[-1]))

    def normal(self, count: int) -> npt.NDArray[np.float32]:
        """Return standard normal values, float32 (count,).

        Every 16 random bits pick one of 65,536 equally likely quantiles. The table is the same on every machine,
        where a formula with logarithms would differ in the last bit; the extremes are +-4.3.
        """
        return np.asarray(_normal_quantiles()[self._picks(count)], dtype=np.float32)

    def fill_normal(self, values: npt.NDArray[np.float32], deviation: float) -> None:
        """Fill `values`, float32 (count,), with ``normal(count) * np.float32(deviation)``, bit for bit.

        For many values: the deviation is multiplied into the table, and what passes through lies in the cache.
        """
        quantiles = _normal_quantiles() * np.float32(deviation)
        for first in range(0, len(values), AT_ONCE):
            part = values[first : first + AT_ONCE]
            np.take(quantiles, self._picks(len(part)), out=part, mode="clip")  # without a mode it writes a copy first

    def _picks(self, count: int) -> npt.NDArray[np.uint16]:
        """Return the next `count` 16-bit parts of words; what is left of the last word is not used."""
        return self.words((count + 3) // 4).astype("<u8", copy=False).view("<u2")[:count]


@functools.lru_cache(maxsize=1024, typed=True)  # 1 and True have different names
def _key(seed: int, consumer: str) -> tuple[int, int]:
    digest = hashlib.blake2b(f"{seed}:{consumer}".encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


_generators = threading.local()


def _philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> np.random.Philox:
    """Return a generator that stands in front of the words behind a counter.

    One generator a thread is wound to where it is wanted: making one takes four times as long, and a step of a small
    model waits for every draw. Plain integers are what it takes fastest.
    """
    if not hasattr(_generators, "bits"):
        _generators.bits = np.random.Philox(0)
    state: Any = {  # its buffer of words is used up
        "bit_generator": "Philox",
        "state": {"counter": counter, "key": key},
        "buffer": (0,) * WORDS,
        "buffer_pos": WORDS,
        "has_uint32": 0,
        "uinteger": 0,
    }
    bits: np.random.Philox = _generators.bits
    bits.state = state
    return bits


_making_quantiles = threading.Lock()


def _normal_quantiles() -> npt.NDArray[np.float32]:
    with _making_quantiles:  # threads that all draw for the first time wait for one of them
        return _made_quantiles()


@functools.cache
def _made_quantiles() -> npt.NDArray[np.float32]:
    inverse = NormalDist().inv_cdf
    half = [inverse((i + 0.5) / 65536) for i in range(32768)]
    table = np.array(half + [-value for value in reversed(half)], dtype=np.float64)
    return np.asarray(table / np.sqrt(np.mean(table**2)), dtype=np.float32)
