"""How coherent generated texts are: a score of repetition, which loss cannot show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from statistics import fmean
from typing import NamedTuple

from andrea.words import split_words


class Scores(NamedTuple):
    """Parts of the coherence score; `words` is None when it is not known which words the training text has."""

    bigrams: float
    trigrams: float
    words: float | None
    characters: float

    @property
    def total(self) -> float:
        """Return the score in 0-100; without `words` the other three, 80 points, are stretched to 100."""
        if self.words is None:
            return (self.bigrams + self.trigrams + self.characters) / 0.8
        return self.bigrams + self.trigrams + self.words + self.characters


def distinct_share(words: Sequence[str], length: int) -> float:
    """Return distinct n-grams / n-grams of `length` words; 0 when there is none."""
    grams = list(zip(*(words[start:] for start in range(length)), strict=False))
    return len(set(grams)) / len(grams) if grams else 0.0


def distinct_characters(text: str, window: int = 200) -> float:
    """Return the mean number of distinct characters in whole windows; a shorter text is one window."""
    last = max(len(text) - window, 0)
    return fmean(len(set(text[start : start + window])) for start in range(0, last + 1, window))


def score_texts(texts: Sequence[str], known_words: Set[str]) -> Scores:
    """Score texts from 0 (a loop, or nothing) to 100.

    With d_n the share of distinct word n-grams of a text, averaged over texts, and clip to [0, 1]:
    bigrams = 35 clip((d_2 - 0.3) / 0.6), trigrams = 35 clip((d_3 - 0.4) / 0.55),
    words = 20 x share of all words that are known, characters = 10 clip(distinct characters per 200 / 20).

    Low scores mean repetition. Words in random order repeat nothing and score high: this is one gate, not a proof.

    Parameters
    ----------
    texts
        Generated texts, without their prompts.
    known_words
        Lower-case words of the training text, split by `andrea.words.split_words`; empty when unknown.
    """
    words = [split_words(text) for text in texts]
    pooled = [word for text in words for word in text]
    known = _mean(word in known_words for word in pooled)
    return Scores(
        bigrams=35 * _clip((_mean(distinct_share(text, 2) for text in words) - 0.3) / 0.6),
        trigrams=35 * _clip((_mean(distinct_share(text, 3) for text in words) - 0.4) / 0.55),
        words=20 * known if known_words else None,
        characters=10 * _clip(_mean(distinct_characters(text) for text in texts) / 20),
    )


def _clip(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _mean(values: Iterable[float]) -> float:
    """Return the mean, 0 of nothing."""
    collected = list(values)
    return fmean(collected) if collected else 0.0
