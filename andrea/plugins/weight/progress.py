"""Less of what is no longer learned: noise, boilerplate that is known by now, a few pages learned by heart."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy as np

from andrea import AndreaError, Evaluation, Run, hookimpl, option, plugin
from andrea.loss_curves import Floats, LossCurves, sure

FEWEST = 5  # points: of fewer, what a line leaves says little of how wrong it may be


@plugin
class Progress(LossCurves):
    """Weigh by min(1, ((g + doubt x s) / (enough x median))^2), at least `floor`.

    g is the fall of a source's training loss per doubling of its pulls, s its standard error: see `andrea.loss_curves`.
    The median is of what is sure of g: where all only scatter it is 0 or next to it, and each has its whole weight.

    A mix that was chosen with care is left alone as long as every source is learned about as well as the others: only
    what falls behind is drawn less. A tilt among sources that are all learned gains some of them what it costs others.
    Of few pulls that scatter little is known. A source has the benefit of the doubt, or many that are learned well
    would fall to the floor by chance, where hardly a pull helps them up. It has its whole weight until its curve has
    five points, and all have while the median is 0. At the floor a source is still drawn now and then, so that one that
    can be learned after all comes back.
    """

    enough: float = option(0.75, help="share of the median progress from which on a source keeps its whole weight")
    floor: float = option(0.1, help="what a source without progress keeps, above 0")
    doubt: float = option(0.5, help="standard errors of its progress that count in a source's favour")
    _weights: Floats | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        """Refuse what would weigh everything alike, or mask a source for good."""
        super().__attrs_post_init__()
        for name, value in (("enough", self.enough), ("floor", self.floor)):
            if not 0 < value <= 1:
                raise AndreaError(
                    f"weight.progress.{name} is {value}", f"above 0 and at most 1: --set weight.progress.{name}=0.5"
                )
        if not 0 <= self.doubt < math.inf:
            raise AndreaError(f"weight.progress.doubt is {self.doubt}", "0 or more: --set weight.progress.doubt=0.5")

    @hookimpl
    def on_start(self, run: Run) -> None:
        """Begin without curves."""
        self._weights = None
        super().on_start(run=run)

    def fit(self, places: Sequence[float], losses: Sequence[float]) -> tuple[float, float]:
        """Return (g, s) of a curve that has a new point; the weights are of before."""
        self._weights = None
        return super().fit(places, losses)

    @hookimpl
    def on_evaluation(self, evaluation: Evaluation, run: Run) -> None:
        """Learn how many tokens each source needs for a byte."""
        self._weights = None
        super().on_evaluation(evaluation=evaluation, run=run)

    @hookimpl
    def weigh_sources(self) -> Floats:
        """Return the factor of every source, float64 (S,), in [floor, 1]; worked out when something was learned."""
        if self._weights is None:
            self._weights = self._weigh()
        return self._weights.copy()

    def _weigh(self) -> Floats:
        known = np.array([len(places) >= FEWEST for places in self.places])
        weights = np.ones(len(known))
        falls, errors = (self.fitted * self.densities[:, None]).T
        certain = [sure(*line) for line in zip(falls[known].tolist(), errors[known].tolist(), strict=True)]
        typical = float(np.median(certain)) if certain else 0.0
        if typical > 0:
            progress = np.maximum(falls + self.doubt * errors, 0.0) / (self.enough * typical)
            weights[known] = np.clip(progress[known] ** 2, self.floor, 1.0)
        return weights
