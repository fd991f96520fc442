"""A pull is worth how far its loss lies below the running average of its source."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, Pull, Run, StepRecord, hookimpl, option, plugin, state


@plugin
class EmaDrop:
    """Reward max(0, EMA_k - loss) x scale, then move EMA_k <- (1 - a) EMA_k + a loss; only the pulled source moves.

    The first pull of a source sets its average and is worth 0. Several pulls of one source in a step count one after
    the other, in the order of the record. A loss that is not finite is worth 0 and moves nothing; a skipped update
    pays nothing, so it moves nothing either, and the drop is paid at the next pull.
    """

    smoothing: float = option(0.1, help="a, the weight of the newest loss in the average, above 0 and at most 1")
    scale: float = option(1000.0, help="reward of a drop by one nat per token")
    averages: npt.NDArray[np.float64] = state()

    def __attrs_post_init__(self) -> None:
        if not 0 < self.smoothing <= 1:
            raise AndreaError(
                f"reward.ema_drop.smoothing is {self.smoothing}",
                "above 0 and at most 1: --set reward.ema_drop.smoothing=0.1",
            )

    @hookimpl
    def on_start(self, run: Run) -> None:
        """Begin without averages; NaN stands for a source not yet pulled."""
        self.averages = np.full(len(run.sources), np.nan)

    @hookimpl
    def reward(self, pull: Pull, record: StepRecord) -> dict[str, float]:
        """Return the one term ``ema_drop``, >= 0."""
        average = float(self.averages[pull.source])
        for earlier in record.pulls:
            if earlier is pull:
                break
            if earlier.source == pull.source:
                average = self._moved(average, earlier.loss)
        if math.isnan(average) or not math.isfinite(pull.loss):
            return {"ema_drop": 0.0}
        return {"ema_drop": max(0.0, average - pull.loss) * self.scale}

    @hookimpl
    def on_step(self, record: StepRecord) -> None:
        """Move the averages of the pulled sources."""
        if record.skipped:
            return
        for pull in record.pulls:
            self.averages[pull.source] = self._moved(float(self.averages[pull.source]), pull.loss)

    def _moved(self, average: float, loss: float) -> float:
        """Return an average after one more loss."""
        if not math.isfinite(loss):
            return average
        return loss if math.isnan(average) else (1 - self.smoothing) * average + self.smoothing * loss
