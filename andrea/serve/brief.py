"""The little that is known of every run without reading its history: how it is called, what it does, its last step."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import msgspec
import psutil

from andrea.checkpoint import complete_steps, stem
from andrea.serve.lines import DAMAGED, Evaluation, Sample, Step, Stop, read_line
from andrea.serve.tail import Tail

FIRST_LOOK, LAST_LOOK = 1 << 16, 1 << 22  # bytes at the end of a journal, in which the last evaluation is looked for
QUIET = 30.0  # seconds without a line after which a run whose process cannot be seen from here counts as ended
WINDOW = 30.0  # seconds over which tokens/s are averaged at least
STALE = 120.0  # seconds after the last step from which on nothing is said of the speed
MOST_SPEEDS = 1024  # points of the curve of tokens/s; then every second one goes
COUNT_STOP = "stop.max_steps"
FILES = ("bin", "npz", "json")


@attrs.define(eq=False)
class Brief:
    """What a run's folder says at a glance; `refresh` looks again.

    Attributes
    ----------
    model
        The name under which it is served.
    folder
        Of the run.
    config
        Its ``config.json``; empty when that cannot be read, which `problem` then says.
    state
        ``empty``, ``running``, ``finished`` (by its count of steps), ``stopped`` (by a plugin) or ``interrupted``.
    reasons
        Of a stop, by plugin.
    line, evaluation, sample
        The last of each kind; None when there is none near the journal's end.
    size
        Bytes of the journal.
    changed
        When the journal was written last, in seconds since 1970.
    checkpoint
        Step of the newest complete one.
    speeds
        (step, tokens/s) as this server saw the run go on.
    chance
        Loss of guessing; NaN while it is not known, and again when the configuration changes.
    """

    model: str
    folder: Path
    config: Mapping[str, Any] = attrs.field(factory=dict)
    problem: str = ""
    state: str = "empty"
    reasons: dict[str, str] = attrs.field(factory=dict)
    line: Step | None = None
    evaluation: Evaluation | None = None
    sample: int | None = None
    size: int = 0
    changed: float = 0.0
    checkpoint: int | None = None
    speeds: list[tuple[int, float]] = attrs.field(factory=list)
    chance: float = math.nan
    _config_time: int = -1
    _checkpoints_time: int = -1
    _tail: Tail | None = None
    _seen: list[tuple[float, int]] = attrs.field(factory=list)  # (time, step) of late
    _grew: float | None = None  # when lines came

    @property
    def journal(self) -> Path:
        """Path of the journal."""
        return self.folder / "journal.jsonl"

    @property
    def title(self) -> str:
        """The name that its configuration gives it, with which its files begin."""
        return str(self.config.get("name") or self.folder.name)

    @property
    def sources(self) -> list[str]:
        """Names of its sources."""
        found = self.config.get("sources")
        return [str(s.get("name")) for s in found if isinstance(s, Mapping)] if isinstance(found, list) else []

    @property
    def prompts(self) -> list[str]:
        """Beginnings of its samples."""
        return [p for p in _section(self.config, "sampling").get("prompts", ()) if isinstance(p, str)]

    @property
    def tokens_per_second(self) -> float | None:
        """The speed of late; None when the run does not go on or was not watched yet."""
        fresh = self._grew is not None and time.monotonic() - self._grew < STALE
        return self.speeds[-1][1] if self.speeds and fresh and self.state == "running" else None

    def refresh(self) -> None:
        """Look again; what has not changed costs no more than a look."""
        self._read_config()
        if self._tail is None or self._tail.rewritten():
            self._begin()
        elif self._read_on():
            self._grew = time.monotonic()
            self._time()
        self.state = self._state()
        self.changed = _time_of(self.journal) / 1e9
        self._find_checkpoint()

    def to_json(self) -> dict[str, Any]:
        """Return what the list of runs shows."""
        line = self.line
        return {
            "model": self.model,
            "name": self.title,
            "state": self.state,
            "reasons": self.reasons,
            "problem": self.problem,
            "step": None if line is None else line.step + 1,
            "steps": _section(self.config, "schedule").get("steps"),
            "loss": None if line is None else float(line.loss),
            "grad_norm": None if line is None else float(line.grad_norm),
            "learning_rate": None if line is None else float(line.learning_rate),
            "tokens_per_second": self.tokens_per_second,
            "bits_per_byte": None if self.evaluation is None else self.evaluation.bits_per_byte,
            "sample": self.sample,
            "sources": self.sources,
            "checkpoint": self.checkpoint,
            "bytes": self.size,
            "changed": self.changed,
        }

    # -- looking -------------------------------------------------------------------------------------------------------

    def _read_config(self) -> None:
        path = self.folder / "config.json"
        try:
            changed = path.stat().st_mtime_ns
            if changed == self._config_time:
                return
            value = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
            self.config, self.problem, self._config_time, self.chance = value, "", changed, math.nan
        except (OSError, *DAMAGED) as error:
            self.problem = f"config.json cannot be read: {error}"

    def _begin(self) -> None:
        """Read the end of the journal: as much as has the last step and, if there is one near, an evaluation."""
        self.line, self.evaluation, self.sample, self.reasons = None, None, None, {}
        self._seen.clear()
        size = _size(self.journal)
        look = FIRST_LOOK
        while True:
            self._tail = Tail(self.journal, max(0, size - look))
            self._tail.rewritten()  # notes which file it is
            self._read_on()
            if look >= min(size, LAST_LOOK) or (self.line and self.evaluation):
                return
            look *= 8

    def _read_on(self) -> bool:
        """Take over the lines that are new; say whether there were any."""
        tail, found = self._tail, False
        while tail is not None and (chunk := tail.chunk()) is not None:
            for _, data in chunk:
                found = True
                match line := read_line(data):
                    case Step():
                        self.line, self.reasons = line, {}
                    case Evaluation():
                        self.evaluation = line
                    case Sample():
                        self.sample = line.step
                    case Stop():
                        self.reasons = line.reasons
            self.size = tail.offset
        return found

    def _state(self) -> str:
        if self._works():
            return "running"
        if self.line is None and not self.reasons:
            return "empty"
        if not self.reasons or "signal" in self.reasons:
            return "interrupted"
        return "finished" if COUNT_STOP in self.reasons else "stopped"

    def _works(self) -> bool:
        """Say whether a process holds the run's folder; its lock is only read, for taking it would keep others out."""
        try:
            number = int((self.folder / "lock").read_text())
        except (OSError, ValueError):
            return False
        grows = self._grew is not None and time.monotonic() - self._grew < QUIET
        return psutil.pid_exists(number) or grows  # on a shared disk the process may be another machine's

    def _time(self) -> None:
        """Note when which step was seen, and how fast the run went in the time just past."""
        if self.line is None:
            return
        now, step = time.monotonic(), self.line.step
        while len(self._seen) > 1 and now - self._seen[1][0] > WINDOW:
            del self._seen[0]
        self._seen.append((now, step))
        then, first = self._seen[0]
        if now - then >= 1 and step > first:
            self.speeds.append((step + 1, (step - first) * self.line.tokens / (now - then)))
            if len(self.speeds) > MOST_SPEEDS:
                self.speeds = self.speeds[::-2][::-1]

    def _find_checkpoint(self) -> None:
        """Look for the newest checkpoint when files came or went."""
        changed = _time_of(self.folder / "checkpoints")
        if changed != self._checkpoints_time:
            found = self.checkpoints()
            self.checkpoint = found[-1]["step"] if found else None
            self._checkpoints_time = changed

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def checkpoints(self) -> list[dict[str, Any]]:
        """Return (model, step, bytes of its files) of the complete checkpoints, ascending."""
        folder, found = self.folder / "checkpoints", []
        try:
            steps = complete_steps(folder)
        except OSError:
            return []
        for step in steps:
            size = sum(_size(folder / f"{stem(step)}.{suffix}") for suffix in FILES)
            found.append({"model": self.model, "step": step, "size_bytes": size})
        return found


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def _time_of(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
