"""Fewest segments for many words at once: a lattice of all places where a segment fits, and its shortest paths.

Axis letters: W = words, longest first; E = edges; C = columns, the offsets within a word, 0 to the longest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Trie = tuple[Ints, Ints, Ints]


class Lattice:
    """All edges of all words: an edge says that segment s fits word w from offset a to offset b.

    Parameters
    ----------
    words
        What is to be cut; order is free.
    trie
        From `build_trie`, of the segments that it may be cut into beside single bytes; each at least 2 bytes long.
    proper
        Leave out the edges that span a whole word: what would a segment cost if it did not exist?
    """

    def __init__(self, words: Sequence[bytes], trie: Trie, proper: bool = False) -> None:
        lengths = np.array([len(word) for word in words], dtype=np.int64)
        self.order = np.argsort(-lengths, kind="stable")
        self.lengths_W = lengths[self.order]
        self.longest = int(lengths.max(initial=0))
        word_E, start_E, end_E, segment_E = find_edges([words[i] for i in self.order], trie)
        if proper:
            kept = end_E - start_E < self.lengths_W[word_E]
            word_E, start_E, end_E, segment_E = word_E[kept], start_E[kept], end_E[kept], segment_E[kept]
        by_end = np.argsort(end_E, kind="stable")
        bounds = np.searchsorted(end_E[by_end], np.arange(self.longest + 2))
        self._columns = [
            (word_E[rows], start_E[rows], segment_E[rows])
            for rows in (by_end[bounds[c] : bounds[c + 1]] for c in range(self.longest + 1))
        ]
        # Words that reach column c are the first _reach[c], because the longest come first.
        self._reach = [int(np.searchsorted(-self.lengths_W, -c, side="right")) for c in range(self.longest + 1)]

    def shortest(self, alive_S: Bools) -> tuple[npt.NDArray[np.int32], list[Ints]]:
        """Find the fewest tokens for every beginning of every word.

        Of equally short ways the one with the longest last segment is taken, and so on from the end.

        Parameters
        ----------
        alive_S
            Segments that may be used.

        Returns
        -------
        cost_CW, choice_C
            Tokens for the first c bytes; and per column, for the words that reach it, ``start << 32 | segment + 1``
            of the last token, where segment + 1 = 0 means a single byte.
        """
        cost_CW = np.zeros((self.longest + 1, len(self.lengths_W)), dtype=np.int32)
        choice_C: list[Ints] = [np.zeros(0, dtype=np.int64)]
        for c in range(1, self.longest + 1):
            word_E, start_E, segment_E = self._columns[c]
            live = alive_S[segment_E]
            word_E, start_E, segment_E = word_E[live], start_E[live], segment_E[live]
            # One number to minimise: cost, then start (early = long), then what is to be remembered.
            best_W = (cost_CW[c - 1, : self._reach[c]].astype(np.int64) + 1) << 40 | (c - 1) << 32
            edge_E = (cost_CW[start_E, word_E].astype(np.int64) + 1) << 40 | start_E << 32 | segment_E + 1
            np.minimum.at(best_W, word_E, edge_E)
            cost_CW[c, : self._reach[c]] = best_W >> 40
            choice_C.append(best_W & ((1 << 40) - 1))
        return cost_CW, choice_C

    def totals(self, cost_CW: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the tokens of every word, int32 (W,), in the order in which the words were given."""
        total_W = np.empty(len(self.lengths_W), dtype=np.int32)
        total_W[self.order] = cost_CW[self.lengths_W, np.arange(len(self.lengths_W))]
        return total_W

    def uses(self, choice_C: list[Ints], counts: Ints, segments: int) -> Ints:
        """Return how often each segment stands on the shortest paths, int64 (S,), words weighted by `counts`."""
        count_W = counts[self.order]
        on_path_CW = np.zeros((self.longest + 1, len(self.lengths_W)), dtype=bool)
        on_path_CW[self.lengths_W, np.arange(len(self.lengths_W))] = True
        use_S = np.zeros(segments + 1, dtype=np.int64)
        for c in range(self.longest, 0, -1):
            word = np.flatnonzero(on_path_CW[c, : self._reach[c]])
            choice = choice_C[c][word]
            on_path_CW[choice >> 32, word] = True
            np.add.at(use_S, choice & 0xFFFFFFFF, count_W[word])
        return use_S[1:]

    def gains(self, cost_CW: npt.NDArray[np.int32], alive_S: Bools, counts: Ints) -> Ints:
        """Return how many tokens each dead segment would save if it alone came alive, int64 (S,).

        Exact but for words in which it would be used twice.
        """
        count_W = counts[self.order]
        rest_CW = self._rest(alive_S)
        total_W = rest_CW[0]
        gain_S = np.zeros(len(alive_S), dtype=np.int64)
        for c in range(1, self.longest + 1):
            word_E, start_E, segment_E = self._columns[c]
            dead = ~alive_S[segment_E]
            word_E, start_E, segment_E = word_E[dead], start_E[dead], segment_E[dead]
            saved = total_W[word_E] - (cost_CW[start_E, word_E] + 1 + rest_CW[c, word_E])
            better = saved > 0
            np.add.at(gain_S, segment_E[better], saved[better] * count_W[word_E[better]])
        return gain_S

    def _rest(self, alive_S: Bools) -> npt.NDArray[np.int32]:
        """Return the fewest tokens from every column to the end of every word, int32 (C, W)."""
        rest_CW = np.full((self.longest + 1, len(self.lengths_W)), 1 << 20, dtype=np.int32)
        rest_CW[self.lengths_W, np.arange(len(self.lengths_W))] = 0
        for c in range(self.longest, 0, -1):
            reach = self._reach[c]
            np.minimum(rest_CW[c - 1, :reach], rest_CW[c, :reach] + 1, out=rest_CW[c - 1, :reach])
            word_E, start_E, segment_E = self._columns[c]
            live = alive_S[segment_E]
            np.minimum.at(rest_CW, (start_E[live], word_E[live]), rest_CW[c, word_E[live]] + 1)
        return rest_CW


