"""tokenizer.harris: morphemes found by letter variety, chosen by the bytes they save, with the bytes as fallback.

Ids: 0-255 the bytes, 256 begins a document, 257 and up the segments. Text is split into pieces, every piece is
encoded by the fewest tokens, and pieces are remembered, so most of a text is looked up.

References
----------
Harris (1955), "From phoneme to morpheme".
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, TokenizerRequest, hookimpl, option, plugin
from andrea.plugins.tokenizer.harris_file import FILE, FORMAT, PIECES, Training, escape, read_file, write_file
from andrea.plugins.tokenizer.harris_pieces import split
from andrea.plugins.tokenizer.harris_training import train_segments
from andrea.plugins.tokenizer.harris_variety import RULES


@plugin
class Harris:
    """Harris morphemes: 256 bytes, one id that begins a document, and the segments that save most."""

    segments: int = option(4096, help="segments beside the 256 bytes and the id that begins a document")
    sample_bytes: int = option(36_000_000, help="training text that is read, in bytes")
    rule: str = option("peak", help="where words are cut: peak, cutoff or entropy of letter variety both ways")
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
                "for instance --set tokenizer.harris.rule=peak",
            )
        for name, value, least in (
            ("segments", self.segments, 0),
            ("sample_bytes", self.sample_bytes, 1),
            ("longest", self.longest, 2),
        ):
            if value < least:
                raise AndreaError(
                    f"tokenizer.harris.{name} is {value}, but must be {least} or more",
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
        self._cache = PieceCache(texts)
        self._bytes = np.empty(self.size, dtype=object)
        self._bytes[:] = b""
        self._bytes[:256] = [bytes([value]) for value in range(256)]
        self._bytes[257 : 257 + len(texts)] = texts
        decisive = json.dumps([FORMAT, PIECES, self.size, [escape(text) for text in texts]], sort_keys=True)
        self.fingerprint = hashlib.sha256(decisive.encode()).hexdigest()

    def encode(self, data: bytes) -> npt.NDArray[np.int32]:
        """Return the ids of any bytes, int32 (n,)."""
        encoded = [b"".join(map(self._cache.__getitem__, pieces)) for pieces in split(data)]
        return np.frombuffer(b"".join(encoded), dtype=np.int32).copy()

    def decode(self, ids: npt.ArrayLike) -> bytes:
        """Return the bytes of any ids; `bos` and ids without a segment give none.

        Raises
        ------
        AndreaError
            When an id is not in [0, size).
        """
        values = np.asarray(ids, dtype=np.int64).ravel()
        foreign = values[(values < 0) | (values >= self.size)]
        if foreign.size:
            raise AndreaError(
                f"there is no id {foreign[0]}: this tokenizer has the ids 0 to {self.size - 1}",
                "these ids were made by another tokenizer; load the one that was saved with them",
            )
        return b"".join(self._bytes[values].tolist())

    def save(self, folder: Path) -> None:
        """Write `harris_segments.json`."""
        write_file(folder / FILE, self.training, self.segments)


class PieceCache(dict[bytes, bytes]):
    """Pieces and their ids, int32 as bytes; a piece that is missing is encoded when it is asked for.

    Parameters
    ----------
    segments
        Ids from 257 in this order.
    """

    most = 1 << 19
    """Pieces that are kept; then all are forgotten, so memory is bounded on any text."""

    def __init__(self, segments: Sequence[bytes]) -> None:
        super().__init__()
        # Beginnings of segments stand here with -1: they say that a longer segment may follow.
        self._ids = {segment[:end]: -1 for segment in segments for end in range(2, len(segment))}
        self._ids |= {bytes([value]): value for value in range(256)}
        self._ids |= {segment: 257 + number for number, segment in enumerate(segments)}

    def __missing__(self, piece: bytes) -> bytes:
        """Encode a piece and remember it."""
        if len(self) >= self.most:
            self.clear()
        number = self._ids.get(piece, -1)
        encoded = array("i", [number] if number >= 0 else self.fewest(piece)).tobytes()
        self[piece] = encoded
        return encoded

    def fewest(self, piece: bytes) -> list[int]:
        """Return the fewest ids for a piece; of equally few, those with the longest last segment, and so on back.

        Starts are tried from the left, so the first that reaches an end with a given cost makes its last segment
        longest, and only a lower cost replaces it.
        """
        ids, length = self._ids, len(piece)
        cost = [0] + [length + 1] * length
        last = [(0, 0)] * (length + 1)
        for start in range(length):
            reached = cost[start] + 1
            for end in range(start + 1, length + 1):
                number = ids.get(piece[start:end])
                if number is None:
                    break
                if number >= 0 and reached < cost[end]:
                    cost[end], last[end] = reached, (start, number)
        found = []
        while length:
            length, number = last[length]
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
