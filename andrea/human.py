"""What human text measures: counts of a text held against what is remembered of a source, and of held-out text.

A measure is a share, hits of trials, so that those of several texts are simply added. How long a text is matters only
for the first `NEAR` words of `repeats`, so a text that a model ends early is held against long ones fairly.

========  ==================================================  ==========================================
measure   trials                                              hits
========  ==================================================  ==========================================
words     characters                                          words
known     words                                               that the source has
returns   words with `NEAR` words before them                 that stand among those too
repeats   runs of 3 words                                     that began in the `NEAR` words before too
pairs     runs of 2 words                                     that the source has
order     runs of 3 words of which it has both runs of 2      that it has as a whole
stitched  runs of 3 words                                     of which it has only both runs of 2
copied    runs of 8 words, as many as are remembered of it    that it has
========  ==================================================  ==========================================
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import frozen

from andrea.grams import Hashes, WordHashes, is_in
from andrea.known import LONG, Known, keys_of
from andrea.rng import Draws
from andrea.sources import reading
from andrea.tokenfile import TokenFile
from andrea.types import Floats, Ints, Tokenizer
from andrea.words import split_words

MEASURES = ("words", "known", "returns", "repeats", "pairs", "order", "stitched", "copied")
FORMAT = 3  # of what is measured: part of the names of files in the cache
NEAR = 50  # words before a word among which it may come back
MOST_WINDOWS = 512  # of a source that are measured


@frozen(eq=False)
class Human:
    """What is known of human text, source by source: `andrea.types.Human` says what it is for.

    Attributes
    ----------
    known
        What is remembered of each source's training text.
    held_out
        What windows of each source's held-out text measure, int64 (W, M, 2) each.
    documents
        From how many documents they are cut.
    """

    known: tuple[Known, ...]
    held_out: tuple[Ints, ...]
    documents: tuple[int, ...]
    measures: tuple[str, ...] = MEASURES

    def measure(self, texts: Sequence[str]) -> Ints:
        """Return what each text measures against each source, int64 (N, S, M, 2): hits and trials."""
        hashes = WordHashes()
        return np.array([[measure(*split(text, hashes), known) for known in self.known] for text in texts])

    def log_likelihood(self, texts: Sequence[str]) -> Floats:
        """Return ln P of each text's words, one by one, under the word frequencies of each source, float64 (N, S)."""
        hashes = WordHashes()
        words = [split(text, hashes)[1] for text in texts]
        return np.array([[known.log_probability(one).sum() for known in self.known] for one in words])


def split(text: str, hashes: WordHashes) -> tuple[int, Hashes]:
    """Return the characters of a text and the hashes of its words."""
    return len(text), hashes.of(split_words(text))


def measure(characters: int, words: Hashes, known: Known) -> Ints:
    """Return hits and trials of every measure of a text against a source, int64 (M, 2)."""
    pairs, triples = keys_of(words, 2), keys_of(words, 3)
    has_pair, has_triple = is_in(pairs, known.pairs), is_in(triples, known.triples)
    joined = has_pair[:-1] & has_pair[1:]
    longs = known.kept(keys_of(words, LONG))
    far = words.size - NEAR
    return np.array(
        [
            (words.size, characters),
            (is_in(keys_of(words, 1), known.words).sum(), words.size),
            (comes_back(words)[NEAR:].sum(), max(0, far)),
            (comes_back(triples).sum(), triples.size),
            (has_pair.sum(), pairs.size),
            ((has_triple & joined).sum(), joined.sum()),
            ((joined & ~has_triple).sum(), triples.size),
            (is_in(longs, known.longs).sum(), longs.size),
        ],
        dtype=np.int64,
    )


def comes_back(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which values are also among the `NEAR` before them, bool (n,)."""
    order = np.argsort(values, kind="stable")
    again = np.flatnonzero(values[order[1:]] == values[order[:-1]])
    near = again[order[again + 1] - order[again] <= NEAR]
    found = np.zeros(len(values), dtype=np.bool_)
    found[order[near + 1]] = True
    return found


# -- held-out text -----------------------------------------------------------------------------------------------------


@frozen(eq=False)
class HeldOut:
    """What windows of the held-out text of one source measure, int64 (W, M, 2), and how many documents they are of."""

    counts: Ints
    documents: int

    def to_bytes(self) -> bytes:
        """Return it as a file's content."""
        value = {"measures": MEASURES, "documents": self.documents, "windows": self.counts.tolist()}
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def read(cls, path: Path) -> HeldOut:
        """Read it from a file."""
        with reading(path):
            value = json.loads(path.read_bytes())
        return cls(np.array(value["windows"], dtype=np.int64), int(value["documents"]))


def make_human(known: Sequence[Known], held_out: Sequence[HeldOut]) -> Human:
    """Return what is known of human text, given both for every source."""
    return Human(tuple(known), tuple(one.counts for one in held_out), tuple(one.documents for one in held_out))


def measure_held_out(file: TokenFile, tokenizer: Tokenizer, known: Known, tokens: int) -> HeldOut:
    """Measure windows of held-out text.

    Parameters
    ----------
    file
        Held-out text.
    tokenizer
        That made it.
    known
        What is remembered of the training text of the same source.
    tokens
        Most tokens of a window: as many as a sample of the run has.
    """
    hashes = WordHashes()
    numbers, texts = zip(*windows(file, tokenizer, tokens), strict=True)
    return HeldOut(np.array([measure(*split(text, hashes), known) for text in texts]), len(set(numbers)))


def windows(file: TokenFile, tokenizer: Tokenizer, tokens: int) -> Iterator[tuple[int, str]]:
    """Yield up to `MOST_WINDOWS` texts from all over a file, as samples are cut, each with its document's number.

    The first `tokens` tokens of every document, which may be all it has, and what follows it as long as it is whole.
    """
    lengths = np.diff(file.offsets.astype(np.int64)) - 1
    counts = np.maximum(1, lengths // tokens)
    starts = np.concatenate([[0], np.cumsum(counts)])
    chosen = np.sort(Draws(0, "human.windows").permutation(int(starts[-1]))[:MOST_WINDOWS])
    for window in chosen.tolist():
        number = int(np.searchsorted(starts, window, side="right")) - 1
        start = (window - int(starts[number])) * tokens
        yield number, tokenizer.decode(file.document(number)[start : start + tokens]).decode(errors="replace")
