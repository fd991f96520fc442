"""The `.btok` file: the tokens of many documents, written once, read as a memory map.

docs/formats.md describes it byte by byte. A file has its final name only when it is whole, and its header says how
long it is, so neither an interrupted writer nor a cut copy can pass for one.
"""

from __future__ import annotations

import hashlib
import os
import struct
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from andrea.errors import AndreaError
from andrea.sources import reading
from andrea.types import Tokenizer

PREPARE_AGAIN = "prepare the data again, which replaces it: andrea prepare EXPERIMENT"
MAGIC = b"\x93BTOK\r\n\x1a"
VERSION = 1
_HEADER = struct.Struct("<8sIIQQQQII64s32s")  # magic .. digest of the body, see docs/formats.md
_HEADER_BYTES = _HEADER.size + 32  # and the digest of the header itself


@frozen(eq=False)
class TokenFile:
    """A token file, memory-mapped.

    Every document is `bos` and then its ids; the documents stand end to end.

    Attributes
    ----------
    path
        Where it is.
    documents
        Their number (D).
    bytes
        UTF-8 bytes of all texts.
    bos, vocabulary, fingerprint
        Of the tokenizer that made it.
    sha256
        Digest of everything behind the header.
    tokens
        All ids, `bos` included: uint16 (N,), or uint32 when the vocabulary is larger than 65,536.
    offsets
        Where each document begins in `tokens`, and N: uint64 (D + 1,).
    token_bytes
        Bytes that each id stands for, 0 for `bos`: uint32 (vocabulary,). With it the bytes of any stretch of tokens
        are known, so bits per byte are exact.
    """

    path: Path
    documents: int
    bytes: int
    bos: int
    vocabulary: int
    fingerprint: str
    sha256: str
    tokens: npt.NDArray[np.unsignedinteger[Any]] = field(repr=False)
    offsets: npt.NDArray[np.uint64] = field(repr=False)
    token_bytes: npt.NDArray[np.uint32] = field(repr=False)

    @classmethod
    def open(cls, path: Path, fingerprint: str | None = None) -> TokenFile:
        """Open a token file.

        Raises
        ------
        AndreaError
            When it is missing, cut short, of another format or version, damaged in its header, or made by another
            tokenizer than the one with `fingerprint`.
        """
        with reading(path):
            if not path.exists():
                raise AndreaError(f"{path} does not exist", "prepare the data again: andrea prepare EXPERIMENT")
            with path.open("rb") as file:
                header = file.read(_HEADER_BYTES)
            size = path.stat().st_size
        _, _, width, length, documents, count, text_bytes, bos, vocabulary, made_by, body = _parse(path, header)
        if size != length:
            fault = "cut short" if size < length else "too long"
            raise AndreaError(f"{path} is {fault}: {size} bytes, {length} expected", PREPARE_AGAIN)
        found = made_by.rstrip(b"\0").decode("ascii")
        if fingerprint is not None and found != fingerprint:
            raise AndreaError(
                f"{path} was made by another tokenizer: it has the fingerprint {found[:16]}, not {fingerprint[:16]}",
                "prepare the data for this tokenizer: andrea prepare EXPERIMENT",
            )
        kind = np.dtype(f"<u{width}")
        raw = np.memmap(path, mode="r")
        token_bytes = raw[_HEADER_BYTES : _HEADER_BYTES + 4 * vocabulary].view("<u4")
        start = _aligned(_HEADER_BYTES + 4 * vocabulary)
        tokens = raw[start : start + count * width].view(kind)
        start = _aligned(start + count * width)
        offsets = raw[start : start + 8 * (documents + 1)].view("<u8")
        return cls(path, documents, text_bytes, bos, vocabulary, found, body.hex(), tokens, offsets, token_bytes)

    def document(self, index: int) -> npt.NDArray[np.int32]:
        """Return the ids of a document without `bos`, int32 (n,)."""
        start, end = int(self.offsets[index]), int(self.offsets[index + 1])
        return self.tokens[start + 1 : end].astype(np.int32)

    def verify(self) -> None:
        """Read the whole file and compare its digest.

        Raises
        ------
        AndreaError
            When a byte has changed since it was written.
        """
        digest = hashlib.sha256()
        with reading(self.path), self.path.open("rb") as file:
            file.seek(_HEADER_BYTES)
            while block := file.read(1 << 20):
                digest.update(block)
        if digest.hexdigest() != self.sha256:
            raise AndreaError(f"{self.path} is damaged: its content has not its header's digest", PREPARE_AGAIN)


