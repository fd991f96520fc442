"""From sample text to N segments: count words, cut them by letter variety, keep what saves most.

1. Count the pieces of the sample (words with their leading space, and whatever else text is made of).
2. Cut every piece where letter variety says so. Candidates are the parts between any two cuts of a piece: single
   morphs, neighbours joined, and whole pieces.
3. Rank by bytes saved, keep a large pool, and prune it: cut the sample into fewest segments, drop those whose loss
   costs least, again and again until N are left.
4. Exchange: let the candidates in that would now save most, prune back to N, while it helps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
from attrs import frozen

from andrea.plugins.tokenizer.harris_lattice import Bools, Ints, Lattice
from andrea.plugins.tokenizer.harris_pieces import split

POOL = 12
"""Candidates that enter the pruning, as a multiple of N."""
KEEP = 0.8
"""Share of the pool that a round of pruning keeps."""
EXCHANGES = 6
"""Most rounds of exchange."""


@frozen
class Segment:
    """A segment and how often fewest-token encoding of the sample used it."""

    text: bytes
    count: int


def train_segments(
    documents: Iterable[bytes], rule: Callable[[Sequence[bytes]], Bools], wanted: int, longest: int
) -> list[Segment]:
    """Return at most `wanted` segments, those that save most bytes first.

    Parameters
    ----------
    documents
        Training text.
    rule
        Takes sorted words, returns bool (W, L + 1): column k says whether to cut after k bytes.
    wanted
        Number of segments; fewer come back when the text does not supply them.
    longest
        Longest segment in bytes.
    """
    pieces = count_pieces(documents)
    words = sorted(piece for piece, count in pieces.items() if count > 1 and len(piece) > 1)
    counts = np.array([pieces[word] for word in words], dtype=np.int64)
    if not words or wanted == 0:
        return []
    pool = rank_candidates(words, counts, rule(words), longest)[: POOL * wanted + 4096]
    return Selection(words, counts, pool, wanted).run()


def count_pieces(documents: Iterable[bytes]) -> Counter[bytes]:
    """Count the pieces of all documents."""
    pieces: Counter[bytes] = Counter()
    for document in documents:
        for part in split(document):
            pieces.update(part)
    return pieces


def rank_candidates(words: Sequence[bytes], counts: Ints, cut_WL: Bools, longest: int) -> list[bytes]:
    """Return the parts between any two cuts of a word, those that save most bytes first, ties in byte order."""
    weight: dict[bytes, int] = {}
    for word, count, cut in zip(words, counts.tolist(), cut_WL, strict=True):
        edges = [k for k in np.flatnonzero(cut).tolist() if 0 < k < len(word)]
        if word[0] == 32 and 1 not in edges:
            edges.insert(0, 1)  # the leading space is a morph of its own: a stem occurs without it too
        edges = [0, *edges, len(word)]
        for i, start in enumerate(edges):
            for end in edges[i + 1 :]:
                if 2 <= end - start <= longest:
                    part = word[start:end]
                    weight[part] = weight.get(part, 0) + count
    saved = {part: count * (len(part) - 1) for part, count in weight.items() if count > 1}
    return sorted(saved, key=lambda part: (-saved[part], part))


class Selection:
    """A pool of candidates that is pruned to the `wanted` best.

    Parameters
    ----------
    words, counts
        The sample: different words and how often each occurs.
    pool
        Candidates.
    wanted
        How many to keep.
    """

    def __init__(self, words: Sequence[bytes], counts: Ints, pool: Sequence[bytes], wanted: int) -> None:
        self.counts, self.pool, self.wanted = counts, pool, wanted
        self.text = Lattice(words, pool)
        self.own = Lattice(pool, pool, proper=True)
        self.alive_S = np.ones(len(pool), dtype=bool)

    def run(self) -> list[Segment]:
        """Prune, exchange while it helps, and return the segments that are left, best first."""
        self.prune(KEEP)
        best_S, best = self.alive_S.copy(), self.tokens()
        for _ in range(EXCHANGES):
            self.admit(self.wanted // 4)
            self.prune(0.95)
            if self.tokens() >= best:
                break
            best_S, best = self.alive_S.copy(), self.tokens()
        self.alive_S = best_S
        return self.ranked()

    def tokens(self) -> int:
        """Return the tokens of the sample."""
        cost_CW, _ = self.text.shortest(self.alive_S)
        return int(self.text.totals(cost_CW) @ self.counts)

    def losses(self) -> tuple[Ints, Ints]:
        """Return for every segment how often it is used, and how many tokens more its uses would be without it."""
        _, choice_C = self.text.shortest(self.alive_S)
        use_S = self.text.uses(choice_C, self.counts, len(self.pool))
        own_CW, _ = self.own.shortest(self.alive_S)
        return use_S, use_S * (self.own.totals(own_CW) - 1)

    def prune(self, keep: float) -> None:
        """Drop the segments that cost least, round by round, until `wanted` are left."""
        while (left := int(self.alive_S.sum())) > self.wanted:
            _, loss_S = self.losses()
            kept = max(self.wanted, int(left * keep))
            # Stable: of equal losses the later candidate goes, and candidates are ranked down to their bytes.
            order = np.argsort(np.where(self.alive_S, -loss_S, 1), kind="stable")
            self.alive_S[order[kept:]] = False

    def admit(self, count: int) -> None:
        """Bring the `count` dead candidates back that would save most now."""
        cost_CW, _ = self.text.shortest(self.alive_S)
        gain_S = self.text.gains(cost_CW, self.alive_S, self.counts)
        order = np.argsort(-gain_S, kind="stable")[:count]
        self.alive_S[order[gain_S[order] > 0]] = True

    def ranked(self) -> list[Segment]:
        """Return the used segments by tokens saved, ties in byte order."""
        use_S, loss_S = self.losses()
        used = [i for i in np.flatnonzero(self.alive_S).tolist() if use_S[i] > 0]
        used.sort(key=lambda i: (-int(loss_S[i]), self.pool[i]))
        return [Segment(self.pool[i], int(use_S[i])) for i in used]


Floats = npt.NDArray[np.float64]
