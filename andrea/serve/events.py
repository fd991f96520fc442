"""What changed, told to every open page as it happens: server-sent events.

``run``      a run of which something is new, as in ``/runs``
``gone``     a run that is no longer there: {"model": name}
``system``   figures of the machine, as in ``/system``
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from andrea.serve.machine import Machine
from andrea.serve.runs import Runs

log = logging.getLogger(__name__)

EVERY = 1.0  # seconds between two looks


class Watch:
    """Looks at runs and machine again and again, once for all who listen.

    Parameters
    ----------
    runs, machine
        Which.
    ending
        Says that the server is about to end, so that nobody is kept on the line.
    every
        Seconds between two looks.
    """

    def __init__(
        self, runs: Runs, machine: Machine, ending: Callable[[], bool] = lambda: False, every: float = EVERY
    ) -> None:
        self._runs, self._machine, self._ending, self._every = runs, machine, ending, every
        self._state: dict[str, bytes] = {}  # by run, and the machine's by an empty name, which no run has
        self._next: asyncio.Event | None = None

    async def work(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                self._state = await asyncio.to_thread(self._look)
            except Exception:  # whatever it is, it must not leave open pages without news for good
                log.exception("cannot look at the runs")
            if self._next:
                self._next.set()
            self._next = asyncio.Event()
            await asyncio.sleep(self._every)

    async def events(self) -> AsyncIterator[bytes]:
        """Yield everything once, then what changes."""
        sent: dict[str, bytes] = {}
        yield b"retry: 2000\n\n"
        while not self._ending():
            state, following = self._state, self._next
            for name, value in state.items():
                if sent.get(name) != value:
                    yield _event("run" if name else "system", value)
            for name in sent.keys() - state.keys():
                yield _event("gone", msgspec.json.encode({"model": name}))
            sent = state
            await (following.wait() if following else asyncio.sleep(self._every / 10))

    def _look(self) -> dict[str, bytes]:
        encode: Callable[[Any], bytes] = msgspec.json.encode
        runs = {brief.model: encode(brief.to_json()) for brief in self._runs.refresh()}
        return {**runs, "": encode(self._machine.figures())}


def _event(name: str, data: bytes) -> bytes:
    """Return an event; JSON has no line ends, so its data is one line."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
