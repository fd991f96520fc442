"""The best source wins: UCB1 as it is published."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from andrea import Choice, Run, hookimpl


@hookimpl
def select_source(
    pulls: Sequence[int], scores: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], run: Run
) -> Choice:
    """Choose the highest score x weight, untried sources (score inf) first, never one of weight 0.

    Equal ranks go first to a source that this step has not drawn yet, then by an order that the seed fixes for the
    whole run. Floors and caps bound shares of a draw, and nothing is drawn here, so they have no effect.
    """
    allowed = weights > 0
    if not allowed.any():
        raise ValueError("no source is left: all weights are 0")
    ranked = np.full(len(scores), -np.inf)
    ranked[allowed] = scores[allowed] * weights[allowed]
    drawn = np.isin(np.arange(len(scores)), pulls)
    order = np.empty(len(scores), dtype=np.int64)
    order[run.draws("sampler.argmax").permutation(len(scores))] = np.arange(len(scores))
    best = int(np.lexsort((order, drawn, -ranked, ~allowed))[0])
    untried = np.isposinf(ranked[best])
    return Choice(best, {"untried": True} if untried else {"ranked": float(ranked[best])})
