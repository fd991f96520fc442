"""Draw a source with a probability in proportion to its score and weight, within floors and caps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from andrea import Choice, Limits, Run, combine, hookimpl, plugin

NAME = "sampler.proportional"
Floats = npt.NDArray[np.float64]


@plugin
class Proportional:
    """Draw a source with a probability in proportion to its score and weight, within floors and caps.

    The shares are ``combine(score, weight, limits)``. Untried sources (score inf) come first, one each, in an order
    that the seed fixes; weight 0 or cap 0 excludes them.
    Negative scores count as 0; if no allowed source has a positive score, all are equally likely. All pulls of a step
    are given the same scores, weights and limits, so their shares are worked out once.
    """

    _given: tuple[Any, ...] = attrs.field(init=False, default=())
    _shares: Floats | None = attrs.field(init=False, default=None)

    @hookimpl
    def select_source(
        self,
        step: int,
        pull: int,
        pulls: Sequence[int],
        scores: Floats,
        weights: Floats,
        limits: Limits,
        run: Run,
    ) -> Choice:
        """Take an untried source if there is one, else draw."""
        untried = {source for source, score in enumerate(scores.tolist()) if score == math.inf}
        for source in run.draws(NAME).permutation(len(scores)).tolist() if untried else ():
            if source in untried and weights[source] > 0 and limits.cap[source] > 0 and source not in pulls:
                return Choice(source, {"untried": True})
        shares = self._shares_of(scores, weights, limits)
        source = run.draws(NAME, step, pull).choice(shares)
        return Choice(source, {"share": float(shares[source])})

    def _shares_of(self, scores: Floats, weights: Floats, limits: Limits) -> Floats:
        """Return the shares; those of the last call when it was given the very same objects."""
        given = (scores, weights, limits)
        if self._shares is None or any(old is not new for old, new in zip(self._given, given, strict=True)):
            tentative = np.where(np.isfinite(scores), np.maximum(scores, 0.0), 0.0)
            if not (tentative * weights).any():
                tentative = np.ones(len(scores))
            self._given, self._shares = given, combine(tentative, weights, limits)
        return self._shares
