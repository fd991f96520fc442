"""What another run has drawn, once more: its average mix, its schedule, or its schedule backwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, Run, hookimpl, option, plugin, state

Ints = npt.NDArray[np.int64]
ORDERS = ("average", "same", "reversed")


@plugin
class Replay:
    """Score sources by the shares that another run has drawn them with: the control that tells order from mix.

    `order` average gives its shares over the whole run at every step: if that does as well, the order did nothing.
    With same and reversed, step t has the shares of the other run's step t, or of its last step but t; a longer run
    goes through the schedule again. A sampler that draws in proportion then repeats a schedule of one pull a step
    exactly, and one of several pulls in expectation; weights, floors and caps act as ever.

    The journal is read at the start and kept as state, so a resume goes on with what was read, whatever has become of
    the other run since.
    """

    path: str = option("", help="folder of the other run, or its journal.jsonl", path=True)
    order: str = option("average", help="average, same or reversed")
    choices: Ints = state()

    def __attrs_post_init__(self) -> None:
        if self.order not in ORDERS:
            raise AndreaError(
                f"bandit.replay.order is {self.order!r}",
                f"one of {', '.join(ORDERS)}: --set bandit.replay.order=average",
            )
        if not self.path:
            _refuse("no run")

    @hookimpl
    def on_start(self, run: Run) -> None:
        """Read what was drawn, indices of sources, int64 (steps, pulls of a step)."""
        self.choices = _read(Path(self.path), run.sources)

    @hookimpl
    def score_sources(self, step: int, run: Run) -> npt.NDArray[np.float64]:
        """Return shares, float64 (S,)."""
        place = step % len(self.choices)
        if self.order == "reversed":
            place = len(self.choices) - 1 - place
        seen = self.choices if self.order == "average" else self.choices[place]
        counts = np.bincount(seen.ravel(), minlength=len(run.sources))
        return np.asarray(counts / counts.sum(), dtype=np.float64)


def _read(path: Path, sources: tuple[str, ...]) -> Ints:
    """Return the sources of every step of a journal, int64 (steps, pulls of a step)."""
    journal = path / "journal.jsonl" if path.is_dir() else path
    if not journal.is_file():
        _refuse(str(journal))
    try:
        lines = [json.loads(line) for line in journal.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        steps = [[pull["source"] for pull in line["pulls"]] for line in lines if line["kind"] == "step"]
    except (ValueError, KeyError, TypeError):
        _refuse(f"{journal}, which is no journal")
    if not steps:
        _refuse(f"{journal}, a journal without steps")
    if unknown := [name for name in dict.fromkeys(name for step in steps for name in step) if name not in sources]:
        raise AndreaError(
            f"bandit.replay.path: the other run has drawn {', '.join(unknown)}, no source of this run",
            f"its sources are: {', '.join(sources)}",
        )
    return np.array([[sources.index(name) for name in step] for step in steps], dtype=np.int64)


def _refuse(what: str) -> NoReturn:
    raise AndreaError(
        f"bandit.replay.path gives {what}: there is no schedule to replay",
        "the folder of a run that has made steps: --set bandit.replay.path=runs/NAME-001",
    )
