"""Signals of the operating system: remembered while a run trains, until it is between two steps; else they end it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1")  # those of them that the system has
STOPPING = ("SIGINT", "SIGTERM")


class Interrupts:
    """Collects signals while its ``with`` block runs; a second SIGINT ends the process at once.

    A signal that arrives in a step, while samples are drawn or held-out text is measured waits until that is done: what
    it asks for is then a checkpoint between two steps, from which a resume goes on bit for bit.
    """

    def __init__(self) -> None:
        self._pending: list[str] = []
        self._before: dict[int, Any] = {}
        self.stopped_by = ""

    def __enter__(self) -> Interrupts:
        for name in SIGNALS:
            if number := getattr(signal, name, None):
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        self._pending.append(name)
        if name in STOPPING:
            self.stopped_by = name
        if name == "SIGINT":
            signal.signal(signal.SIGINT, _leave_at_once)

    def take(self) -> list[str]:
        """Return the signals that arrived since the last call, in order."""
        taken, self._pending = self._pending, []
        return taken

    def stop_asked(self) -> bool:
        """Say whether a signal that ends a run has arrived."""
        return bool(self.stopped_by)


def exit_code(signal_name: str) -> int:
    """Return 128 + the signal's number, the shell's convention: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + int(signal.Signals[signal_name])


@contextmanager
def leaving() -> Iterator[None]:
    """Let SIGINT and SIGTERM end what runs inside as an exit with their code, so that it is cleaned up."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_at_once(number: int, frame: FrameType | None) -> None:
    """End the process without waiting for a checkpoint under way: a half one is never taken for whole."""
    if sys.stderr.isatty():
        os.write(2, b"\x1b[?25h\n")  # a progress bar hides the cursor
    os._exit(128 + number)
