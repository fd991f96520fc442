"""One JSON object a line, plain or packed; a field holds the text, another may name the work."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from andrea import AndreaError, Document, SourceSpec, hookimpl, option, plugin
from andrea.rows import read_json_lines
from andrea.sources import FILES, LONGEST_LINE, Documents, find_files, read_options


@plugin
class Options:
    """What ``options`` of a source may say."""

    path: str | list[str] = option(help=FILES, path=True)
    text: str = option("text", help="the field that holds the text")
    group: str | None = option(None, help="the field that says which work a line belongs to; each is its own if null")
    together: int = option(1, help="lines in a row that are pieces of one work, where no field names it")
    suffixes: list[str] = option(
        factory=lambda: [f".{kind}{packed}" for kind in ("jsonl", "ndjson") for packed in ("", ".gz", ".zst")],
        help="which files of a folder are read",
    )
    longest_line: int = option(LONGEST_LINE, help="bytes of a line; a longer one is an error")


@hookimpl
def open_source(spec: SourceSpec) -> Documents:
    """Read a document from every line that is not blank."""
    options = read_options(spec, Options)
    if options.together < 1:
        raise AndreaError(f"together is {options.together}", "at least 1: so many lines in a row are one work")
    if options.together > 1 and options.group is not None:
        raise AndreaError("group and together both say what a work is", "leave out one of them")
    return Documents(partial(_read, options), partial(find_files, options.path, options.suffixes))


def _read(options: Options) -> Iterator[Document]:
    for path, name in find_files(options.path, options.suffixes):
        for number, row in enumerate(read_json_lines(path, options.longest_line)):
            place = f"{name} {row.place}"
            work = f"{name} part {number // options.together}" if options.together > 1 else place
            yield Document(text=row.text(options.text, "text"), name=place, group=row.group(options.group, work))
