"""tokenizer.harris: morphemes found by letter variety, chosen by the bytes they save, with the bytes as fallback.

Ids: 0-255 the bytes, 256 begins a document, 257 and up the segments. Text is split into pieces, and every piece is
encoded by the fewest tokens. Of a short text pieces are remembered, so most are looked up; much text is encoded all at
once by `harris_bulk`, to the same ids.

References
----------
Harris (1955), "From phoneme to morpheme".
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, TokenizerRequest, hookimpl, option, plugin
from andrea.plugins.tokenizer.harris_bulk import Bulk
from andrea.plugins.tokenizer.harris_file import FILE, FORMAT, PIECES, Training, escape, read_file, write_file
from andrea.plugins.tokenizer.harris_pieces import split
from andrea.plugins.tokenizer.harris_training import train_segments
from andrea.plugins.tokenizer.harris_variety import RULES

MOST_SEGMENTS = 1_000_000  # more than any vocabulary in use: what is beyond is a slip, not a wish
DECODED = 1 << 13
"""Ids that are decoded at once: few enough for the processor's cache."""
MANY = 1 << 16
"""Bytes from which on it is faster to encode all at once than to remember pieces."""


@plugin
class Harris:
    """Harris morphemes: 256 bytes, one id that begins a document, and the segments that save most."""

    segments: int = option(4096, help="segments beside the 256 bytes and the id that begins a document")
    sample_bytes: int = option(36_000_000, help="training text that is read, in bytes")
    rule: str = option("entropy", help="where words are cut, by letter variety both ways: entropy, cutoff or peak")
    longest: int = option(32, help="longest segment in bytes")

    @hookimpl
    def make_tokenizer(self, request: TokenizerRequest) -> HarrisTokenizer:
        """Return the saved tokenizer, or train one on the sample.

        Raises
        ------
        AndreaError
            When the saved file is missing, damaged or foreign, or an option makes no sense.
        """
        if request.saved is not None:
            return load(request.saved / FILE)
        self._check()
        read = 0

        def documents() -> Iterator[bytes]:
            nonlocal read
            for document in request.sample(self.sample_bytes):
                read += len(document)
                yield document

        segments = train_segments(documents(), RULES[self.rule], self.segments, self.longest)
        training = Training(self.rule, self.longest, self.sample_bytes, self.segments, read)
        return HarrisTokenizer([(segment.text, segment.count) for segment in segments], training)

    def _check(self) -> None:
        if self.rule not in RULES:
            raise AndreaError(
                f"tokenizer.harris has no rule {self.rule!r}; it has {', '.join(RULES)}",
                "for instance --set tokenizer.harris.rule=entropy",
            )
        for name, value, least, most in (
            ("segments", self.segments, 0, MOST_SEGMENTS),
            ("sample_bytes", self.sample_bytes, 1, None),
            ("longest", self.longest, 2, None),
        ):
            if value < least or (most is not None and value > most):
                raise AndreaError(
                    f"tokenizer.harris.{name} is {value}, but must be {least} {f'to {most}' if most else 'or more'}",
                    f"leave it out for the default, or type --set tokenizer.harris.{name}=NUMBER",
                )


