"""What byte-level tokenizers share: bytes as printable characters, text cut out of bytes, ids that are checked.

GPT-2 wrote every byte as one character, and the library `tokenizers` does so since: printable Latin-1 stands for
itself, the other bytes are, in their order, the characters from U+0100 on. No byte is written as a space, so a name
that has one is out of every text's reach.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from andrea.errors import AndreaError
from andrea.types import Ints

BEGIN_NAME = "<begin of document>"
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = [value for value in range(256) if value not in _PRINTABLE]
CHARACTERS = tuple(chr(value if value in _PRINTABLE else 0x100 + _OTHERS.index(value)) for value in range(256))
"""The character of every byte."""
VALUES = {character: value for value, character in enumerate(CHARACTERS)}
"""The byte of every character."""
# A lone surrogate stands for one byte that is not UTF-8; the group makes re.split return these runs too.
_NOT_UTF8 = re.compile("([\udc80-\udcff]+)")


def write_bytes(data: bytes) -> str:
    """Return the characters that stand for some bytes."""
    return "".join(map(CHARACTERS.__getitem__, data))


def utf8_runs(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield (text, b"") for every stretch of UTF-8 and ("", bytes) for every stretch between, in order."""
    for index, run in enumerate(_NOT_UTF8.split(data.decode("utf-8", "surrogateescape"))):
        if index % 2:
            yield "", run.encode("utf-8", "surrogateescape")
        elif run:
            yield run, b""


def known_ids(ids: npt.ArrayLike, size: int) -> Ints:
    """Return ids as int64 (n,).

    Raises
    ------
    AndreaError
        When one is not in [0, size).
    """
    values = np.asarray(ids, dtype=np.int64).ravel()
    foreign = values[(values < 0) | (values >= size)]
    if foreign.size:
        raise AndreaError(
            f"there is no id {foreign[0]}: this tokenizer has the ids 0 to {size - 1}",
            "these ids were made by another tokenizer; load the one that was saved with them",
        )
    return values
