"""Between the first stage and the second: documents are kept, or dropped with a reason that is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from attrs import define, field

from andrea.types import Document

KeepDocument = Callable[[Document, str], str | None]
"""Asks (document, source's name) and returns the reason to drop it, or None."""
IdentifyDocument = Callable[[Document, str], Sequence[int]]
"""Asks (document, source's name) and returns keys, 64 bits each; documents that share one are duplicates."""

DUPLICATE = "duplicate of an earlier document"


@define
class Report:
    """What became of a source's documents.

    Attributes
    ----------
    kept, bytes
        Documents that stayed and the UTF-8 bytes of their texts.
    dropped
        Documents that were dropped, by reason.
    """

    kept: int = 0
    bytes: int = 0
    dropped: dict[str, int] = field(factory=dict)

    def drop(self, reason: str, count: int = 1) -> None:
        """Count dropped documents."""
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values, reasons sorted."""
        return {"kept": self.kept, "bytes": self.bytes, "dropped": dict(sorted(self.dropped.items()))}


def no_keys(document: Document, source: str) -> Sequence[int]:
    """Identify a document with no other."""
    return ()


def keep(
    documents: Iterable[Document], source: str, keep_document: KeepDocument, report: Report
) -> Iterator[tuple[Document, bytes]]:
    """Yield the documents that stay, each with its text in UTF-8, and count all in `report`.

    Two reasons are our own, because no token file could hold such a document: a text that is empty or blank, and one
    with half a surrogate pair, which is not Unicode text (JSON can spell it).
    """
    for document in documents:
        data = _encode(document.text)
        if data is None:
            report.drop("not valid Unicode: half a surrogate pair")
        elif not document.text.strip():
            report.drop("empty")
        elif reason := keep_document(document, source):
            report.drop(reason)
        else:
            report.kept += 1
            report.bytes += len(data)
            yield document, data


def _encode(text: str) -> bytes | None:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None
