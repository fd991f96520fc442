"""A loss curve of a few points, taken from places all over a journal: it costs the same however long that is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TypeVar

from andrea.serve.lines import DAMAGED, decode_point

WHOLE = 4 << 20  # bytes up to which a journal is read from beginning to end
END = 1 << 16  # bytes at the end in which the last step is
TRIES = 4  # lines that are looked at in each place: samples and evaluations stand between steps

Point = tuple[int, float]
Item = TypeVar("Item")


def overview(path: Path, most: int) -> list[Point]:
    """Return about so many (step, loss) of a journal, ascending, the last step among them.

    Of a long journal lines are taken at even distances in bytes, which is evenly enough in steps.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            places = [0] if size <= WHOLE else [size * number // most for number in range(most)]
            found: dict[int, float] = {}
            for place in places:
                found.update(_points(file, place, math.inf if size <= WHOLE else TRIES))
            if size > WHOLE:
                found.update(list(_points(file, max(0, size - END), math.inf))[-1:])
    except OSError:
        return []
    return thinned(sorted(found.items()), most)


def thinned(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most so many of the items, evenly spaced, the last one among them."""
    if len(items) <= most:
        return list(items)
    return [items[(part + 1) * len(items) // most - 1] for part in range(most)]


def _points(file: IO[bytes], place: int, tries: float) -> Iterator[Point]:
    """Yield the steps from a place on: the first of so many lines, or all lines to the end when there is no limit."""
    file.seek(place)
    if place:
        file.readline()  # the rest of one
    for number, line in enumerate(file):
        point = _point(line)
        if point is not None:
            yield point
        if number + 1 >= tries or (point is not None and tries < math.inf):
            return


def _point(line: bytes) -> Point | None:
    try:
        point = decode_point(line)
        return point.step, float(point.loss)
    except DAMAGED:
        return None
