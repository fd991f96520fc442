"""Dictionaries as a prompt, `define` and the word, and its definition as the reply."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from andrea import AndreaError, Document, SourceSpec, hookimpl, option, plugin
from andrea.conversations import PROMPT, REPLY, Turn, render
from andrea.rows import ROW_SUFFIXES, Row, read_rows
from andrea.sources import FILES, LONGEST_LINE, Documents, find_files, read_lines, read_options

_DIGITS = {c: n for n, c in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")}


@plugin
class Options:
    """What ``options`` of a source may say."""

    path: str | list[str] = option(help=FILES, path=True)
    word: str = option("word", help="the column of the word, in files of rows")
    definition: str = option("definition", help="the column of its definition, a text or a list of texts")
    prompt: str = option("define {word}", help="what is asked; {word} is the word")
    suffixes: list[str] = option(
        factory=lambda: [*ROW_SUFFIXES, ".index"],
        help="which files of a folder are read: rows, and the index of a dict database beside its .dict or .dict.dz",
    )
    longest_line: int = option(LONGEST_LINE, help="bytes of a line, or of a row; a longer one is an error")


@hookimpl
def open_source(spec: SourceSpec) -> Documents:
    """Read a document from every entry; the group is the word, so all its entries stay together."""
    options = read_options(spec, Options)
    if "{word}" not in options.prompt:
        raise AndreaError(f"source {spec.name}: prompt {options.prompt!r} has no {{word}}", 'as in "define {word}"')
    return Documents(partial(_read, options), partial(_files, options))


def _read(options: Options) -> Iterator[Document]:
    for path, name in find_files(options.path, options.suffixes):
        entries = _database(path, options.longest_line) if path.suffix == ".index" else _rows(path, options)
        for place, word, definition in entries:
            turns = [Turn(PROMPT, options.prompt.replace("{word}", word)), Turn(REPLY, definition)]
            yield Document(text=render(turns), name=f"{name} {place}", group=f"word {word.lower()}")


def _files(options: Options) -> Iterator[tuple[Path, str]]:
    for path, name in find_files(options.path, options.suffixes):
        yield path, name
        if path.suffix == ".index":
            yield _texts(path), f"{name} texts"


def _rows(path: Path, options: Options) -> Iterator[tuple[str, str, str]]:
    for row in read_rows(path, options.longest_line):
        word, definition = row.text(options.word, "word").strip(), _definition(row, options.definition)
        if not word:
            raise row.error(f"field {options.word!r} is empty", row.columns())
        if definition:
            yield row.place, word, definition


def _definition(row: Row, column: str) -> str:
    value = row.get(column, "definition")
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise row.error(f"field {column!r} is a {type(value).__name__}, not a text or a list of texts", row.columns())
    return "\n".join(text.strip() for text in texts if text.strip())


def _database(index: Path, longest: int) -> Iterator[tuple[str, str, str]]:
    """Yield the entries of a dict database in the order of its text; of words that share a text the first counts."""
    entries: dict[tuple[int, int], str] = {}
    for number, line in enumerate(read_lines(index, longest), start=1):
        word, *place = line.decode("utf-8", "replace").rstrip("\n").split("\t")
        if len(place) < 2 or not all(set(part) <= set(_DIGITS) for part in place[:2]):
            raise AndreaError(f"{index} line {number} is no entry of a dict index", "word, offset and length")
        if not word.startswith(("00-database", "00database")):
            entries.setdefault((_number(place[0]), _number(place[1])), word)
    texts = _texts(index)
    with gzip.open(texts) if texts.suffix == ".dz" else texts.open("rb") as file:
        for (offset, length), word in sorted(entries.items()):
            file.seek(offset)  # forwards only, which a packed file can do well
            data = file.read(length)
            if len(data) < length:
                raise AndreaError(f"{texts} is cut short: {word!r} ends at byte {offset + length}", "get it again")
            if text := data.decode("utf-8", "replace").strip():
                yield f"entry {word}", word, text


def _texts(index: Path) -> Path:
    for suffix in (".dict.dz", ".dict"):
        if index.with_suffix(suffix).exists():
            return index.with_suffix(suffix)
    raise AndreaError(f"{index} has no {index.stem}.dict.dz or {index.stem}.dict beside it", "the two belong together")


def _number(digits: str) -> int:
    value = 0
    for digit in digits:
        value = value * 64 + _DIGITS[digit]
    return value
