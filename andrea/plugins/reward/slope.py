"""A pull is worth what one more like it will lower the loss by, read off a curve that knows what is not learnable."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from andrea import Pull, hookimpl, option, plugin
from andrea.loss_curves import Floats, LossCurves, standard_error, sure

EXPONENTS = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
FEWEST = 6  # points from which on three parameters are fitted


@plugin
class Slope(LossCurves):
    """Reward the slope of the source's fitted loss curve L(n) = E + A n^-b at its number of pulls n, x scale.

    A fast and a slow learner with the same loss differ in the slope, and noise that no training removes goes into the
    irreducible E. At a new point of the curve (see `LossCurves`) E and A >= 0 are fitted by least squares for each b of
    0.1, 0.2, ..., 1 and the best is taken, A counting by how sure it is, x max(0, 1 - variance of A / A^2): of points
    that only scatter a fit finds some slope. Before there are six points, the reward is the mean drop per pull since
    the first point, at least 0.

    The curve is a light form of adaptive data optimization, which fits exp(e) + exp(a) n^-alpha to each domain and
    prefers alpha (L - exp(e)) / n; its prior, credit and damping are matters of the weights and the sampler here.

    References
    ----------
    Jiang, Zhou, Feng, Malladi, Kolter (2024), "Adaptive data optimization", arXiv 2410.11820.
    """

    scale: float = option(1000.0, help="reward of a slope of one nat per (average) token and pull")

    @hookimpl
    def reward(self, pull: Pull) -> dict[str, float]:
        """Return the one term ``slope``, >= 0."""
        k = pull.source
        if len(self.places[k]) >= FEWEST:
            factor, exponent = self.fitted[k]
            slope = exponent * factor * max(float(self.pulls[k]), 1.0) ** (-exponent - 1)
        elif len(self.places[k]) >= 2:
            slope = (self.losses[k][0] - self.losses[k][-1]) / (self.places[k][-1] - self.places[k][0])
        else:
            slope = 0.0
        return {"slope": float(max(slope, 0.0) * self.scale * self.densities[k])}

    def fit(self, places: Sequence[float], losses: Sequence[float]) -> tuple[float, float]:
        """Return (A, b) of the curve."""
        return fit(np.array(places), np.array(losses)) if len(places) >= FEWEST else (0.0, 0.0)


def fit(places: Floats, losses: Floats) -> tuple[float, float]:
    """Return (A, b) of the least squares fit of E + A n^-b with E, A >= 0 to points (n, loss), A by how sure it is.

    Every point counts the same: the later ones are means over more pulls, and they lie where the curve is flat.
    """
    best = (math.inf, 0.0, float(EXPONENTS[0]), 1.0)
    for exponent in EXPONENTS.tolist():
        powers = places**-exponent
        base = powers - powers.mean()
        factor = max(float(base @ losses) / float(base @ base), 0.0)
        irreducible = float(losses.mean() - factor * powers.mean())
        if irreducible < 0:  # the best has E = 0
            base, irreducible = powers, 0.0
            factor = float(base @ losses) / float(base @ base)
        left = float(np.sum((irreducible + factor * powers - losses) ** 2))
        best = min(best, (left, factor, exponent, float(base @ base)))
    left, factor, exponent, squares = best
    return sure(factor, standard_error(left, len(places), squares)), exponent
