"""A penalty for repetition as it was measured: the next pass over a source is worth a little less than the last."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, Run, hookimpl, option, plugin

SMALLEST = 1e-9  # a weight of 0 would mask a source, and no number of epochs forbids one


@plugin
class Repetition:
    """Weigh by exp(-epochs / decay), the fitted worth of one more token of text that has been seen so often.

    Epochs are documents drawn over the lifetime / documents. After 1, 4 and 16 epochs the default gives 0.94, 0.77 and
    0.35, where 1 / (1 + epochs) gives 0.5, 0.2 and 0.06.

    References
    ----------
    Muennighoff et al. (2023), "Scaling data-constrained language models".
    """

    decay: float = option(15.39, help="epochs after which the weight is 1/e, above 0; 15.39 is the published fit")

    def __attrs_post_init__(self) -> None:
        """Refuse a decay that divides by 0 or rewards repetition."""
        if not self.decay > 0:
            raise AndreaError(
                f"weight.repetition.decay is {self.decay}", "above 0: --set weight.repetition.decay=15.39"
            )

    @hookimpl
    def weigh_sources(self, run: Run) -> npt.NDArray[np.float64]:
        """Return the factor of every source, float64 (S,)."""
        return np.asarray(np.maximum(np.exp(-run.epochs / self.decay), SMALLEST), dtype=np.float64)
