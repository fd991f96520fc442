"""Sources by their size: the mix that drawing from all text at once would give."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, Run, hookimpl, option, plugin

SIZES = ("tokens", "documents")


@plugin
class Proportional:
    """Score sources by size^exponent, as shares: 1 is the mix of all text, 0 is uniform, between them a tempered mix.

    References
    ----------
    Held et al. (2025), arXiv 2501.11747: heuristics on token counts beat manual and learned mixes.
    """

    by: str = option("tokens", help="what size is counted in: tokens or documents")
    exponent: float = option(1.0, help="1: in proportion to size; 0: uniform; between: tempered")

    def __attrs_post_init__(self) -> None:
        """Refuse what is no size, and exponents that would prefer nothing or infinity."""
        if self.by not in SIZES:
            raise AndreaError(
                f"bandit.proportional.by is {self.by!r}, which is no size",
                f"sizes are {' and '.join(SIZES)}: --set bandit.proportional.by=tokens",
            )
        if not 0 <= self.exponent <= 4:
            raise AndreaError(
                f"bandit.proportional.exponent is {self.exponent}", "a number from 0 (uniform) over 1 (size) to 4"
            )

    @hookimpl
    def score_sources(self, run: Run) -> npt.NDArray[np.float64]:
        """Return shares, float64 (S,)."""
        sizes = (run.tokens if self.by == "tokens" else run.documents).astype(np.float64)
        powers = (sizes / sizes.max()) ** self.exponent
        return np.asarray(powers / powers.sum(), dtype=np.float64)
