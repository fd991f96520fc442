"""Text cut into pieces: words with their leading space, numbers, symbols, white space.

Segments never cross a piece, and pieces repeat, so they are what an encoder remembers. The rule works on bytes and
bounds every length, so the work per byte is bounded whatever the text.

Letters beyond ASCII are known by the first byte of their UTF-8: every such byte counts as a letter but C2, E2, EF and
F0, which begin Latin-1 symbols, punctuation, arrows, box drawings, dingbats and emoji.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LETTER = rb"[A-Za-z\x80-\xc1\xc3-\xe1\xe3-\xee\xf1-\xff]"
ASCII_SYMBOL = rb"[!-/:-@\[-`{-~\x00-\x08\x0e-\x1f\x7f]"
WIDE = rb"[\xc2\xe2\xef\xf0]"  # begins a symbol beyond ASCII
DIGITS = 4
PIECE = b"|".join(
    [
        rb" ?%b{1,64}(?:(?:'|\xe2\x80\x99)%b{1,16})?" % (LETTER, LETTER),  # a word: " it", "don't"
        rb" ?[0-9]{1,%d}" % DIGITS,
        rb" ?%b{1,64}" % ASCII_SYMBOL,
        rb" ?(?:%b[\x80-\xbf]{0,3}){1,64}" % WIDE,
        rb"\s{1,64}(?= \S)",  # white space leaves its last space to the piece that follows
        rb"\s{1,64}",
    ]
)
BLOCK = 1 << 18

# No repetition but that of white space ever gives back what it took, so nothing has to be kept for it.
_find_pieces = re.compile(re.sub(rb"\}(?!\(\?=)", rb"}+", PIECE)).findall


def split(data: bytes, block: int = BLOCK) -> Iterator[list[bytes]]:
    """Yield the pieces of `data`, which joined give `data`, in a list for about every `block` bytes.

    A piece depends on nothing before its first byte and on at most the two pieces after it, so a block may end
    anywhere if the two pieces before its end are searched again. `block` must be 512 or more.
    """
    start = 0
    while start < len(data):
        pieces = _find_pieces(data, start, start + block)
        if start + block < len(data):
            del pieces[-2:]
            start += sum(map(len, pieces))
        else:
            start = len(data)
        yield pieces
