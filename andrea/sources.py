"""The first stage: a source description becomes documents.

`read_source` asks the reader that the source names. The other functions are for readers to build on: they turn options
into a checked object, find files, and read text, and every failure of the user's is an `AndreaError` that says what
was asked, what exists and what to type next.
"""

from __future__ import annotations

import codecs
import fnmatch
import glob
import gzip
import io
import json
import os
import re
import types
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar, Union, get_args, get_origin

import attrs

from andrea.errors import AndreaError, did_you_mean, nearest
from andrea.extras import import_extra
from andrea.plugin import path_options
from andrea.types import Document, SourceSpec

Options = TypeVar("Options")
FILES = "a file, a folder (everything below it), a pattern, or a list of these"  # what `find_files` takes
PIECE = "characters of a piece, about; 0 keeps works whole"  # as `cut_text` cuts
_BLOCK = 1 << 20
LONGEST_LINE = 1 << 26  # bytes, or characters of decoded text: a line is held in memory, and a file may be one line
_PARAGRAPH_END = re.compile(r"\n[ \t\r]*\n+")


def read_source(spec: SourceSpec, open_source: Callable[[SourceSpec], Iterable[Document] | None]) -> Iterator[Document]:
    """Yield the documents of a source, each checked; of one with several inputs, one input after another.

    Parameters
    ----------
    spec
        What to read.
    open_source
        Asks the reader that a description names.

    Raises
    ------
    AndreaError
        When the reader gives nothing, or something that is not a document.
    """
    for part in spec.parts:
        with naming(spec.name):
            yield from _read_part(part, open_source)


@contextmanager
def naming(source: str) -> Iterator[None]:
    """Put the name of a source before what an error of the user's says, unless it stands there already."""
    try:
        yield
    except AndreaError as error:
        if error.message.startswith(f"source {source}: "):
            raise
        raise AndreaError(f"source {source}: {error.message}", error.hint) from error


def _read_part(spec: SourceSpec, open_source: Callable[[SourceSpec], Iterable[Document] | None]) -> Iterator[Document]:
    documents = open_source(spec)
    if documents is None:
        raise AndreaError(
            f"source {spec.name}: {spec.reader} gave no answer", "a reader returns an iterable of Document"
        )
    count = 0
    with reading(f"source {spec.name}"):
        for document in documents:
            _check_document(document, spec)
            count += 1
            yield document
    if count == 0:
        raise AndreaError(
            f"source {spec.name}: {spec.reader} found no document",
            f"check its options: {dict(spec.options)}",
        )


def _check_document(document: Any, spec: SourceSpec) -> None:
    if not isinstance(document, Document):
        raise AndreaError(
            f"source {spec.name}: {spec.reader} gave a {type(document).__name__}, not a Document",
            "a reader yields Document(text=..., name=..., group=...)",
        )
    for field in ("text", "name", "group"):
        if not isinstance(getattr(document, field), str):
            kind = type(getattr(document, field)).__name__
            raise AndreaError(f"source {spec.name}: the {field} of document {document.name!r} is a {kind}, not a text")
    if not document.name or not document.group:
        raise AndreaError(
            f"source {spec.name}: document {document.name!r} of group {document.group!r} needs a name and a group",
            "the name says where a document comes from, the group which work it is a piece of",
        )


@attrs.frozen
class Documents:
    """What a reader returns: documents that can be read again.

    A source is opened more often than it is read, so what takes long waits for `read`.

    Attributes
    ----------
    read
        Begins to read from the start; called for every pass.
    files
        Gives (path, name) of every file that decides what is read, as `find_files` does. Where all readers of an
        experiment do, data is found again without reading it while no file has changed. None: it is always read.
    """

    read: Callable[[], Iterator[Document]]
    files: Callable[[], Iterable[tuple[Path, str]]] | None = None

    def __iter__(self) -> Iterator[Document]:
        return self.read()


