"""What goes wrong by the user's hand, said in a way that helps."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class AndreaError(Exception):
    """An error of the user's: shown without a traceback, exit code 2.

    Parameters
    ----------
    message
        What was asked and what is wrong with it.
    hint
        What exists, or what to type next; shown on a line of its own.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class NotFiniteError(AndreaError, ValueError):
    """The weights give numbers that are not finite, so nothing can be drawn from them."""

    def __init__(self) -> None:
        super().__init__(
            "a logit is not finite: the weights are damaged",
            "go back to an earlier checkpoint, and lower schedule.peak; andrea inspect RUN lists the checkpoints",
        )


_CURES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "see that you may write there"),
    errno.EROFS: "the file system can only be read: have it mounted for writing",
    errno.EIO: "have the disk checked",
    errno.ENAMETOOLONG: "give a shorter name",
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "see that nothing there but folders bears a folder's name"),
}


def cure(error: OSError) -> str:
    """Return what a person can do when the system refuses to write a file, as the beginning of a hint."""
    return _CURES.get(error.errno or 0, "see to what the system says")


@contextmanager
def writing_in(folder: Path) -> Iterator[None]:
    """Turn the operating system's refusal to write in the folder of --out into an error of the user's."""
    try:
        yield
    except OSError as error:
        raise AndreaError(
            f"cannot write in {folder}: {error.strerror or error}",
            f"{cure(error)}, or choose another folder with --out",
        ) from error


def nearest(wrong: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return the names in `known` that a person may have meant by `wrong`, best first."""
    return difflib.get_close_matches(wrong, sorted(known), n=count, cutoff=0.6)


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """Return `did you mean X or Y?`, or an empty text when nothing is close."""
    close = nearest(wrong, known)
    return f"did you mean {' or '.join(close)}?" if close else ""
