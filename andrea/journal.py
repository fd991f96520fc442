"""The history of a run: one JSON line a step, and the loss and sample files rendered from it.

``journal.jsonl`` is the source. No clock is in it, so that a resumed run writes the same bytes. A checkpoint remembers
the journal's length; a resume cuts it there.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from andrea.errors import AndreaError, cure
from andrea.tokenfile import write_whole
from andrea.types import Evaluation, Limits, Pull, Sample, StepRecord


class Journal:
    """Appends to ``journal.jsonl`` and keeps what is rendered from it.

    Parameters
    ----------
    folder
        Of the run.
    name
        Of the model, with which the rendered files begin.
    length
        Bytes to keep of an existing journal: a resume's checkpoint knows; 0 begins anew.
    sources
        Names of the sources.
    """

    def __init__(self, folder: Path, name: str, sources: tuple[str, ...], length: int = 0) -> None:
        self.path = folder / "journal.jsonl"
        self._folder, self._name, self._sources = folder, name, sources
        self._behind: StepRecord | None = None
        self.losses: list[list[float]] = []
        self.samples: list[dict[str, Any]] = []
        if length and (not self.path.exists() or self.path.stat().st_size < length):
            raise AndreaError(
                f"{self.path} is shorter than the checkpoint says: {length} bytes are missing or cut",
                "put the file back, or fork the checkpoint: andrea run --from CHECKPOINT --out NEW",
            )
        self._file = self.path.open("r+b" if length else "wb")
        try:
            self._file.truncate(length)
            for number, line in enumerate(self._file if length else (), start=1):
                self._remember(self._parsed(number, line))
            self._file.seek(0, os.SEEK_END)
        except BaseException:
            self._file.close()
            raise

    @property
    def length(self) -> int:
        """Bytes written so far."""
        self.catch_up()
        return self._file.tell()

    def step(self, record: StepRecord) -> None:
        """Take a step; it is written by `catch_up`, or before whatever else is written."""
        self.catch_up()
        self._behind = record

    def catch_up(self) -> None:
        """Write the step that was taken last: the loop does that while the next one is computed."""
        record, self._behind = self._behind, None
        if record is not None:
            self._write(self._step(record))

    def sample(self, sample: Sample) -> None:
        """Write generated texts."""
        texts = [prompt + text for prompt, text in zip(sample.prompts, sample.texts, strict=True)]
        self._write({"kind": "sample", "step": sample.step, "loss": sample.loss, "texts": texts})

    def evaluation(self, evaluation: Evaluation) -> None:
        """Write held-out losses."""
        self._write(
            {
                "kind": "evaluation",
                "step": evaluation.step,
                "loss": dict(evaluation.loss),
                "bits_per_byte": dict(evaluation.bits_per_byte),
            }
        )

    def polish(self, step: int) -> None:
        """Write that the run goes on under other settings: the samples before are archived, the losses go on."""
        self._write({"kind": "polish", "step": step})

    def stop(self, step: int, reasons: Mapping[str, str]) -> None:
        """Write why the run ended; a resume cuts this line off."""
        self._write({"kind": "stop", "step": step, "reasons": dict(reasons)})

    def flush(self) -> None:
        """Make everything written so far safe on disk.

        Raises
        ------
        AndreaError
            When the disk does not take it; what is missing behind the last checkpoint is written again by a resume.
        """
        self.catch_up()
        with self._writing():
            self._file.flush()
            os.fsync(self._file.fileno())

    def rendering(self) -> Callable[[], None]:
        """Return a function, for any thread, that writes ``<model>.loss.json`` and ``<model>.samples.json``.

        It writes what the journal holds now, each file whole or not at all.
        """
        self.catch_up()
        losses, samples = list(self.losses), list(self.samples)

        def render() -> None:
            write_whole(self._folder / f"{self._name}.loss.json", json.dumps(losses).encode())
            write_whole(self._folder / f"{self._name}.samples.json", json.dumps(samples, indent=1).encode())

        return render

    def close(self) -> None:
        """Close the file."""
        with suppress(AndreaError, OSError):  # a full disk has been reported by `flush`
            self.catch_up()
        with suppress(OSError):
            self._file.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise AndreaError(
                f"cannot write {self.path}: {error.strerror or error}",
                f"{cure(error)}, then resume: andrea run --resume",
            ) from error

    def _parsed(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            value: dict[str, Any] = json.loads(line)
            return value
        except ValueError:
            raise AndreaError(
                f"{self.path} is damaged: line {number} is not JSON",
                "put the file back; or move it away and fork the checkpoint: andrea run --from CHECKPOINT --out NEW",
            ) from None

    def _step(self, record: StepRecord) -> dict[str, Any]:
        return {
            "kind": "step",
            "step": record.step,
            "loss": record.loss,
            "grad_norm": record.grad_norm,
            "learning_rate": record.learning_rate,
            "skipped": record.skipped,
            "tokens": record.tokens,
            "pulls": [self._pull(pull) for pull in record.pulls],
            **({"probes": {name: list(pair) for name, pair in record.probes.items()}} if record.probes else {}),
        }

    def _pull(self, pull: Pull) -> dict[str, Any]:
        return {
            "source": self._sources[pull.source],
            "documents": list(pull.documents),
            "loss": pull.loss,
            "rewards": dict(pull.rewards),
            "scores": pull.scores.tolist(),
            "weights": pull.weights.tolist(),
            **_limits(pull.limits),
            "detail": dict(pull.detail),
        }

    def _write(self, value: dict[str, Any]) -> None:
        self.catch_up()
        line = _line(value)
        with self._writing():
            self._file.write(line)
            self._file.flush()  # to the system, not to the disk: who watches the run sees every line at once
        self._remember(value)

    def _remember(self, value: dict[str, Any]) -> None:
        if value["kind"] == "step":
            self.losses.append([value["step"], plain(value["loss"])])
        elif value["kind"] == "sample":
            self.samples += [{"step": value["step"], "loss": plain(value["loss"]), "text": t} for t in value["texts"]]
        elif value["kind"] == "polish":
            self.samples = []


def _line(value: Any) -> bytes:
    """Return a value as one line of JSON; few hold a number that is not finite, so that is found out on the way."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False, default=plain)
    except ValueError:
        text = json.dumps(plain(value), separators=(",", ":"))
    return text.encode() + b"\n"


def _limits(limits: Limits) -> dict[str, list[float]]:
    """Return floors and caps; nothing where no plugin limits anything."""
    found = {}
    if limits.floor.any():
        found["floor"] = limits.floor.tolist()
    if np.isfinite(limits.cap).any():
        found["cap"] = limits.cap.tolist()
    return found


def plain(value: Any) -> Any:
    """Return a value that JSON can hold: numbers that are not finite become the texts ``inf``, ``-inf``, ``nan``."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return plain(value.tolist()) if isinstance(value, np.ndarray) else value


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a journal; a last line that was cut in the middle is left out."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)
