"""Many texts encoded at once: what is cut out of them is encoded once, however often it occurs.

The texts of a block are cut into stretches in numpy, equal stretches are found by their bytes, the different ones go
through the automaton together, and a gather puts the ids in the order of the text. No byte and no stretch costs a step
of Python but those that are long, a few in a hundred. Nothing is kept from one block to the next.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from andrea.plugins.tokenizer.harris_automaton import Automaton, Ids, Ints
from andrea.plugins.tokenizer.harris_stretches import END, SHORT, Stretches, cut

BLOCK = 1 << 20
"""Bytes that are encoded together: many, so that much is the same, and few enough to be in the processor's cache."""
Keys = npt.NDArray[np.uint64]

_LAST_EDGE = re.compile(rb".*\S(?=\s)", re.DOTALL).match
_NEXT_EDGE = re.compile(rb"\S(?=\s)").search
BITS = 8
"""Of the smallest table in which equal stretches are found."""

_MULTIPLIERS = np.array(
    [
        (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F),
        (0x165667B19E3779F9, 0xD6E8FEB86659FD93),
        (0xA0761D6478BD642F, 0xE7037ED1A0B428DB),
        (0x8EBC6AF09C88C6E3, 0x589965CC75374CC3),
    ],
    dtype=np.uint64,
)
"""Odd, and without a pattern in their bits: the first bits of a product depend on all bits of a key."""


class Bulk:
    """Encodes many texts as one encoder would encode each.

    Parameters
    ----------
    segments
        With the ids from 257 on.
    one
        Encodes what is long or odd: returns the ids of some bytes.
    """

    def __init__(self, segments: Sequence[bytes], one: Callable[[bytes], Ids]) -> None:
        self._automaton, self._one = Automaton(segments), one

    def encode(self, texts: Sequence[bytes]) -> tuple[Ids, Ints]:
        """Return the ids of all texts, end to end, int32 (n,), and how many each text has, int64 (texts,)."""
        counts = np.zeros(len(texts), dtype=np.int64)
        found: list[Ids] = [np.zeros(0, dtype=np.int32)]
        for numbers, parts in blocks(texts):
            if len(parts[0]) > BLOCK:  # nowhere to cut it
                ids = self._one(parts[0])
                count = np.array([ids.size])
            else:
                ids, count = self._encode_block(parts)
            np.add.at(counts, numbers, count)
            found.append(ids)
        return np.concatenate(found), counts

    def _encode_block(self, texts: Sequence[bytes]) -> tuple[Ids, Ints]:
        data = END.join([*texts, b""])
        ends = np.cumsum([len(text) + len(END) for text in texts]) - 1
        stretches = cut(data, ends)
        long_S = stretches.several | (stretches.length > SHORT)
        long_S[stretches.ends] = False
        length_S = np.where(long_S, 0, stretches.length)
        length_S[stretches.ends] = 0
        low_S, high_S = read_keys(data, stretches.first, length_S)
        heads, kind_S = find_equal(low_S, high_S)
        text_KC = np.stack([low_S[heads], high_S[heads]], axis=1).astype("<u8").view(np.uint8)
        ids, count_K = self._automaton.fewest(text_KC, length_S[heads])
        if long_S.any():
            ids, count_K = self._add_long(data, stretches, np.flatnonzero(long_S), kind_S, ids, count_K)
        return gather(ids, count_K, kind_S, stretches.ends)

    def _add_long(
        self, data: bytes, stretches: Stretches, long: Ints, kind_S: Ints, ids: Ids, count_K: Ints
    ) -> tuple[Ids, Ints]:
        """Encode the long stretches one by one, and give them kinds of their own."""
        numbers: dict[bytes, int] = {}
        bounds = zip(stretches.first[long].tolist(), stretches.length[long].tolist(), strict=True)
        kind_S[long] = [
            numbers.setdefault(data[first : first + length], count_K.size + len(numbers)) for first, length in bounds
        ]
        more = [self._one(stretch) for stretch in numbers]
        return np.concatenate([ids, *more]), np.append(count_K, [one.size for one in more])


