"""The smoothed moving average of a loss."""

from __future__ import annotations

import math

from andrea.smoothing import SMOOTHING, Smoothed


def test_it_is_the_mean_until_there_are_enough():
    """Of few losses it is their mean; then each new one moves it by a hundredth of its distance."""
    smoothed = Smoothed()
    assert math.isnan(smoothed.value)
    for loss in (4.0, 2.0, 3.0):
        smoothed.take(loss)
    assert (smoothed.value, smoothed.count) == (3.0, 3)
    for _ in range(SMOOTHING):
        smoothed.take(3.0)
    smoothed.take(4.0)
    assert (smoothed.value, smoothed.count) == (3.0 + 1.0 / SMOOTHING, SMOOTHING)


def test_what_is_not_finite_is_left_out():
    """One overflow would else be the average for good."""
    smoothed = Smoothed()
    for loss in (math.inf, 2.0, math.nan, -math.inf, 4.0):
        smoothed.take(loss)
    assert (smoothed.value, smoothed.count) == (3.0, 2)
