"""What a model has to beat: a bigram of tokens with interpolated Kneser-Ney smoothing, and known word bigrams.

References
----------
Kneser, Ney (1995), "Improved backing-off for m-gram language modeling"; Chen, Goodman (1999) for the interpolated form
and the discount.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from andrea.tokens import TokenFile

Ints = npt.NDArray[np.int64]


class Bigram:
    """P(next | token) of a token stream, for every pair of ids.

    Parameters
    ----------
    tokens
        The training stream, (N,).
    vocabulary
        Number of ids (V).
    """

    def __init__(self, tokens: npt.ArrayLike, vocabulary: int) -> None:
        stream = np.asarray(tokens, dtype=np.int64)
        self._vocabulary = vocabulary
        self._pairs, self._counts = np.unique(stream[:-1] * vocabulary + stream[1:], return_counts=True)
        once, twice = int((self._counts == 1).sum()), int((self._counts == 2).sum())
        self.discount = once / (once + 2 * twice) if once else 0.5
        before, after = np.divmod(self._pairs, vocabulary)
        self._total = np.bincount(before, weights=self._counts, minlength=vocabulary)
        self._followers = np.bincount(before, minlength=vocabulary)
        # In how many contexts a token was seen, mixed with uniform so that an unseen token has a chance.
        contexts = np.bincount(after, minlength=vocabulary).astype(np.float64)
        kept = np.maximum(contexts - self.discount, 0)
        rest = 1 - kept.sum() / contexts.sum()
        self._continuation = kept / contexts.sum() + rest / vocabulary

    def log_probability(self, before: npt.ArrayLike, after: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return ln P(after | before) for arrays of ids."""
        before, after = np.asarray(before, dtype=np.int64), np.asarray(after, dtype=np.int64)
        wanted = before * self._vocabulary + after
        place = np.minimum(np.searchsorted(self._pairs, wanted), self._pairs.size - 1)
        count = np.where(self._pairs[place] == wanted, self._counts[place], 0)
        total = self._total[before]
        safe = np.maximum(total, 1)
        backoff = np.where(total > 0, self.discount * self._followers[before] / safe, 1.0)
        probability = np.maximum(count - self.discount, 0) / safe + backoff * self._continuation[after]
        return np.asarray(np.log(probability), dtype=np.float64)


def bigram_of(files: Sequence[TokenFile]) -> Bigram:
    """Return the one bigram of all training tokens of a run's sources: what a model of all of them has to beat."""
    return Bigram(np.concatenate([np.asarray(file.tokens) for file in files]), files[0].vocabulary)


def bits_per_byte(model: Bigram, held_out: TokenFile) -> float:
    """Return the held-out bits per byte of a source under a bigram.

    Targets are counted as for a model: all tokens but the first, a document's end with no byte of its own.
    """
    stream = np.asarray(held_out.tokens, dtype=np.int64)
    total = -float(model.log_probability(stream[:-1], stream[1:]).sum())
    return total / math.log(2) / int(held_out.token_bytes[stream[1:]].sum(dtype=np.int64))


def known_bigram_share(texts: Iterable[list[str]], known: set[tuple[str, str]]) -> float:
    """Return the share of the word bigrams of `texts` (lists of words) that are in `known`."""
    pairs = [pair for words in texts for pair in pairwise(words)]
    return sum(pair in known for pair in pairs) / len(pairs) if pairs else 0.0
