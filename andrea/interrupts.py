"""Signals of the operating system, remembered until the run is between two steps."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1")  # those of them that the system has
STOPPING = ("SIGINT", "SIGTERM")


class Interrupts:
    """Collects signals while its ``with`` block runs; the second SIGINT interrupts at once, as without it."""

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
            signal.signal(signal.SIGINT, signal.default_int_handler)

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
