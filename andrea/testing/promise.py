"""What a contract is, and the plugin that it is tested on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attrs import field, frozen

from andrea.checkpoint import Snapshot, newest_checkpoint
from andrea.errors import AndreaError
from andrea.registry import make
from andrea.testing.steps import made_up_sources, write_sources
from andrea.testing.watch import Walk, walk
from andrea.tokens import TokenFile

WHOLE, CUTS = 40, (2, 25)  # steps of a walk, and where it is cut: early, and behind epochs, samples and skipped updates
MIXED_WHOLE, MIXED_CUT = 16, 9  # the same with two pulls a step


class ContractError(AssertionError):
    """A plugin does not keep a contract; the text says which, and by what."""


@frozen
class Contract:
    """One thing that a plugin promises.

    Attributes
    ----------
    name
        Its id.
    promise
        What must be true, in a sentence.
    kinds
        Whom it binds; empty binds all.
    check
        Raises `ContractError` when it is broken.
    """

    name: str
    promise: str
    kinds: tuple[str, ...]
    check: Callable[[Subject], None]


CONTRACTS: list[Contract] = []
Check = Callable[["Subject"], None]


def contract(*kinds: str) -> Callable[[Check], Check]:
    """Make a function a contract of some kinds, or of all; its name is the id, its docstring the promise."""

    def enter(check: Check) -> Check:
        CONTRACTS.append(Contract(check.__name__, (check.__doc__ or "").split("\n")[0], kinds, check))
        return check

    return enter


@frozen(eq=False)
class Subject:
    """A plugin under test.

    Attributes
    ----------
    name
        ``kind.variant``.
    target
        The module or class that the entry point names.
    options
        What the user sets; of a reader, what the source says.
    folder
        For files of the test.
    """

    name: str
    target: Any
    options: Mapping[str, Any]
    folder: Path
    _walks: dict[Any, Walk] = field(factory=dict, init=False)

    @property
    def kind(self) -> str:
        """The part of the name before the dot."""
        return self.name.partition(".")[0]

    def new(self) -> Any:
        """Return a fresh plugin object; a module is always the same."""
        return make(self.target, self.name, {} if self.kind == "source" else self.options)

    def check_options(self) -> None:
        """Raise `AndreaError` on wrong options: the tester's error, and no broken contract."""
        try:
            self.new()
        except AndreaError:
            raise
        except Exception:  # the plugin's own, and the contracts will tell of it
            return

    def walk(self, steps: int = WHOLE, cut: int = 0, pulls: int = 1, repeat: int = 0) -> Walk:
        """Return a watched run of `steps` steps, resumed from a checkpoint file at step `cut`.

        Raises
        ------
        ContractError
            When the plugin, or the loop because of it, ended the run early.
        """
        found = self.attempt(steps, cut, pulls, repeat)
        if found.error is not None:
            notes = " ".join(getattr(found.error, "__notes__", []))
            raise ContractError(f"a run ends early: {type(found.error).__name__}: {found.error} {notes}".rstrip())
        return found

    def attempt(self, steps: int = WHOLE, cut: int = 0, pulls: int = 1, repeat: int = 0) -> Walk:
        """Return a walk even if it ended early; each is made once."""
        key = (steps, cut, pulls, repeat)
        if key not in self._walks:
            self._walks[key] = self._walk(steps, cut, {"batch.pulls_per_step": pulls})
        return self._walks[key]

    def _walk(self, steps: int, cut: int, settings: Mapping[str, Any]) -> Walk:
        place = self.folder / f"walk-{len(self._walks)}"
        if not cut:
            return walk(self.name, self.new(), steps, self._files(), settings)
        before = walk(self.name, self.new(), cut, self._files(), settings, place)
        if before.error is not None:
            return before
        saved: Snapshot = newest_checkpoint(place / "checkpoints", say=_raise)
        return walk(self.name, self.new(), steps, self._files(), settings, place, saved)

    def _files(self) -> dict[str, tuple[TokenFile, TokenFile]]:
        return _token_files(self.folder)


@functools.lru_cache(maxsize=4)
def _token_files(folder: Path) -> dict[str, tuple[TokenFile, TokenFile]]:
    place = folder / "tokens"
    place.mkdir(exist_ok=True)
    return write_sources(place, made_up_sources())


def _raise(text: str) -> None:
    raise ContractError(text)


@contextmanager
def subject(name: str, target: Any, options: Mapping[str, Any]) -> Iterator[Subject]:
    """Give a subject with a folder that lasts as long as the block."""
    with TemporaryDirectory(prefix="andrea-contract-") as folder:
        yield Subject(name, target, dict(options), Path(folder))


def report(faults: list[str]) -> None:
    """Raise one `ContractError` with all faults; do nothing without any."""
    if faults:
        shown = faults[:5] + ([f"and {len(faults) - 5} more"] if len(faults) > 5 else [])
        raise ContractError("\n".join(shown))
