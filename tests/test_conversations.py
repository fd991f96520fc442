"""Conversations become text from which the turns can be read again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from andrea import AndreaError
from andrea.conversations import (
    OPENING,
    PROMPT,
    REPLY,
    Turn,
    best_threads,
    parse_turns,
    read_messages,
    render,
    render_pieces,
)

LINES = st.lists(st.sampled_from(["a", "> b", "< c", "  d", "", "e: f"]), min_size=1, max_size=4)
TEXTS = LINES.map("\n".join).map(lambda text: text.strip("\n")).filter(bool)


@given(turns=st.lists(st.builds(Turn, st.sampled_from([PROMPT, REPLY]), TEXTS), min_size=1, max_size=6))
def test_turns_come_back(turns):
    """Whatever a turn contains, its lines cannot be taken for turns, and rendering loses nothing."""
    assert parse_turns(render(turns)) == turns


@given(opening=TEXTS, turn=TEXTS)
def test_an_opening_block_comes_back(opening, turn):
    """An opening block stays apart from the turns, whatever its lines begin with."""
    parsed = parse_turns(render([Turn(OPENING, opening), Turn(PROMPT, turn)]))
    assert parsed[-1] == Turn(PROMPT, turn)
    assert [one.mark for one in parsed] in ([OPENING, PROMPT], [PROMPT] if not opening.strip() else None)


def test_the_marks():
    """A prompt line begins with `> `, a reply with `< `, further lines are indented."""
    turns = [Turn(OPENING, "Be kind."), Turn(PROMPT, "Two\n\nlines"), Turn(REPLY, "> yes")]
    assert render(turns) == "Be kind.\n> Two\n\n  lines\n< > yes"


def test_both_kinds_of_messages_are_read():
    """Roles and contents, from and value, parts of which only text counts; empty messages are left out."""
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "U"}]}]
    messages += [{"role": "assistant", "content": None}, {"role": "assistant", "content": "A"}]
    sharegpt = [{"from": f, "value": v} for f, v in (("system", "S"), ("human", "U"), ("gpt", " "), ("gpt", "A"))]
    expected = [Turn(OPENING, "S"), Turn(PROMPT, "U"), Turn(REPLY, "A")]
    assert read_messages(messages, {}, True) == read_messages(sharegpt, {}, True) == expected
    assert read_messages(messages, {}, False) == expected[1:]
    assert read_messages([*messages, messages[0]], {}, True) == expected


def test_roles_can_be_told():
    """A further role is what the options say; a known one can be changed; an unknown one is an error that says how."""
    messages = [{"role": "narrator", "content": "N"}, {"role": "user", "content": "U"}]
    with pytest.raises(AndreaError, match="role 'narrator'") as caught:
        read_messages(messages, {}, True)
    assert '"roles": {"narrator": "prompt"}' in caught.value.hint
    assert read_messages(messages, {"narrator": "reply", "user": "skip"}, True) == [Turn(REPLY, "N")]


@pytest.mark.parametrize("wrong", ["text", 3, None, [3], [{"role": "user"}], [{"role": "user", "content": 3}]])
def test_what_is_no_list_of_messages_is_refused(wrong):
    """Each is an error that says what a message is."""
    with pytest.raises(AndreaError, match=r"is a|has a"):
        read_messages(wrong, {}, True)


def test_pieces_begin_with_a_prompt():
    """A long conversation is cut before prompts; joined, its pieces are the conversation."""
    turns = [Turn(mark, f"{number} " + "word " * 20) for number in range(20) for mark in (PROMPT, REPLY)]
    pieces = list(render_pieces(turns, 500))
    assert len(pieces) > 5
    assert all(piece.startswith(PROMPT) for piece in pieces)
    assert "\n".join(pieces) == render(turns) == next(render_pieces(turns, 0))


def test_threads_of_a_tree():
    """The best ranked replies lead to one thread, or every leaf has one; an orphan begins a thread."""
    parents = {"a": None, "b": "a", "c": "a", "d": "b", "e": "c", "x": "gone"}
    ranks = {"b": 1, "c": 0}
    rows = [{"message_id": name, "parent_id": parent, "rank": ranks.get(name)} for name, parent in parents.items()]

    def threads(every):
        return ["".join(row["message_id"] for row in thread) for thread in best_threads(rows, every)]

    assert threads(False) == ["ace", "x"]
    assert threads(True) == ["ace", "abd", "x"]
