"""Parquet files; a column holds the text, another may name the work, others choose rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from andrea import Document, SourceSpec, hookimpl, option, plugin
from andrea.extras import import_extra
from andrea.rows import read_rows, where
from andrea.sources import FILES, Documents, find_files, read_options


@plugin
class Options:
    """What ``options`` of a source may say."""

    path: str | list[str] = option(help=FILES, path=True)
    text: str = option("text", help="the column that holds the text")
    group: str | None = option(None, help="the column that says which work a row belongs to; each is its own if null")
    where: dict[str, Any] = option(factory=dict, help="columns and the value, or the list of values, that rows have")
    suffixes: list[str] = option(factory=lambda: [".parquet"], help="which files of a folder are read")


@hookimpl
def open_source(spec: SourceSpec) -> Documents:
    """Read a document from every row."""
    options = read_options(spec, Options)
    import_extra("pyarrow", "hub", f"source {spec.name} reads Parquet files")
    return Documents(partial(_read, options), partial(find_files, options.path, options.suffixes))


def _read(options: Options) -> Iterator[Document]:
    for path, name in find_files(options.path, options.suffixes):
        for row in where(read_rows(path), options.where):
            place = f"{name} {row.place}"
            text = row.text(options.text, "text")
            yield Document(text=text, name=place, group=row.group(options.group, place))
