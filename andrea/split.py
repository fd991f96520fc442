"""Which documents are held out: a matter of the work that they belong to, never of order or seed."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from andrea.errors import AndreaError


def group_hash(group: str) -> int:
    """Return the 64-bit hash of a work's name, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(group.encode(errors="surrogatepass"), digest_size=8).digest(), "little")


def is_held_out(group: str, share: float) -> bool:
    """Say whether a work is held out by its hash alone."""
    return group_hash(group) < int(share * 2.0**64)


def held_out_mask(hashes: npt.NDArray[np.uint64], sizes: npt.NDArray[np.int64], share: float) -> npt.NDArray[np.bool_]:
    """Return which documents of a source are held out, bool (D,).

    The rule of `is_held_out`, mended where few works make it miss. If it holds out less than half its share of the
    bytes, further works are, in the order of their hashes, until it is half; the work with the highest hash always
    stays. A source that is one single work gives its last documents, at least one.

    Parameters
    ----------
    hashes
        Of each document's group, uint64 (D,).
    sizes
        Bytes of each document, int64 (D,).
    share
        In (0, 1).

    Raises
    ------
    AndreaError
        When there is only one document, which cannot be on both sides.
    """
    if not 0 < share < 1:
        raise AndreaError(f"the held-out share is {share}", "give a number between 0 and 1, for instance 0.05")
    if len(hashes) < 2:
        raise AndreaError(
            "one document alone cannot be split into a training and a held-out part",
            "add more text, or have it cut into smaller pieces, for instance with the reader's option `chunk`",
        )
    works, work_of = np.unique(hashes, return_inverse=True)  # sorted by hash
    if works.size == 1:
        return np.arange(len(hashes)) >= len(hashes) - max(1, int(len(hashes) * share))
    below = int((works < np.uint64(int(share * 2.0**64))).sum())
    bytes_up_to = np.cumsum(np.bincount(work_of, weights=sizes))
    enough = int(np.searchsorted(bytes_up_to, share / 2 * bytes_up_to[-1])) + 1
    return work_of < min(max(below, enough), works.size - 1)
