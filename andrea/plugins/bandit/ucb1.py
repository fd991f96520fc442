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

    def __attrs_post_init__(self) -> None:
        if self.scale not in SCALES:
            raise AndreaError(
                f"bandit.ucb1.scale is {self.scale!r}, which is no scale",
                f"the scales are {' and '.join(SCALES)}: --set bandit.ucb1.scale=auto",
            )

    @hookimpl
    def on_start(self, run: Run) -> None:
        """Begin with every source untried."""
        self.counts = np.zeros(len(run.sources), dtype=np.int64)
        self.means = np.zeros(len(run.sources))
        self.overall_mean, self.overall_squares = 0.0, 0.0

    @hookimpl
    def score_sources(self) -> npt.NDArray[np.float64]:
        """Return mean plus bonus, inf for what was never tried, float64 (S,)."""
        counts, means = self.counts.tolist(), self.means.tolist()  # of so few, lists are faster
        total = sum(counts)
        surprise, factor = math.log(max(total, 1)), self.exploration * self._unit(total)
        return np.array(
            [
                mean + factor * math.sqrt(surprise / count) if count else math.inf
                for count, mean in zip(counts, means, strict=True)
            ]
        )

    @hookimpl
    def on_step(self, record: StepRecord) -> None:
        """Count every pull; one whose update was skipped has the reward 0."""
        for total, pull in enumerate(record.pulls, start=int(self.counts.sum()) + 1):
            reward, count, mean = pull.reward, int(self.counts[pull.source]) + 1, float(self.means[pull.source])
            self.counts[pull.source], self.means[pull.source] = count, mean + (reward - mean) / count
            # Welford's update: sums of squares of large rewards would cancel.
            before = reward - self.overall_mean
            self.overall_mean += before / total
            self.overall_squares += before * (reward - self.overall_mean)

    def _unit(self, total: int) -> float:
        """Return what one unit of exploration is worth in units of reward."""
        if self.scale == "fixed" or self.overall_squares <= 0 or not total:
            return 1.0
        return math.sqrt(self.overall_squares / total)
