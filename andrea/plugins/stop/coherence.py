"""The stop of a run that writes garbage, which its loss cannot show."""

from __future__ import annotations

from andrea import Evaluation, Run, Sample, hookimpl, option, plugin, state
from andrea.coherence import score_texts


@plugin
class Coherence:
    """Stop after several incoherent samples in a row over which no held-out loss got better.

    A check fails when the samples score `threshold` or less: a perfect loop of known words keeps exactly the 30 points
    for words and characters. Nothing fails before the end of a grace period, as no model is coherent at step 100.
    Failures count from the last coherent sample or the last better held-out mean (bits per byte), whichever is later.
    In a run that evaluates, at least one evaluation since then must have spoken; in one that never does, the samples
    decide alone.
    """

    threshold: float = option(30.0, help="highest score of 100 at which samples are incoherent")
    failures: int = option(3, help="incoherent samples in a row that stop the run")
    grace_steps: int | None = option(None, help="steps without checks; none: the warm-up of the learning rate")
    failed: int = state(0)
    best: float | None = state(None)
    evaluations: int = state(0)
    scores: dict[str, float | None] = state(factory=dict)

    @hookimpl
    def on_sample(self, sample: Sample, run: Run) -> None:
        """Score the samples and count failures in a row."""
        scores = score_texts(sample.texts, run.known_words)
        self.scores = {**scores._asdict(), "total": scores.total}
        grace = run.warmup_steps if self.grace_steps is None else self.grace_steps
        if sample.step > grace and scores.total <= self.threshold:
            self.failed += 1
        else:
            self.failed, self.evaluations = 0, 0

    @hookimpl
    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Start counting anew when the held-out mean got better."""
        if self.best is None or evaluation.mean < self.best:
            self.best, self.failed, self.evaluations = evaluation.mean, 0, 0
        elif self.failed:
            self.evaluations += 1

    @hookimpl
    def should_stop(self) -> str | None:
        """Say how incoherent the samples were."""
        if self.failed < self.failures or (self.best is not None and not self.evaluations):
            return None
        return (
            f"{self.failed} incoherent samples in a row, the last with {self.scores['total']:.1f} of 100 points "
            f"(threshold {self.threshold:g}), and no better held-out loss meanwhile"
        )
