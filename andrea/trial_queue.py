"""Spreads the runs of a trial over devices, a process for each, and brings all of them to a stop when asked to.

Another package may spread them over more than this machine: an entry point of the group ``andrea.queues`` names a
class that is made and used like `Queue`, and ``andrea trial --queue NAME`` takes it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from attrs import define, field

from andrea.errors import AndreaError, did_you_mean
from andrea.interrupts import Interrupts
from andrea.trial import Job

Say = Callable[[str], None]
GROUP, HERE = "andrea.queues", "here"
INTERRUPTED = (130, 143, -2, -15)  # exit codes of a process that SIGINT or SIGTERM has ended, with and without a word


def find_queue(name: str) -> Any:
    """Return the class of a queue: `Queue` for ``here``, else that of an installed package.

    Raises
    ------
    AndreaError
        When there is none of this name, or its package cannot be imported.
    """
    others = {point.name: point for point in entry_points(group=GROUP)}
    if name == HERE:
        return Queue
    if name not in others:
        known = [HERE, *others]
        raise AndreaError(f"there is no queue {name!r}", did_you_mean(name, known) or f"queues: {', '.join(known)}")
    try:
        return others[name].load()
    except Exception as error:  # a package of others may fail in any way
        raise AndreaError(f"the queue {name} cannot be imported: {error}", f"leave out --queue {name}") from error


def command_of(job: Job, device: str) -> list[str]:
    """Return the command that makes a run or goes on with it; it is done when it ends with 0."""
    parts = (sys.executable, "-m", "andrea.trial_run", job.path, job.folder, device, job.test_rows)
    return [str(part) for part in parts]


def failure_of(job: Job, code: int, logs: Path) -> str:
    """Say why a run is not done, from the exit code of its command and the end of what it said."""
    if code in INTERRUPTED:
        return "is interrupted; the same command goes on with it"
    log = logs / f"{job.name}.txt"
    last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
    return "\n  ".join([f"ended with exit code {code}; {log} ends with", *last])


@define
class Queue:
    """Runs jobs, at most one on each device at a time.

    Attributes
    ----------
    jobs
        Each behind those that it waits for; those that are done are passed over.
    devices
        As for ``--device``. A device named twice takes two runs at once.
    logs
        Folder for what every run says.
    say
        Is told what begins and ends.
    failed
        Jobs that were begun and not finished, or that waited for one of these.
    """

    jobs: Sequence[Job]
    devices: Sequence[str]
    logs: Path
    say: Say
    failed: list[str] = field(factory=list)
    _running: dict[int, tuple[Job, subprocess.Popen[bytes]]] = field(init=False, factory=dict)

    def work(self) -> str:
        """Run until all is done; return the signal that ended it before, or an empty text."""
        waiting = [job for job in self.jobs if not job.done]
        self.say(f"{len(self.jobs)} runs, {len(self.jobs) - len(waiting)} of them done")
        with Interrupts() as interrupts:
            try:
                while (waiting and not interrupts.stop_asked()) or self._running:
                    if not interrupts.stop_asked():
                        self._begin(waiting)
                    self._look(interrupts)
            finally:
                self._stop_all("SIGKILL")  # nothing is left, unless something went wrong here
        return interrupts.stopped_by

    def _begin(self, waiting: list[Job]) -> None:
        """Start what is ready on every device that is free."""
        for job in [job for job in waiting if set(job.waits_for) & set(self.failed)]:
            waiting.remove(job)
            self._fail(job, f"waits for {', '.join(job.waits_for)}, which is not finished")
        names = {job.name for job in waiting} | {job.name for job, _ in self._running.values()}
        for slot, device in enumerate(self.devices):
            ready = next((job for job in waiting if not set(job.waits_for) & names), None)
            if slot not in self._running and ready is not None:
                waiting.remove(ready)
                self._start(slot, ready, device)

    def _start(self, slot: int, job: Job, device: str) -> None:
        self.logs.mkdir(parents=True, exist_ok=True)
        self.say(f"{job.name} on {device} {'goes on' if job.folder.exists() else 'begins'}")
        with (self.logs / f"{job.name}.txt").open("ab") as log:
            # A session of its own: a key pressed at the terminal reaches the trial, and the trial tells its runs once.
            process = subprocess.Popen(command_of(job, device), stdout=log, stderr=log, start_new_session=True)
        self._running[slot] = job, process

    def _look(self, interrupts: Interrupts) -> None:
        """Pass signals on, and take in what has ended."""
        for name in interrupts.take():
            self._stop_all(name)
        ended = [slot for slot, (_, process) in self._running.items() if process.poll() is not None]
        for slot in ended:
            self._end(*self._running.pop(slot))
        if not ended:
            time.sleep(0.05)

    def _end(self, job: Job, process: subprocess.Popen[bytes]) -> None:
        if process.returncode == 0:
            self.say(f"{job.name} is done")
        else:
            self._fail(job, failure_of(job, process.returncode, self.logs))

    def _fail(self, job: Job, why: str) -> None:
        self.failed.append(job.name)
        self.say(f"{job.name} {why}")

    def _stop_all(self, name: str) -> None:
        for _, process in self._running.values():
            if process.poll() is None:
                process.send_signal(signal.Signals[name])
