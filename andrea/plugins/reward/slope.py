"""A pull is worth what one more like it will lower the loss by, read off a curve that knows what is not learnable."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, Evaluation, Pull, Run, StepRecord, hookimpl, option, plugin, state

Floats = npt.NDArray[np.float64]
EXPONENTS = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
UNITS = ("bits_per_byte", "nats")
SPACING = 1.15  # each point of a curve lies at this many times the pulls of the one before it
FEWEST = 6  # points from which on three parameters are fitted


@plugin
class Slope:
    """Reward the slope of the source's fitted loss curve L(n) = E + A n^-b at its number of pulls n, x scale.

    A fast and a slow learner with the same loss differ in the slope, and noise that no training removes goes into the
    irreducible E. The losses of a source are averaged between points that lie ever wider apart (15%), so a curve of a
    million pulls has about a hundred points. At a new point, E and A >= 0 are fitted by least squares for each b of
    0.1, 0.2, ..., 1 and the best is taken, A counting by how sure it is, x max(0, 1 - variance of A / A^2): of points
    that only scatter a fit finds some slope. Before there are six points, the reward is the mean drop per pull since
    the first point, at least 0.

    In the unit bits_per_byte slopes count by the source's tokens per byte, known from the first evaluation on, as those
    of reward.probe do.

    The curve is a light form of adaptive data optimization, which fits exp(e) + exp(a) n^-alpha to each domain and
    prefers alpha (L - exp(e)) / n; its prior, credit and damping are matters of the weights and the sampler here.

    References
    ----------
    Jiang, Zhou, Feng, Malladi, Kolter (2024), "Adaptive data optimization", arXiv 2410.11820.
    """

    scale: float = option(1000.0, help="reward of a slope of one nat per (average) token and pull")
    unit: str = option("bits_per_byte", help="in which slopes of different sources are equal: bits_per_byte or nats")
    pulls: npt.NDArray[np.int64] = state()
    sums: Floats = state()
    summed: npt.NDArray[np.int64] = state()
    places: list[list[float]] = state(factory=list)
    losses: list[list[float]] = state(factory=list)
    curves: Floats = state()
    densities: Floats = state()

    def __attrs_post_init__(self) -> None:
        if self.unit not in UNITS:
            raise AndreaError(f"reward.slope.unit is {self.unit!r}", f"one of {', '.join(UNITS)}")

    @hookimpl
    def on_start(self, run: Run) -> None:
        """Begin without curves; a row (A, b) of A = 0 stands for none."""
        count = len(run.sources)
        self.densities = np.ones(count)
        self.pulls, self.summed = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.sums, self.curves = np.zeros(count), np.zeros((count, 2))
        self.places, self.losses = [[] for _ in range(count)], [[] for _ in range(count)]

    @hookimpl
    def reward(self, pull: Pull) -> dict[str, float]:
        """Return the one term ``slope``, >= 0."""
        k = pull.source
        if len(self.places[k]) >= FEWEST:
            factor, exponent = self.curves[k]
            slope = exponent * factor * max(float(self.pulls[k]), 1.0) ** (-exponent - 1)
        elif len(self.places[k]) >= 2:
            slope = (self.losses[k][0] - self.losses[k][-1]) / (self.places[k][-1] - self.places[k][0])
        else:
            slope = 0.0
        return {"slope": float(max(slope, 0.0) * self.scale * self.densities[k])}

    @hookimpl
    def on_step(self, record: StepRecord) -> None:
        """Take in the losses of the pulled sources; add a point to a curve that has come far enough."""
        if record.skipped:
            return
        for pull in record.pulls:
            if math.isfinite(pull.loss):
                self._take(pull.source, pull.loss)

    @hookimpl
    def on_evaluation(self, evaluation: Evaluation, run: Run) -> None:
        """Learn how many tokens each source needs for a byte, relative to the mean of all."""
        if self.unit == "bits_per_byte":
            ratios = np.array([evaluation.bits_per_byte[name] / evaluation.loss[name] for name in run.sources])
            self.densities = ratios / ratios.mean() if np.isfinite(ratios).all() else np.ones(len(ratios))

    def _take(self, source: int, loss: float) -> None:
        self.pulls[source] += 1
        self.sums[source] += loss
        self.summed[source] += 1
        last, now = int(self.pulls[source] - self.summed[source]), int(self.pulls[source])
        if now < max(last + 1, last * SPACING):
            return
        self.places[source].append((last + 1 + now) / 2)
        self.losses[source].append(float(self.sums[source] / self.summed[source]))
        self.sums[source], self.summed[source] = 0.0, 0
        if len(self.places[source]) >= FEWEST:
            self.curves[source] = fit(np.array(self.places[source]), np.array(self.losses[source]))


def fit(places: Floats, losses: Floats) -> tuple[float, float]:
    """Return (A, b) of the least squares fit of E + A n^-b with E, A >= 0 to points (n, loss), A by how sure it is.

    Every point counts the same: the later ones are means over more pulls, and they lie where the curve is flat.
    """
    best = (math.inf, 0.0, float(EXPONENTS[0]), 0.0)
    for exponent in EXPONENTS.tolist():
        powers = places**-exponent
        base = powers - powers.mean()
        factor = max(float(base @ losses) / float(base @ base), 0.0)
        irreducible = float(losses.mean() - factor * powers.mean())
        if irreducible < 0:  # the best has E = 0
            base, irreducible = powers, 0.0
            factor = float(base @ losses) / float(base @ base)
        error = float(np.sum((irreducible + factor * powers - losses) ** 2))
        best = min(best, (error, factor, exponent, error / float(base @ base)))
    _, factor, exponent, scatter = best
    variance = scatter / (len(places) - 2)
    return (factor * max(0.0, 1 - variance / factor**2) if factor else 0.0), exponent
