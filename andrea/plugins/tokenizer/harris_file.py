r"""`harris_segments.json`: what training found, for people and for loading.

Segments are text, one a line, in the order of their ids from 257 on. A backslash is written ``\\``, a byte that is not
part of UTF-8 ``\xff``; JSON escapes the rest.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from andrea import AndreaError
from andrea.plugins.tokenizer.harris_pieces import PIECE

FILE = "harris_segments.json"
FORMAT = {"format": "andrea-harris", "version": 1}
PIECES = hashlib.sha256(PIECE).hexdigest()
"""Digest of the rule that cuts text into pieces; a file made with another rule would encode differently."""
_ESCAPE = re.compile(rb"\\(\\|x[0-9a-f]{2})")


@frozen
class Training:
    """How a vocabulary was made.

    Attributes
    ----------
    rule, longest, sample_bytes
        Options of the training.
    wanted
        Ids kept for segments; `supplied` of them are used, the sample had no more to give.
    read_bytes
        Bytes of text that were read.
    """

    rule: str
    longest: int
    sample_bytes: int
    wanted: int
    read_bytes: int


def write_file(path: Path, training: Training, segments: Sequence[tuple[bytes, int]]) -> None:
    """Write segments with their counts."""
    rows = [[escape(text), count] for text, count in segments]
    content: dict[str, Any] = {**FORMAT, **asdict(training), "supplied": len(rows), "pieces": PIECES, "segments": rows}
    content["sha256"] = checksum(content)
    lines = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows)
    head = json.dumps({key: value for key, value in content.items() if key != "segments"}, indent=1)
    path.write_text(f'{head[:-2]},\n "segments": [\n{lines}\n ]\n}}\n', encoding="utf-8")


def read_file(path: Path) -> tuple[Training, list[tuple[bytes, int]]]:
    """Read what `write_file` wrote.

    Raises
    ------
    AndreaError
        When the file is missing, damaged, foreign or of another version.
    """
    content = _read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT["format"]:
        raise AndreaError(f"{path} is not a file of Harris segments", "name the tokenizer plugin that wrote the folder")
    if content.get("version") != FORMAT["version"] or content.get("pieces") != PIECES:
        raise AndreaError(
            f"{path} was written by another version of tokenizer.harris and would encode text differently",
            "install the version that wrote it, or prepare the data again",
        )
    if content.get("sha256") != checksum(content):
        raise _damaged(path, "its checksum does not fit its content")
    try:
        training = Training(**{field: content[field] for field in Training.__annotations__})
        return training, [(unescape(text), int(count)) for text, count in content["segments"]]
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error


def checksum(content: dict[str, Any]) -> str:
    """Return the digest of everything but the digest, whatever the order of the keys."""
    rest = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def escape(segment: bytes) -> str:
    """Return readable text for any bytes; `unescape` is its inverse."""
    return segment.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def unescape(text: str) -> bytes:
    """Return the bytes that `escape` made a text of; ValueError for any other text."""

    def one(found: re.Match[bytes]) -> bytes:
        return b"\\" if found[1] == b"\\" else bytes.fromhex(found[1][1:].decode())

    segment = _ESCAPE.sub(one, text.encode())
    if escape(segment) != text:
        raise ValueError(f"{text!r} is not how a segment is written")
    return segment


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AndreaError(
            f"{path} does not exist: no Harris tokenizer was saved in {path.parent}",
            "name the tokenizer plugin that wrote this folder",
        ) from None
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, problem: str) -> AndreaError:
    return AndreaError(f"{path} is damaged: {problem}", "delete the folder and prepare the data again")
