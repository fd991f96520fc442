"""Whether a batch of texts measures what batches of human text measure, from below and from above.

Nobody says from which source a model took what it wrote, and lists, verse and letters differ. So every text is given to
the source in which its words are likeliest, and the batch is compared with batches of held-out windows of the same
sources, as many of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from andrea import Human

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Uniform = Callable[[int], Floats]
"""Gives so many numbers in [0, 1)."""

BATCHES = 4000  # of held-out windows that are drawn
TOGETHER = 4  # most of them that are put together
TAIL = 0.005  # of them beyond each bound
LEAST_WINDOWS = 16  # of held-out text that tell a range


class Rule(NamedTuple):
    """How a measure is judged.

    Attributes
    ----------
    low, high
        Which bounds it has. A good model likes common phrases: what it may know has no upper bound.
    margin
        A bound is moved by this part of its distance from 0 (below) or 1 (above).
    prior
        Trials of the human share that are added to every batch, human ones too, so that a few words do not decide.
    stretch
        Whether bounds are wider where few documents are held out; what is copied must not seem human for that.
    """

    low: bool
    high: bool
    margin: float
    prior: float = 40
    stretch: bool = True


RULES = {
    "words": Rule(True, True, 0.2),
    "known": Rule(True, False, 0.2),
    "returns": Rule(True, True, 0.2),
    "repeats": Rule(True, True, 0.2),
    "pairs": Rule(True, False, 0.2),
    "order": Rule(True, False, 0.1),
    "stitched": Rule(False, True, 0.2),
    "copied": Rule(False, True, 0.5, prior=0, stretch=False),
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
    sources, counts = attribute(human.log_likelihood(texts)), human.measure(texts)
    rows = counts[np.arange(len(texts)), sources]
    copied = human.measures.index("copied")  # also what was copied from another source than it is most like
    rows[:, copied] = counts[np.arange(len(texts)), share(counts[:, :, copied]).argmax(axis=1), copied]
    total = rows.sum(axis=0)
    prior, low, high = bounds(human, np.sort(sources), total[:, 1], uniform)
    found = {
        name: (float(value), float(low[i]), float(high[i]))
        for i, (name, value) in enumerate(zip(human.measures, share(total, prior), strict=True))
        if total[i, 1]
    }
    return Verdict(dict(Counter(names[source] for source in sources.tolist())), found)


def share(counts: Ints, prior: Floats | None = None) -> Floats:
    """Return hits / trials of counts (..., 2), with hits and trials (..., 2) of a prior added; 0 of no trials."""
    both = counts if prior is None else counts + prior
    return np.asarray(both[..., 0] / np.where(both[..., 1] > 0, both[..., 1], 1), dtype=np.float64)


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


def bounds(human: Human, sources: Ints, trials: Ints, uniform: Uniform) -> tuple[Floats, Floats, Floats]:
    """Return the prior, (M, 2), and the lower and upper bound of every measure, (M,), for a batch.

    The bounds are the outer `TAIL` of the shares of batches of held-out windows, one of each text's source; where a
    source has fewer than `LEAST_WINDOWS`, those of all sources stand in. A batch with more trials than human ones
    usually have is held against several of them put together. Few held-out documents say little of all human text, so
    the distance from the median is stretched by 1 + sqrt(sum_k n_k^2 / D_k / sum_k n_k), for n_k texts of source k of
    which D_k documents are held out. Then comes the margin of the rule.

    Parameters
    ----------
    human
        What is known of human text.
    sources
        Of each text, sorted.
    trials
        Of each measure in the batch, int64 (M,).
    uniform
        Decides which windows are drawn.
    """
    rules = [RULES[name] for name in human.measures]
    everything = np.concatenate(human.held_out)
    if len(everything) < LEAST_WINDOWS:
        return np.zeros((len(rules), 2)), np.zeros(len(rules)), np.ones(len(rules))
    enough = [one if len(one) >= LEAST_WINDOWS else everything for one in human.held_out]
    windows = [enough[source] for source in sources.tolist()]
    picks = [(uniform(BATCHES) * len(one)).astype(np.int64) for one in windows]
    batches = np.sum([one[pick] for one, pick in zip(windows, picks, strict=True)], axis=0)
    mean = np.mean([share(one.sum(axis=0)) for one in windows], axis=0)
    prior = np.array([(rule.prior * mean[i], rule.prior) for i, rule in enumerate(rules)])
    quantiles = [_quantiles(batches[:, i], prior[i], count) for i, count in enumerate(trials.tolist())]
    low, middle, high = np.array(quantiles).T
    texts = np.bincount(sources, minlength=len(human.held_out))
    wider = 1 + np.sqrt((texts**2 / human.documents).sum() / len(sources))
    stretch = np.array([wider if rule.stretch else 1.0 for rule in rules])
    margin = np.array([rule.margin for rule in rules])
    low = np.maximum(middle - (middle - low) * stretch, 0.0) * (1 - margin)
    high = np.minimum(middle + (high - middle) * stretch, 1.0)
    high += margin * (1 - high)
    low[[not rule.low for rule in rules]] = 0.0
    high[[not rule.high for rule in rules]] = 1.0
    return prior, low, high


def _quantiles(batches: Ints, prior: Floats, trials: int) -> Floats:
    """Return the lower bound, the median and the upper bound of one measure's shares of batches, int64 (B, 2)."""
    usual = max(1.0, float(np.median(batches[:, 1])))
    together = min(max(round(trials / usual), 1), TOGETHER)
    groups = batches[: len(batches) // together * together].reshape(-1, together, 2).sum(axis=1)
    return np.quantile(share(groups, prior), [TAIL, 0.5, 1 - TAIL])
