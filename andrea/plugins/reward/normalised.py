"""A pull is worth how far its loss lies below the average of its source, in units of how much that source scatters."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, Pull, Run, StepRecord, hookimpl, option, plugin, state

Floats = npt.NDArray[np.float64]


@plugin
class Normalised:
    """Reward (EMA_k - loss) / spread_k, held within +-`clip`: a source that only scatters earns 0 on average.

    With d = loss - EMA_k: EMA_k <- EMA_k + a d, and spread_k^2 <- (1 - a)(spread_k^2 + a d^2), the variance with the
    same fading memory. Units cancel, so sources of other text, tokenizers or losses compare. The first two pulls of a
    source have no spread to be measured with and are worth 0. With `signed` false what is below 0 counts as 0, as in
    reward.ema_drop; then a source that only scatters earns 0.4 on average.

    Pulls of one step count one after the other; a loss that is not finite and a skipped update move nothing.
    """

    smoothing: float = option(0.1, help="a, the weight of the newest loss in average and spread, in (0, 1)")
    clip: float = option(3.0, help="largest reward, in spreads")
    signed: bool = option(True, help="true: a rise has a negative reward; false: it is worth 0")
    averages: Floats = state()
    variances: Floats = state()

    def __attrs_post_init__(self) -> None:
        if not (0 < self.smoothing < 1 and self.clip > 0):
            raise AndreaError(
                f"reward.normalised has smoothing {self.smoothing} and clip {self.clip}",
                "smoothing is between 0 and 1, clip above 0: --set reward.normalised.smoothing=0.1",
            )

    @hookimpl
    def on_start(self, run: Run) -> None:
        """Begin without averages; NaN stands for a source not yet pulled."""
        self.averages, self.variances = np.full(len(run.sources), np.nan), np.zeros(len(run.sources))

    @hookimpl
    def reward(self, pull: Pull, record: StepRecord) -> dict[str, float]:
        """Return the one term ``normalised``."""
        average, variance = float(self.averages[pull.source]), float(self.variances[pull.source])
        for earlier in record.pulls:
            if earlier is pull:
                break
            if earlier.source == pull.source:
                average, variance = self._moved(average, variance, earlier.loss)
        if math.isnan(average) or variance <= 0 or not math.isfinite(pull.loss):
            return {"normalised": 0.0}
        drop = (average - pull.loss) / math.sqrt(variance)
        return {"normalised": min(max(drop, -self.clip if self.signed else 0.0), self.clip)}

    @hookimpl
    def on_step(self, record: StepRecord) -> None:
        """Move averages and spreads of the pulled sources."""
        if record.skipped:
            return
        for pull in record.pulls:
            k = pull.source
            self.averages[k], self.variances[k] = self._moved(
                float(self.averages[k]), float(self.variances[k]), pull.loss
            )

    def _moved(self, average: float, variance: float, loss: float) -> tuple[float, float]:
        """Return average and variance after one more loss."""
        if not math.isfinite(loss):
            return average, variance
        if math.isnan(average):
            return loss, 0.0
        away = loss - average
        return average + self.smoothing * away, (1 - self.smoothing) * (variance + self.smoothing * away * away)
