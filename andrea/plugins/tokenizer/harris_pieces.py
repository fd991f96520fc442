"""Text cut into chunks, chunks into pieces: words with their leading space, numbers, symbols, white space.

A chunk is what stands between white space, with the one space before it, or a run of white space. Chunks repeat, so
they are what an encoder remembers. Segments never cross a piece. Both rules work on bytes and bound every length, so
the work per byte is bounded whatever the text.

Letters beyond ASCII are known by the first byte of their UTF-8: every such byte counts as a letter but C2, E2, EF and
F0, which begin Latin-1 symbols, punctuation, arrows, box drawings, dingbats and emoji.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LETTER = rb"[A-Za-z\x80-\xc1\xc3-\xe1\xe3-\xee\xf1-\xff]"
ASCII_SYMBOL = rb"[!-/:-@\[-`{-~\x00-\x08\x0e-\x1f\x7f]"

# White space leaves its last space to the chunk that follows.
CHUNK = rb" ?\S{1,64}|\s{1,64}(?= \S)|\s{1,64}"
PIECE = b"|".join(
    [
        rb" ?%b{1,64}(?:'%b{1,16}|\xe2\x80\x99%b{1,16}|)" % (LETTER, LETTER, LETTER),  # a word: " it", "don't"
        rb" ?%b{1,64}" % ASCII_SYMBOL,
        rb" ?[0-9]{1,4}",
        rb" ?(?:[\xc2\xe2\xef\xf0][\x80-\xbf]{0,3}){1,64}",
        rb"\s{1,64}",
    ]
)
BLOCK = 1 << 22

pieces_of = re.compile(PIECE).findall
"""Return the pieces of a chunk, which joined give the chunk."""
_find_chunks = re.compile(CHUNK).findall


def split(data: bytes, block: int = BLOCK) -> Iterator[list[bytes]]:
    """Yield the chunks of `data`, which joined give `data`, in a list for about every `block` bytes.

    A chunk depends on nothing before its first byte and on two bytes after its last, so a block may end anywhere if
    the two chunks before its end are searched again. `block` must be 256 or more.
    """
    start = 0
    while start < len(data):
        chunks = _find_chunks(data, start, start + block)
        if start + block < len(data):
            del chunks[-2:]
            start += sum(map(len, chunks))
        else:
            start = len(data)
        yield chunks
