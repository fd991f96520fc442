"""Letter variety: where words of a language may be cut, seen from the words alone.

Harris (1955), "From phoneme to morpheme": many different letters can follow the beginning of a word where a morpheme
ends, few inside one. Hafer and Weiss (1974), "Word segmentation by letter successor varieties", count in both
directions and compare the rules; forward variety alone is not enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def count_letters(children: npt.NDArray[np.int64], groups: npt.NDArray[np.int64]) -> Floats:
    """Return how many different letters follow: the number of children of each group."""
    return np.bincount(groups, minlength=int(groups.max(initial=-1)) + 1).astype(np.float64)


def letter_entropy(children: npt.NDArray[np.int64], groups: npt.NDArray[np.int64]) -> Floats:
    """Return the entropy of the letter that follows in each group, in bits.

    Rounded to 1/1024, because logarithms differ in their last bits from one processor to another.
    """
    total = np.bincount(groups, weights=children)
    weighted = np.bincount(groups, weights=children * np.log2(children))
    return np.round((np.log2(total) - weighted / total) * 1024) / 1024


Measure = Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], Floats]


def successors(words: Sequence[bytes], measure: Measure) -> Floats:
    """Measure what can follow every beginning of every word; the end of a word counts as one more letter.

    Parameters
    ----------
    words
        Different words, sorted.
    measure
        `count_letters` or `letter_entropy`: takes the number of words below each child and the group (beginning) that
        each child belongs to, gives one number a group.

    Returns
    -------
    float64 (W, L + 1)
        Column k is about the first k bytes of the word; 0 beyond its end.
    """
    lengths_W = np.array([len(word) for word in words], dtype=np.int64)
    common_W = common_beginnings(words, lengths_W)
    variety_WL = np.zeros((len(words), int(lengths_W.max(initial=0)) + 1))
    for k in range(variety_WL.shape[1]):
        rows = np.flatnonzero(lengths_W >= k)
        child_first = np.flatnonzero(common_W[rows] < k + 1)
        group_of_row = np.cumsum(common_W[rows] < k) - 1
        children = np.diff(np.append(child_first, len(rows)))
        variety_WL[rows, k] = measure(children, group_of_row[child_first])[group_of_row]
    return variety_WL


def common_beginnings(words: Sequence[bytes], lengths_W: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how many first bytes each of the sorted words shares with the one before; -1 for the first."""
    width = int(lengths_W.max(initial=0))
    text = np.frombuffer(b"".join(word.ljust(width, b"\0") for word in words), dtype=np.uint8)
    text_WL = text.reshape(len(words), width)
    same = text_WL[1:] == text_WL[:-1]
    equal = np.where(same.all(axis=1), width, same.argmin(axis=1)) if width else np.zeros(len(words) - 1)
    shared = np.minimum(equal, np.minimum(lengths_W[1:], lengths_W[:-1]))
    return np.concatenate([np.full(min(1, len(words)), -1), shared]).astype(np.int64)


def predecessors(words: Sequence[bytes], measure: Measure) -> Floats:
    """Measure what can precede every ending of every word: column k is about all but the first k bytes."""
    reversed_words = [word[::-1] for word in words]
    order = sorted(range(len(words)), key=reversed_words.__getitem__)
    backward_WL = successors([reversed_words[i] for i in order], measure)
    lengths_W = np.array([len(words[i]) for i in order], dtype=np.int64)
    column_WL = lengths_W[:, None] - np.arange(backward_WL.shape[1])
    variety_WL = np.zeros_like(backward_WL)
    variety_WL[order] = np.where(column_WL >= 0, np.take_along_axis(backward_WL, np.maximum(column_WL, 0), axis=1), 0)
    return variety_WL


# -- rules: where to cut ---------------------------------------------------------------------------------------------


def cut_peak(words: Sequence[bytes]) -> Bools:
    """Cut where both varieties are at a peak or on a plateau: not below their neighbours."""
    return _peak(successors(words, count_letters)) & _peak(predecessors(words, count_letters))


def _peak(variety_WL: Floats) -> Bools:
    peak_WL = np.zeros(variety_WL.shape, dtype=bool)
    inner = variety_WL[:, 1:-1]
    peak_WL[:, 1:-1] = (inner >= variety_WL[:, :-2]) & (inner >= variety_WL[:, 2:])
    return peak_WL


def cut_cutoff(words: Sequence[bytes]) -> Bools:
    """Cut where at least 5 letters can follow and 17 precede: the pair that Hafer and Weiss found most precise."""
    return np.asarray((successors(words, count_letters) >= 5) & (predecessors(words, count_letters) >= 17))


def cut_entropy(words: Sequence[bytes]) -> Bools:
    """Cut where the letters that follow and precede have at least 4 bits of entropy together, and 1 bit each."""
    forward, backward = successors(words, letter_entropy), predecessors(words, letter_entropy)
    return np.asarray((forward + backward >= 4) & (forward >= 1) & (backward >= 1))


RULES: dict[str, Callable[[Sequence[bytes]], Bools]] = {
    "peak": cut_peak,
    "cutoff": cut_cutoff,
    "entropy": cut_entropy,
}
