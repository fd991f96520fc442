"""filter.duplicate: documents that were there before, the same or nearly the same.

It gives every document keys and remembers nothing: which keys were seen is the preparation's to know.

References
----------
Broder (1997), "On the resemblance and containment of documents". Leskovec, Rajaraman, Ullman, "Mining of Massive
Datasets", chapter 3, for the bands.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

from andrea import AndreaError, Document, hookimpl, option, plugin
from andrea.extras import import_extra

_ROWS = 16  # numbers of a band
_SEED = 1


@plugin
class Duplicate:
    """Drop documents whose text was there before; with `near`, also those that share most runs of words with one.

    Two documents that share a part s of their distinct runs of words are found with probability 1 - (1 - s^16)^bands:
    with 8 bands 99% at s = 0.95, 80% at 0.9, 20% at 0.8 and under 3% at 0.7.
    """

    near: bool = option(False, help="also drop what is nearly the same, by MinHash; needs the extra dedup")
    bands: int = option(8, help="more find more that is less alike")
    run: int = option(5, help="words of a run")

    def __attrs_post_init__(self) -> None:
        if self.bands < 1 or self.run < 1:
            raise AndreaError(f"filter.duplicate.bands is {self.bands} and run {self.run}", "both are 1 or more")
        self._sketch: Any = None
        if self.near:
            rensa = import_extra("rensa", "dedup", "filter.duplicate.near compares by MinHash")
            self._sketch = rensa.RMinHash

    @hookimpl
    def identify_document(self, document: Document) -> list[int]:
        """Return the key of the text and, if `near`, one of every band."""
        keys = [_hash(document.text.encode(errors="surrogatepass"))]
        if self.near:
            keys += self._band_keys(document.text.lower().split())
        return keys

    def _band_keys(self, words: list[str]) -> list[int]:
        runs = [" ".join(words[start : start + self.run]) for start in range(max(1, len(words) - self.run + 1))]
        sketch = self._sketch(num_perm=self.bands * _ROWS, seed=_SEED)
        sketch.update([run.encode(errors="surrogatepass") for run in runs])
        numbers = sketch.digest()
        return [
            _hash(struct.pack(f"<q{_ROWS}I", band, *numbers[band * _ROWS : (band + 1) * _ROWS]))
            for band in range(self.bands)
        ]


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
