"""Exp3: exponential weights over sources, fed with rewards divided by the probability of their draw."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, Pull, Run, StepRecord, combine, hookimpl, option, plugin, state

Floats = npt.NDArray[np.float64]


@plugin
class Exp3:
    """Score sources by Exp3's probabilities p_k = (1 - gamma) w_k / sum w + gamma / S.

    After a pull of source k with reward x in [0, 1], drawn with probability q: w_k <- w_k exp(gamma x / (q S)), and
    then, as Exp3.S does so that no source is given up for good, w_i <- w_i + e alpha / S sum w for all i. Weights are
    kept as logarithms with the largest at 0.

    q is the share that the sampler reports, else that of `combine`. Where weights and caps make q smaller than Exp3
    itself ever would, the exponent is held at 1. A skipped update has no reward and teaches nothing.

    References
    ----------
    Auer, Cesa-Bianchi, Freund, Schapire (2002), "The nonstochastic multiarmed bandit problem".
    Graves, Bellemare, Menick, Munos, Kavukcuoglu (2017), "Automated curriculum learning for neural networks".
    """

    exploration: float = option(0.1, help="gamma: share of draws spread evenly, and how fast it learns; in (0, 1]")
    mixing: float = option(0.001, help="alpha: weight that every source gets from all at every pull; 0 is plain Exp3")
    window: int = option(100, help="rewards whose 20% and 80% quantiles become 0 and 1")
    logs: Floats = state()
    rewards: list[float] = state(factory=list)

    def __attrs_post_init__(self) -> None:
        if not (0 < self.exploration <= 1 and 0 <= self.mixing <= 1 and self.window >= 2):
            raise AndreaError(
                f"bandit.exp3 has exploration {self.exploration}, mixing {self.mixing} and window {self.window}",
                "in (0, 1], in [0, 1], and at least 2: --set bandit.exp3.exploration=0.1",
            )

    @hookimpl
    def on_start(self, run: Run) -> None:
        """Begin with equal weights."""
        self.logs, self.rewards = np.zeros(len(run.sources)), []

    @hookimpl
    def score_sources(self) -> Floats:
        """Return the probabilities, float64 (S,)."""
        weights = np.exp(self.logs)
        return (1 - self.exploration) * weights / weights.sum() + self.exploration / len(weights)

    @hookimpl
    def on_step(self, record: StepRecord) -> None:
        """Learn from every rewarded pull, one after the other."""
        if record.skipped:
            return
        for pull in record.pulls:
            self.rewards = [*self.rewards, pull.reward][-self.window :]
            self._learn(pull.source, self._scaled(pull.reward) / share_of(pull))

    def _scaled(self, reward: float) -> float:
        """Return where a reward lies between the quantiles of the window, in [0, 1]; 0 while they are equal."""
        low, high = np.quantile(self.rewards, [0.2, 0.8])
        return float(np.clip((reward - low) / (high - low), 0.0, 1.0)) if high > low else 0.0

    def _learn(self, source: int, estimate: float) -> None:
        self.logs[source] += min(self.exploration * estimate / len(self.logs), 1.0)
        if self.mixing:
            weights = np.exp(self.logs - self.logs.max())
            self.logs = np.log(weights + math.e * self.mixing / len(weights) * weights.sum())
        self.logs -= self.logs.max()


def share_of(pull: Pull) -> float:
    """Return the probability with which a pull's source was drawn."""
    if "share" in pull.detail:
        return float(pull.detail["share"])
    return float(combine(pull.scores, pull.weights, pull.limits)[pull.source])
