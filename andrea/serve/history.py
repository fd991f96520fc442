"""The columns of a run's journal: what its curves are drawn from, and where its samples stand."""

from __future__ import annotations

import math
import secrets
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Raw

from andrea.coherence import score_texts
from andrea.serve.lines import Evaluation, Polish, Sample, Step, read_arms, read_line, read_phase
from andrea.serve.overview import thinned
from andrea.serve.tail import Tail
from andrea.smoothing import Smoothed

MOST_SCORED = 256  # samples of a history whose coherence is scored when it is opened; later ones as they come

# Types of the columns of every step, every pull and every phase of the dice. `row` is the index of the step; `focus`
# and `joined` have a bit for every source, of the first 64.
ROWS = {"step": "i", "loss": "d", "smma": "f", "grad_norm": "f", "learning_rate": "f"}
PULLS = {"row": "i", "source": "H", "reward": "f"}
DICE = {"row": "i", "start": "i", "length": "i", "focus": "Q", "joined": "Q"}
MASK = 2**64 - 1


class History:
    """What a journal holds, as far as it was read.

    Parameters
    ----------
    path
        Of the journal.
    sources
        Names in the order of the run's; others that the journal names come behind them.
    prompts
        Beginnings of the samples, in turn, which are not scored.

    Attributes
    ----------
    generation
        One more each time the journal is begun anew: a resume cuts it back, and what was read before is then void. It
        begins anywhere, so that who holds rows of another reader, from before a restart, is not taken for up to date.
    rows, pulls, dice
        Columns by name.
    tokens, skipped
        Tokens seen, and updates that were skipped.
    evaluations
        (rows before it, evaluation), ascending.
    coherence
        (step, score of 100) of scored samples, ascending.
    damaged
        Lines that could not be read.
    """

    def __init__(self, path: Path, sources: Sequence[str] = (), prompts: Sequence[str] = ()) -> None:
        self.path, self._names, self._prompts = path, tuple(sources), tuple(prompts)
        self.lock = threading.RLock()
        self.generation = secrets.randbelow(2**30)
        self._clear()

    def _clear(self) -> None:
        self._tail = Tail(self.path)
        self.generation += 1
        self.sources = list(self._names)
        self._index = {name: index for index, name in enumerate(self.sources)}
        self.rows: dict[str, array[Any]] = {name: array(kind) for name, kind in ROWS.items()}
        self.pulls: dict[str, array[Any]] = {name: array(kind) for name, kind in PULLS.items()}
        self.dice: dict[str, array[Any]] = {name: array(kind) for name, kind in DICE.items()}
        self.evaluations: list[tuple[int, Evaluation]] = []
        self.tokens, self.skipped = 0, 0
        self.coherence: list[tuple[int, float]] = []
        self.arms: tuple[list[float], list[float]] = ([], [])
        self.damaged = 0
        self._samples: list[tuple[int, int, int]] = []  # step, offset and length of the line
        self._scored = 0  # of them
        self._unscored: list[tuple[int, int, int]] = []  # of these, those that will be
        self._smoothed = Smoothed()
        self._last_step, self._last_start = b"", b""

    def __len__(self) -> int:
        """Return how many steps were read."""
        return len(self.rows["step"])

    @property
    def size(self) -> int:
        """Bytes of memory that the columns take, about."""
        columns = (*self.rows.values(), *self.pulls.values(), *self.dice.values())
        evaluations = 200 * len(self.sources) * len(self.evaluations)
        return sum(len(column) * column.itemsize for column in columns) + evaluations

    # -- reading -------------------------------------------------------------------------------------------------------

    def update(self, seconds: float = math.inf) -> bool:
        """Read on for about so many seconds; say whether the end was reached."""
        with self.lock:
            if self._tail.rewritten():
                self._clear()
            deadline = time.monotonic() + seconds
            while (chunk := self._tail.chunk()) is not None:
                for offset, line in chunk:
                    self._take(offset, line)
                if time.monotonic() > deadline:
                    return False
            self.arms = read_arms(self._last_step)
            return self._score(deadline)

    def _take(self, offset: int, data: bytes) -> None:
        line = read_line(data)
        if isinstance(line, Step):
            rows, pulls = len(self), len(self.pulls["row"])
            try:
                self._step(line, rows)
                self._last_step = data
            except (ValueError, OverflowError):  # a text that is no number, a number that fits no column
                self._cut_back(rows, pulls)
                self.damaged += 1
        elif isinstance(line, Sample):
            self._samples.append((line.step, offset, len(data)))
        elif isinstance(line, Evaluation):
            self.evaluations.append((len(self), line))
        elif isinstance(line, Polish):
            self._samples, self._scored, self._unscored = [], 0, []
        elif line is None:
            self.damaged += 1

    def _step(self, line: Step, row: int) -> None:
        """Append a step; this is done a hundred thousand times while somebody waits."""
        columns = self.rows
        if row and line.step <= columns["step"][-1]:
            raise ValueError("steps ascend")
        loss = float(line.loss)
        columns["loss"].append(loss)
        columns["grad_norm"].append(float(line.grad_norm))
        columns["learning_rate"].append(float(line.learning_rate))
        columns["step"].append(line.step)
        for pull in line.pulls:
            self.pulls["row"].append(row)
            self.pulls["source"].append(self._source(pull.source))
            self.pulls["reward"].append(sum(map(float, pull.rewards.values())))
        self._smoothed.take(loss)
        columns["smma"].append(self._smoothed.value)
        self.tokens += line.tokens
        self.skipped += line.skipped
        if line.pulls:
            self._note_phase(line.pulls[0].detail, row)

    def _note_phase(self, detail: Raw, row: int) -> None:
        """Note where another phase of the dice begins: its start is the first thing that is said of it."""
        said = bytes(detail)
        start = said[: said.find(b",")]
        if start != self._last_start and b'"focus"' in said:
            self._last_start = start
            phase, starts = read_phase(detail), self.dice["start"]
            if phase and (not starts or starts[-1] != phase.start):
                values = (row, phase.start, phase.length, _bits(phase.focus), _bits(phase.joined))
                for column, value in zip(self.dice.values(), values, strict=True):
                    column.append(value)

    def _cut_back(self, rows: int, pulls: int) -> None:
        """Take back what a step has appended before it proved to be damaged."""
        phases = bisect_left(self.dice["row"], rows)
        for columns, length in ((self.rows, rows), (self.pulls, pulls), (self.dice, phases)):
            for column in columns.values():
                del column[length:]

    def _source(self, name: str) -> int:
        if name not in self._index:
            self._index[name] = len(self.sources)
            self.sources.append(name)
        return self._index[name]

    # -- samples -------------------------------------------------------------------------------------------------------

    def samples(self, first: int = 0, last: int | None = None, most: int | None = None) -> Iterator[Sample]:
        """Yield the samples after `first` to `last` updates, at most the latest so many; read from the file again."""
        with self.lock:
            found = [place for place in self._samples if first <= place[0] and (last is None or place[0] <= last)]
        for place in found[-most:] if most is not None else found:
            if sample := self._read_sample(place):
                yield sample

    @property
    def sampled(self) -> list[int]:
        """Updates after which there is a sample."""
        return [step for step, _, _ in self._samples]

    def _read_sample(self, place: tuple[int, int, int]) -> Sample | None:
        step, offset, length = place
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                line = read_line(file.read(length))
        except OSError:
            return None
        return line if isinstance(line, Sample) and line.step == step else None

    def _score(self, deadline: float) -> bool:
        """Score samples that are new, so many of a long history that they stand for it; say whether all are done."""
        new = self._samples[self._scored :]
        self._scored = len(self._samples)
        self._unscored += thinned(new, MOST_SCORED)
        while self._unscored:
            place = self._unscored.pop(0)
            if sample := self._read_sample(place):
                texts = [self._without_prompt(number, text) for number, text in enumerate(sample.texts)]
                self.coherence.append((sample.step, score_texts(texts, frozenset()).total))
            if time.monotonic() > deadline:
                break
        if len(self.coherence) > 2 * MOST_SCORED:
            self.coherence = self.coherence[::-2][::-1]
        return not self._unscored

    def _without_prompt(self, number: int, text: str) -> str:
        return text.removeprefix(self._prompts[number % len(self._prompts)]) if self._prompts else text


def _bits(indexes: Sequence[int]) -> int:
    """Return a number with the bits of these indexes set."""
    return sum(1 << index for index in set(indexes) if index >= 0) & MASK
