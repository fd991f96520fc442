"""Seals: what is kept beside a file or folder of the cache to tell later that it is still whole.

Token files carry their digest in themselves, and a record is named by its own; a list of words or the folder of a
tokenizer has the format of others, so its digest lies beside it. The seal is written first: where the thing is, its
seal is too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from andrea.tokenfile import partial_name, publish, sync_folder, write_whole


def digest_path(path: Path) -> str:
    """Return the digest of a file, or of a folder's files with their names, however deep.

    Raises
    ------
    OSError
        When something cannot be read.
    """
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
        name = file.relative_to(path).as_posix()
        digest.update(f"{name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as content:
            while block := content.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def seal(path: Path, written: Path) -> None:
    """Write the seal that `path` will have, whose content lies at `written` until it gets its name."""
    write_whole(_seal_of(path), digest_path(written).encode() + b"\n")


@contextmanager
def sealing(path: Path) -> Iterator[IO[bytes]]:
    """Give a file to write, which gets its name and its seal when it is whole."""
    with partial_name(path).open("wb") as file:
        yield file
        file.flush()
        seal(path, partial_name(path))
        publish(file, path)


def publish_folder(partial: Path, folder: Path) -> None:
    """Give a written folder its name and its seal; what has the name is replaced."""
    for path in sorted(partial.rglob("*")):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
    sync_folder(partial)
    seal(folder, partial)
    if folder.exists():  # damaged, else it would have been used
        shutil.rmtree(folder)
    partial.rename(folder)
    sync_folder(folder.parent)


def unseal(path: Path) -> None:
    """Remove a seal, of something that shall not be found."""
    _seal_of(path).unlink(missing_ok=True)


def is_whole(path: Path) -> bool:
    """Say whether a file or folder is there and is what was sealed."""
    try:
        return path.exists() and _seal_of(path).read_bytes() == digest_path(path).encode() + b"\n"
    except OSError:
        return False


def _seal_of(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")
