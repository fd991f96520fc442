"""A bonus for sources of which little has been seen."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, Run, hookimpl, option, plugin


@plugin
class CoverageBonus:
    """Weigh by 1 + bonus (1 - coverage / below) while coverage < below, else by 1.

    Coverage is distinct documents drawn / documents. With the defaults the factor falls from 1.3 at 0% over 1.15 at
    25% to 1 at 50%.
    """

    bonus: float = option(0.3, help="what is added to the weight 1 at coverage 0")
    below: float = option(0.5, help="coverage from which there is no bonus any more, above 0")

    def __attrs_post_init__(self) -> None:
        """Refuse a bonus that could mask a source, and a limit that divides by 0."""
        if not (self.below > 0 and 0 <= self.bonus < np.inf):
            raise AndreaError(
                f"weight.coverage_bonus has bonus {self.bonus} and below {self.below}",
                "bonus must be at least 0 and below above 0: --set weight.coverage_bonus.below=0.5",
            )

    @hookimpl
    def weigh_sources(self, run: Run) -> npt.NDArray[np.float64]:
        """Return the factor of every source, float64 (S,)."""
        return 1 + self.bonus * np.maximum(0.0, 1 - run.coverage / self.below)
