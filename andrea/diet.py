"""What a vocabulary is good for: which of its segments text uses, how short they make it, and what another size would.

A segment is every id but the 256 single bytes and the one that begins a document. One that text never uses is waste:
its row of the embedding is never trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import frozen

from andrea.errors import AndreaError
from andrea.tokenfile import TokenFile, bytes_of_tokens, encode_all
from andrea.types import Tokenizer

Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Texts = Mapping[str, Sequence[bytes]]
"""Documents of each source."""

MEGABYTE = 1_000_000


@frozen(eq=False)
class Usage:
    """How often a text uses each id.

    Attributes
    ----------
    counts
        Uses of each id, int64 (V,); the id that begins a document is left out.
    text_bytes
        Bytes of the text.
    """

    counts: Counts
    text_bytes: int

    @property
    def tokens(self) -> int:
        """Tokens of the text."""
        return int(self.counts.sum())

    @property
    def bytes_per_token(self) -> float:
        """Bytes that a token stands for on average; 0 without text."""
        return self.text_bytes / self.tokens if self.tokens else 0.0

    @property
    def single_bytes(self) -> float:
        """Share of the text that no segment covers, which is spelled in single bytes."""
        return int(self.counts[:256].sum()) / self.text_bytes if self.text_bytes else 0.0


def usage_of_text(tokenizer: Tokenizer, documents: Sequence[bytes]) -> Usage:
    """Encode documents and count."""
    ids, _ = encode_all(tokenizer, documents)
    return Usage(np.bincount(ids, minlength=tokenizer.size), sum(map(len, documents)))


def usage_of_file(file: TokenFile) -> Usage:
    """Count the ids of a token file."""
    counts = np.bincount(file.tokens, minlength=file.vocabulary)
    counts[file.bos] = 0
    return Usage(counts, file.bytes)


def segment_flags(tokenizer: Tokenizer) -> Flags:
    """Return which ids are segments, bool (V,); those that stand for no bytes at all are segments wasted already."""
    flags = np.asarray(bytes_of_tokens(tokenizer) != 1)
    flags[tokenizer.bos] = False
    return flags


def share_used(uses: npt.NDArray[Any], segments: Flags, least: float = 0.0) -> float:
    """Return the share of the segments that are used more than `least` times; 1 if there is no segment."""
    return float((uses[segments] > least).mean()) if segments.any() else 1.0


def mixed(usages: Mapping[str, Usage], mix: Mapping[str, float]) -> npt.NDArray[np.float64]:
    """Return how often each id is used in a megabyte of text of which every source gives its share, float64 (V,)."""
    shares = normalised(mix, usages)
    return sum(  # type: ignore[return-value]  # there is at least one source
        share * usages[name].counts / max(1, usages[name].text_bytes) * MEGABYTE for name, share in shares.items()
    )


def mixed_bytes_per_token(usages: Mapping[str, Usage], mix: Mapping[str, float]) -> float:
    """Return bytes per token of text of which every source gives its share of the bytes."""
    tokens = float(mixed(usages, mix).sum())
    return MEGABYTE / tokens if tokens else 0.0


def normalised(mix: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    """Return the share of every source, in sum 1; all the same when no share is given."""
    given = {name: mix.get(name, 0.0) if mix else 1.0 for name in names}
    total = sum(given.values())
    if total <= 0:
        raise AndreaError("no source has a share of the mix", f"sources: {', '.join(given)}")
    return {name: share / total for name, share in given.items()}


# -- a diet ------------------------------------------------------------------------------------------------------------


@frozen(eq=False)
class Diet:
    """What training and held-out text make of a vocabulary.

    Attributes
    ----------
    train, held_out
        Usage by source.
    mix
        Share of each source in the training text.
    segments
        Which ids are segments, bool (V,).
    """

    train: Mapping[str, Usage]
    held_out: Mapping[str, Usage]
    mix: Mapping[str, float]
    segments: Flags

    def table(self) -> list[dict[str, Any]]:
        """Return one row for each source and a last one for the mix, as plain values; shares are from 0 to 1."""
        shares = normalised(self.mix, self.train)
        rows = [
            {
                "source": name,
                "share": shares[name],
                "bytes_per_token": self.train[name].bytes_per_token,
                "held_out_bytes_per_token": self.held_out[name].bytes_per_token,
                "single_bytes": self.held_out[name].single_bytes,
                "used": share_used(self.train[name].counts, self.segments),
                "used_held_out": share_used(self.held_out[name].counts, self.segments),
            }
            for name in self.train
        ]
        return [*rows, self._mix_row(shares)]

    def _mix_row(self, shares: Mapping[str, float]) -> dict[str, Any]:
        return {
            "source": "mix",
            "share": 1.0,
            "bytes_per_token": mixed_bytes_per_token(self.train, self.mix),
            "held_out_bytes_per_token": mixed_bytes_per_token(self.held_out, self.mix),
            "single_bytes": sum(share * self.held_out[name].single_bytes for name, share in shares.items()),
            "used": share_used(mixed(self.train, self.mix), self.segments),
            "used_held_out": share_used(mixed(self.held_out, self.mix), self.segments),
        }

    def waste(self) -> dict[str, Any]:
        """Return how many segments the training mix never uses, and how many less than once a megabyte."""
        uses = mixed(self.train, self.mix)[self.segments]
        return {
            "segments": int(self.segments.sum()),
            "never": int((uses == 0).sum()),
            "rare": int(((uses > 0) & (uses < 1)).sum()),
        }


def diet_of_text(tokenizer: Tokenizer, train: Texts, held_out: Texts, mix: Mapping[str, float]) -> Diet:
    """Encode text of each source and say what it makes of the vocabulary."""
    return Diet(
        {name: usage_of_text(tokenizer, documents) for name, documents in train.items()},
        {name: usage_of_text(tokenizer, documents) for name, documents in held_out.items()},
        mix,
        segment_flags(tokenizer),
    )


# -- saturation --------------------------------------------------------------------------------------------------------


@frozen
class Saturation:
    """What a vocabulary of some size makes of the text: a point of the sweep.

    Attributes
    ----------
    tokenizer
        Name of the plugin.
    segments
        N: ids beside the bytes and the one that begins a document.
    used, used_held_out
        Share of the segments that the training mix and the held-out text use.
    bytes_per_token
        On held-out text, every source with its share of the mix.
    """

    tokenizer: str
    segments: int
    used: float
    used_held_out: float
    bytes_per_token: float


def saturation(name: str, tokenizer: Tokenizer, train: Texts, held_out: Texts, mix: Mapping[str, float]) -> Saturation:
    """Measure one vocabulary."""
    diet = diet_of_text(tokenizer, train, held_out, mix)
    row = diet.table()[-1]
    return Saturation(
        name, int(diet.segments.sum()), row["used"], row["used_held_out"], row["held_out_bytes_per_token"]
    )


def sweep(
    makers: Mapping[str, Callable[[int], Tokenizer]],
    sizes: Sequence[int],
    train: Texts,
    held_out: Texts,
    mix: Mapping[str, float],
) -> Iterator[Saturation]:
    """Train a tokenizer of every kind and size, and yield what each makes of the text.

    Parameters
    ----------
    makers
        By plugin name: returns a tokenizer with so many segments.
    sizes
        Numbers of segments.
    train, held_out
        Documents of each source.
    mix
        Share of each source.
    """
    for size in sizes:
        for name, make in makers.items():
            yield saturation(name, make(size), train, held_out, mix)


# -- cuts --------------------------------------------------------------------------------------------------------------


def cut(tokenizer: Tokenizer, text: str) -> str:
    """Return a text in one line, with a bar where one token ends and the next begins."""
    return "|".join(show(tokenizer.decode([number])) for number in tokenizer.encode(text.encode()).tolist())


def show(segment: bytes) -> str:
    """Return a segment in one line: line ends, controls and what is not UTF-8 as Python writes them."""
    text = segment.decode("utf-8", "backslashreplace")
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
