"""Student's t against published tables."""

from __future__ import annotations

import math

import pytest

from andrea.student_t import interval, t_probability, t_quantile


@pytest.mark.parametrize(
    ("freedom", "probability", "quantile"),
    [
        (1, 0.95, 12.7062),
        (2, 0.95, 4.30265),
        (3, 0.95, 3.18245),
        (4, 0.95, 2.77645),
        (5, 0.95, 2.57058),
        (9, 0.99, 3.24984),
        (10, 0.90, 1.81246),
        (30, 0.95, 2.04227),
        (120, 0.95, 1.97993),
    ],
)
def test_quantiles_are_those_of_the_tables(freedom, probability, quantile):
    """Two-sided, for odd and even degrees of freedom."""
    assert t_quantile(probability, freedom) == pytest.approx(quantile, rel=2e-6)  # the tables have six digits


def test_one_degree_of_freedom_is_cauchy():
    """Half of a Cauchy distribution lies within 1, and a large number of degrees comes to the normal one."""
    assert t_probability(1.0, 1) == pytest.approx(0.5, rel=1e-15)  # an arcus tangent
    assert t_probability(1.959964, 100_000) == pytest.approx(0.95, abs=1e-5)  # the distance to normal is of 1/freedom


def test_interval_of_three_values():
    """1, 2 and 6 have the mean 3 and the deviation sqrt(7); the half width is 4.30265 sqrt(7 / 3)."""
    mean, half = interval([1.0, 2.0, 6.0])
    assert mean == 3.0
    assert half == pytest.approx(4.30265 * math.sqrt(7 / 3), rel=2e-6)  # as above


def test_one_value_says_nothing_of_its_spread():
    """The interval is infinite, and no degrees of freedom are an error."""
    assert interval([2.5]) == (2.5, math.inf)
    with pytest.raises(ValueError, match="at least 1"):
        t_probability(1.0, 0)
