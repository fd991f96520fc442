"""Texts that no reader takes for written ones, to try a stop on: loops, word salad, collapse, copies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from andrea.rng import Draws
from andrea.words import split_words

KINDS = ("loop", "salad", "collapse", "copy")


class Garbage:
    """Makes such texts from training text.

    - `loop`: a few words of a document, said over and over;
    - `salad`: every word follows the one before somewhere in the text, and nothing else holds it together;
    - `collapse`: one character;
    - `copy`: a document.

    Parameters
    ----------
    documents
        Training text.
    """

    def __init__(self, documents: Sequence[str]) -> None:
        self._documents = documents
        numbers = {"": 0}  # of words; 0 stands between documents
        stream = [0]
        for document in documents:
            stream += [numbers.setdefault(word, len(numbers)) for word in split_words(document)]
            stream.append(0)
        self._words, self._stream = list(numbers), np.array(stream)
        self._places = np.argsort(self._stream[:-1], kind="stable")
        self._starts = np.searchsorted(self._stream[:-1][self._places], np.arange(len(numbers) + 1))

    def text(self, kind: str, draws: Draws, words: int) -> str:
        """Return a text of one of the `KINDS`, of at most about `words` words; a copy is as long as what it copies."""
        if kind == "salad":
            return self._salad(draws, words)
        document = self._documents[draws.integer(len(self._documents))]
        if kind == "copy":
            return document
        if kind == "collapse":
            return "aeiou .,-\n"[draws.integer(10)] * (5 * words)
        said = document.split() or ["the"]
        start, length = draws.integer(len(said)), 3 + draws.integer(18)
        phrase = said[start : start + length]
        return " ".join(phrase * (words // len(phrase)))

    def _salad(self, draws: Draws, words: int) -> str:
        text: list[str] = []
        word = 0
        for point in draws.uniform(words).tolist():
            first, end = self._starts[word], self._starts[word + 1]
            word = int(self._stream[self._places[first + int(point * (end - first))] + 1])
            if word == 0:
                break
            text.append(self._words[word])
        return " ".join(text)
