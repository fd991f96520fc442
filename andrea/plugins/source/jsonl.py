"""One JSON object a line, plain or packed; a field holds the text, another may name the work."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from andrea import Document, SourceSpec, hookimpl, option, plugin
from andrea.rows import read_json_lines
from andrea.sources import FILES, LONGEST_LINE, Documents, find_files, read_options


@plugin
class Options:
    """What ``options`` of a source may say."""

    path: str | list[str] = option(help=FILES, path=True)
    text: str = option("text", help="the field that holds the text")
    group: str | None = option(None, help="the field that says which work a line belongs to; each is its own if null")
    suffixes: list[str] = option(
        factory=lambda: [f".{kind}{packed}" for kind in ("jsonl", "ndjson") for packed in ("", ".gz", ".zst")],
        help="which files of a folder are read",
    )
    longest_line: int = option(LONGEST_LINE, help="bytes of a line; a longer one is an error")


@hookimpl
def open_source(spec: SourceSpec) -> Documents:
    """Read a document from every line that is not blank."""
    return Documents(partial(_read, read_options(spec, Options)))


def _read(options: Options) -> Iterator[Document]:
    for path, name in find_files(options.path, options.suffixes):
        for row in read_json_lines(path, options.longest_line):
            place = f"{name} {row.place}"
            text = row.text(options.text, "text")
            yield Document(text=text, name=place, group=row.group(options.group, place))
