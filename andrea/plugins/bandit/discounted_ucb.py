"""UCB1 that forgets: rewards of long ago count less than those of now."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from andrea import hookimpl, plugin
from andrea.plugins.bandit.discounted import Discounted


@plugin
class DiscountedUCB(Discounted):
    """Score sources by mean_k + C sqrt(ln N / n_k) with discounted means and counts; never tried scores inf.

    C = `exploration` x the discounted standard deviation of all rewards, so the unit of the rewards does not matter.
    The count of a source that is not drawn fades and its bonus grows without bound, so every source comes back.

    References
    ----------
    Garivier, Moulines (2011), "On upper-confidence bound policies for switching bandit problems".
    """

    @hookimpl
    def score_sources(self) -> npt.NDArray[np.float64]:
        """Return mean plus bonus, inf for what was never tried, float64 (S,)."""
        scores = np.full(len(self.counts), np.inf)
        tried = self.counts > 0
        if tried.any():
            bonus = np.sqrt(math.log(max(self.overall_count, 1.0)) / self.counts[tried])
            scores[tried] = self.means[tried] + self.exploration * self.spread() * bonus
        return scores
