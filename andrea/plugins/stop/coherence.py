"""The stop of a run that writes garbage, which its loss cannot show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from statistics import fmean
from typing import NamedTuple

from andrea import Evaluation, Run, Sample, hookimpl, option, plugin, state

WORD = re.compile(r"(?:[^\W_]|')+")


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


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case, split as the preparation of data splits them."""
    return WORD.findall(text.lower())


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
        Lower-case words of the training text, split as `split_words` does; empty when unknown.
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


@plugin
class Coherence:
    """Stop after several incoherent samples in a row over which no held-out loss got better.

    A check fails when the samples score `threshold` or less: a perfect loop of known words keeps exactly the 30 points
    for words and characters. Nothing fails before the end of a grace period, as no model is coherent at step 100.
    Failures count from the last coherent sample or the last better held-out mean (bits per byte), whichever is later.
    In a run that evaluates, at least one evaluation since then must have spoken; in one that never does, the samples
    decide alone.
    """

    threshold: float = option(30.0, help="highest score of 100 at which samples are incoherent")
    failures: int = option(3, help="incoherent samples in a row that stop the run")
    grace_steps: int | None = option(None, help="steps without checks; none: the warm-up of the learning rate")
    failed: int = state(0)
    best: float | None = state(None)
    evaluations: int = state(0)
    scores: dict[str, float | None] = state(factory=dict)

    @hookimpl
    def on_sample(self, sample: Sample, run: Run) -> None:
        """Score the samples and count failures in a row."""
        scores = score_texts(sample.texts, run.known_words)
        self.scores = {**scores._asdict(), "total": scores.total}
        grace = run.warmup_steps if self.grace_steps is None else self.grace_steps
        if sample.step > grace and scores.total <= self.threshold:
            self.failed += 1
        else:
            self.failed, self.evaluations = 0, 0

    @hookimpl
    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Start counting anew when the held-out mean got better."""
        if self.best is None or evaluation.mean < self.best:
            self.best, self.failed, self.evaluations = evaluation.mean, 0, 0
        elif self.failed:
            self.evaluations += 1

    @hookimpl
    def should_stop(self) -> str | None:
        """Say how incoherent the samples were."""
        if self.failed < self.failures or (self.best is not None and not self.evaluations):
            return None
        return (
            f"{self.failed} incoherent samples in a row, the last with {self.scores['total']:.1f} of 100 points "
            f"(threshold {self.threshold:g}), and no better held-out loss meanwhile"
        )


def _clip(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _mean(values: Iterable[float]) -> float:
    """Return the mean, 0 of nothing."""
    collected = list(values)
    return fmean(collected) if collected else 0.0
