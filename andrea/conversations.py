"""Conversations as text, for readers: a prompt line begins with ``> ``, a reply with ``< ``.

Of a turn of several lines the first one has the mark; the others are indented by two spaces, and empty ones stay empty.
So the first two characters of a line say what it is, whatever the turn contains, and `parse_turns` gets the turns back.
Text before the first turn, such as a system prompt, stands without a mark as an opening block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from andrea.errors import AndreaError, did_you_mean
from andrea.rows import Row
from andrea.sources import check_chunk

PROMPT, REPLY, OPENING = "> ", "< ", ""
COLUMNS = ("messages", "conversations", "conversation")
ROLES: Mapping[str, str] = {
    "user": "prompt", "human": "prompt", "prompter": "prompt", "question": "prompt",
    "assistant": "reply", "gpt": "reply", "chatgpt": "reply", "bot": "reply", "model": "reply", "answer": "reply",
    "system": "opening", "developer": "opening",
    "tool": "prompt", "function": "prompt", "observation": "prompt", "tool_response": "prompt",
    "function_call": "reply", "tool_call": "reply",
}  # fmt: skip
_MARKS = {"prompt": PROMPT, "reply": REPLY, "opening": OPENING}
_TURN = re.compile(r"^[<>] ", re.MULTILINE)


@frozen
class Turn:
    """What one side said: `mark` is `PROMPT`, `REPLY` or `OPENING`."""

    mark: str
    text: str

    def render(self) -> str:
        """Return its lines."""
        first, *others = self.text.strip("\n").split("\n")
        indent = "" if self.mark == OPENING else "  "
        if self.mark == OPENING and _TURN.match(first):
            first = f"  {first}"
        others = [f"  {line}" if line and (indent or _TURN.match(line)) else line for line in others]
        return "\n".join([self.mark + first, *others])


def parse_turns(text: str) -> list[Turn]:
    """Return the turns of a rendered conversation, its opening block first."""
    starts = [match.start() for match in _TURN.finditer(text)]
    opening = text[: starts[0]] if starts else text
    turns = [Turn(OPENING, opening.rstrip("\n"))] if opening.strip() else []
    for start, end in zip(starts, [*starts[1:], len(text) + 1], strict=True):
        first, *others = text[start : end - 1].split("\n")
        lines = [first[2:], *(line.removeprefix("  ") for line in others)]
        turns.append(Turn(first[:2], "\n".join(lines)))
    return turns


def check_roles(roles: Mapping[str, str]) -> None:
    """Refuse a role that is said to be something which no turn is."""
    for role, side in roles.items():
        if side not in (*_MARKS, "skip"):
            known = ", ".join([*_MARKS, "skip"])
            raise AndreaError(
                f"roles says that {role!r} is {side!r}", did_you_mean(side, _MARKS) or f"it may be {known}"
            )


def turns_of(row: Row, column: str | None, roles: Mapping[str, str], system: bool) -> list[Turn]:
    """Return the turns of a row, from the column of messages, by default the first of `COLUMNS` that it has.

    The other parameters, and the errors, are those of `read_messages`.
    """
    column = column or next((one for one in COLUMNS if one in row.values), COLUMNS[0])
    messages = row.get(column, "messages")
    try:
        return read_messages(messages, roles, system)
    except AndreaError as error:
        raise row.error(f"field {column!r} {error.message}", error.hint) from None


def read_messages(messages: Any, roles: Mapping[str, str], system: bool) -> list[Turn]:
    """Return the turns of a list of messages: ``role`` and ``content``, or ``from`` and ``value``.

    Content may be a text, or a list of parts of which those of type text count. Empty messages are left out, and of
    several turns of one side in a row each stays one.

    Parameters
    ----------
    messages
        As a row holds them.
    roles
        What a role is, ``prompt``, ``reply``, ``opening`` or ``skip``; beside and before `ROLES`.
    system
        Keep what is an opening; only what comes before the first turn is one, later ones are left out.

    Raises
    ------
    AndreaError
        When this is no list of messages, or a role is unknown.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise AndreaError(f"is a {type(messages).__name__}, not a list of messages", "name the column of messages")
    turns: list[Turn] = []
    for message in messages:
        role, text = _role_and_text(message)
        side = roles.get(role) or ROLES.get(role.lower())
        if side not in (*_MARKS, "skip"):
            raise AndreaError(
                f"has a message of the role {role!r}, which nobody knows",
                f'say what it is: "roles": {{"{role}": "prompt"}}, or "reply", "opening", "skip"',
            )
        if text.strip() and side != "skip" and (side != "opening" or (system and not turns)):
            turns.append(Turn(_MARKS[side], text))
    return turns


def _role_and_text(message: Any) -> tuple[str, str]:
    if isinstance(message, Mapping):
        for who, what in (("role", "content"), ("from", "value")):
            if isinstance(message.get(who), str) and what in message:
                return message[who], _content(message[what])
    found = ", ".join(map(str, message)) if isinstance(message, Mapping) else type(message).__name__
    raise AndreaError(f"has a message with {found or 'nothing'}", "a message has role and content, or from and value")


def _content(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        parts = (part.get("text") for part in value if isinstance(part, Mapping) and part.get("type") == "text")
        return "\n".join(part for part in parts if isinstance(part, str))
    raise AndreaError(f"has a content that is a {type(value).__name__}", "content is a text, or a list of parts")


def render(turns: Sequence[Turn]) -> str:
    """Return a conversation as text."""
    return "\n".join(turn.render() for turn in turns)


def render_pieces(turns: Sequence[Turn], chunk: int) -> Iterator[str]:
    """Yield a conversation in pieces of about `chunk` characters; 0 keeps it whole.

    A piece begins with a prompt, so that every reply has what it answers; one that is itself longer stays whole.
    """
    check_chunk(chunk)
    piece: list[Turn] = []
    size = 0
    for turn in turns:
        if chunk and size >= chunk and turn.mark == PROMPT:
            yield render(piece)
            piece, size = [], 0
        piece.append(turn)
        size += len(turn.text) + 3
    if piece:
        yield render(piece)


def best_threads(rows: Sequence[Mapping[str, Any]], every: bool) -> Iterator[list[Mapping[str, Any]]]:
    """Yield the threads of a tree of messages from its root to a leaf.

    Messages have ``message_id``, ``parent_id`` and perhaps ``rank``, 0 the best. At each message the best ranked reply
    goes on, or each of them if `every`. A message whose parent is not there begins a thread.
    """
    known = {row["message_id"] for row in rows}
    replies: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        parent = row.get("parent_id")
        replies.setdefault(parent if parent in known else None, []).append(row)
    for siblings in replies.values():
        siblings.sort(key=lambda row: (row.get("rank") is None, row.get("rank") or 0))  # stable
    paths = [[root] for root in reversed(replies.get(None, []))]
    while paths:
        path = paths.pop()
        after = replies.get(path[-1]["message_id"], [])
        if not after:
            yield path
        paths += [[*path, row] for row in reversed(after if every else after[:1])]
