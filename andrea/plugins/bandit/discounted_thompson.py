"""Thompson sampling that forgets: a source is drawn as often as it is likely to be the best now."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from andrea import Run, hookimpl, plugin
from andrea.plugins.bandit.discounted import Discounted


@plugin
class DiscountedThompson(Discounted):
    """Score sources by a draw from what is believed of their mean reward; a source never tried scores inf.

    The belief is normal: mean (n_k mean_k + m) / (n_k + 1) and deviation C s / sqrt(n_k + 1), where n_k and mean_k are
    discounted, m and s are mean and standard deviation of all rewards, and C is `exploration`: a prior worth one pull
    of an average source. Every pull has a draw of its own, so the best-ranked source differs within a mixed step too.
    With `discount` 1 it is Thompson sampling as it is published.

    References
    ----------
    Thompson (1933), "On the likelihood that one unknown probability exceeds another".
    Agrawal, Goyal (2013), "Further optimal regret bounds for Thompson sampling".
    """

    @hookimpl
    def score_sources(self, step: int, run: Run) -> npt.NDArray[np.float64]:
        """Return one draw for each source, float64 (S,)."""
        draws = run.draws("bandit.discounted_thompson", step, int(run.pulls.sum()))
        beliefs = (self.counts * self.means + self.overall_mean) / (self.counts + 1)
        deviations = self.exploration * self.spread() / np.sqrt(self.counts + 1)
        scores = beliefs + deviations * draws.normal(len(self.counts))
        return np.asarray(np.where(self.counts > 0, scores, np.inf), dtype=np.float64)
