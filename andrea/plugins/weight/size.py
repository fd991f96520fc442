"""More room for more text: any bandit's mix, tilted towards large sources."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, Run, hookimpl, option, plugin


@plugin
class Size:
    """Weigh by (tokens / tokens of the largest source)^exponent, an exponent that moves over the schedule.

    Of a large source the next tokens are new, of a small one they are read again; a bandit finds that out only after
    it has spent tokens on it. The exponent moves to `final` in a straight line: a mix that begins
    with the large sources and ends even reads the small ones late, when the rate is low and little of what they teach
    is overwritten.

    References
    ----------
    Held et al. (2025), arXiv 2501.11747: heuristics on token counts beat manual and learned mixes.
    """

    exponent: float = option(1.5, help="at the start; 0: all weigh the same; 1: in proportion to size")
    final: float | None = option(0.0, help="at the end of the schedule; null: the same all along")

    def __attrs_post_init__(self) -> None:
        """Refuse exponents that would prefer nothing or infinity."""
        for name, value in (("exponent", self.exponent), ("final", self.final)):
            if value is not None and not 0 <= value <= 4:
                raise AndreaError(
                    f"weight.size.{name} is {value}",
                    f"a number from 0 (no weight) over 1 (size) to 4: --set weight.size.{name}=0.5",
                )

    @hookimpl
    def weigh_sources(self, step: int, run: Run) -> npt.NDArray[np.float64]:
        """Return the factor of every source, float64 (S,), in (0, 1]."""
        sizes, exponent = run.tokens.astype(np.float64), self.exponent
        if self.final is not None:
            exponent += (self.final - exponent) * min(1.0, step / run.steps)
        return np.asarray((sizes / sizes.max()) ** exponent, dtype=np.float64)
