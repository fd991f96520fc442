"""Seals: what is kept beside a file or folder of the cache to tell later that it is still whole.

Token files carry their digest in themselves, and a record is named by its own; a list of words and the folder of a
tokenizer have formats of others, so their digest lies beside them. The seal is written first: where the thing is, its
seal is too.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from andrea.tokenfile import write_whole


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
