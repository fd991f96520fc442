"""UCB1 over the last pulls only: what is older is forgotten at once."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, Run, StepRecord, hookimpl, option, plugin, state


@plugin
class SlidingUCB:
    """Score sources by mean_k + C sqrt(ln N / n_k) over the last `window` pulls; a source never tried scores inf.

    C = `exploration` x the standard deviation of the window's rewards (1 while they are equal). A source that has
    dropped out of the window scores as if it had been pulled once with the best reward of the window, which no other
    exceeds: it comes back at the latest after `window` pulls. A skipped update counts with the reward 0.

    References
    ----------
    Garivier, Moulines (2011), "On upper-confidence bound policies for switching bandit problems".
    """

    exploration: float = option(1.0, help="factor on the bonus for rarely tried sources, in spreads of the rewards")
    window: int = option(500, help="pulls that are remembered")
    sources: npt.NDArray[np.int64] = state()
    rewards: npt.NDArray[np.float64] = state()
    tried: npt.NDArray[np.bool_] = state()

    def __attrs_post_init__(self) -> None:
        if self.window < 1:
            raise AndreaError(
                f"bandit.sliding_ucb.window is {self.window}", "at least 1: --set bandit.sliding_ucb.window=500"
            )

    @hookimpl
    def on_start(self, run: Run) -> None:
        """Begin with an empty window."""
        self.sources, self.rewards = np.zeros(0, dtype=np.int64), np.zeros(0)
        self.tried = np.zeros(len(run.sources), dtype=np.bool_)

    @hookimpl
    def score_sources(self) -> npt.NDArray[np.float64]:
        """Return mean plus bonus, inf for what was never tried, float64 (S,)."""
        scores = np.full(len(self.tried), np.inf)
        if self.rewards.size:
            counts = np.bincount(self.sources, minlength=len(scores))
            sums = np.bincount(self.sources, self.rewards, minlength=len(scores))
            spread = float(self.rewards.std()) or 1.0
            means = np.where(counts > 0, sums / np.maximum(counts, 1), self.rewards.max())
            bonus = np.sqrt(math.log(self.rewards.size) / np.maximum(counts, 1))
            scores[self.tried] = (means + self.exploration * spread * bonus)[self.tried]
        return scores

    @hookimpl
    def on_step(self, record: StepRecord) -> None:
        """Let every pull into the window."""
        pulled = [pull.source for pull in record.pulls]
        self.sources = np.append(self.sources, pulled)[-self.window :]
        self.rewards = np.append(self.rewards, [pull.reward for pull in record.pulls])[-self.window :]
        self.tried[pulled] = True
