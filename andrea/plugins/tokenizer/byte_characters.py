"""Bytes as printable characters, for the `tokenizers` library, which takes text only.

The alphabet is that of GPT-2: printable Latin-1 stands for itself, the others are counted up from U+0100. No byte is
written as a space, so a name with a space in it is one that no text can reach.
"""

from __future__ import annotations

BEGIN_NAME = "<begin of document>"
"""Name of the id that begins a document."""

PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [value for value in range(256) if value not in PRINTABLE]
ALPHABET = [chr(value) if value in PRINTABLE else chr(0x100 + OTHERS.index(value)) for value in range(256)]
"""The character of every byte."""
_VALUES = {character: value for value, character in enumerate(ALPHABET)}


def write_bytes(data: bytes) -> str:
    """Return the characters that stand for some bytes."""
    return "".join(map(ALPHABET.__getitem__, data))


def read_bytes(name: str) -> bytes:
    """Return the bytes of a name; names that no text can reach have none."""
    return b"" if " " in name else bytes(_VALUES[character] for character in name)


def unused_name(number: int) -> str:
    """Return the name of an id that is never used."""
    return f"<unused {number}>"
