"""The loss of every source over its own pulls, as few points as its shape needs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from andrea.errors import AndreaError
from andrea.plugin import hookimpl, option, plugin, state
from andrea.types import Evaluation, Run, StepRecord

Floats = npt.NDArray[np.float64]
UNITS = ("bits_per_byte", "nats")
WINDOW = 8  # points that a straight line goes through: over the last 2.7 times of a source's pulls
SPACING = 1.15  # each point of a curve lies at this many times the pulls of the one before it


@plugin
class LossCurves:
    """What plugins share that read off a source's losses how well it is still learned.

    The losses of a source are averaged between points that lie ever wider apart (15%), so a curve of a million pulls
    has about a hundred points. A subclass says in `fit` what it keeps of a curve that has got a new point; what was
    kept is `fitted[k]`, two numbers, zeros before the first fit.

    In the unit bits_per_byte losses count by the source's tokens per byte, known from the first evaluation on, as those
    of reward.probe do.
    """

    unit: str = option("bits_per_byte", help="in which losses of different sources are equal: bits_per_byte or nats")
    pulls: npt.NDArray[np.int64] = state()
    sums: Floats = state()
    summed: npt.NDArray[np.int64] = state()
    places: list[list[float]] = state(factory=list)
    losses: list[list[float]] = state(factory=list)
    fitted: Floats = state()
    densities: Floats = state()

    def __attrs_post_init__(self) -> None:
        if self.unit not in UNITS:
            raise AndreaError(f"there is no unit {self.unit!r} of losses", f"one of {', '.join(UNITS)}")

    def fit(self, places: Sequence[float], losses: Sequence[float]) -> tuple[float, float]:
        """Return what to keep of a curve: pulls at its points, ascending, and the mean losses there.

        Unless a subclass says otherwise, its `fall` over the last WINDOW points and the standard error of that.
        """
        return fall(places[-WINDOW:], losses[-WINDOW:])

    @hookimpl
    def on_start(self, run: Run) -> None:
        """Begin without curves."""
        count = len(run.sources)
        self.densities = np.ones(count)
        self.pulls, self.summed = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.sums, self.fitted = np.zeros(count), np.zeros((count, 2))
        self.places, self.losses = [[] for _ in range(count)], [[] for _ in range(count)]

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
        self.fitted[source] = self.fit(self.places[source], self.losses[source])


def fall(places: Sequence[float], losses: Sequence[float]) -> tuple[float, float]:
    """Return what the least squares line through points (log2 n, loss) falls by per doubling of n.

    Returns
    -------
    tuple of float
        The fall, negative where losses rise, and its standard error, 0 of two points: a line goes through them exactly.
    """
    if len(places) < 2:
        return 0.0, 0.0
    logs = np.log2(np.array(places))
    logs -= logs.mean()
    heights = np.array(losses) - np.mean(losses)
    squares = float(logs @ logs)
    slope = -float(logs @ heights) / squares
    return slope, standard_error(float(np.sum((heights + slope * logs) ** 2)), len(places), squares)


def standard_error(left: float, points: int, squares: float) -> float:
    """Return that of a coefficient of a least squares fit of two, 0 of two points: they leave nothing to judge by.

    Parameters
    ----------
    left
        The sum of the squares that the fit leaves.
    points
        How many were fitted.
    squares
        The sum of squares of what the coefficient multiplies.
    """
    return math.sqrt(left / (points - 2) / squares) if points > 2 else 0.0


def sure(slope: float, error: float) -> float:
    """Return slope x max(0, 1 - error^2 / slope^2), 0 of one below 0: points that only scatter have some slope."""
    return max(0.0, slope - error * error / slope) if slope > 0 else 0.0
