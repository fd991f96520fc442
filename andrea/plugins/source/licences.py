"""The licence texts that Python and installed distributions carry."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator
from functools import partial
from importlib import metadata
from pathlib import Path

from andrea import AndreaError, Document, SourceSpec, hookimpl, option, plugin
from andrea.sources import Documents, cut_text, read_options, read_text

_NAMED = re.compile(r"(licen[cs]e|copying|notice)[^/]*", re.IGNORECASE)


@plugin
class Options:
    """What ``options`` of a source may say."""

    distributions: list[str] = option(factory=list, help="names of installed distributions, as pip knows them")
    chunk: int = option(6000, help="characters of a document; longer texts are cut at the ends of paragraphs")


@hookimpl
def open_source(spec: SourceSpec) -> Documents:
    """Read Python's own licence and those of the named distributions; the group is the file."""
    options = read_options(spec, Options)
    return Documents(partial(_read, options), partial(_files, options.distributions))


def _read(options: Options) -> Iterator[Document]:
    for path, name in _files(options.distributions):
        for number, text in enumerate(cut_text(read_text(path), options.chunk)):
            yield Document(text=text, name=f"{name} {number}", group=name)


def _files(distributions: list[str]) -> list[tuple[Path, str]]:
    """Return the licence files, each with a name that does not depend on where it is installed."""
    found = {}
    own = Path(sysconfig.get_path("stdlib")) / "LICENSE.txt"
    if own.is_file():
        found["python/LICENSE.txt"] = own
    for distribution in distributions:
        try:
            files = metadata.files(distribution) or []
        except (metadata.PackageNotFoundError, ValueError):  # the latter of an empty name
            raise AndreaError(
                f"no distribution {distribution!r} is installed here",
                f"install it, or leave it out: pip install {distribution}",
            ) from None
        for file in files:
            path = Path(str(file.locate()))
            if _NAMED.fullmatch(path.name) and path.suffix not in (".py", ".pyc") and path.is_file():
                found[f"{distribution}/{file.as_posix()}"] = path
    if not found:
        raise AndreaError("neither Python nor a named distribution has a licence text here", "name some: numpy, rich")
    return [(path, name) for name, path in sorted(found.items())]
