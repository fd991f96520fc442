"""The smoothed moving average of a loss, as every display shows it."""

from __future__ import annotations

import math

SMOOTHING = 100  # n


class Smoothed:
    """SMMA_t = SMMA_{t-1} + (loss_t - SMMA_{t-1}) / n with n = 100, or the number of losses as long as that is smaller.

    Attributes
    ----------
    value
        The average; NaN before the first loss. What is not finite is left out.
    count
        Losses that it is of, at most n.
    """

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.value, self.count = math.nan, 0

    def take(self, loss: float) -> None:
        """Take the next loss."""
        if loss - loss == 0:  # finite, at the price of a subtraction: a history takes a hundred thousand at once
            self.count += self.count < SMOOTHING
            self.value = self.value + (loss - self.value) / self.count if self.count > 1 else loss