def blocks(texts: Sequence[bytes]) -> Iterator[tuple[list[int], list[bytes]]]:
    """Yield parts of texts that are about a block together, and the number of the text that each is of."""
    numbers: list[int] = []
    parts: list[bytes] = []
    size = 0
    for number, text in enumerate(texts):
        for part in cut_long(text):
            if size + len(part) > BLOCK and parts:
                yield numbers, parts
                numbers, parts, size = [], [], 0
            numbers.append(number)
            parts.append(part)
            size += len(part)
    if parts:
        yield numbers, parts


def cut_long(text: bytes) -> Iterator[bytes]:
    """Yield parts of about a block; a part ends where white space begins, which begins a piece and ends another."""
    start = 0
    while len(text) - start > BLOCK:
        edge = _LAST_EDGE(text, start, start + BLOCK) or _NEXT_EDGE(text, start + BLOCK)
        if edge is None:
            break
        yield text[start : edge.end()]
        start = edge.end()
    yield text[start:] if start else text


def read_keys(data: bytes, first_S: Ints, length_S: Ints) -> tuple[Keys, Keys]:
    """Return the bytes of short stretches, and their length, as two numbers: both are equal if the stretches are."""
    at_N: Keys = np.ndarray(len(data) + 8, "<u8", data + bytes(16), strides=(1,))  # the eight bytes from every place
    low_S = at_N[first_S] & _MASKS[np.minimum(length_S, 8)]
    high_S = length_S.astype(np.uint64) << np.uint64(56)
    more = np.flatnonzero(length_S > 8)
    high_S[more] |= at_N[first_S[more] + 8] & _MASKS[length_S[more] - 8]
    return low_S, high_S


_MASKS = np.array([(1 << 8 * length) - 1 for length in range(9)], dtype=np.uint64)


def find_equal(low_S: Keys, high_S: Keys) -> tuple[Ints, Ints]:
    """Return the number of one stretch of every kind, and the kind of every stretch.

    Stretches that fall on the same place of a table are compared with one of them; those that differ from it go on to
    the next round, with other places. What is left after the last round is sorted, so that no text takes long.
    """
    bits = max(BITS, low_S.size.bit_length() - 1)
    table = np.empty(1 << bits, dtype=np.int64)
    head_S = np.empty(low_S.size, dtype=np.int64)
    left, low, high = np.arange(low_S.size), low_S, high_S
    for first, second in _MULTIPLIERS:
        place = ((low * first + high) * second >> np.uint64(64 - bits)).view(np.int64)
        table[place] = left
        head = table[place]
        head_S[left] = head
        left = left[np.flatnonzero((low_S[head] != low) | (high_S[head] != high))]
        low, high = low_S[left], high_S[left]
    if left.size:
        _, place, kind = np.unique(np.stack([low, high], axis=1), axis=0, return_index=True, return_inverse=True)
        head_S[left] = left[place[kind.ravel()]]
    heads = np.flatnonzero(head_S == np.arange(head_S.size))
    kind_S = np.empty_like(head_S)
    kind_S[heads] = np.arange(heads.size)
    return heads, kind_S[head_S]


def gather(ids: Ids, count_K: Ints, kind_S: Ints, ends: Ints) -> tuple[Ids, Ints]:
    """Return the ids of stretches in the order of the text, and how many there are up to each of `ends`."""
    count_S = count_K[kind_S]
    end_S = np.cumsum(count_S)
    # An id stands as far behind the first of its stretch as in the list of kinds.
    shift_S = (np.cumsum(count_K) - count_K)[kind_S] - (end_S - count_S)
    place = np.repeat(shift_S, count_S)
    place += np.arange(place.size)
    return ids[place], np.diff(end_S[ends], prepend=0)
