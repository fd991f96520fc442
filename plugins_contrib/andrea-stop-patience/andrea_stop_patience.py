"""Early stopping: the run ends when held-out losses get no better."""

from __future__ import annotations

from andrea import AndreaError, Evaluation, hookimpl, option, plugin, state


@plugin
class Patience:
    """Stop when the held-out mean has not become better for a number of evaluations.

    The mean is that of the sources' bits per byte. A mean that is not a number is no improvement. In a run that never
    evaluates this never stops anything: `evaluation.eval_every` decides how often there is something to judge.
    """

    evaluations: int = option(5, help="evaluations without improvement after which to stop")
    improvement: float = option(0.0, help="bits per byte by which the mean must fall to count as better")
    best: float | None = state(None)
    waited: int = state(0)

    def __attrs_post_init__(self) -> None:
        """Refuse options under which every run would stop at once, or none ever."""
        if self.evaluations < 1 or not self.improvement >= 0:
            raise AndreaError(
                f"stop.patience has evaluations {self.evaluations} and improvement {self.improvement}",
                "at least 1 and at least 0: --set stop.patience.evaluations=5 --set stop.patience.improvement=0",
            )

    @hookimpl
    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Keep the best mean and count the evaluations since."""
        mean = evaluation.mean
        if (self.best is None and mean == mean) or (self.best is not None and mean < self.best - self.improvement):
            self.best, self.waited = mean, 0
        else:
            self.waited += 1

    @hookimpl
    def should_stop(self) -> str | None:
        """Say how long nothing has become better."""
        if self.waited < self.evaluations:
            return None
        best = "none was a number" if self.best is None else f"the best mean is {self.best:.4f} bits per byte"
        return f"{self.waited} evaluations without improvement; {best}"
