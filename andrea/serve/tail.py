"""The lines that a growing file has gained; a resume cuts a journal back, and that is noticed."""

from __future__ import annotations

from pathlib import Path

CHUNK = 1 << 20  # bytes read at a time: what a hundred runs may cost of memory is this and not their size
MOST_LINE = 1 << 24  # bytes that a line may have: the rest of a longer one is not text of ours
MARK = 512  # bytes before the place reached that are compared


class Tail:
    """Reads a file in whole lines from where it stopped before.

    Parameters
    ----------
    path
        Of the file, which may not be there yet.
    offset
        Where to begin. When it is not 0, the first line is taken for half of one and left out.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self._identity: tuple[int, int] | None = None
        self._mark = b""
        self._skipping = offset > 0

    def rewritten(self) -> bool:
        """Say whether what was read before is no longer there: the file was cut, replaced or removed.

        Who is told so begins again with a new `Tail`.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset - len(self._mark))
                same = file.read(len(self._mark)) == self._mark
            found = self.path.stat()
        except OSError:
            return self.offset > 0
        identity = (found.st_dev, found.st_ino)
        before, self._identity = self._identity or identity, identity
        return not same or before != identity or found.st_size < self.offset

    def chunk(self) -> list[tuple[int, bytes]] | None:
        """Return (offset, line) of the next whole lines, about a megabyte of them; None when there is no more.

        A line that is too long to be one is passed over and given as an empty text.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(CHUNK)
                while data and b"\n" not in data and len(data) < MOST_LINE and (more := file.read(CHUNK)):
                    data += more
        except OSError:
            return None
        if b"\n" in data:
            return self._lines(data[: data.rfind(b"\n") + 1])
        if len(data) < MOST_LINE:
            return None
        at, first = self.offset, not self._skipping
        self._move(data)
        self._skipping = True
        return [(at, b"")] if first else []

    def _lines(self, data: bytes) -> list[tuple[int, bytes]]:
        at, found = self.offset, []
        for line in data.split(b"\n")[:-1]:
            found.append((at, line))
            at += len(line) + 1
        self._move(data)
        skipped, self._skipping = self._skipping, False
        return found[1:] if skipped else found

    def _move(self, data: bytes) -> None:
        self.offset += len(data)
        self._mark = (self._mark + data[-MARK:])[-MARK:]
