"""Event files for TensorBoard, beside the run that they show."""

from __future__ import annotations

import json
import time
from typing import Any

import attrs
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from andrea import AndreaError, Evaluation, Run, Sample, StepRecord, hookimpl, option, plugin
from andrea.figures import configuration, evaluation_figures, step_figures


@plugin
class TensorBoard:
    """Write event files for TensorBoard: losses, shares, held-out figures, samples, the configuration.

    They stand in `tensorboard` in the run's folder. A run that is resumed adds a file which begins with a mark: what
    stood behind the checkpoint is then shown no more. Nothing of it is state: a resume needs only the step.
    """

    every: int = option(10, help="steps between two points of training")
    flush: float = option(10.0, help="seconds after which points are in the file at the latest")
    _writer: Any = attrs.field(init=False, default=None)

    @hookimpl
    def on_start(self) -> None:
        """Refuse options that cannot be; the file is opened when it is known at which step the run goes on."""
        if self.every < 1 or not self.flush > 0:
            raise AndreaError(
                f"log.tensorboard has every {self.every} and flush {self.flush}",
                "at least 1 and more than 0: --set log.tensorboard.every=10 --set log.tensorboard.flush=10",
            )

    @hookimpl
    def on_step(self, record: StepRecord, run: Run) -> None:
        """Write the figures of the first step and of every `every`-th."""
        step = record.step + 1
        if self._writer is None and run.folder is not None:
            self._writer = EventFileWriter(str(run.folder / "tensorboard"), flush_secs=self.flush)
            self._write(Event(step=step, session_log=SessionLog(status=SessionLog.START)))
            self._say(step, text_pb("configuration", _verbatim(json.dumps(configuration(run), indent=1))))
        if step == 1 or step % self.every == 0:
            self._points(step, step_figures(record, run))

    @hookimpl
    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Write held-out figures."""
        self._points(evaluation.step, evaluation_figures(evaluation))

    @hookimpl
    def on_sample(self, sample: Sample) -> None:
        """Write generated texts."""
        texts = [_verbatim(prompt + text) for prompt, text in zip(sample.prompts, sample.texts, strict=True)]
        self._say(sample.step, text_pb("samples", texts))

    @hookimpl
    def on_finish(self) -> None:
        """Close the file, however the run ends."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _points(self, step: int, figures: dict[str, float]) -> None:
        # Plain values, not tensors: every reader of event files shows these, and heeds the mark of a resume for them.
        self._say(step, Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in figures.items()]))

    def _say(self, step: int, summary: Summary) -> None:
        self._write(Event(step=step, summary=summary))

    def _write(self, event: Event) -> None:
        if self._writer is not None:
            event.wall_time = time.time()
            self._writer.add_event(event)


def _verbatim(text: str) -> str:
    """Return a text as Markdown that shows it as it is: TensorBoard renders Markdown."""
    return "\n".join(f"    {line}" for line in text.split("\n"))
