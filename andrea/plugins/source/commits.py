"""The messages of a git repository's log, newest first."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from typing import IO

from andrea import AndreaError, Document, SourceSpec, hookimpl, option, plugin
from andrea.sources import Documents, expand, read_options

_COMMAND = ["log", "-z", "--topo-order", "--no-color", "--no-notes", "--no-show-signature", "--encoding=UTF-8"]


@plugin
class Options:
    """What ``options`` of a source may say."""

    path: str = option(help="folder of the repository", path=True)
    limit: int | None = option(None, help="read only so many commits")


@hookimpl
def open_source(spec: SourceSpec) -> Documents:
    """Read a document from every commit that has a message; the group is the commit."""
    options = read_options(spec, Options)
    if options.limit is not None and options.limit < 1:
        raise AndreaError(f"source {spec.name}: source.commits.limit is {options.limit}", "give 1 or more, or null")
    return Documents(partial(_read, options))


def _read(options: Options) -> Iterator[Document]:
    folder = expand(options.path)
    count = [] if options.limit is None else [f"--max-count={options.limit}"]
    command = ["git", "-C", str(folder), *_COMMAND, "--format=%H%n%B", *count]
    # Variables such as GIT_DIR would point git at another repository than the one that was asked for.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    with tempfile.TemporaryFile() as complaints:
        try:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, env=environment)
        except FileNotFoundError as error:
            raise AndreaError("source.commits needs git, which is not installed", "install git") from error
        with process:
            try:
                yield from map(_document, _records(process.stdout))
            except GeneratorExit:
                process.terminate()
                raise
        if process.returncode:
            complaints.seek(0)
            said = complaints.read().decode(errors="replace").strip()
            raise AndreaError(f"git cannot read the log of {folder}: {said}", "give the folder of a git repository")


def _records(file: IO[bytes] | None) -> Iterator[bytes]:
    """Yield the NUL-separated records of git's output as they come."""
    rest = b""
    while file and (block := file.read(1 << 16)):
        *records, rest = (rest + block).split(b"\0")
        yield from records
    if rest:
        yield rest


def _document(record: bytes) -> Document:
    commit, _, message = record.decode("utf-8", "replace").partition("\n")
    return Document(text=message.strip(), name=f"commit {commit}", group=commit)
