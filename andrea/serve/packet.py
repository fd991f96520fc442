"""A history as one binary answer: a header in JSON, then the columns as they lie in memory.

[uint32 length of the header, a multiple of 8 with the 8 bytes before it][uint32 1, the version][header][columns]

All little-endian. The header names the columns in order, with type and length; each begins at a multiple of 8 bytes.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import msgspec

from andrea.serve.history import DICE, PULLS, ROWS, History
from andrea.serve.phases import phases

VERSION = 1
MOST_ROWS = 50_000  # of an answer: who wants more asks again, so that no answer takes much memory
TYPES = {"i": "int32", "d": "float64", "f": "float32", "H": "uint16", "Q": "uint64"}


def packet(
    history: History,
    complete: bool,
    chance: float,
    speeds: Sequence[tuple[int, float]] = (),
    generation: int = 0,
    first: int = 0,
) -> bytes:
    """Return what a history holds behind its first rows, for who has those of the same generation; else all of it.

    Parameters
    ----------
    history
        Whose lock is held.
    complete
        Whether the journal was read to its end.
    chance
        Loss of guessing, NaN when not known.
    speeds
        (step, tokens/s) as the run was seen to go on.
    generation, first
        What the asker has already: so many rows of that generation.
    """
    if generation != history.generation or first > len(history):
        first = 0
    last = min(len(history), first + MOST_ROWS)
    columns = [(name, kind, history.rows[name][first:last]) for name, kind in ROWS.items()]
    for prefix, kinds, table in (("pull_", PULLS, history.pulls), ("dice_", DICE, history.dice)):
        begin, end = bisect_left(table["row"], first), bisect_left(table["row"], last)
        columns += [(prefix + name, kind, table[name][begin:end]) for name, kind in kinds.items()]
    header = {
        "generation": history.generation,
        "complete": complete and last == len(history),
        "first": first,
        "columns": [{"name": name, "type": TYPES[kind], "length": len(column)} for name, kind, column in columns],
        "sources": history.sources,
        "evaluations": [line for row, line in history.evaluations if first <= row <= last],
        "coherence": history.coherence,
        "phases": phases(history, chance),
        "sampled": history.sampled,
        "scores": history.arms[0],
        "weights": history.arms[1],
        "speeds": [(step, round(speed)) for step, speed in speeds],
        "tokens": history.tokens,
        "skipped": history.skipped,
        "damaged": history.damaged,
        "chance": chance,
    }
    return _pack(header, [column for _, _, column in columns])


def _pack(header: dict[str, Any], columns: list[array[Any]]) -> bytes:
    text = _padded(msgspec.json.encode(header), b" ")
    if sys.byteorder == "big":
        for column in columns:
            column.byteswap()
    return b"".join([struct.pack("<II", len(text), VERSION), text, *(_padded(c.tobytes(), b"\0") for c in columns)])


def _padded(data: bytes, fill: bytes) -> bytes:
    return data + fill * (-len(data) % 8)
