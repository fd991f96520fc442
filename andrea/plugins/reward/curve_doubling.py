"""A pull is worth what reading the source twice as long as so far would lower its loss by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from andrea import Pull, hookimpl, plugin
from andrea.plugins.reward.curve import Curves, sure

WINDOW = 8  # points that a straight line goes through: the last 2.7 times of a source's pulls


@plugin
class Doubling(Curves):
    """Reward the fall of a source's loss L per doubling of its pulls n: g = -ln 2 dL / d ln n.

    Where L_k falls by g_k for each doubling of n_k, one more pull of source k gains g_k / (n_k ln 2). For a given
    number of pulls the sum of the losses is smallest when all gain the same, so when pulls are in proportion to g: a
    share in proportion to this reward (`sampler.proportional`) is the mix that it asks for. A slope per pull, as of
    `reward.slope`, asks for a balance that no share is proportional to.

    g is the slope of the straight line through the last eight points of the curve (see `Curves`) over ln n, by how sure
    it is, x max(0, 1 - variance / g^2): a source of noise has none, one that is known by now has none any more, and one
    that has begun to be learned after long has one within a few points. Before there are two points it is 0.
    """

    @hookimpl
    def reward(self, pull: Pull) -> dict[str, float]:
        """Return the one term ``doubling``, >= 0, in nats per (average) token."""
        return {"doubling": float(self.fitted[pull.source, 0] * self.densities[pull.source])}

    def fit(self, places: Sequence[float], losses: Sequence[float]) -> tuple[float, float]:
        """Return (g, 0)."""
        return gain(places[-WINDOW:], losses[-WINDOW:]), 0.0


def gain(places: Sequence[float], losses: Sequence[float]) -> float:
    """Return the fall of the least squares line through points (ln n, loss) per doubling of n, by how sure it is."""
    if len(places) < 2:
        return 0.0
    logs = np.log2(np.array(places))
    logs -= logs.mean()
    heights = np.array(losses) - np.mean(losses)
    squares = float(logs @ logs)
    fall = max(-float(logs @ heights) / squares, 0.0)
    error = float(np.sum((heights + fall * logs) ** 2))
    return sure(fall, error, len(places), 2, squares)
