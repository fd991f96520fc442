"""The kept documents of a source on disk while data is prepared: read once, then split, sampled, counted and encoded.

A source is so read only once, and what is hashed is what is encoded. A document has 32 bytes in an index that is a
memory map; memory holds a few numbers for each, and never the texts.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from attrs import frozen

from andrea.errors import AndreaError
from andrea.filters import DUPLICATE, IdentifyDocument, KeepDocument, Report, keep
from andrea.rng import Draws
from andrea.sources import read_source
from andrea.split import group_hash, held_out_mask
from andrea.types import Document, SourceSpec, Tokenizer, TokenizerRequest

CHUNK_BYTES = 4 << 20  # text of one piece of work
_KEYS_AT_ONCE = 1 << 22  # keys that are sorted together: about 200 MB
_REPORT_EVERY = 256  # documents between two calls of progress
_RECORD = struct.Struct("<QQ16s")
_INDEX = np.dtype([("end", "<u8"), ("group", "<u8"), ("digest", "V16")])
_KEY = struct.Struct("<QQ")
_KEYS = np.dtype([("key", "<u8"), ("document", "<u8")])


@frozen
class Asks:
    """The hooks' answers, as functions that can be sent to another process."""

    open_source: Callable[[SourceSpec], Iterable[Document] | None]
    keep_document: KeepDocument
    identify_document: IdentifyDocument
    make_tokenizer: Callable[[TokenizerRequest], Tokenizer]


@frozen
class Place:
    """Where the documents of one source are kept; `texts` is false when only the report is wanted."""

    folder: Path
    number: int
    texts: bool = True

    def path(self, what: str) -> Path:
        """Return one of its files."""
        return self.folder / f"{self.number}.{what}"


def read_documents(asks: Asks, spec: SourceSpec, place: Place, tick: Callable[[int, int], None]) -> Report:
    """Read a source and keep what stays in files: texts end to end, an index, keys of duplicates.

    Parameters
    ----------
    asks
        The reader and the filters.
    spec
        The source.
    place
        Where to.
    tick
        Called with documents and bytes so far; may raise.
    """
    report = Report()
    paths = [place.path(what) for what in ("text", "index", "keys")]
    with paths[0].open("wb") as text, paths[1].open("wb") as index, paths[2].open("wb") as keys:
        kept = keep(read_source(spec, asks.open_source), spec.name, asks.keep_document, report)
        for number, (document, data) in enumerate(kept):
            if number % _REPORT_EVERY == 0:
                tick(number, report.bytes)
            if place.texts:
                text.write(data)
            index.write(_RECORD.pack(report.bytes, group_hash(document.group), _digest(document, data)))
            for key in dict.fromkeys(asks.identify_document(document, spec.name)):
                keys.write(_KEY.pack(key, number))
        tick(report.kept, report.bytes)
    return report


