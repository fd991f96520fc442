"""Data found again without reading its sources, where no file that they were read from has changed.

Beside what a preparation made, the cache keeps ``unchanged/KEY.json``: the record that it ended in, and how every file
looked that it was read from: place, size, times and inode, as `make` and `git` judge files. KEY is the digest of all
else that decides the data. A reader names its files in what it returns (`andrea.sources.Documents.files`); an
experiment with a reader that names none is read at every start.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import frozen

from andrea.tokenfile import write_whole
from andrea.tokens import digest_of

SETTLED = 2.0  # seconds of age from which a file that changes looks changed: the tick of some file systems' clocks


@frozen
class Looks:
    """How files looked at once.

    Attributes
    ----------
    digest
        Of every file's place, name, size, times and inode.
    newest
        When the last of them changed, seconds since 1970.
    """

    digest: str
    newest: float


def look(files: Iterable[tuple[Path, str]]) -> Looks:
    """Look at files, each with the name that its documents have. OSError when there is one that cannot be looked at."""
    seen, newest = [], 0
    for path, name in files:
        s = path.stat()
        seen.append((str(path), name, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino))
        newest = max(newest, s.st_mtime_ns, s.st_ctime_ns)
    return Looks(digest_of(seen), newest / 1e9)


class Memo:
    """What the cache has noted of one experiment's sources.

    Parameters
    ----------
    cache
        Folder of prepared data.
    decides
        All that decides the data beside what stands in the files: plain values.
    look
        Looks at the files; None where it is not known which they are.
    """

    def __init__(self, cache: Path, decides: Any, look: Callable[[], Looks | None]) -> None:
        self._path, self._see = cache / "unchanged" / f"{digest_of(decides)}.json", look
        self._before: Looks | None = None
        self._begin = 0.0

    def recall(self) -> str | None:
        """Return the digest of the record that was made of these files as they look now, if one was."""
        self._begin, self._before = time.time(), self._see()
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):  # none, or a damaged one
            record = json.loads(self._path.read_bytes())
            known = self._before is not None and record["files"] == self._before.digest
            if known and re.fullmatch("[0-9a-f]{64}", record["prepared"]):
                return str(record["prepared"])
        return None

    def note(self, prepared: str) -> None:
        """Note the record that the sources have just become.

        Not when a file has changed meanwhile, or so shortly before that it could have changed again without looking so.
        A cache that cannot be written is no error: the sources will be read again.
        """
        looks = self._before
        if looks is None or looks.newest > self._begin - SETTLED or self._see() != looks:
            return
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps({"files": looks.digest, "prepared": prepared}).encode() + b"\n")
