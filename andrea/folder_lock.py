"""The lock on a run's folder: one process at a time writes there."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO

from andrea.errors import AndreaError


class FolderLock:
    """Holds a folder until `release`, or until the process ends, however it ends: the system frees the lock then.

    Parameters
    ----------
    folder
        An existing folder; the file ``lock`` in it holds the process's number while the lock is held.

    Raises
    ------
    AndreaError
        When another process holds the folder.
    OSError
        When nothing can be written there.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._file: IO[str] | None = _open_locked(self._path, folder)
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        """Let others in; the file goes, so that a finished run's folder holds nothing but the run."""
        if self._file is not None:
            if _is_at(self._file, self._path):
                self._path.unlink()
            self._file.close()
            self._file = None


def _open_locked(path: Path, folder: Path) -> IO[str]:
    while True:
        file = path.open("a+")
        if not _lock(file):
            file.seek(0)
            holder = file.read().strip()
            file.close()
            raise AndreaError(
                f"{folder} is in use by process {holder or 'unknown'}",
                "wait until it has ended, or name another folder with --out",
            )
        if _is_at(file, path):
            return file
        file.close()  # its holder removed it between our opening and our locking: that file locks nothing any more


def _is_at(file: IO[str], path: Path) -> bool:
    """Say whether an open file is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _lock(file: IO[str]) -> bool:
    if sys.platform == "win32":
        return True  # there is no such lock; two processes in one folder are then the user's to avoid
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
