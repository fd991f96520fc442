"""Markdown files, or the long descriptions that installed Python distributions carry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from importlib.metadata import Distribution, distributions

from andrea import AndreaError, Document, SourceSpec, hookimpl, option, plugin
from andrea.sources import FILES, PIECE, Documents, cut_work, find_files, read_options, read_text


@plugin
class Options:
    """What ``options`` of a source may say."""

    path: str | list[str] | None = option(None, help=FILES, path=True)
    distributions: bool = option(False, help="read the descriptions of the installed Python distributions")
    suffixes: list[str] = option(factory=lambda: [".md", ".markdown"], help="which files of a folder are read")
    chunk: int = option(6000, help=PIECE)


@hookimpl
def open_source(spec: SourceSpec) -> Documents:
    """Read works in pieces; the group is a file's path relative to the given folder, or a distribution's name."""
    options = read_options(spec, Options)
    if options.path is None and not options.distributions:
        raise AndreaError(
            f"source {spec.name}: source.markdown is told to read nothing",
            'give "path": "FOLDER", or "distributions": true, or both',
        )
    if options.path is None or options.distributions:  # importlib does not say which files hold these
        return Documents(partial(_read, options))
    return Documents(partial(_read, options), partial(find_files, options.path, options.suffixes))


def _read(options: Options) -> Iterator[Document]:
    for name, blocks in _works(options):
        yield from cut_work(blocks, options.chunk, name)


def _works(options: Options) -> Iterator[tuple[str, Iterator[str]]]:
    if options.path is not None:
        for path, name in find_files(options.path, options.suffixes):
            yield name, read_text(path)
    if options.distributions:
        for name, description in sorted(_descriptions().items()):
            yield name, iter([description])


def _descriptions() -> dict[str, str]:
    """Return the description of every installed distribution by its normalised name; the first on the path counts."""
    found: dict[str, str] = {}
    for distribution in distributions():
        name = distribution.metadata["Name"] if distribution.metadata else None
        description = _description(distribution) if name else ""
        if name and description:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), description)
    return found


def _description(distribution: Distribution) -> str:
    """Return the body of the metadata, where it stands since version 2.1 of their format, else the header field."""
    metadata = distribution.metadata
    body = metadata.get_payload()  # type: ignore[attr-defined]
    text: str = body if body.strip() else str(metadata["Description"] or "")
    return "" if text.strip() == "UNKNOWN" else text.strip()
