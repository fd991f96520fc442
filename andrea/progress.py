"""What is said on standard error meanwhile: lines, and for long work a bar on a terminal or a line for each stage."""

from __future__ import annotations

import sys
from types import TracebackType


def print_line(line: str) -> None:
    """Say something to the person at the terminal; standard output belongs to results."""
    print(line, file=sys.stderr)


class Preparing:
    """Called with (stage, done, total) while data is prepared; total 0 when it is not known."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._stage = ""
        self._bar = None
        if sys.stderr.isatty():
            columns = TextColumn("{task.description}", markup=False), BarColumn(30), MofNCompleteColumn()
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Preparing:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show how far a stage is."""
        if self._bar:
            self._bar.update(self._task, description=stage, completed=done, total=total or None)
        elif stage != self._stage:
            print(f"{stage} ...", file=sys.stderr)
        self._stage = stage