def _parse(path: Path, header: bytes) -> tuple[Any, ...]:
    if not header.startswith(MAGIC[: len(header)]):
        raise AndreaError(
            f"{path} is not a token file: it begins with {header[:8]!r}",
            f"give a .btok file; if it was one, {PREPARE_AGAIN}",
        )
    if len(header) < _HEADER_BYTES:
        raise AndreaError(f"{path} is cut short: {len(header)} bytes, not even a whole header", PREPARE_AGAIN)
    fields = _HEADER.unpack(header[: _HEADER.size])
    if fields[1] != VERSION:
        raise AndreaError(
            f"{path} has version {fields[1]} of the token file format; this andrea reads version {VERSION}",
            "prepare the data again with this andrea: andrea prepare EXPERIMENT",
        )
    if hashlib.sha256(header[: _HEADER.size]).digest() != header[_HEADER.size :]:
        raise AndreaError(f"{path} is damaged: its header does not have its digest", PREPARE_AGAIN)
    return fields


def _aligned(position: int) -> int:
    return (position + 7) // 8 * 8


class Encoder:
    """Encodes documents as a token file holds them, and checks what the tokenizer gives.

    Parameters
    ----------
    tokenizer
        Encodes the documents.
    lengths
        What `bytes_of_tokens` says of it, when it has been asked already.

    Attributes
    ----------
    kind
        Type of a token in the file.
    token_bytes
        Bytes that each id stands for, uint32 (vocabulary,).
    """

    def __init__(self, tokenizer: Tokenizer, lengths: npt.NDArray[np.uint32] | None = None) -> None:
        self.tokenizer = tokenizer
        self.kind = np.dtype("<u2" if tokenizer.size <= 65536 else "<u4")
        self.token_bytes = bytes_of_tokens(tokenizer) if lengths is None else lengths

    def encode_all(self, texts: Sequence[bytes]) -> tuple[npt.NDArray[np.unsignedinteger[Any]], npt.NDArray[np.int64]]:
        """Return `bos` and the ids of every document, end to end, and the tokens of each, int64 (documents,).

        Raises
        ------
        ValueError
            When the tokenizer gives ids outside its vocabulary or `bos`, or ids that stand for another number of
            bytes than it was given: the fault of the tokenizer plugin.
        """
        (ids, counts), size, bos = encode_all(self.tokenizer, texts), self.tokenizer.size, self.tokenizer.bos
        if ids.size and (ids.min() < 0 or ids.max() >= size or (ids == bos).any()):
            raise ValueError(f"the tokenizer gave an id that is bos or outside [0, {size})")
        ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
        stands_for = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self.token_bytes[ids], dtype=np.int64)])
        sizes = np.array([len(text) for text in texts], dtype=np.int64)
        if ends[-1] != ids.size or not np.array_equal(np.diff(stands_for[ends]), sizes):
            raise ValueError("the tokenizer gave ids that stand for more or fewer bytes than the document has")
        tokens = np.insert(ids.astype(self.kind), ends[:-1], bos)
        return tokens, counts + 1


