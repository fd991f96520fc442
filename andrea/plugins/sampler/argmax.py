"""The best source wins: UCB1 as it is published."""

from __future__ import annotations

import math
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
    pairs = enumerate(zip(scores.tolist(), weights.tolist(), strict=True))
    ranked = {source: score * weight for source, (score, weight) in pairs if weight > 0}
    if not ranked:
        raise ValueError("no source is left: all weights are 0")
    highest = max(ranked.values())
    equals = [source for source, rank in ranked.items() if rank == highest]
    equals = [source for source in equals if source not in pulls] or equals
    if len(equals) > 1:
        order = run.draws("sampler.argmax").permutation(len(scores)).tolist()
        equals = [source for source in order if source in equals]
    return Choice(equals[0], {"untried": True} if highest == math.inf else {"ranked": ranked[equals[0]]})
