"""All runs below a folder, by name; of the ones that are looked at, their histories, as many as memory allows."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from andrea.errors import AndreaError, did_you_mean
from andrea.serve.brief import Brief
from andrea.serve.chance import chance
from andrea.serve.history import History
from andrea.serve.lines import DAMAGED

DEEPEST = 4  # folders between the one that is served and a run
MOST_FOLDERS = 20_000  # looked into for runs: who serves a whole disk is not kept waiting
LOOK_EVERY = 2.0  # seconds between two searches for runs that are new
BUDGET = 24 << 20  # bytes of histories that are kept beside the one asked for last: about three of 200,000 steps


class Runs:
    """The runs below a folder, or the one run that the folder is.

    Parameters
    ----------
    root
        The folder; it may be empty, or not be there yet.
    budget
        Bytes of histories that are kept: the one asked for last always, others while they fit.
    """

    def __init__(self, root: Path, budget: int = BUDGET) -> None:
        self.root, self._budget = root, budget
        self._briefs: dict[str, Brief] = {}
        self._histories: dict[str, History] = {}
        self._lock = threading.Lock()
        self._looked = -LOOK_EVERY

    def refresh(self) -> list[Brief]:
        """Look at all runs again and return them, by name."""
        with self._lock:
            if time.monotonic() - self._looked >= LOOK_EVERY:
                self._search()
                self._looked = time.monotonic()
            for brief in self._briefs.values():
                brief.refresh()
            return list(self._briefs.values())

    def find(self, name: str) -> Brief:
        """Return a run by the name it is served under, or by its model's where only one run has that.

        Raises
        ------
        AndreaError
            When there is none. The name is only compared with those of the runs, so it cannot lead anywhere else.
        """
        briefs = self.refresh()
        found = [brief for brief in briefs if brief.model == name] or [b for b in briefs if b.title == name]
        if len(found) == 1:
            return found[0]
        names = [brief.model for brief in briefs]
        if found:
            raise AndreaError(
                f"{len(found)} runs are called {name!r}", f"say which: {', '.join(b.model for b in found)}"
            )
        short = name[:200]
        near = did_you_mean(short, names) or f"runs: {', '.join(names[:20]) or 'none'}"
        raise AndreaError(f"there is no run {short!r}", near)

    def history(self, brief: Brief) -> History:
        """Return the history of a run, which is read by its `update`; forget those that were not asked for lately."""
        with self._lock:
            history = self._histories.pop(brief.model, None)
            if history is None or history.path != brief.journal:
                history = History(brief.journal, brief.sources, brief.prompts)
            self._histories[brief.model] = history  # behind all others: it was asked for last
            while len(self._histories) > 1 and sum(h.size for h in self._histories.values()) > self._budget:
                del self._histories[next(iter(self._histories))]
            return history

    def chance(self, brief: Brief) -> float:
        """Return the loss of guessing of a run; a run that just begins may have none yet, and is asked again."""
        if not math.isfinite(brief.chance):
            brief.chance = chance(brief.folder, brief.config)
        return brief.chance

    def _search(self) -> None:
        """Take up runs that are new, forget those that are gone."""
        found = {}
        for folder in sorted(_run_folders(self.root)):
            brief = Brief(_text(folder.relative_to(self.root)), folder)
            if folder == self.root:  # the one run that is served bears its model's name, as its files do
                brief.refresh()
                brief.model = brief.title
            found[brief.model] = self._briefs.get(brief.model, brief)
        self._briefs = found


def _run_folders(root: Path) -> Iterator[Path]:
    """Yield the folders that are runs; what lies within a run is not searched, and a link is followed to a run only."""
    looked, waiting = 0, [(root, 0)]
    while waiting and looked < MOST_FOLDERS:
        folder, depth = waiting.pop()
        looked += 1
        if _is_run(folder):
            yield folder
        elif depth < DEEPEST:
            waiting += [(path, DEEPEST if path.is_symlink() else depth + 1) for path in _folders(folder)]


def _is_run(folder: Path) -> bool:
    """Say whether a folder has a journal, or at least the configuration of a run; others have a config.json too."""
    try:
        if (folder / "journal.jsonl").is_file():
            return True
        config = msgspec.json.decode((folder / "config.json").read_bytes())
    except (OSError, *DAMAGED):
        return False
    return isinstance(config, dict) and {"name", "model", "sources"} <= set(config)


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry) for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return []


def _text(path: Path) -> str:
    """Return a path as text that JSON can hold, whatever bytes its names are made of."""
    return os.fsencode(path.as_posix()).decode(errors="replace")
