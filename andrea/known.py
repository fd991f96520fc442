"""What of a source's training text is remembered: its words and how often they occur, its runs of 2, 3 and 8 words.

Runs are kept as keys, the upper halves of their 64-bit hashes, so of the runs that a source does not have about
n / 2^32 pass for known when it has n distinct ones. Of a large source not all is kept, see `Gatherer`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from attrs import evolve, field, frozen

from andrea.grams import Hashes, WordHashes, distinct, hash_documents, hash_runs, whole_runs
from andrea.sources import reading

Keys = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float64]

FORMAT = 1  # of the files and of what is kept: part of their names in the cache
LONG = 8  # words of the runs by which copied text is known
MOST_BYTES = 1 << 25  # text of which every word and short run is kept
MOST_LONG = 1 << 22  # long runs that are kept
LEAST_MODULUS = 4  # of long runs one in four is enough
PENDING = 1 << 22  # runs that wait to be sorted into what is kept: bounds memory
UNSEEN_WORDS = 1e5  # among so many words is spread what a source leaves to words that it does not have
DISCOUNT = 0.5  # taken from the count of every word for those that it does not have


@frozen(eq=False)
class Known:
    """What is remembered of the training text of one source.

    Attributes
    ----------
    words
        Keys of its words, sorted, uint32.
    counts
        How often each occurs, int64.
    pairs, triples, longs
        Keys of its runs of 2, 3 and `LONG` words, sorted, uint32.
    modulus
        A power of two; long runs are kept when their key is a multiple of it.
    """

    words: Keys = field(factory=lambda: np.empty(0, np.uint32))
    counts: npt.NDArray[np.int64] = field(factory=lambda: np.empty(0, np.int64))
    pairs: Keys = field(factory=lambda: np.empty(0, np.uint32))
    triples: Keys = field(factory=lambda: np.empty(0, np.uint32))
    longs: Keys = field(factory=lambda: np.empty(0, np.uint32))
    modulus: int = LEAST_MODULUS

    def save(self, folder: Path) -> None:
        """Write it into an existing folder."""
        for name in ("words", "counts", "pairs", "triples", "longs"):
            np.save(folder / f"{name}.npy", getattr(self, name))
        (folder / "known.json").write_text(json.dumps({"modulus": self.modulus}), encoding="utf-8")

    @classmethod
    def open(cls, folder: Path) -> Known:
        """Open what was saved, as memory maps."""
        with reading(folder):
            arrays = {
                name: np.load(folder / f"{name}.npy", mmap_mode="r")
                for name in ("words", "counts", "pairs", "triples", "longs")
            }
            return cls(**arrays, **json.loads((folder / "known.json").read_bytes()))

    def kept(self, longs: Keys) -> Keys:
        """Return those of the keys of long runs that would be kept if the source had them."""
        return np.asarray(longs[longs % np.uint32(self.modulus) == 0])

    def log_probability(self, words: Hashes) -> Floats:
        """Return ln P(word) for hashes of words, float64 (n,): counts with an absolute discount."""
        if not self.words.size:
            return np.full(len(words), -np.log(UNSEEN_WORDS))
        total = float(self.counts.sum())
        keys = keys_of(words, 1)
        places = np.minimum(np.searchsorted(self.words, keys), self.words.size - 1)
        count = np.where(self.words[places] == keys, self.counts[places] - DISCOUNT, 0.0)
        unseen = DISCOUNT * self.words.size / UNSEEN_WORDS
        return np.asarray(np.log(np.where(count > 0, count, unseen) / total), dtype=np.float64)


def keys_of(words: Hashes, length: int) -> Keys:
    """Return the key of every run of `length` words, given the words' hashes, uint32 (n - length + 1,)."""
    return (hash_runs(words, length) >> np.uint64(32)).astype(np.uint32)


class Gatherer:
    """Gathers what is remembered of a source, in memory that is bounded.

    Words and short runs are those of every s-th document, so that they come from at most `MOST_BYTES` of text; long
    runs are those of all documents whose hash is a multiple of a number that is doubled while more than `MOST_LONG`
    would be kept. So what is kept depends on the documents alone, never on how they were handed over.

    Parameters
    ----------
    text_bytes
        Of all documents.
    """

    def __init__(self, text_bytes: int) -> None:
        self._stride = max(1, -(-text_bytes // MOST_BYTES))
        self._documents = 0
        self._hashes = WordHashes()
        self._kept = Known()
        self._waiting: dict[str, list[Keys]] = {name: [] for name in _LENGTHS}
        self._pending = 0

    def add(self, documents: Sequence[list[str]]) -> None:
        """Take documents, each a list of its words."""
        words, lengths = hash_documents(documents, self._hashes)
        self._wait("longs", self._kept.kept(_within(words, lengths, LONG)))
        if self._stride > 1:
            first = -self._documents % self._stride
            words, lengths = hash_documents(documents[first :: self._stride], self._hashes)
        for name in ("words", "pairs", "triples"):
            self._wait(name, _within(words, lengths, _LENGTHS[name]))
        self._documents += len(documents)
        if self._pending > PENDING:
            self._sort()

    def finish(self) -> Known:
        """Return what is remembered."""
        self._sort()
        return self._kept

    def _wait(self, name: str, runs: Keys) -> None:
        self._waiting[name].append(runs)
        self._pending += len(runs)

    def _sort(self) -> None:
        kept, new = self._kept, self._waiting
        words, counts = _count(kept, new["words"])
        self._kept = Known(
            words,
            counts,
            distinct([kept.pairs, *new["pairs"]]),
            distinct([kept.triples, *new["triples"]]),
            distinct([kept.longs, *new["longs"]]),
            kept.modulus,
        )
        while self._kept.longs.size > MOST_LONG:
            self._kept = evolve(self._kept, modulus=2 * self._kept.modulus)
            self._kept = evolve(self._kept, longs=self._kept.kept(self._kept.longs))
        self._waiting = {name: [] for name in _LENGTHS}
        self._pending = 0


_LENGTHS = {"words": 1, "pairs": 2, "triples": 3, "longs": LONG}


def _within(words: Hashes, lengths: Sequence[int], length: int) -> Keys:
    """Return the keys of the runs that lie within one document."""
    return keys_of(words, length)[whole_runs(lengths, length)]


def _count(kept: Known, words: Sequence[Keys]) -> tuple[Keys, npt.NDArray[np.int64]]:
    """Return the words and their counts with more occurrences added."""
    new, times = np.unique(np.concatenate([kept.words[:0], *words]), return_counts=True)
    keys = distinct([kept.words, new])
    counts = np.zeros(keys.size, dtype=np.int64)
    counts[np.searchsorted(keys, kept.words)] = kept.counts
    counts[np.searchsorted(keys, new)] += times
    return keys, counts


def known_of(documents: Sequence[list[str]], text_bytes: int = 0) -> Known:
    """Return what is remembered of documents that are few, each a list of its words."""
    gatherer = Gatherer(text_bytes)
    gatherer.add(documents)
    return gatherer.finish()
