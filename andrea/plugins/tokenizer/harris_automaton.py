"""The fewest segments for many short words at once, by the automaton of Aho and Corasick (1975) as arrays.

It gives what `fewest_ids` gives for one word after another.

Axis letters: W = words, longest first; C = columns, bytes of a word; T = states.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32]


class Automaton:
    """All segments, ready to be found in words.

    Parameters
    ----------
    segments
        Of two bytes or more; their ids count up from 257.
    """

    def __init__(self, segments: Sequence[bytes]) -> None:
        texts = sorted({segment[:end] for segment in segments for end in range(1, len(segment) + 1)}, key=len)
        texts.insert(0, b"")
        letters = np.unique(np.frombuffer(b"".join(segments), dtype=np.uint8))
        # Bytes that no segment has share the first column of the table of steps.
        self._column = np.zeros(256, dtype=np.int32)
        self._column[letters] = np.arange(1, letters.size + 1)
        self._width = letters.size + 1
        ids = {segment: 257 + number for number, segment in enumerate(segments)}
        self._id_T = np.array([ids.get(text, 0) for text in texts], dtype=np.int32)
        self._length_T = np.array([len(text) for text in texts], dtype=np.int64)
        self._length = np.ones(257 + len(segments), dtype=np.int64)  # of every id
        self._length[257:] = [len(segment) for segment in segments]
        self._connect(texts)

    def _connect(self, texts: Sequence[bytes]) -> None:
        """Find the steps from every state, and the chain of segments that end in it, longest first."""
        state = {text: number for number, text in enumerate(texts)}
        before_T = np.array([state[text[:-1]] for text in texts], dtype=np.int64)
        column_T = self._column[[text[-1] if text else 0 for text in texts]]
        step_TC = np.zeros((len(texts), self._width), dtype=np.int32)
        fall_T = np.zeros(len(texts), dtype=np.int64)  # the longest ending of a state's text that is a state
        self._ending_T = np.zeros(len(texts), dtype=np.int32)  # the state of the longest segment that ends in a state
        self._shorter_T = np.zeros(len(texts), dtype=np.int32)  # that of the next shorter one
        levels = np.searchsorted(self._length_T, np.arange(self._length_T[-1] + 3))
        for length in range(self._length_T[-1] + 1):
            level = np.arange(levels[length], levels[length + 1])
            below = np.arange(levels[length + 1], levels[length + 2])
            if length > 1:
                fall_T[level] = step_TC[fall_T[before_T[level]], column_T[level]]
            step_TC[level] = step_TC[fall_T[level]]
            step_TC[before_T[below], column_T[below]] = below
            self._shorter_T[level] = self._ending_T[fall_T[level]]
            self._ending_T[level] = np.where(self._id_T[level] > 0, level, self._shorter_T[level])
        self._step = step_TC.ravel()

    def fewest(self, text_WC: npt.NDArray[np.uint8], length_W: Ints) -> tuple[Ids, Ints]:
        """Return the fewest ids for words; of equally few, those with the longest last segment, and so on back.

        Parameters
        ----------
        text_WC
            Words, in any order; what stands behind the end of one does not matter.
        length_W
            Bytes of each, at most 100.

        Returns
        -------
        ids, count_W
            The ids of all words, end to end, and how many each has.
        """
        order = np.argsort(-length_W, kind="stable")
        text_CW = np.ascontiguousarray(text_WC[order].T)
        sorted_W = length_W[order]
        cost_CW, id_CW = self._search(text_CW, sorted_W)
        count_W = np.empty_like(length_W)
        count_W[order] = cost_CW[sorted_W, np.arange(sorted_W.size)]
        return self._collect(id_CW, sorted_W, np.cumsum(count_W)[order]), count_W

    def _search(self, text_CW: npt.NDArray[np.uint8], length_W: Ints) -> tuple[npt.NDArray[np.uint8], Ids]:
        """Return, for the first c bytes of every word, how many ids they need and the last of these."""
        words, longest = length_W.size, int(length_W.max(initial=0))
        cost_CW = np.zeros((longest + 1, words), dtype=np.uint8)
        id_CW = np.zeros((longest + 1, words), dtype=np.int32)
        cost = cost_CW.ravel()
        state_W = np.zeros(words, dtype=np.int32)
        for c in range(longest):
            reach = int(np.searchsorted(-length_W, -c))  # words longer than c: the longest come first
            byte_W = text_CW[c, :reach]
            state_W = self._step[state_W[:reach] * self._width + self._column[byte_W]]
            # Twice the ids before the last, and one more if that is a byte: any segment that is not worse is taken,
            # the longest first.
            least_W, id_W = 2 * cost_CW[c, :reach] + np.uint8(1), byte_W.astype(np.int32)
            end = self._ending_T[state_W]
            word = np.flatnonzero(end)
            end = end[word]
            while word.size:
                before = 2 * cost[(c + 1 - self._length_T[end]) * words + word]
                better = before < least_W[word]
                chosen = word[better]
                least_W[chosen], id_W[chosen] = before[better], self._id_T[end[better]]
                end = self._shorter_T[end]
                more = np.flatnonzero(end)
                word, end = word[more], end[more]
            cost_CW[c + 1, :reach], id_CW[c + 1, :reach] = least_W // 2 + 1, id_W
        return cost_CW, id_CW

    def _collect(self, id_CW: Ids, length_W: Ints, end_W: Ints) -> Ids:
        """Return the ids on the best way through every word, from `_search`; those of a word end before `end_W`."""
        ids = np.empty(int(end_W.max(initial=0)), dtype=np.int32)
        word = np.flatnonzero(length_W)
        column, place = length_W[word], end_W[word]
        while word.size:
            place -= 1
            ids[place] = last = id_CW[column, word]
            column -= self._length[last]
            more = np.flatnonzero(column)
            word, column, place = word[more], column[more], place[more]
        return ids
