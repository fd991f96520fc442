"""Every source is as promising as every other: the baseline that a bandit has to beat."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from andrea import Run, hookimpl


@hookimpl
def score_sources(run: Run) -> npt.NDArray[np.float64]:
    """Score every source 1, float64 (S,)."""
    return np.ones(len(run.sources))
