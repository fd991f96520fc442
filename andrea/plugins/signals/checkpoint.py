"""SIGTERM and SIGINT write a checkpoint and end the run; SIGUSR1 writes one and goes on."""

from __future__ import annotations

from andrea import hookimpl

REQUESTS = {
    "SIGTERM": frozenset({"checkpoint", "stop"}),
    "SIGINT": frozenset({"checkpoint", "stop"}),
    "SIGUSR1": frozenset({"checkpoint"}),
}


@hookimpl
def on_signal(signal: str) -> set[str] | None:
    """Return the requests that belong to a signal, None for one that is not ours."""
    return set(REQUESTS[signal]) if signal in REQUESTS else None
