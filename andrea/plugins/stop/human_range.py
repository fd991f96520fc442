"""The stop of a run whose text is not like human text, neither too much nor too little of anything."""

from __future__ import annotations

import math

from andrea import AndreaError, Evaluation, Run, Sample, hookimpl, option, plugin, state
from andrea.plugins.stop.human_ranges import judge


@plugin
class HumanRange:
    """Stop when samples stay outside the range of human text while held-out losses do not get better.

    A batch of samples fails when a measure of it lies outside what batches of held-out text of the same sources
    measure: how often words come back and phrases repeat, and which runs of words the training text has. No young model
    writes like that, so nothing fails before the end of a grace period, and failures count from the last sample inside
    the range or the last better evaluation, whichever is later. An evaluation is better when the mean in bits per byte
    or the figure of more than half of the sources has fallen by the part `gain` since the last better one, so a slow
    fall adds up and a slight chance low does not count. A run that never evaluates is never stopped.
    """

    failures: int = option(3, help="failed samples in a row that are needed")
    evaluations: int = option(5, help="evaluations in a row without a better one that are needed")
    gain: float = option(0.001, help="part by which held-out figures must have fallen to be better")
    grace_steps: int | None = option(None, help="steps without checks; none: the warm-up of the learning rate")
    failed: int = state(0)
    stale: int = state(0)
    best_mean: float = state(math.inf)
    best: dict[str, float] = state(factory=dict)
    sources: dict[str, int] = state(factory=dict)
    found: dict[str, list[float]] = state(factory=dict)
    outside: list[str] = state(factory=list)

    def __attrs_post_init__(self) -> None:
        """Refuse to stop for nothing."""
        for name, least, usual in (("failures", 1, 3), ("evaluations", 1, 5), ("grace_steps", 0, 2000)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise AndreaError(
                    f"stop.human_range.{name} is {value}", f"at least {least}: --set stop.human_range.{name}={usual}"
                )
        if not 0 <= self.gain < 1:
            raise AndreaError(
                f"stop.human_range.gain is {self.gain}",
                "a part, at least 0 and below 1: --set stop.human_range.gain=0.001",
            )

    @hookimpl
    def on_sample(self, sample: Sample, run: Run) -> None:
        """Judge the samples and count failures in a row."""
        if run.human is None:
            return
        verdict = judge(run.human, run.sources, sample.texts, run.draws("stop.human_range").uniform)
        self.sources, self.outside = dict(verdict.sources), verdict.outside
        self.found = {name: list(values) for name, values in verdict.found.items()}
        grace = run.warmup_steps if self.grace_steps is None else self.grace_steps
        if sample.step > grace and self.outside:
            self.failed += 1
        else:
            self.failed, self.stale = 0, 0

    @hookimpl
    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Start counting anew when held-out text got better."""
        bits, part = evaluation.bits_per_byte, 1 - self.gain
        lower = [name for name, value in bits.items() if value < part * self.best.get(name, math.inf)]
        if evaluation.mean < part * self.best_mean or 2 * len(lower) > len(bits):
            self.failed, self.stale = 0, 0
            self.best_mean = min(self.best_mean, evaluation.mean)
            self.best = {name: min(value, self.best.get(name, math.inf)) for name, value in bits.items()}
        elif self.failed:
            self.stale += 1

    @hookimpl
    def should_stop(self) -> str | None:
        """Say what is outside the range."""
        if self.failed < self.failures or self.stale < self.evaluations:
            return None
        return (
            f"{self.failed} samples in a row outside the range of human text, the last with {', '.join(self.outside)}; "
            f"and no better held-out loss in {self.stale} evaluations"
        )