def refuse_twice(
    sources: Sequence[SourceSpec],
    open_source: Callable[[SourceSpec], Iterable[Document] | None],
    paths: Callable[[str], Collection[str]],
) -> None:
    """Refuse a file that two sources, or two inputs of one, read in the same way.

    That is by the same reader, and told the same but for the path. Under any other option a file may give other text.

    Parameters
    ----------
    sources
        Of an experiment.
    open_source
        Asks the reader that a description names; asked only of what another is told the same as. Where one names no
        files, those like it are not asked.
    paths
        Which options of a reader are paths.

    Raises
    ------
    AndreaError
        Naming the file, and who gives it.
    """
    for parts in _alike(sources, paths):
        given: dict[Path, str] = {}
        for giver, part, where in parts:
            with naming(part.name):
                files = getattr(open_source(part), "files", None)
                if files is None:
                    break
                found = {_real(path): path for path, _ in files() if where is None or _leads_to(where, path)}
            if twice := given.keys() & found.keys():
                one = min(twice)
                raise AndreaError(
                    f"{found[one]} is given twice, by {given[one]} and by {giver}",
                    "leave one out: its text would count twice, and one would train on what the other holds out; "
                    "or keep the first of every text: --plugin filter.duplicate",
                )
            given |= dict.fromkeys(found, giver)


def _alike(
    sources: Sequence[SourceSpec], paths: Callable[[str], Collection[str]]
) -> list[list[tuple[str, SourceSpec, Any]]]:
    """Return inputs of one reader that are told the same but for the path: who gives each, what it says, its path.

    Of a reader with several options that are paths each may mean another thing, so they must be the same too.
    """
    alike: dict[str, list[tuple[str, SourceSpec, Any]]] = {}
    for spec in sources:
        for number, part in enumerate(spec.parts, start=1):
            options, names = dict(part.options), paths(part.reader)
            where = options.pop(next(iter(names)), None) if len(names) == 1 else None
            giver = f"source {spec.name}" + (f", input {number}" if spec.inputs else "")
            told = json.dumps([part.reader, options], sort_keys=True)
            alike.setdefault(told, []).append((giver, part, where))
    return [parts for parts in alike.values() if len(parts) > 1]


def _leads_to(paths: str | Sequence[str], file: Path) -> bool:
    """Say whether paths of the user's give a file; a reader may name others, which it needs whatever it reads."""
    return any(file.is_relative_to(_fixed(expand(text))) for text in ([paths] if isinstance(paths, str) else paths))


# -- options of a reader -----------------------------------------------------------------------------------------------


def read_options(spec: SourceSpec, options: type[Options]) -> Options:
    """Make a reader's options, an attrs class, from what the source says.

    Raises
    ------
    AndreaError
        On an unknown option, a missing one, or a value of another type; lists the options that exist.
    """
    attrs.resolve_types(options)  # type: ignore[type-var]
    fields = {field.name: field for field in attrs.fields(options)}  # type: ignore[arg-type]
    paths = path_options(options)
    listing = f"options of {spec.reader}: " + ", ".join(_describe(field) for field in fields.values())
    for name, value in spec.options.items():
        if name not in fields:
            hint = " ".join(part for part in (did_you_mean(name, fields), listing) if part)
            raise AndreaError(f"source {spec.name}: {spec.reader} has no option {name!r}", hint)
        if name in paths and ("" in value if isinstance(value, (list, tuple)) else value == ""):
            raise AndreaError(f"source {spec.name}: {spec.reader}.{name} is empty", 'for this folder say "."')
        if not _fits(value, fields[name].type):
            wanted = _type_name(fields[name].type)
            raise AndreaError(f"source {spec.name}: {spec.reader}.{name} is {value!r}, not {wanted}", listing)
    missing = [n for n, field in fields.items() if field.default is attrs.NOTHING and n not in spec.options]
    if missing:
        raise AndreaError(f"source {spec.name}: {spec.reader} needs the option {missing[0]!r}", listing)
    return options(**spec.options)


def _describe(field: attrs.Attribute[Any]) -> str:
    return f"{field.name} ({_type_name(field.type)}{', needed' if field.default is attrs.NOTHING else ''})"


def _type_name(kind: Any) -> str:
    if isinstance(kind, types.UnionType) or get_origin(kind) is Union:
        return " or ".join(_type_name(part) for part in get_args(kind))
    if get_origin(kind) is list:
        return f"list of {_type_name(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return f"object of {_type_name(get_args(kind)[1])}"
    return {str: "text", int: "integer", bool: "true/false", type(None): "null", Any: "value"}.get(kind, str(kind))


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, types.UnionType) or get_origin(kind) is Union:
        return any(_fits(value, part) for part in get_args(kind))
    if get_origin(kind) is list:
        return isinstance(value, (list, tuple)) and all(_fits(item, get_args(kind)[0]) for item in value)
    if kind is Any:
        return True
    if get_origin(kind) is dict:
        return isinstance(value, Mapping) and all(_fits(item, get_args(kind)[1]) for item in value.values())
    return isinstance(value, kind) and (kind is not int or not isinstance(value, bool))