def _digest(document: Document, data: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in (document.name.encode(errors="surrogatepass"), document.group.encode(errors="surrogatepass"), data):
        digest.update(struct.pack("<Q", len(part)) + part)
    return digest.digest()


# -- duplicates --------------------------------------------------------------------------------------------------------


def find_duplicates(places: Sequence[Place], counts: Sequence[int]) -> list[npt.NDArray[np.bool_]]:
    """Return, for each source, which documents share a key with an earlier one, of its own or an earlier source.

    Keys are sorted in parts, so that memory does not grow with their number.

    Parameters
    ----------
    places
        Where `read_documents` put each source, in the order that says which document is the earlier one.
    counts
        Documents of each.
    """
    files = [_open(place.path("keys"), _KEYS) for place in places]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    duplicate = np.zeros(int(starts[-1]), dtype=np.bool_)
    parts = np.uint64(sum(file.size for file in files) // _KEYS_AT_ONCE + 1)
    for part in range(int(parts)):
        chosen = [file[file["key"] % parts == part] for file in files]
        keys = np.concatenate([one["key"] for one in chosen])
        documents = np.concatenate(
            [one["document"].astype(np.int64) + start for one, start in zip(chosen, starts, strict=False)]
        )
        order = np.argsort(keys, kind="stable")  # documents stay in their order, so the first of each key is first
        keys, documents = keys[order], documents[order]
        later = np.flatnonzero(keys[1:] == keys[:-1]) + 1
        duplicate[documents[later]] = True
    return [duplicate[start:end] for start, end in itertools.pairwise(starts)]


def _open(path: Path, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.memmap(path, kind, "r") if path.stat().st_size else np.empty(0, kind)


# -- a source, ready to be split and encoded ---------------------------------------------------------------------------


class Store:
    """The documents of a source that stay.

    Parameters
    ----------
    spec, place, report
        The source, where `read_documents` put it, and what it said; what is dropped here is added to the report.
    duplicate
        Which documents are dropped as duplicates, bool (D,).
    share
        Held out, in (0, 1).

    Attributes
    ----------
    train, held_out
        Numbers of the documents of each side. Training has the order of the source; held-out documents are shuffled,
        so that the first rows of the file, which evaluations use, come from all held-out works.
    sha256
        Digest of names, groups and texts.
    """

    def __init__(
        self, spec: SourceSpec, place: Place, report: Report, duplicate: npt.NDArray[np.bool_], share: float
    ) -> None:
        self.spec, self.place, self.report = spec, place, report
        self._index = _open(place.path("index"), _INDEX)
        kept = np.flatnonzero(~duplicate)
        if dropped := len(duplicate) - kept.size:
            report.drop(DUPLICATE, dropped)
            report.kept, report.bytes = kept.size, int(self.sizes(kept).sum())
        self.sha256 = self._hash(kept)
        held_out = self._split(kept, share)
        self.train, rest = kept[~held_out], kept[held_out]
        self.held_out = rest[Draws(0, "held_out.order").permutation(rest.size)]

    def _hash(self, kept: npt.NDArray[np.int64]) -> str:
        digest = hashlib.sha256()
        for start in range(0, kept.size, 1 << 16):
            digest.update(self._index["digest"][kept[start : start + (1 << 16)]].tobytes())
        return digest.hexdigest()

    def _split(self, kept: npt.NDArray[np.int64], share: float) -> npt.NDArray[np.bool_]:
        name, dropped = self.spec.name, self.report.dropped
        if not kept.size:
            reasons = ", ".join(f"{reason} ({count})" for reason, count in sorted(dropped.items()))
            raise AndreaError(f"source {name}: every document was dropped: {reasons}", "loosen or remove a filter")
        try:
            return held_out_mask(self._index["group"][kept], self.sizes(kept), share)
        except AndreaError as error:
            raise AndreaError(f"source {name}: {error.message}", error.hint) from error

    def bounds(self, documents: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return where documents begin and end in the file of texts."""
        ends = self._index["end"]
        starts = np.where(documents > 0, ends[documents - 1], 0)
        return starts.astype(np.int64), ends[documents].astype(np.int64)

    def sizes(self, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the bytes of documents."""
        starts, ends = self.bounds(documents)
        return ends - starts

    def sides(self) -> list[tuple[str, npt.NDArray[np.int64]]]:
        """Return the two sides by name."""
        return [("train", self.train), ("held_out", self.held_out)]

    def read(self, documents: npt.NDArray[np.int64]) -> Iterator[bytes]:
        """Yield the texts of documents in UTF-8."""
        with self.place.path("text").open("rb") as file:
            for start in range(0, documents.size, 1 << 16):
                yield from read_texts(file, *self.bounds(documents[start : start + (1 << 16)]))

    def chunks(self, documents: npt.NDArray[np.int64]) -> Iterator[Chunk]:
        """Yield the documents in pieces of about `CHUNK_BYTES`."""
        number = np.cumsum(self.sizes(documents)) // CHUNK_BYTES
        for part in np.split(documents, np.flatnonzero(np.diff(number)) + 1):
            yield Chunk(self.place.path("text"), *self.bounds(part))

    def sample(self, budget: int) -> Iterator[bytes]:
        """Yield training documents from all over the source, at most `budget` bytes."""
        order = self.train[Draws(0, "tokenizer.sample").permutation(self.train.size)]
        count = int(np.searchsorted(np.cumsum(self.sizes(order)), budget, side="right"))
        if count == 0 and budget > 0:  # not even one: its beginning, cut between two characters
            yield next(self.read(order[:1]))[:budget].decode(errors="ignore").encode()
        yield from self.read(np.sort(order[:count]))


@frozen(eq=False)
class Chunk:
    """Documents as stretches of a file of texts: where they start and end, int64 (n,) each."""

    path: Path
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    def texts(self) -> Iterator[bytes]:
        """Yield them in UTF-8."""
        with self.path.open("rb") as file:
            yield from read_texts(file, self.starts, self.ends)


def read_texts(file: IO[bytes], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Iterator[bytes]:
    """Yield stretches of a file."""
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if file.tell() != start:  # seeking throws away what was read ahead
            file.seek(start)
        yield file.read(end - start)
