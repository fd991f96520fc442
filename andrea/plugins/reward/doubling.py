"""A pull is worth what reading the source twice as long as so far would lower its loss by."""

from __future__ import annotations

from andrea import Pull, hookimpl, plugin
from andrea.loss_curves import LossCurves, sure


@plugin
class Doubling(LossCurves):
    """Reward the fall of a source's loss L per doubling of its pulls n: g = -ln 2 dL / d ln n.

    Where L_k falls by g_k for each doubling of n_k, one more pull of source k gains g_k / (n_k ln 2). For a given
    number of pulls the sum of the losses is smallest when all gain the same, so when pulls are in proportion to g: a
    share in proportion to this reward (`sampler.proportional`) is the mix that it asks for. A slope per pull, as of
    `reward.slope`, asks for a balance that no share is proportional to.

    g is the slope of a straight line through the last points of the curve over log2 n, by how sure it is (see
    `andrea.loss_curves`): noise has none, what is known by now has none any more, and what has begun to be learned
    after long has one within a few points.
    """

    @hookimpl
    def reward(self, pull: Pull) -> dict[str, float]:
        """Return the one term ``doubling``, >= 0, in nats per (average) token."""
        fall, error = self.fitted[pull.source].tolist()
        return {"doubling": sure(fall, error) * float(self.densities[pull.source])}