# -- files -------------------------------------------------------------------------------------------------------------


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn the operating system's refusal into an error of the user's that names the path."""
    try:
        yield
    except OSError as error:
        place = error.filename or path
        hint = "check who may read it: `ls -ld`" if isinstance(error, PermissionError) else ""
        raise AndreaError(f"cannot read {place}: {error.strerror or error}", hint) from error


def expand(text: str) -> Path:
    """Return a path, with ``~`` and ``~NAME`` replaced by the home that they stand for."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise AndreaError(f"there is no user whose home {text.partition('/')[0]} is", "give the path in full") from None


def find_files(
    paths: str | Sequence[str], suffixes: Sequence[str] = (), without: Collection[str] = ()
) -> list[tuple[Path, str]]:
    """Find files by path: a file, a folder (everything below it), a glob pattern, or a list of these.

    Parameters
    ----------
    paths
        What the user gave.
    suffixes
        In a folder only files that end so, lower case; empty takes all. A file or a pattern is taken as it is.
    without
        Names of folders that are not entered below the given one.

    Returns
    -------
    list of (path, name)
        The name is relative to the folder that was given, with ``/`` between parts, so it is the same on every
        machine; sorted within each given path. Hidden files and folders are left out.

    Raises
    ------
    AndreaError
        When a path does not exist, cannot be read, gives no file, or gives one that another has given.
    """
    found: list[tuple[Path, str]] = []
    given: dict[Path, str] = {}
    for text in [paths] if isinstance(paths, str) else paths:
        if not text:
            raise AndreaError("a path is empty", 'for this folder say "."')
        root = expand(text)
        with reading(root):
            if root.exists() and not (root.is_dir() or root.is_file()):
                raise AndreaError(f"{root} is neither a file nor a folder", "text is read more than once: write a file")
            if root.is_dir():
                files = _files_below(root, tuple(suffixes), without)
            elif root.exists():
                files = [(root, root.name)]
            else:
                files = _files_matching(root)
        if not files:
            wanted = " or ".join(suffixes) or "any"
            raise AndreaError(f"{root} holds no file ({wanted})", "give another path, or other suffixes")
        full = {_real(path): path for path, _ in files}
        if twice := full.keys() & given.keys():
            one = min(twice)
            ways = "" if given[one] == text else f", by {given[one]!r} and by {text!r}"
            raise AndreaError(f"{full[one]} is given twice{ways}", "leave one out: its text would count twice")
        given |= dict.fromkeys(full, text)
        found += files
    return found


def _real(path: Path) -> Path:
    """Return where a path leads; links that lead in a circle end there, and whoever opens the file is told."""
    return Path(os.path.realpath(path))


def _files_below(root: Path, suffixes: tuple[str, ...], without: Collection[str]) -> list[tuple[Path, str]]:
    def refuse(error: OSError) -> None:
        raise error  # os.walk would pass over a folder that it cannot read, and the data would silently shrink

    found = []
    for folder, folders, files in os.walk(root, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in without]
        for name in files:
            if not name.startswith(".") and (not suffixes or name.lower().endswith(suffixes)):
                path = Path(folder, name)
                found.append((path, path.relative_to(root).as_posix()))
    return sorted(found, key=lambda item: item[1])


def _files_matching(pattern: Path) -> list[tuple[Path, str]]:
    if not glob.has_magic(str(pattern)):
        raise missing(pattern)
    root = _fixed(pattern)
    if not root.is_dir():
        raise missing(root)
    found = set(_matching(root, pattern.parts[len(root.parts) :]))
    return sorted(((path, path.relative_to(root).as_posix()) for path in found), key=lambda item: item[1])


def _fixed(pattern: Path) -> Path:
    """Return the folders above the first part of a pattern that has a wildcard; all of a path that has none."""
    magic = next((i for i, part in enumerate(pattern.parts) if glob.has_magic(part)), None)
    return Path(*pattern.parts[:magic])


