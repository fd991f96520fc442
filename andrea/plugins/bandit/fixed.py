"""A fixed mix: every source has the weight that the user gives it."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, Run, hookimpl, option, plugin


@plugin
class Fixed:
    """Score sources by given weights, as shares; a source without a weight is not drawn."""

    weights: dict[str, float] = option(
        factory=dict, help="source name to weight, at least 0; the others have 0", sources=True
    )

    def __attrs_post_init__(self) -> None:
        """Refuse weights that leave nothing to draw."""
        values = list(self.weights.values())
        if not all(math.isfinite(value) and value >= 0 for value in values) or not any(values):
            raise AndreaError(
                f"bandit.fixed.weights is {self.weights}",
                "numbers from 0 up, at least one of them above 0: --set 'bandit.fixed.weights={\"SOURCE\": 1}'",
            )

    @hookimpl
    def score_sources(self, run: Run) -> npt.NDArray[np.float64]:
        """Return shares, float64 (S,)."""
        weights = np.array([self.weights.get(name, 0.0) for name in run.sources], dtype=np.float64)
        return np.asarray(weights / weights.sum(), dtype=np.float64)