class HarrisTokenizer:
    """Text as segments and bytes, the fewest that will do.

    Parameters
    ----------
    segments
        Segments and their counts in the sample; ids from 257 in this order.
    training
        How they were found; `training.wanted` ids are kept for segments, those without one decode to no bytes.
    """

    bos = 256

    def __init__(self, segments: Sequence[tuple[bytes, int]], training: Training) -> None:
        self.size = 257 + training.wanted
        self.segments = tuple(segments)
        self.training = training
        texts = [text for text, _ in segments]
        if len(set(texts)) != len(texts) or len(texts) > training.wanted or any(len(text) < 2 for text in texts):
            raise ValueError(f"segments must differ, have two bytes or more, and be at most {training.wanted}")
        self._ids = remember_pieces(texts)
        self._bulk: Bulk | None = None
        self._bytes = np.full(self.size, b"", dtype=object)
        self._bytes[:256] = [bytes([value]) for value in range(256)]
        self._bytes[257 : 257 + len(texts)] = texts
        decisive = json.dumps([FORMAT, PIECES, self.size, [escape(text) for text in texts]], sort_keys=True)
        self.fingerprint = hashlib.sha256(decisive.encode()).hexdigest()

    def encode(self, data: bytes) -> npt.NDArray[np.int32]:
        """Return the ids of any bytes, int32 (n,)."""
        return self._encode_pieces(data) if len(data) < MANY else self.encode_all([data])[0]

    def encode_all(self, texts: Sequence[bytes]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Return the ids of all texts, end to end, int32 (n,), and how many each has, int64 (texts,)."""
        if sum(map(len, texts)) < MANY:
            ids = [self._encode_pieces(text) for text in texts]
            return np.concatenate([np.zeros(0, dtype=np.int32), *ids]), np.array([len(one) for one in ids], np.int64)
        if self._bulk is None:
            self._bulk = Bulk([text for text, _ in self.segments], self._encode_pieces)
        return self._bulk.encode(texts)

    def _encode_pieces(self, data: bytes) -> npt.NDArray[np.int32]:
        encoded = [b"".join(map(self._ids.__getitem__, pieces)) for pieces in split(data)]
        return np.frombuffer(b"".join(encoded), dtype=np.int32).copy()

    def decode(self, ids: npt.ArrayLike) -> bytes:
        """Return the bytes of any ids; `bos` and ids without a segment give none.

        Raises
        ------
        AndreaError
            When an id is not in [0, size).
        """
        values = unsigned(ids)
        try:
            if values.size <= DECODED:
                return b"".join(self._bytes.take(values).tolist())
            blocks = (values[i : i + DECODED] for i in range(0, values.size, DECODED))
            return b"".join([b"".join(self._bytes.take(block).tolist()) for block in blocks])
        except IndexError:
            low, high = np.min(np.asarray(ids)), np.max(np.asarray(ids))
            raise AndreaError(
                f"the ids go from {low} to {high}: this tokenizer has the ids 0 to {self.size - 1}",
                "these ids were made by another tokenizer; load the one that was saved with them",
            ) from None

    def save(self, folder: Path) -> None:
        """Write `harris_segments.json`, and `tokenizer.json` for other programs, which is never read here."""
        # The library is slow to import and needed for nothing else.
        from andrea.plugins.tokenizer.harris_export import write_library_files

        write_file(folder / FILE, self.training, self.segments)
        write_library_files(folder, [text for text, _ in self.segments], self.size)


def unsigned(ids: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    """Return ids without a sign, uint32 (n,): a negative one is then very large."""
    values = np.asarray(ids)
    if values.dtype != _INT32:
        values = np.minimum(values.astype(np.int64).view(np.uint64), 2**32 - 1).astype(np.uint32)
    return values.view(_UINT32) if values.ndim == 1 else values.view(_UINT32).ravel()


_INT32, _UINT32 = np.dtype(np.int32), np.dtype(np.uint32)  # making them anew would take a tenth of a short text's time


class Memory(dict[bytes, bytes]):
    """What was made of every key; what is missing is made when it is asked for.

    When it is full it becomes the older memory and a new one begins. What is needed again comes back from there, so
    common keys stay, rare ones go, and memory is bounded on any text.

    Parameters
    ----------
    make
        Returns what belongs to a key.
    most
        Keys that are kept, and as many older ones.
    """

    def __init__(self, make: Callable[[bytes], bytes], most: int = 1 << 18) -> None:
        super().__init__()
        self.older: dict[bytes, bytes] = {}
        self._make, self._most = make, most

    def __missing__(self, key: bytes) -> bytes:
        """Find what is missing in the older memory, or make it."""
        found = self.older.get(key)
        if found is None:
            found = self._make(key)
        if len(self) >= self._most:
            self.older = dict(self)
            self.clear()
        self[key] = found
        return found


def remember_pieces(segments: Sequence[bytes], most: int = 1 << 18) -> Memory:
    """Return a memory of the ids of pieces, int32 as bytes; `segments` have the ids from 257 in this order."""
    numbers = {bytes([value]): value for value in range(256)}
    numbers |= {segment: 257 + number for number, segment in enumerate(segments)}
    first = build_automaton(numbers)
    return Memory(lambda piece: array("i", fewest_ids(piece, first)).tobytes(), most)


class State(dict[int, "State"]):
    """A state of the automaton of Aho and Corasick (1975): what was read last that begins a segment.

    It maps the next byte to the next state; steps are found when they are first taken.

    Parameters
    ----------
    text
        The longest ending of what was read that some segment begins with.
    ends
        (length, id) of every segment that ends here, longest first.
    states
        All states by their text.
    """

    __slots__ = ("_states", "_text", "ends")

    def __init__(self, text: bytes, ends: list[tuple[int, int]], states: dict[bytes, State]) -> None:
        super().__init__()
        self._text, self.ends, self._states = text, ends, states

    def __missing__(self, value: int) -> State:
        """Find the longest ending that is still the beginning of a segment, and remember it."""
        text = self._text + bytes([value])
        while text not in self._states:
            text = text[1:]
        self[value] = state = self._states[text]
        return state


def build_automaton(numbers: Mapping[bytes, int]) -> State:
    """Return the first state of the automaton that finds all segments, single bytes included, with their ids."""
    beginnings = {text[:end] for text in numbers for end in range(1, len(text) + 1)}
    states: dict[bytes, State] = {}
    for text in (b"", *sorted(beginnings)):
        ends = [(len(text) - start, numbers[text[start:]]) for start in range(len(text)) if text[start:] in numbers]
        states[text] = State(text, ends, states)
    return states[b""]


def fewest_ids(piece: bytes, first: State) -> list[int]:
    """Return the fewest ids for a piece; of equally few, those with the longest last segment, and so on back."""
    state, cost = first, [0]
    last: list[tuple[int, int]] = [(0, 0)]
    for value in piece:
        state = state[value]
        least = len(cost)
        for end in state.ends:
            # The costs so far end where this byte ends, so -length is where the segment starts.
            if (reached := cost[-end[0]]) < least:
                least, choice = reached, end
        cost.append(least + 1)
        last.append(choice)
    found = []
    stop = len(piece)
    while stop:
        length, number = last[stop]
        stop -= length
        found.append(number)
    return found[::-1]


def load(path: Path) -> HarrisTokenizer:
    """Load what `HarrisTokenizer.save` wrote.

    Raises
    ------
    AndreaError
        When the file is missing, damaged, foreign or of another version.
    """
    training, segments = read_file(path)
    try:
        return HarrisTokenizer(segments, training)
    except (TypeError, ValueError) as error:
        raise AndreaError(f"{path} is damaged: {error}", "delete the folder and prepare the data again") from error