def encode_all(tokenizer: Tokenizer, texts: Sequence[bytes]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Return the ids of all texts, end to end, int32 (n,), and how many each has, int64 (texts,).

    A tokenizer that is faster with many texts than with one has a method ``encode_all(texts)`` that returns this; of
    any other the texts are encoded one by one.
    """
    together = getattr(tokenizer, "encode_all", None)
    if together is not None:
        ids, counts = together(texts)
        return np.asarray(ids), np.asarray(counts)
    each = [np.asarray(tokenizer.encode(text)) for text in texts]
    return np.concatenate([np.zeros(0, dtype=np.int32), *each]), np.array([one.size for one in each], dtype=np.int64)


class TokenWriter:
    """Writes a token file under a temporary name; only a finished one gets its own.

    A context manager: leaving it normally finishes the file (fsync, then rename), leaving it by an exception removes
    what was written.

    Parameters
    ----------
    path
        Where the finished file will be.
    tokenizer
        Encodes the documents.
    lengths
        What `bytes_of_tokens` says of it, when it has been asked already.
    """

    def __init__(self, path: Path, tokenizer: Tokenizer, lengths: npt.NDArray[np.uint32] | None = None) -> None:
        self._path, self._tokenizer = path, tokenizer
        self._encoder = Encoder(tokenizer, lengths)
        self._offsets = array("Q", [0])
        self._bytes = 0
        self._digest = hashlib.sha256()
        self._fingerprint = tokenizer.fingerprint.encode("ascii")
        if not 0 < len(self._fingerprint) <= 64:
            raise ValueError(f"a tokenizer's fingerprint has 1 to 64 characters, not {len(self._fingerprint)}")

    def __enter__(self) -> TokenWriter:
        self._partial = partial_name(self._path)
        self._file: IO[bytes] = self._partial.open("wb", buffering=1 << 20)
        self._file.write(bytes(_HEADER_BYTES))
        self._put(self._encoder.token_bytes.tobytes())
        self._pad(4 * self._tokenizer.size)
        return self

    def add(self, data: bytes) -> None:
        """Encode a document and append it."""
        self.append(*self._encoder.encode_all([data]), len(data))

    def append(
        self, tokens: npt.NDArray[np.unsignedinteger[Any]], lengths: npt.NDArray[np.int64], text_bytes: int
    ) -> None:
        """Append documents that an `Encoder` encoded.

        Parameters
        ----------
        tokens
            Of all of them, `bos` included.
        lengths
            Tokens of each, int64 (documents,).
        text_bytes
            Bytes of their texts together.
        """
        self._put(tokens.tobytes())
        self._offsets.extend((self._offsets[-1] + np.cumsum(lengths)).tolist())
        self._bytes += text_bytes

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            with suppress(OSError):  # a full disk has been reported already, and closing would report it again
                self._file.close()
            self._partial.unlink(missing_ok=True)  # gone already when it was renamed

    def _finish(self) -> None:
        count = self._offsets[-1]
        self._pad(count * self._encoder.kind.itemsize)
        self._put(np.array(self._offsets, dtype="<u8").tobytes())
        header = _HEADER.pack(
            MAGIC,
            VERSION,
            self._encoder.kind.itemsize,
            self._file.tell(),
            len(self._offsets) - 1,
            count,
            self._bytes,
            self._tokenizer.bos,
            self._tokenizer.size,
            self._fingerprint,
            self._digest.digest(),
        )
        self._file.seek(0)
        self._file.write(header + hashlib.sha256(header).digest())
        publish(self._file, self._path)

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)

    def _pad(self, length: int) -> None:
        self._put(bytes(-length % 8))


def bytes_of_tokens(tokenizer: Tokenizer) -> npt.NDArray[np.uint32]:
    """Return how many bytes each id stands for, uint32 (vocabulary,)."""
    return np.array([len(tokenizer.decode([i])) for i in range(tokenizer.size)], dtype="<u4")


def partial_name(path: Path) -> Path:
    """Return the name under which a file is written until it is whole."""
    return path.with_name(path.name + ".partial")


def publish(file: IO[bytes], path: Path) -> None:
    """Give a written file its name, such that after a crash there is either the whole file or none."""
    file.flush()
    os.fsync(file.fileno())
    file.close()
    partial_name(path).replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, which a rename alone does not."""
    if os.name == "posix":  # elsewhere a folder cannot be opened, and a rename needs no such help
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file such that after a crash there is either all of it or none."""
    try:
        with partial_name(path).open("wb") as file:
            file.write(data)
            publish(file, path)
    finally:
        with suppress(OSError):  # gone already when it was renamed
            partial_name(path).unlink()
