"""Text cut into stretches, all of it at once: the rule of `harris_pieces` for whole arrays of bytes.

A stretch is a piece, or, where that is simpler to see, a few pieces in a row; it never ends within one. Stretches that
a caller must cut further are marked.

Axis letters: N = bytes of the text; S = stretches.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
from attrs import frozen

from andrea.plugins.tokenizer.harris_pieces import ASCII_SYMBOL, DIGITS, LETTER, WIDE

Ints = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]

SHORT = 15
"""Bytes of a short stretch: less than any limit of the rule but that of digits, and with its length 16 bytes."""
END = b"\n"
"""Stands behind every text: white space, which is part of no other kind of piece."""

_RULES = (rb"\s", LETTER, ASCII_SYMBOL, rb"[0-9]", WIDE)
_WHITE, _LETTER, _SYMBOL, _DIGIT, _WIDE = range(len(_RULES))
_KINDS = bytes(
    next(kind for kind, rule in enumerate(_RULES) if re.fullmatch(rule, bytes([value]))) for value in range(256)
)
_KIND = np.frombuffer(_KINDS, dtype=np.uint8)


@frozen(eq=False)
class Stretches:
    """Where stretches begin and how long they are.

    Attributes
    ----------
    first, length
        In bytes, int64 (S,).
    several
        Whether a stretch may be several pieces, for another reason than that it is longer than `SHORT`; bool (S,).
    ends
        Numbers of the stretches that are the `END` of a text, int64 (texts,).
    """

    first: Ints
    length: Ints
    several: npt.NDArray[np.bool_]
    ends: Ints


def cut(data: bytes, ends: Ints) -> Stretches:
    """Cut texts that stand end to end.

    Parameters
    ----------
    data
        The texts, an `END` behind each.
    ends
        Where these stand, int64 (texts,).
    """
    text_N = np.frombuffer(data, dtype=np.uint8)
    kind_N = np.frombuffer(data.translate(_KINDS), dtype=np.uint8).copy()
    joints = np.sort(np.concatenate([*([] if data.isascii() else _widen(text_N, kind_N)), _join(text_N, kind_N)]))
    begins_N = _changes(text_N, kind_N)
    begins_N[ends] = True
    begins_N[ends[:-1] + 1] = True
    first_S = np.flatnonzero(begins_N)
    first_S = _part_digits(text_N, kind_N, begins_N, first_S)
    length_S = np.diff(first_S, append=text_N.size)
    several_S = np.zeros(first_S.size, dtype=bool)
    joined = np.searchsorted(first_S, joints, side="right") - 1
    # A second apostrophe may belong to the word or not: what follows the first decides.
    several_S[joined[1:][joined[1:] == joined[:-1]]] = True
    return Stretches(first_S, length_S, several_S, np.searchsorted(first_S, ends))


def _widen(text_N: Octets, kind_N: Octets) -> list[Ints]:
    """Give up to three bytes behind the first of a symbol beyond ASCII its kind; return the apostrophes in words."""
    lead = np.flatnonzero(kind_N == _WIDE)
    reached = lead
    for _ in range(3):
        reached = reached + 1  # within the text, since its last byte is an END
        reached = reached[text_N[reached] & 0xC0 == 0x80]
        kind_N[reached] = _WIDE
    quote = lead
    for offset, value in enumerate(b"\xe2\x80\x99"):
        quote = quote[text_N[quote + offset] == value]
    quote = quote[(kind_N[quote - 1] == _LETTER) & (_KIND[text_N[quote + 3]] == _LETTER)]
    for offset in range(4):
        kind_N[quote + offset] = _LETTER
    return [quote]


def _join(text_N: Octets, kind_N: Octets) -> Ints:
    """Make an apostrophe between letters a letter, and return where."""
    quote: Ints = np.flatnonzero(text_N == ord("'"))
    quote = quote[(kind_N[quote - 1] == _LETTER) & (kind_N[quote + 1] == _LETTER)]
    kind_N[quote] = _LETTER
    return quote


def _changes(text_N: Octets, kind_N: Octets) -> npt.NDArray[np.bool_]:
    """Return where a stretch begins: where the kind changes, or one byte before, at a space."""
    begins_N = np.empty(text_N.size, dtype=bool)
    begins_N[0] = True
    np.not_equal(kind_N[1:], kind_N[:-1], out=begins_N[1:])
    leading = (text_N[:-1] == ord(" ")) & (kind_N[1:] != _WHITE)
    begins_N[:-1] |= leading
    begins_N[1:] &= ~leading
    return begins_N


def _part_digits(text_N: Octets, kind_N: Octets, begins_N: npt.NDArray[np.bool_], first_S: Ints) -> Ints:
    """Part what has more digits than a piece may have; return where stretches begin."""
    last_S = np.append(first_S[1:], text_N.size) - 1
    number = np.flatnonzero(kind_N[last_S] == _DIGIT)
    first = first_S[number]
    first = first + (text_N[first] == ord(" "))
    more = (last_S[number] - first) // DIGITS
    if not more.any():
        return first_S
    # 1, 2, ... up to `more` for every number
    count = np.arange(int(more.sum())) - np.repeat(np.cumsum(more) - more, more) + 1
    begins_N[np.repeat(first, more) + DIGITS * count] = True
    return np.flatnonzero(begins_N)
