"""Text cut into pieces: words with their leading space, numbers, symbols, white space. No segment crosses a piece.

The rule works on bytes, so it knows letters beyond ASCII by the first byte of their UTF-8: every such byte counts as
a letter but C2, E2, EF and F0, which begin Latin-1 symbols, punctuation, arrows, box drawings, dingbats and emoji.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LETTER = rb"[A-Za-z\x80-\xc1\xc3-\xe1\xe3-\xee\xf1-\xff]"
ASCII_SYMBOL = rb"[!-/:-@\[-`{-~\x00-\x08\x0e-\x1f\x7f]"
LONGEST = 64
"""No piece is longer, in bytes: so work per byte is bounded, whatever the text."""

PATTERN = b"|".join(
    [
        rb" ?%b{1,48}(?:'%b{1,12}|\xe2\x80\x99%b{1,12}|)" % (LETTER, LETTER, LETTER),  # a word: don't, man’s
        rb" ?%b{1,63}" % ASCII_SYMBOL,
        rb"\s{1,64}(?= \S)",  # white space, but for the space that the next piece begins with
        rb"\s{1,64}",
        rb" ?[0-9]{1,4}",
        rb" ?(?:[\xc2\xe2\xef\xf0][\x80-\xbf]{0,3}){1,15}",
    ]
)
_FIND = re.compile(PATTERN).findall
BLOCK = 1 << 22


def split(data: bytes, block: int = BLOCK) -> Iterator[list[bytes]]:
    """Yield the pieces of `data`, which joined give `data`, a list for about every `block` bytes.

    A piece depends on nothing before its first byte and on one byte after its last, so the block that is searched may
    end anywhere if the two pieces before its end are searched again.
    """
    start = 0
    while start < len(data):
        pieces = _FIND(data, start, start + block)
        if start + block < len(data):
            del pieces[-2:]
        yield pieces
        start += sum(map(len, pieces)) if start + block < len(data) else block
