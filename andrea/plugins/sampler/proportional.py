"""Draw a source with a probability in proportion to its score and weight, within floors and caps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from andrea import Choice, Limits, Run, combine, hookimpl

NAME = "sampler.proportional"


@hookimpl
def select_source(
    step: int,
    pull: int,
    pulls: Sequence[int],
    scores: npt.NDArray[np.float64],
    weights: npt.NDArray[np.float64],
    limits: Limits,
    run: Run,
) -> Choice:
    """Take an untried source if there is one, else draw from ``combine(score, weight, limits)``.

    Untried sources (score inf) come first, one each, in an order that the seed fixes; weight 0 or cap 0 excludes
    them. Negative scores count as 0; if no allowed source has a positive score, all are equally likely.
    """
    untried = scores == np.inf
    for source in run.draws(NAME).permutation(len(scores)).tolist() if untried.any() else ():
        if untried[source] and weights[source] > 0 and limits.cap[source] > 0 and source not in pulls:
            return Choice(source, {"untried": True})
    tentative = np.where(np.isfinite(scores), np.maximum(scores, 0.0), 0.0)
    if not (tentative * weights).any():
        tentative = np.ones(len(scores))
    shares = combine(tentative, weights, limits)
    source = run.draws(NAME, step, pull).choice(shares)
    return Choice(source, {"share": float(shares[source])})
