"""Texts as they grow: ids become characters as they come, up to a stop string.

An id may end in the middle of a character, and a stop string may come in several ids. What cannot be told yet is held
back, so that what has been shown never changes. Streamed or not, a text is made here, so it is the same text.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from attrs import frozen

from andrea.errors import AndreaError

Show = Callable[[int, str], None]  # (row, what is new of its text)


@frozen
class Written:
    """A text that a model added to a prompt.

    Attributes
    ----------
    prompt, text
        What was given, and what was added to it.
    tokens
        Ids drawn, the one that ended the text included.
    ended
        Why the text ends: ``end``, the model ended the document; ``stop``, a stop string came, which is no part of the
        text; ``length``, as many tokens as were asked for; ``interrupted``, by a person.
    """

    prompt: str
    text: str
    tokens: int
    ended: str


class Growing:
    """One text as it grows.

    Parameters
    ----------
    decode
        Gives the bytes of an id.
    stops
        The text ends before the first of these that is complete.
    show
        Is told what is new, as soon as nothing that follows can change it.
    """

    def __init__(
        self, decode: Callable[[int], bytes], stops: Sequence[str] = (), show: Callable[[str], None] | None = None
    ) -> None:
        self.text = ""
        self.tokens = 0
        self.stopped = False
        self._decode, self._stops, self._show = decode, tuple(stops), show
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._shown = 0

    def take(self, one: int) -> bool:
        """Take an id; say whether a stop string is complete."""
        self.tokens += 1
        self._grow(self._characters.decode(self._decode(one)))
        self._tell(len(self.text) if self.stopped else len(self.text) - self._undecided())
        return self.stopped

    def finish(self) -> str:
        """Show what was held back, since nothing follows, and return the whole text."""
        if not self.stopped:
            self._grow(self._characters.decode(b"", final=True))
        self._tell(len(self.text))
        return self.text

    def _grow(self, new: str) -> None:
        searched = len(self.text)
        self.text += new
        found = ((self.text.find(stop, max(0, searched - len(stop) + 1)), len(stop)) for stop in self._stops)
        complete = [(start + length, start) for start, length in found if start >= 0]
        if complete:
            self.text, self.stopped = self.text[: min(complete)[1]], True

    def _undecided(self) -> int:
        """Return how many characters at the end may be the beginning of a stop string."""
        parts = (n for stop in self._stops for n in range(1, len(stop)) if self.text.endswith(stop[:n]))
        return max(parts, default=0)

    def _tell(self, end: int) -> None:
        if self._show is not None and end > self._shown:
            self._show(self.text[self._shown : end])
            self._shown = end


def check_stops(stops: Sequence[str]) -> None:
    """Refuse a stop string that every text has.

    Raises
    ------
    AndreaError
        When one is empty.
    """
    if "" in stops:
        raise AndreaError("a stop string is empty, so no text could begin", "name what ends a text: --stop TEXT")
