"""Student's t distribution for whole degrees of freedom: what a confidence interval of a few seeds takes."""

from __future__ import annotations

import math
from collections.abc import Sequence


def t_probability(t: float, freedom: int) -> float:
    """Return the probability that |T| is at most `t`, for T with `freedom` degrees of freedom.

    The finite sums of Abramowitz and Stegun (1964), 26.7.3 and 26.7.4.
    """
    if freedom < 1:
        raise ValueError(f"degrees of freedom must be at least 1, not {freedom}")
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    term = total = cosine if freedom % 2 else 1.0
    for k in range(3 if freedom % 2 else 2, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    if freedom % 2 == 0:
        return sine * total
    return 2 / math.pi * (angle + (sine * total if freedom > 1 else 0.0))


def t_quantile(probability: float, freedom: int) -> float:
    """Return the t that |T| stays below with a probability in (0, 1), to the last bits, by halving an interval."""
    low, high = 0.0, 1.0
    while t_probability(high, freedom) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if t_probability(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def interval(values: Sequence[float], probability: float = 0.95) -> tuple[float, float]:
    """Return the mean of some values and half the width of its t interval; infinite for fewer than two."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return mean, math.inf
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return mean, t_quantile(probability, count - 1) * spread / math.sqrt(count)