def find_edges(words: Sequence[bytes], trie: Trie) -> tuple[Ints, Ints, Ints, Ints]:
    """Find every place where a segment fits: word, start, end and segment of each, int64 (E,).

    All positions of all words walk down one trie of the segments together, a byte a step; those that fall off it drop
    out, so the work is the number of matching beginnings.
    """
    key_T, child_T, ending_T = trie
    text = np.frombuffer(b"".join(words), dtype=np.uint8).astype(np.int64)
    lengths = np.array([len(word) for word in words], dtype=np.int64)
    first = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    position = np.arange(len(text))
    word = np.repeat(np.arange(len(words)), lengths)
    last = first[word + 1]
    node = np.zeros(len(text), dtype=np.int64)
    found: list[tuple[Ints, Ints, Ints, Ints]] = []
    depth = 0
    while len(position) and len(key_T):
        key = node << 8 | text[position + depth]
        place = np.minimum(np.searchsorted(key_T, key), len(key_T) - 1)
        hit = key_T[place] == key
        position, word, last, node = position[hit], word[hit], last[hit], child_T[place[hit]]
        depth += 1
        ends = ending_T[node] >= 0
        start = position[ends] - first[word[ends]]
        found.append((word[ends], start, start + depth, ending_T[node[ends]]))
        goes_on = position + depth < last
        position, word, last, node = position[goes_on], word[goes_on], last[goes_on], node[goes_on]
    if not found:
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty, empty, empty
    word_E, start_E, end_E, segment_E = (np.concatenate(part) for part in zip(*found, strict=True))
    return word_E, start_E, end_E, segment_E


def build_trie(segments: Sequence[bytes]) -> Trie:
    """Return a trie: sorted keys ``node << 8 | byte``, the child of each, and per node the segment it ends or -1."""
    nodes: dict[bytes, int] = {b"": 0}
    key: list[int] = []
    for segment in segments:
        for end in range(1, len(segment) + 1):
            prefix = segment[:end]
            if prefix not in nodes:
                nodes[prefix] = len(nodes)
                key.append(nodes[prefix[:-1]] << 8 | prefix[-1])
    ending = np.full(len(nodes), -1, dtype=np.int64)
    ending[[nodes[segment] for segment in segments]] = np.arange(len(segments))
    key_T = np.array(key, dtype=np.int64)
    order = np.argsort(key_T)
    return key_T[order], order + 1, ending
