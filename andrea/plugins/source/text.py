"""Plain text files, also packed; a file is a work, long works are cut at the ends of paragraphs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from andrea import Document, SourceSpec, hookimpl, option, plugin
from andrea.sources import FILES, PIECE, Documents, cut_work, find_files, read_options, read_text


@plugin
class Options:
    """What ``options`` of a source may say."""

    path: str | list[str] = option(help=FILES, path=True)
    suffixes: list[str] = option(
        factory=lambda: [".txt", ".txt.gz", ".txt.zst"], help="which files of a folder are read"
    )
    encoding: str | None = option(None, help="of all files, as latin-1; null: UTF-8, or as a byte order mark says")
    chunk: int = option(6000, help=PIECE)


@hookimpl
def open_source(spec: SourceSpec) -> Documents:
    """Read every file in pieces; their group is the file's path relative to the given folder."""
    options = read_options(spec, Options)
    return Documents(partial(_read, options), partial(find_files, options.path, options.suffixes))


def _read(options: Options) -> Iterator[Document]:
    for path, name in find_files(options.path, options.suffixes):
        yield from cut_work(read_text(path, options.encoding), options.chunk, name)
