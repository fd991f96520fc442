"""What a person sees of a run in a notebook: one display that changes in its place."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from typing import Any

import attrs

from andrea import AndreaError, Evaluation, Run, Sample, StepRecord, hookimpl, option, plugin
from andrea.smoothing import Smoothed

REDRAW = 0.5  # seconds between two drawings


@plugin
class Notebook:
    """Show progress, losses, held-out bits per byte and the newest samples below the cell.

    Outside of a notebook it shows nothing. The clock is read for what is shown and influences nothing, so nothing here
    is saved either.
    """

    width: int = option(160, help="characters shown of a generated text")
    _display: Any = attrs.field(init=False, default=None)
    _line: str = attrs.field(init=False, default="")
    _notes: list[str] = attrs.field(init=False, factory=list)
    _done: int = attrs.field(init=False, default=0)
    _loss: Smoothed = attrs.field(init=False, factory=Smoothed)
    _tokens: int = attrs.field(init=False, default=0)
    _since: float = attrs.field(init=False, default=0.0)

    def __attrs_post_init__(self) -> None:
        if self.width < 1:
            raise AndreaError(f"log.notebook.width is {self.width}", "it must be at least 1")

    @hookimpl
    def on_start(self, run: Run) -> None:
        """Begin the display."""
        self._loss, self._tokens, self._notes = Smoothed(), 0, ["", ""]
        self._line, self._since = f"{run.name}: {len(run.sources)} sources", time.perf_counter()
        self._display = begin_display(self._html(run))

    @hookimpl
    def on_step(self, record: StepRecord, run: Run) -> None:
        """Take the step, and show it when it is time."""
        self._done = record.step + 1
        self._tokens += record.tokens
        self._loss.take(record.loss)
        now = time.perf_counter()
        if self._display is not None and now - self._since >= REDRAW:
            speed = self._tokens / (now - self._since)
            self._line = f"step {self._done:,}, loss {self._loss.value:.4f} (smoothed), {speed:,.0f} tokens/s"
            self._tokens, self._since = 0, now
            self._draw(run)

    @hookimpl
    def on_evaluation(self, evaluation: Evaluation, run: Run) -> None:
        """Show the held-out bits per byte of all sources."""
        bits = ", ".join(f"{name} {value:.3f}" for name, value in evaluation.bits_per_byte.items())
        mean = f"mean {evaluation.mean:.3f}"
        self._notes[0] = f"<p>held out, bits per byte after step {evaluation.step:,}: {escape(bits)}; {mean}</p>"
        self._draw(run)

    @hookimpl
    def on_sample(self, sample: Sample, run: Run) -> None:
        """Show the beginnings of the newest texts."""
        texts = [(p + t)[: self.width] for p, t in zip(sample.prompts, sample.texts, strict=True)]
        items = "".join(f"<li><code>{escape(text)}</code></li>" for text in texts)
        self._notes[1] = f"<p>samples after step {sample.step:,}</p><ul>{items}</ul>"
        self._draw(run)

    @hookimpl
    def on_finish(self, record: StepRecord | None, reasons: Sequence[str], run: Run) -> None:
        """Say why the run ended."""
        loss = f"loss {self._loss.value:.4f} (smoothed), " if self._loss.count else ""
        self._line = f"step {self._done:,}, {loss}ended: {'; '.join(reasons) or 'no reason given'}"
        self._draw(run)
        self._display = None

    def _draw(self, run: Run) -> None:
        if self._display is not None:
            self._display.update(as_html(self._html(run)))

    def _html(self, run: Run) -> str:
        bar = f'<progress value="{self._done}" max="{run.stop_step}"></progress> ' if run.stop_step else ""
        return f"<div>{bar}{escape(self._line)}{''.join(self._notes)}</div>"


def begin_display(html: str) -> Any:
    """Return a display that can be changed; None outside of a notebook."""
    try:
        from IPython import display, get_ipython
    except ImportError:
        return None
    if get_ipython() is None:
        return None
    return display.display(display.HTML(html), display_id=True)


def as_html(html: str) -> Any:
    """Return what a display shows as it is."""
    from IPython.display import HTML

    return HTML(html)
