"""What a person sees of a run, on standard error: standard output belongs to ``--json``."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import attrs
from rich.console import Console as Terminal
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from andrea import AndreaError, Evaluation, Run, Sample, StepRecord, hookimpl, option, plugin
from andrea.smoothing import Smoothed

REDRAW = 0.1  # seconds between two drawings of the bar: a step of a small model takes less than a drawing


@plugin
class Console:
    """Print progress, held-out losses, samples and the reasons of the end.

    A terminal gets a progress bar that counts up to where the run ends; it is drawn between two steps, at most ten
    times a second. A file or a pipe gets plain lines. Beside the loss stands its smoothed moving average,
    SMMA_t = SMMA_{t-1} + (loss_t - SMMA_{t-1}) / n with n = 100, or the number of steps shown as long as that is
    smaller, and the perplexity exp(SMMA). The clock is read for what is shown and influences nothing, so nothing here
    is saved either.
    """

    every: int = option(10, help="steps between two plain lines, where there is no terminal")
    width: int = option(160, help="characters shown of a generated text")
    _terminal: Any = attrs.field(init=False, default=None)
    _progress: Any = attrs.field(init=False, default=None)
    _task: Any = attrs.field(init=False, default=None)
    _loss: Smoothed = attrs.field(init=False, factory=Smoothed)
    _steps: int = attrs.field(init=False, default=0)
    _tokens: int = attrs.field(init=False, default=0)
    _since: float = attrs.field(init=False, default=0.0)

    def __attrs_post_init__(self) -> None:
        if self.every < 1 or self.width < 1:
            raise AndreaError(
                f"log.console has every {self.every} and width {self.width}",
                "both must be at least 1: --set log.console.every=10",
            )

    @hookimpl
    def on_start(self, run: Run) -> None:
        """Say what runs."""
        self._terminal = Terminal(stderr=True, no_color=True, highlight=False, markup=False, emoji=False)
        self._say(
            f"{run.name}: seed {run.seed}, {run.rows} x {run.context} tokens a step, a schedule of {run.steps} steps"
        )
        self._say(f"{len(run.sources)} sources: {', '.join(run.sources)}")
        if run.vocabulary:
            self._say(f"{run.vocabulary} tokens to choose from: guessing has a loss of {math.log(run.vocabulary):.4f}")
        self._loss = Smoothed()
        self._steps, self._tokens, self._since = 0, 0, time.perf_counter()
        if self._terminal.is_terminal:
            bar = (BarColumn(20), TextColumn("{task.description}", markup=False))
            self._progress = Progress(*bar, TimeRemainingColumn(), console=self._terminal, auto_refresh=False)
            self._task = self._progress.add_task("", total=run.stop_step)
            self._progress.start()

    @hookimpl
    def on_step(self, record: StepRecord, run: Run) -> None:
        """Show the step: in the bar when it is due, as a line for the first step and then at every `every`-th."""
        self._steps += 1
        self._tokens += record.tokens
        self._loss.take(record.loss)
        if self._progress is not None:
            if self._steps == 1 or time.perf_counter() - self._since >= REDRAW:
                self._draw(record, run)
                self._progress.refresh()
        elif self._steps == 1 or (record.step + 1) % self.every == 0:
            self._say(self._line(record, run))

    @hookimpl
    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Show the held-out losses of all sources as a table."""
        table = Table("source", "loss", "bits per byte", title=f"held out after step {evaluation.step}", box=None)
        for name, loss in evaluation.loss.items():
            table.add_row(name, f"{loss:.4f}", f"{evaluation.bits_per_byte[name]:.4f}")
        table.add_row("mean", "", f"{evaluation.mean:.4f}")
        self._terminal.print(table)

    @hookimpl
    def on_sample(self, sample: Sample) -> None:
        """Show the beginning of every generated text, with control characters escaped."""
        for prompt, text in zip(sample.prompts, sample.texts, strict=True):
            self._say(f"sample after step {sample.step}: {_shown(prompt, self.width)} -> {_shown(text, self.width)}")

    @hookimpl
    def on_finish(self, record: StepRecord | None, reasons: Sequence[str], ending: str, run: Run) -> None:
        """End the bar with the last step and say why the run ended."""
        if self._progress is not None:
            if record is not None and self._tokens:  # steps that were not drawn
                self._draw(record, run)
            self._progress.stop()
            self._progress = None
        where = "before the first step" if record is None else f"after step {record.step + 1}, loss {record.loss:.4f}"
        self._say(
            f"{'failed' if ending == 'failed' else 'finished'} {where}: {'; '.join(reasons) or 'no reason given'}"
        )

    def _draw(self, record: StepRecord, run: Run) -> None:
        """Set the bar to a step."""
        self._progress.update(self._task, completed=record.step + 1, description=self._line(record, run))

    def _line(self, record: StepRecord, run: Run) -> str:
        """Return what there is to say about a step; its speed is that since the last one of which this was asked."""
        now = time.perf_counter()
        speed = f"{self._tokens / (now - self._since):,.0f}" if now > self._since else "-"
        self._tokens, self._since = 0, now
        where = f"step {record.step + 1}{f'/{run.stop_step}' if run.stop_step else ''}"
        names = ", ".join(run.sources[pull.source] for pull in record.pulls)
        skipped = "  update skipped" if record.skipped else ""
        perplexity = math.exp(min(self._loss.value, 100.0))  # beyond that nobody compares, and exp overflows
        losses = f"loss {record.loss:.4f}  smma {self._loss.value:.4f}  perplexity {perplexity:.4g}"
        return f"{where}  {losses}  lr {record.learning_rate:.2e}  {speed} tok/s  {names}{skipped}"

    def _say(self, line: str) -> None:
        if self._terminal.is_terminal:
            self._terminal.print(line, soft_wrap=True)
        else:  # the same characters; laying them out takes ten times as long, while the card waits
            print(line, file=sys.stderr, flush=True)


def _shown(text: str, width: int) -> str:
    """Return the first characters of a text, quoted, on one line and harmless to a terminal."""
    return repr(text[:width]) + ("..." if len(text) > width else "")
