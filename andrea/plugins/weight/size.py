"""More room for more text: any bandit's mix, tilted towards large sources."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, Run, hookimpl, option, plugin


@plugin
class Size:
    """Weigh by (tokens / tokens of the largest source)^exponent, so that a bandit acts on top of a tempered mix.

    Of a large source the next tokens are new, of a small one they are read again; a bandit finds that out only after
    it has spent tokens on it.

    References
    ----------
    Held et al. (2025), arXiv 2501.11747: heuristics on token counts beat manual and learned mixes.
    """

    exponent: float = option(0.5, help="0: all weigh the same; 1: in proportion to size; between: tempered")

    @hookimpl
    def on_start(self) -> None:
        """Refuse exponents that would prefer nothing or infinity."""
        if not 0 <= self.exponent <= 4:
            raise AndreaError(
                f"weight.size.exponent is {self.exponent}",
                "a number from 0 (no weight) over 1 (size) to 4: --set weight.size.exponent=0.5",
            )

    @hookimpl
    def weigh_sources(self, run: Run) -> npt.NDArray[np.float64]:
        """Return the factor of every source, float64 (S,), in (0, 1]."""
        sizes = run.tokens.astype(np.float64)
        return np.asarray((sizes / sizes.max()) ** self.exponent, dtype=np.float64)
