"""Online data mixing: the source with the higher loss gets the larger share."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, Pull, Run, StepRecord, combine, hookimpl, option, plugin, state

Floats = npt.NDArray[np.float64]
RULES = ("code", "paper")
HIGHEST_LOSS = 100.0  # nats per token; above it exp(loss) says no more than "very high", and it must stay finite


@plugin
class ODM:
    """Score sources by the shares of online data mixing, from their training losses; the run's reward is not used.

    With L the mean loss of source i in a step, K sources and e_t = min(1/K, sqrt(ln K / (K t))), `rule` code is what
    the published code does: R_i <- a R_i + (1 - a) exp(L_i) and p_i = (1 - K e_t) R_i / sum R + e_t, so sources are
    drawn in proportion to their smoothed perplexity. `rule` paper is what the paper says: R_i <- a R_i + (1 - a) L_i /
    q_i, q_i being the probability with which i was drawn, and p_i = (1 - K e_t) softmax(e_{t-1} R)_i + e_t.

    Both learn from the first step and draw uniformly for the first 2% of the schedule, as the published runs do.

    References
    ----------
    Albalak, Pan, Raffel, Wang (2023), "Efficient online data mixing for language model pre-training", arXiv 2312.02406.
    """

    rule: str = option("code", help="code: exp(loss), shares linear in it; paper: loss / probability, softmax")
    smoothing: float = option(0.9, help="a, what stays of the old value at an update, at least 0 and below 1")
    warmup_share: float = option(0.02, help="part of the schedule's steps that is drawn uniformly")
    values: Floats = state()

    def __attrs_post_init__(self) -> None:
        if self.rule not in RULES:
            raise AndreaError(f"bandit.odm.rule is {self.rule!r}", f"{' or '.join(RULES)}: --set bandit.odm.rule=code")
        if not (0 <= self.smoothing < 1 and 0 <= self.warmup_share <= 1):
            raise AndreaError(
                f"bandit.odm has smoothing {self.smoothing} and warmup_share {self.warmup_share}",
                "smoothing is at least 0 and below 1, warmup_share from 0 to 1",
            )

    @hookimpl
    def on_start(self, run: Run) -> None:
        """Begin without knowledge."""
        self.values = np.zeros(len(run.sources))

    @hookimpl
    def score_sources(self, step: int, run: Run) -> Floats:
        """Return shares, float64 (S,)."""
        count = len(self.values)
        if step < self.warmup_share * run.steps or not self.values.any():
            return np.full(count, 1 / count)
        floor = _exploration(count, step + 1)
        return np.asarray((1 - count * floor) * self._exploited(step) + floor, dtype=np.float64)

    @hookimpl
    def on_step(self, record: StepRecord) -> None:
        """Move the value of every source of the step, once for each source; a skipped update teaches nothing."""
        if record.skipped:
            return
        seen: dict[int, list[float]] = defaultdict(list)
        for pull in record.pulls:
            if math.isfinite(pull.loss):
                loss = min(pull.loss, HIGHEST_LOSS)
                seen[pull.source].append(math.exp(loss) if self.rule == "code" else loss / share_of(pull))
        for source, values in seen.items():
            mean = math.fsum(values) / len(values)
            self.values[source] = self.smoothing * self.values[source] + (1 - self.smoothing) * mean

    def _exploited(self, step: int) -> Floats:
        """Return the shares before exploration is mixed in."""
        if self.rule == "code":
            return np.asarray(self.values / self.values.sum(), dtype=np.float64)
        logits = _exploration(len(self.values), max(step, 1)) * self.values
        powers = np.exp(logits - logits.max())
        return np.asarray(powers / powers.sum(), dtype=np.float64)


def _exploration(count: int, time: int) -> float:
    """Return e_t, the share that every source has at least."""
    return min(1 / count, math.sqrt(math.log(count) / (count * time)))


def share_of(pull: Pull) -> float:
    """Return the probability with which a source was drawn: what the sampler reports, else what `combine` gives."""
    if "share" in pull.detail:
        return float(pull.detail["share"])
    return float(combine(pull.scores, pull.weights, pull.limits)[pull.source])
