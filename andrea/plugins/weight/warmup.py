"""A restricted diet at first: only the listed sources until the warm-up of the curriculum is over."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, Run, hookimpl, option, plugin


@plugin
class Warmup:
    """Mask all but the listed sources before `curriculum_warmup_steps`; the bandit runs inside the list.

    An empty list restricts nothing. This is the warm-up of the curriculum, not that of the learning rate.
    """

    curriculum_warmup_steps: int = option(20000, help="steps during which only the listed sources may be drawn")
    curriculum_warmup_sources: list[str] = option(
        factory=list, help="names of the sources to begin with; none: all", sources=True
    )

    def __attrs_post_init__(self) -> None:
        """Refuse a length that is none."""
        if self.curriculum_warmup_steps < 0:
            raise AndreaError(
                f"weight.warmup.curriculum_warmup_steps is {self.curriculum_warmup_steps}",
                "steps from 0 up: --set weight.warmup.curriculum_warmup_steps=1000",
            )

    @hookimpl
    def weigh_sources(self, step: int, run: Run) -> npt.NDArray[np.float64]:
        """Return 1 for sources that may be drawn and 0 for the others, float64 (S,)."""
        if step >= self.curriculum_warmup_steps or not self.curriculum_warmup_sources:
            return np.ones(len(run.sources))
        return np.array([float(name in self.curriculum_warmup_sources) for name in run.sources])
