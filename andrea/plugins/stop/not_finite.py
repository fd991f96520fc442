"""The stop of a run that has left the numbers."""

from __future__ import annotations

import math

from andrea import AndreaError, StepRecord, hookimpl, option, plugin, state


@plugin
class NotFinite:
    """Stop after `patience` steps in a row whose update was skipped or whose loss is not finite.

    Single skipped updates are normal where a dynamic loss scale finds its size.
    """

    patience: int = option(10, help="steps in a row without a usable update after which to stop")
    failures: int = state(0)

    def __attrs_post_init__(self) -> None:
        """Refuse a patience that stops every run at its first step."""
        if self.patience < 1:
            raise AndreaError(
                f"stop.not_finite.patience is {self.patience}", "at least 1: --set stop.not_finite.patience=10"
            )

    @hookimpl
    def on_step(self, record: StepRecord) -> None:
        """Count such steps in a row."""
        usable = math.isfinite(record.loss) and not record.skipped
        self.failures = 0 if usable else self.failures + 1

    @hookimpl
    def should_stop(self) -> str | None:
        """Say how many steps in a row changed nothing."""
        if self.failures < self.patience:
            return None
        return f"{self.failures} steps in a row without a usable update (loss or gradient not finite)"
