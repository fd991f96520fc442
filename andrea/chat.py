"""A conversation with a model, in the form that it was trained on: ``> `` begins a prompt, ``< `` a reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from andrea.conversations import OPENING, PROMPT, REPLY, Turn, parse_turns
from andrea.engine import GenerateOptions
from andrea.trained import Model
from andrea.writing import Written, check_stops

TURNS = (f"\n{PROMPT}", f"\n{REPLY}")  # where the model begins the next turn, its reply is over
BEGUN = REPLY.rstrip()  # a reply's own first space belongs to its first word, for most tokenizers in one token


class Chat:
    """Turns, the oldest of which are forgotten when the context is full.

    Parameters
    ----------
    model
        That replies.
    options
        How ids are drawn. Every reply has draws of its own, numbered in order, so that a seed and what is said decide
        all replies.
    stops
        End a reply too.
    opening
        A block before the first turn, which is never forgotten.

    Attributes
    ----------
    said
        The newest prompt.
    """

    def __init__(self, model: Model, options: GenerateOptions, stops: Sequence[str] = (), opening: str = "") -> None:
        check_stops(stops)
        self.model = model
        self.said = ""
        self._options = attrs.evolve(options, stop=(model.tokenizer.bos,))
        self._stops = (*TURNS, *stops)
        self._opening = [Turn(OPENING, opening).render()] if opening.strip() else []
        self._exchanges: list[str] = []
        self._replies = 0

    @property
    def transcript(self) -> str:
        """The conversation as text."""
        return "\n".join([*self._opening, *self._exchanges])

    def reply(
        self,
        said: str,
        show: Callable[[str], None] = lambda new: None,
        halt: Callable[[], bool] = lambda: False,
    ) -> Written:
        """Return the model's reply.

        Parameters
        ----------
        said
            The prompt, of one line or several.
        show
            Is told what is new behind the reply's ``<``, as it stands in the transcript.
        halt
            Asked after every token; true ends the reply.
        """
        self.said = said
        asked = f"{Turn(PROMPT, said).render()}\n{BEGUN}"
        options = attrs.evolve(self._options, first=self._replies)
        self._replies += 1
        prompt = self._fitting(asked)
        written = self.model.write([prompt], options, self._stops, lambda row, new: show(new), halt)[0]
        came = written.text.rstrip("\n")
        self._exchanges.append(asked + came)
        return attrs.evolve(written, prompt=said, text=parse_turns(REPLY + came.removeprefix(" "))[-1].text)

    def again(
        self, show: Callable[[str], None] = lambda new: None, halt: Callable[[], bool] = lambda: False
    ) -> Written:
        """Return another reply to the newest prompt, in the place of the last one."""
        self._exchanges.pop()
        return self.reply(self.said, show, halt)

    def forget(self) -> None:
        """Begin the conversation anew."""
        self._exchanges = []

    @property
    def begun(self) -> bool:
        """True when there is a reply."""
        return bool(self._exchanges)

    def _fitting(self, asked: str) -> str:
        """Return what the model reads: the opening and as many of the last exchanges as leave room for a reply."""
        room = self.model.config.model.context - self._options.max_tokens
        for first in range(len(self._exchanges) + 1):
            prompt = "\n".join([*self._opening, *self._exchanges[first:], asked])
            if self.model.begin(prompt).size <= room:
                break
        return prompt
