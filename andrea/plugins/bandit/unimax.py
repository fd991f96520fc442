"""As uniform as possible, but no source more often than a number of epochs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, Run, hookimpl, option, plugin


@plugin
class UniMax:
    """Score sources by UniMax's shares: equal parts of the token budget, but at most `epochs` passes over a source.

    The budget is the run's: steps of the schedule x rows x context. From the smallest source up, each gets an equal
    part of what is left, or `epochs` x its tokens if that is less; what it cannot take goes to the larger ones. Where
    even `epochs` passes over all text are fewer than the budget, the shares are those of the sizes.

    References
    ----------
    Chung et al. (2023), "UniMax: fairer and more effective language sampling for large-scale multilingual pretraining".
    """

    epochs: float = option(4.0, help="passes over a source that the whole run may make, above 0")

    def __attrs_post_init__(self) -> None:
        """Refuse a cap that leaves nothing."""
        if not self.epochs > 0:
            raise AndreaError(f"bandit.unimax.epochs is {self.epochs}", "above 0: --set bandit.unimax.epochs=4")

    @hookimpl
    def score_sources(self, run: Run) -> npt.NDArray[np.float64]:
        """Return shares of the budget, float64 (S,)."""
        left = float(run.steps * run.rows * run.context)
        parts = np.zeros(len(run.sources))
        order = np.argsort(run.tokens, kind="stable").tolist()
        for position, source in enumerate(order):
            parts[source] = min(left / (len(order) - position), self.epochs * float(run.tokens[source]))
            left -= parts[source]
        return np.asarray(parts / parts.sum(), dtype=np.float64)
