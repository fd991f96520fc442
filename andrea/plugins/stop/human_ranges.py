"""Whether a batch of texts measures what batches of human text measure, from below and from above.

Nobody says from which source a model took what it wrote, and lists, verse and letters differ. So every text is given to
the source in which its words are likeliest, and the batch is compared with batches of held-out windows of the same
sources, as many of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from andrea import Human

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Uniform = Callable[[int], Floats]
"""Gives so many numbers in [0, 1)."""

BATCHES = 2000  # of held-out windows that are drawn
TAIL = 0.005  # of them beyond each bound
LEAST_WINDOWS = 16  # of held-out text that tell a range


class Rule(NamedTuple):
    """How a measure is judged.

    Attributes
    ----------
    low, high
        Which bounds it has.
    margin
        Part of its distance from 0 (low) or 1 (high) by which a bound is moved.
    prior
        Trials with the human share that are added to every batch, so that a few words do not decide.
    """

    low: bool
    high: bool
    margin: float = 0.2
    prior: int = 50


RULES = {
    "words": Rule(low=True, high=True),
    "known": Rule(low=True, high=False),  # a good model likes common phrases: what it knows has no upper bound
    "returns": Rule(low=True, high=True),
    "repeats": Rule(low=True, high=True),
    "pairs": Rule(low=True, high=False, margin=0.3),
    "order": Rule(low=True, high=False, margin=0.1),
    "stitched": Rule(low=False, high=True, margin=0.15),
    "copied": Rule(low=False, high=True, margin=0.6, prior=0),  # few runs are tried, and one found says much
}


@frozen
class Verdict:
    """What became of a batch: `sources` is its make-up, `found` has (share, low, high) of every measure with trials."""

    sources: Mapping[str, int]
    found: Mapping[str, tuple[float, float, float]] = field(factory=dict)

    @property
    def outside(self) -> list[str]:
        """What is outside the human range, in words."""
        if not self.found:
            return ["nothing was written"]
        below = [f"{name} {x:.3f} below {low:.3f}" for name, (x, low, _) in self.found.items() if x < low]
        return below + [f"{name} {x:.3f} above {high:.3f}" for name, (x, _, high) in self.found.items() if x > high]


def judge(human: Human, names: Sequence[str], texts: Sequence[str], uniform: Uniform) -> Verdict:
    """Compare a batch of texts with human batches of its make-up.

    Parameters
    ----------
    human
        What is known of human text.
    names
        Of the sources.
    texts
        The batch.
    uniform
        Decides which held-out windows make the human batches.
    """
    if not any(text.strip() for text in texts):
        return Verdict({})
    sources = attribute(human.log_likelihood(texts))
    counts = measure(human, texts, sources)
    ranges = human_ranges(human, np.sort(sources), uniform)
    found = {
        name: (float(share(pair + ranges.prior[i])), float(ranges.low[i]), float(ranges.high[i]))
        for i, (name, pair) in enumerate(zip(human.measures, counts, strict=True))
        if pair[1]
    }
    return Verdict(dict(Counter(names[source] for source in sources.tolist())), found)


def share(counts: npt.NDArray[np.number[Any]]) -> Floats:
    """Return hits / trials of counts (..., 2); 0 of no trials."""
    return np.asarray(counts[..., 0] / np.where(counts[..., 1] > 0, counts[..., 1], 1), dtype=np.float64)


def attribute(likelihood: Floats, rounds: int = 8, least: float = 0.1) -> Ints:
    """Return the source of each text, int64 (N,), from ln P(text | source), float64 (N, S).

    Expectation maximisation of the make-up of the batch: what the clear texts say of it decides the unclear ones.
    `least` texts of every source are added to what is found, so that none is ruled out.
    """
    count, sources = likelihood.shape
    make_up = np.full(sources, 1 / sources)
    for _ in range(rounds):
        joint = likelihood + np.log(make_up)
        belongs = np.exp(joint - joint.max(axis=1, keepdims=True))
        belongs /= belongs.sum(axis=1, keepdims=True)
        make_up = (belongs.sum(axis=0) + least) / (count + least * sources)
    return np.asarray((likelihood + np.log(make_up)).argmax(axis=1), dtype=np.int64)


def measure(human: Human, texts: Sequence[str], sources: Ints) -> Ints:
    """Return hits and trials of the batch, int64 (M, 2): every text held against its source.

    What is copied is held against the source that knows most of it, whatever source the text is most like.
    """
    counts = human.measure(texts)
    number, copied = np.arange(len(texts)), human.measures.index("copied")
    rows = counts[number, sources]
    rows[:, copied] = counts[number, share(counts[:, :, copied]).argmax(axis=1), copied]
    return np.asarray(rows.sum(axis=0))


class Ranges(NamedTuple):
    """Bounds of every measure, float64 (M,), and the trials (M, 2) to be added before it is held against them."""

    low: Floats
    high: Floats
    prior: Floats


def human_ranges(human: Human, sources: Ints, uniform: Uniform) -> Ranges:
    """Return what human batches of a make-up measure.

    The bounds are the outer `TAIL` of the shares of batches of held-out windows, one of each text's source; where a
    source has fewer than `LEAST_WINDOWS`, those of all sources stand in. Few held-out documents say little of all human
    text, so the distance from the median is stretched by 1 + sqrt(sum_k n_k^2 / D_k / sum_k n_k), for n_k texts of
    source k of which D_k documents are held out. Then comes the margin of the rule.

    Parameters
    ----------
    human
        What is known of human text.
    sources
        Of each text, sorted.
    uniform
        Decides which windows are drawn.
    """
    rules = [RULES[name] for name in human.measures]
    everything = np.concatenate(human.held_out)
    if len(everything) < LEAST_WINDOWS:
        return Ranges(np.zeros(len(rules)), np.ones(len(rules)), np.zeros((len(rules), 2)))
    windows = [human.held_out[source] for source in sources.tolist()]
    windows = [one if len(one) >= LEAST_WINDOWS else everything for one in windows]
    batches = np.sum([one[(uniform(BATCHES) * len(one)).astype(np.int64)] for one in windows], axis=0)
    usual = np.mean([share(one.sum(axis=0)) for one in windows], axis=0)
    prior = np.stack([usual, np.ones_like(usual)], axis=1) * [[rule.prior] for rule in rules]
    low, middle, high = np.quantile(share(batches + prior), [TAIL, 0.5, 1 - TAIL], axis=0)

    texts = np.bincount(sources, minlength=len(human.held_out))
    stretch = 1 + np.sqrt((texts**2 / human.documents).sum() / len(sources))
    margin = np.array([rule.margin for rule in rules])
    low = np.maximum(middle - (middle - low) * stretch, 0.0) * (1 - margin)
    high = 1 - (1 - np.minimum(middle + (high - middle) * stretch, 1.0)) * (1 - margin)
    low[[not rule.low for rule in rules]] = 0.0
    high[[not rule.high for rule in rules]] = 1.0
    return Ranges(low, high, prior)
