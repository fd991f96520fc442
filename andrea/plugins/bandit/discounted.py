"""Counts, means and spread of rewards in which the past fades."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, Run, StepRecord, hookimpl, option, plugin, state

SMALLEST = 1e-300  # a source that was tried once stays tried, however long ago


@plugin
class Discounted:
    """What bandits know that forget by a discount: every pull makes all earlier ones count for `discount` of before.

    A pull whose update was skipped counts, with the reward 0.
    """

    exploration: float = option(1.0, help="factor on the bonus for what is uncertain, in spreads of the rewards")
    discount: float = option(0.995, help="what an earlier pull counts after one more, in (0, 1]; 1 forgets nothing")
    counts: npt.NDArray[np.float64] = state()
    means: npt.NDArray[np.float64] = state()
    overall_count: float = state(0.0)
    overall_mean: float = state(0.0)
    overall_squares: float = state(0.0)

    def __attrs_post_init__(self) -> None:
        if not 0 < self.discount <= 1:
            raise AndreaError(f"a discount of {self.discount} is none", "above 0 and at most 1, for instance 0.995")

    @hookimpl
    def on_start(self, run: Run) -> None:
        """Begin with every source untried."""
        self.counts, self.means = np.zeros(len(run.sources)), np.zeros(len(run.sources))
        self.overall_count = self.overall_mean = self.overall_squares = 0.0

    @hookimpl
    def on_step(self, record: StepRecord) -> None:
        """Count every pull, one after the other."""
        for pull in record.pulls:
            tried = self.counts > 0
            self.counts[tried] = np.maximum(self.counts[tried] * self.discount, SMALLEST)
            self.counts[pull.source] += 1
            self.means[pull.source] += (pull.reward - self.means[pull.source]) / self.counts[pull.source]
            before = pull.reward - self.overall_mean
            self.overall_count = self.overall_count * self.discount + 1
            self.overall_mean += before / self.overall_count
            self.overall_squares = self.overall_squares * self.discount + before * (pull.reward - self.overall_mean)

    def spread(self) -> float:
        """Return the standard deviation of all rewards, the unit of exploration; 1 while they are all equal."""
        return math.sqrt(self.overall_squares / self.overall_count) if self.overall_squares > 0 else 1.0
