"""Plain text of Project Gutenberg, without the header before a work and the licence behind it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from andrea import Document, SourceSpec, hookimpl, option, plugin
from andrea.sources import FILES, PIECE, Documents, cut_work, find_files, open_file, read_options, read_text

# Both ends of a work are lines between asterisks. Files older than 2004 have a small print there that ends *END*.
_START = re.compile(r"^\s*\*{3} ?START\b.*$|^\s*\*END\*.*$|^.*\*END THE SMALL PRINT.*$", re.MULTILINE)
_END = re.compile(r"^\s*\*{3} ?END\b.*$|^\s*End of (?:the |this )?Project Gutenberg.*$", re.MULTILINE | re.IGNORECASE)
_ENCODING = re.compile(rb"^(?:Character set encoding|Charset):\s*([\w-]+)", re.MULTILINE | re.IGNORECASE)
_HEADER_BYTES = 1 << 16  # where a header is looked for
_TAIL = 1 << 17  # characters held back, in which the licence begins
_CREDIT = re.compile(r"\s*(?:\S.*\n)*?.*\b(?:produced|prepared|transcribed|digiti[sz]ed|e-?text) by\b", re.IGNORECASE)


@plugin
class Options:
    """What ``options`` of a source may say."""

    path: str | list[str] = option(help=FILES, path=True)
    suffixes: list[str] = option(
        factory=lambda: [".txt", ".txt.gz", ".txt.zst"], help="which files of a folder are read"
    )
    encoding: str | None = option(None, help="of all files; null: what a header says, else UTF-8")
    chunk: int = option(6000, help=PIECE)


@hookimpl
def open_source(spec: SourceSpec) -> Documents:
    """Read works in pieces; the group is a file's path relative to the given folder."""
    options = read_options(spec, Options)
    return Documents(partial(_read, options), partial(find_files, options.path, options.suffixes))


def _read(options: Options) -> Iterator[Document]:
    for path, name in find_files(options.path, options.suffixes):
        work = strip_licence(read_text(path, options.encoding or _named_encoding(path)))
        yield from cut_work(work, options.chunk, name)


def _named_encoding(path: Path) -> str | None:
    with open_file(path) as file:
        found = _ENCODING.search(file.read(_HEADER_BYTES))
    name = found[1].decode().lower() if found else ""
    return None if name in ("", "ascii", "us-ascii", "utf-8", "unicode") else name


def strip_licence(blocks: Iterable[str]) -> Iterator[str]:
    """Yield a work without what stands before its start line and from its end line on.

    A file that has no such lines comes out whole. Line ends become those of Unix. Who made the file, said in the first
    paragraph behind the start line, is no part of the work either.
    """
    blocks = _unix_lines(blocks)
    buffer = ""
    for block in blocks:
        buffer += block
        if len(buffer) >= _HEADER_BYTES:
            break
    buffer = _strip_header(buffer)
    for block in blocks:
        buffer += block
        if end := _END.search(buffer):
            buffer = buffer[: end.start()]
            break
        if len(buffer) > 2 * _TAIL:
            cut = buffer.rfind("\n", 0, len(buffer) - _TAIL) + 1 or len(buffer) - _TAIL
            yield buffer[:cut]
            buffer = buffer[cut:]
    end = _END.search(buffer)
    yield (buffer[: end.start()] if end else buffer).rstrip() + "\n"


def _unix_lines(blocks: Iterable[str]) -> Iterator[str]:
    held = ""
    for block in blocks:
        block, held = (held + block[:-1], "\r") if block.endswith("\r") else (held + block, "")
        yield block.replace("\r\n", "\n")
    yield held


def _strip_header(text: str) -> str:
    starts = [match.end() for match in _START.finditer(text[:_HEADER_BYTES])]
    if not starts:
        return text
    text = text[starts[-1] :].lstrip()
    paragraph, gap, rest = text.partition("\n\n")
    return rest.lstrip("\n") if gap and len(paragraph) < 600 and _CREDIT.match(paragraph) else text
