"""UCB1: the mean reward of a source, plus a bonus for being rarely tried."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, Run, StepRecord, hookimpl, option, plugin, state

SCALES = ("auto", "fixed")


@plugin
class UCB1:
    """Score sources by UCB(k) = mean_reward(k) + C sqrt(ln N / n_k); a source never tried scores inf.

    n_k are the pulls of source k and N those of all. The mean forgets nothing. The published rule assumes rewards
    in [0, 1]; ours come in any unit, so by default C = `exploration` x the standard deviation of all rewards so far,
    and multiplying every reward by a constant changes no ranking. While all rewards are equal that deviation says
    nothing, and 1 stands for it.

    References
    ----------
    Auer, Cesa-Bianchi, Fischer (2002), "Finite-time analysis of the multiarmed bandit problem".
    """

    exploration: float = option(1.0, help="factor C on the bonus for rarely tried sources")
    scale: str = option("auto", help="auto: C grows with the spread of the rewards; fixed: C is exploration itself")
    counts: npt.NDArray[np.int64] = state()
    means: npt.NDArray[np.float64] = state()
    overall_mean: float = state(0.0)
    overall_squares: float = state(0.0)

    @hookimpl
    def on_start(self, run: Run) -> None:
        """Begin with every source untried."""
        if self.scale not in SCALES:
            raise AndreaError(
                f"bandit.ucb1.scale is {self.scale!r}, which is no scale",
                f"the scales are {' and '.join(SCALES)}: --set bandit.ucb1.scale=auto",
            )
        self.counts = np.zeros(len(run.sources), dtype=np.int64)
        self.means = np.zeros(len(run.sources))
        self.overall_mean, self.overall_squares = 0.0, 0.0

    @hookimpl
    def score_sources(self) -> npt.NDArray[np.float64]:
        """Return mean plus bonus, inf for what was never tried, float64 (S,)."""
        scores = np.full(len(self.counts), np.inf)
        tried = self.counts > 0
        total = int(self.counts.sum())
        if total:
            bonus = np.sqrt(math.log(total) / self.counts[tried])
            scores[tried] = self.means[tried] + self.exploration * self._unit() * bonus
        return scores

    @hookimpl
    def on_step(self, record: StepRecord) -> None:
        """Count every pull; one whose update was skipped has the reward 0."""
        for pull in record.pulls:
            self.counts[pull.source] += 1
            self.means[pull.source] += (pull.reward - self.means[pull.source]) / self.counts[pull.source]
            # Welford's update: sums of squares of large rewards would cancel.
            before = pull.reward - self.overall_mean
            self.overall_mean += before / int(self.counts.sum())
            self.overall_squares += before * (pull.reward - self.overall_mean)

    def _unit(self) -> float:
        """Return what one unit of exploration is worth in units of reward."""
        if self.scale == "fixed" or self.overall_squares <= 0:
            return 1.0
        return math.sqrt(self.overall_squares / int(self.counts.sum()))
