"""filter.length: documents within bounds."""

from __future__ import annotations

from andrea import AndreaError, Document, hookimpl, option, plugin


@plugin
class Length:
    """Drop documents that are too short or too long, in characters or in bytes of UTF-8."""

    min_characters: int = option(0, help="fewest characters")
    max_characters: int | None = option(None, help="most characters; null sets no bound")
    min_bytes: int = option(0, help="fewest bytes in UTF-8")
    max_bytes: int | None = option(None, help="most bytes in UTF-8; null sets no bound")

    def __attrs_post_init__(self) -> None:
        for unit in ("characters", "bytes"):
            least, most = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if least < 0 or (most is not None and most < max(1, least)):
                raise AndreaError(
                    f"filter.length keeps nothing between {least} and {most} {unit}",
                    f"min_{unit} is 0 or more, max_{unit} at least that much, or null",
                )

    @hookimpl
    def keep_document(self, document: Document) -> str | None:
        """Say which bound a document misses."""
        sizes = {"characters": len(document.text)}
        if self.min_bytes or self.max_bytes is not None:
            sizes["bytes"] = len(document.text.encode(errors="surrogatepass"))
        for unit, size in sizes.items():
            least, most = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if size < least:
                return f"shorter than {least} {unit}"
            if most is not None and size > most:
                return f"longer than {most} {unit}"
        return None
