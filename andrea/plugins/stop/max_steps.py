"""The only stop by count."""

from __future__ import annotations

from andrea import AndreaError, Run, StepRecord, hookimpl, option, plugin


@plugin
class MaxSteps:
    """Stop when `steps` updates are done; without the option, at the horizon of the learning rate's schedule."""

    steps: int | None = option(None, help="total number of steps at which to stop; none: the schedule's")

    def __attrs_post_init__(self) -> None:
        """Refuse a run without a step."""
        if self.steps is not None and self.steps < 1:
            raise AndreaError(f"stop.max_steps.steps is {self.steps}", "at least 1: --set stop.max_steps.steps=1000")

    @hookimpl
    def should_stop(self, record: StepRecord, run: Run) -> str | None:
        """Compare the completed steps with the limit."""
        limit = run.steps if self.steps is None else self.steps
        return f"{limit} steps are done" if record.step + 1 >= limit else None
