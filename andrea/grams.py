"""Runs of words as numbers: a hash for each run of n words of a text, so that sets of runs are sorted arrays.

A run's hash is the polynomial h = sum_i w_i M^(n-1-i) modulo 2^64 of its words' hashes w_i (Karp and Rabin 1987),
stirred once more so that its upper bits are as good as its lower ones.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

MOST_WORDS = 1 << 19  # words whose hashes are remembered: about 80 MB
_BASE, _STIR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


class WordHashes(dict[str, int]):
    """The 64-bit BLAKE2b hash of a word, little-endian; remembered until there are `MOST_WORDS`."""

    def __missing__(self, word: str) -> int:
        if len(self) >= MOST_WORDS:
            self.clear()
        digest = hashlib.blake2b(word.encode(errors="surrogatepass"), digest_size=8).digest()
        value = self[word] = int.from_bytes(digest, "little")
        return value

    def of(self, words: Sequence[str]) -> Hashes:
        """Return the hashes of words, uint64 (n,)."""
        return np.fromiter(map(self.__getitem__, words), np.uint64, len(words))


def hash_runs(words: Hashes, length: int) -> Hashes:
    """Return the hash of every run of `length` words, uint64 (n - length + 1,), empty when there is none."""
    count = max(0, len(words) - length + 1)
    runs = words[:count].copy()
    for offset in range(1, length):
        runs *= _BASE
        runs += words[offset : offset + count]
    runs ^= runs >> _HALF
    runs *= _STIR
    runs ^= runs >> _HALF
    return runs


def whole_runs(lengths: Sequence[int], length: int) -> Flags:
    """Return which runs of documents written end to end lie within one of them, bool as `hash_runs` has them.

    Parameters
    ----------
    lengths
        Words of each document.
    length
        Of a run.
    """
    ends = np.repeat(np.cumsum(lengths, dtype=np.int64), lengths)
    starts = np.arange(len(ends))
    return np.asarray(starts + length <= ends)[: max(0, len(ends) - length + 1)]


def distinct(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the values of arrays of one type, sorted, each once; np.unique may take a table, which is far slower."""
    values = np.sort(np.concatenate(parts))
    first = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return np.asarray(values[first])


def is_in(runs: npt.NDArray[Any], ordered: npt.NDArray[Any]) -> Flags:
    """Return which of `runs` are in a sorted array of the same type, bool (n,)."""
    if not ordered.size:
        return np.zeros(len(runs), dtype=np.bool_)
    places = np.minimum(np.searchsorted(ordered, runs), ordered.size - 1)
    return np.asarray(ordered[places] == runs)


def hash_documents(documents: Sequence[Sequence[str]], hashes: WordHashes) -> tuple[Hashes, list[int]]:
    """Return the hashes of all words of documents end to end, uint64 (n,), and how many words each has."""
    lengths = [len(words) for words in documents]
    words = np.fromiter(map(hashes.__getitem__, itertools.chain.from_iterable(documents)), np.uint64, sum(lengths))
    return words, lengths