def _matching(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    """Yield the files below a folder that match; where it may not look it fails, which pathlib's glob does not."""
    first, rest = parts[0], parts[1:]
    if first == "**" and rest:
        yield from _matching(folder, rest)
    with os.scandir(folder) as entries:
        paths = sorted(Path(entry.path) for entry in entries)
    for path in paths:
        hidden = path.name.startswith(".") and not first.startswith(".")
        if hidden or not fnmatch.fnmatchcase(path.name, first):
            continue
        if path.is_dir() and not (first == "**" and path.is_symlink()):  # a link may lead back up
            deeper = parts if first == "**" else rest
            yield from _matching(path, deeper) if deeper else ()
        elif path.is_file() and not rest:
            yield path


def missing(path: Path) -> AndreaError:
    """Return the error for a path that does not exist: its neighbours are shown."""
    existing = path.parent
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    inside = sorted(entry.name for entry in existing.iterdir()) if existing.is_dir() else []
    if close := nearest(path.name, inside):
        return AndreaError(f"{path} does not exist", f"did you mean {' or '.join(close)}, in {existing.resolve()}?")
    some = [*inside[:5], *(["..."] if len(inside) > 5 else [])]
    return AndreaError(f"{path} does not exist", f"{existing.resolve()} holds: {', '.join(some) or 'nothing'}")


@contextmanager
def open_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading; one that ends in ``.gz`` or ``.zst`` is unpacked while it is read.

    Raises
    ------
    AndreaError
        When it cannot be read, or is not what its name says.
    """
    try:
        with reading(path), _opened(path) as file:
            yield file
    except (EOFError, zlib.error) as error:
        raise AndreaError(f"{path} is damaged or cut short: {error}", "get or pack the file again") from error


def _opened(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return gzip.open(path)  # type: ignore[return-value]
    if path.suffix != ".zst":
        return path.open("rb")
    zstandard = import_extra("zstandard", "hub", f"{path.name} is packed with Zstandard")
    return io.BufferedReader(_Zstandard(path.open("rb"), zstandard.ZstdDecompressor), _BLOCK)


class _Zstandard(io.RawIOBase):
    """A file of Zstandard frames, unpacked; one that ends within a frame is an error, as it is for gzip."""

    def __init__(self, file: IO[bytes], decompressor: Callable[[], Any]) -> None:
        self._file, self._decompressor = file, decompressor
        self._frame: Any = None
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and (block := self._block()):
            self._frame = self._frame or self._decompressor().decompressobj()
            try:
                self._ready = self._frame.decompress(block)
            except Exception as error:  # the library's own class, which is not to be named without it
                raise zlib.error(str(error)) from error
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _block(self) -> bytes:
        """Return packed bytes, first what the last frame left over."""
        block = b""
        if self._frame is not None and self._frame.eof:
            block, self._frame = self._frame.unused_data, None
        block = block or self._file.read(1 << 16)
        if not block and self._frame is not None:
            raise EOFError("it ends within a frame")
        return block

    def close(self) -> None:
        self._file.close()
        super().close()


_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins with the mark of UTF-16, so it comes first
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def read_text(path: Path, encoding: str | None = None) -> Iterator[str]:
    """Yield the text of a file in blocks of about a megabyte, without a byte order mark at its start.

    A file that ends in ``.gz`` or ``.zst`` is unpacked; offsets are of the unpacked text.

    Parameters
    ----------
    path
        The file.
    encoding
        As Python names it. None: UTF-16 or UTF-32 if the file begins with their byte order mark, else UTF-8.

    Raises
    ------
    AndreaError
        When the file cannot be read, or is not in that encoding: names the file and the offset of the offending byte.
    """
    offset, first = 0, True
    with open_file(path) as file:
        block = file.read(max(_BLOCK, 4))
        encoding = encoding or next((name for mark, name in _MARKS if block.startswith(mark)), "utf-8")
        decoder = _decoder(path, encoding)
        while True:
            pending = _pending(decoder)
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                place = offset - pending + error.start
                raise not_decoded(path, place, error.object[error.start], encoding) from error
            offset += len(block)
            if first and text:
                text, first = text.removeprefix("\ufeff"), False
            if text:
                yield text
            if not block:
                return
            block = file.read(_BLOCK)


def read_lines(path: Path, longest: int = LONGEST_LINE) -> Iterator[bytes]:
    """Yield the lines of a file, unpacked if need be, each with the newline that ends it.

    Raises
    ------
    AndreaError
        When the file cannot be read, or a line has more than `longest` bytes, of which no more are then read.
    """
    _check_longest(longest)
    with open_file(path) as file:
        for number, line in enumerate(iter(partial(file.readline, longest + 1), b""), start=1):
            if len(line) > longest and not line.endswith(b"\n"):
                raise too_long(path, f"line {number}", longest)
            yield line


def text_lines(path: Path, blocks: Iterable[str], longest: int = LONGEST_LINE) -> Iterator[str]:
    """Yield the lines of a file's decoded text, each with the newline that ends it; no other character ends one.

    Raises
    ------
    AndreaError
        When a line has more than `longest` characters.
    """
    _check_longest(longest)
    rest, done = "", 0
    for block in blocks:
        *lines, rest = (rest + block).split("\n")
        for number, line in enumerate(lines, start=done + 1):
            if len(line) > longest:
                raise too_long(path, f"line {number}", longest)
            yield f"{line}\n"
        done += len(lines)
        if len(rest) > longest:
            raise too_long(path, f"line {done + 1}", longest)
    if rest:
        yield rest


def _check_longest(longest: int) -> None:
    if longest < 1:
        raise AndreaError(f"longest_line is {longest}", f"give the bytes of the longest line, such as {LONGEST_LINE}")


def too_long(path: Path, place: str, longest: int) -> AndreaError:
    """Return the error for a line, or something like it, that is not taken into memory."""
    return AndreaError(
        f"{path} {place} is longer than {longest:,} bytes",
        "is it a file of another kind? if it is meant, set the option longest_line higher",
    )


def _decoder(path: Path, encoding: str) -> codecs.IncrementalDecoder:
    hint = "for instance utf-8, latin-1, cp1252"
    try:
        "".encode(encoding)  # what is no encoding of text, such as hex, is found out here
        return codecs.getincrementaldecoder(encoding)()
    except LookupError as error:
        raise AndreaError(f"{path}: there is no encoding of text {encoding!r}", hint) from error


def _pending(decoder: codecs.IncrementalDecoder) -> int:
    """Return how many bytes a decoder holds back, which began before the block to come."""
    return len(decoder.getstate()[0])


def not_decoded(path: Path, offset: int, byte: int, encoding: str) -> AndreaError:
    """Return the error for a byte that cannot be part of text in an encoding."""
    return AndreaError(
        f"{path} is not {encoding.upper()}: byte {offset} is 0x{byte:02x}",
        f"find out its encoding and convert it, for instance: iconv -f ISO-8859-1 -t UTF-8 {path}; "
        "or name it, where the reader has an option `encoding`",
    )


def cut_text(blocks: Iterable[str], chunk: int) -> Iterator[str]:
    """Cut a long text into pieces of about `chunk` characters; joined they are the text again.

    A piece ends at the end of a paragraph if there is one between half and one and a half chunks, the nearest to one
    chunk; else at the end of a line, else at a space, else anywhere. A text below two chunks stays whole, so that no
    piece is shorter than half a chunk. 0 cuts nothing.

    Parameters
    ----------
    blocks
        The text in blocks of any length; no more than two chunks and a block are held in memory.
    chunk
        Characters.
    """
    check_chunk(chunk)
    buffer = ""
    for block in blocks:
        buffer += block
        start = 0
        while chunk and len(buffer) - start >= 2 * chunk:
            end = _piece_end(buffer, start, chunk)
            yield buffer[start:end]
            start = end
        buffer = buffer[start:]
    if buffer:
        yield buffer


def cut_work(blocks: Iterable[str], chunk: int, name: str) -> Iterator[Document]:
    """Yield a work in the pieces that `cut_text` makes of it; they are numbered, and the work is their group."""
    for number, piece in enumerate(cut_text(blocks, chunk), start=1):
        yield Document(text=piece, name=f"{name} piece {number}", group=name)


def check_chunk(chunk: int) -> None:
    """Refuse what is no length of a piece."""
    if chunk < 0:
        raise AndreaError(f"chunk is {chunk}", "give the characters of a piece, or 0 to keep works whole")


def _piece_end(text: str, start: int, chunk: int) -> int:
    low, high = start + max(1, chunk // 2), start + max(1, chunk * 3 // 2)
    ends = [match.end() for match in _PARAGRAPH_END.finditer(text, low, high)]
    if ends:
        return min(ends, key=lambda end: abs(end - start - chunk))
    for mark in ("\n", " "):
        found = text.rfind(mark, low, high)
        if found >= 0:
            return found + 1
    return start + chunk
