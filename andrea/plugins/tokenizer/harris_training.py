"""From sample text to N segments: count words, cut them by letter variety, keep what saves most.

1. Count the pieces of the sample (words with their leading space, and whatever else text is made of).
2. Cut every piece where letter variety says so. Candidates are the parts between any two cuts of a piece: single
   morphs, neighbours joined, and whole pieces.
3. Rank the candidates by the bytes they would save if each stood alone, and keep a large pool of the best.
4. Grow: cut the sample into fewest tokens, admit the candidates that would now save most, drop the segments whose loss
   would cost least, again and again until there are N. A word that is the sum of its morphs saves little once they
   are in, so morphs win where they are common.
5. Exchange: admit some more and drop as many, ever fewer, while it helps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from attrs import frozen

from andrea.plugins.tokenizer.harris_lattice import Bools, Ints, Lattice, build_trie
from andrea.plugins.tokenizer.harris_pieces import split

POOL = 24
"""Candidates in the pool, as a multiple of N."""
STEPS = 20
"""Steps in which the vocabulary grows to N."""
SURPLUS = 1.3
"""Admitted in a step of growth, as a multiple of what is left when the weakest are dropped."""
EXCHANGES = 16
"""Most rounds of exchange; the first exchanges an eighth of N."""


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
    row, column = (index.tolist() for index in np.nonzero(cut_WL))
    bounds = np.searchsorted(row, np.arange(len(words) + 1)).tolist()
    for i, (word, count) in enumerate(zip(words, counts.tolist(), strict=True)):
        edges = [k for k in column[bounds[i] : bounds[i + 1]] if 0 < k < len(word)]
        if word[0] == 32 and 1 not in edges:
            edges.insert(0, 1)  # the leading space is a morph of its own: a stem occurs without it too
        edges = [0, *edges, len(word)]
        for place, start in enumerate(edges, 1):
            for end in edges[place:]:
                if 2 <= end - start <= longest:
                    part = word[start:end]
                    weight[part] = weight.get(part, 0) + count
    saved = {part: count * (len(part) - 1) for part, count in weight.items() if count > 1}
    return sorted(saved, key=lambda part: (-saved[part], part))


class Selection:
    """The choice of the `wanted` best from a pool of candidates; it begins with none.

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
        trie = build_trie(pool)
        self.text = Lattice(words, trie)
        self.own = Lattice(pool, trie, proper=True)
        self.alive_S = np.zeros(len(pool), dtype=bool)

    def run(self) -> list[Segment]:
        """Grow, exchange, and return the segments that are used, best first."""
        for step in range(1, STEPS + 1):
            target = self.wanted * step // STEPS
            self.admit(int(SURPLUS * target) - int(self.alive_S.sum()))
            self.prune(target)
        self.exchange()
        return self.ranked()

    def exchange(self) -> None:
        """Exchange the weakest segments for the best candidates while that saves tokens, ever fewer at once."""
        best_S, best, count = self.alive_S.copy(), self.tokens(), self.wanted // 8
        for _ in range(EXCHANGES):
            self.admit(count)
            self.prune(self.wanted)
            now = self.tokens()
            if now < best:
                best_S, best = self.alive_S.copy(), now
            else:
                self.alive_S, count = best_S.copy(), count // 2
            if count == 0:
                break
        self.alive_S = best_S

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

    def prune(self, target: int) -> None:
        """Drop the segments that would cost least, so that at most `target` are left."""
        _, loss_S = self.losses()
        # Stable: of equal losses the later candidate goes, and candidates are ranked down to their bytes.
        order = np.argsort(np.where(self.alive_S, -loss_S, 1), kind="stable")
        self.alive_S[order[target:]] = False

    def admit(self, count: int) -> None:
        """Let in the `count` candidates that would now save most."""
        cost_CW, _ = self.text.shortest(self.alive_S)
        gain_S = self.text.gains(cost_CW, self.alive_S, self.counts)
        order = np.argsort(-gain_S, kind="stable")[: max(0, count)]
        self.alive_S[order[gain_S[order] > 0]] = True

    def ranked(self) -> list[Segment]:
        """Return the used segments by tokens saved, ties in byte order."""
        use_S, loss_S = self.losses()
        used = [i for i in np.flatnonzero(self.alive_S).tolist() if use_S[i] > 0]
        used.sort(key=lambda i: (-int(loss_S[i]), self.pool[i]))
        return [Segment(self.pool[i], int(use_S[i])) for i in used]
