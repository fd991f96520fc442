"""Texts as they grow: what is shown never changes, and streamed or not a text is the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from andrea.errors import AndreaError
from andrea.writing import Growing, check_stops


def grow(pieces, stops=(), show=None):
    """Return a text that has taken the pieces, up to one that ends it."""
    text = Growing(lambda one: pieces[one], stops, show)
    for one in range(len(pieces)):
        if text.take(one):
            break
    return text


def cut(whole, stops):
    """Return a text up to the stop string that is complete first; of two that end together the longer one."""
    ends = [(whole.find(stop) + len(stop), whole.find(stop)) for stop in stops if stop in whole]
    return whole[: min(ends)[1]] if ends else whole


SHREDS = ["a", "b", "ab", "ba", "aab", "\n", "é", "—", "😀"]
PIECES = st.lists(st.sampled_from(SHREDS).map(str.encode) | st.binary(max_size=3))


@given(PIECES, st.lists(st.text("ab\né\ufffd", min_size=1, max_size=3), max_size=3))
def test_a_text_is_what_all_bytes_say_up_to_the_first_stop(pieces, stops):
    """However the bytes are cut into ids; and what was shown, joined, is the text."""
    shown = []
    text = grow(pieces, stops, shown.append)
    whole = b"".join(pieces).decode(errors="replace")

    assert text.finish() == "".join(shown) == cut(whole, stops)
    assert "" not in shown


def test_a_character_is_shown_when_it_is_whole():
    """Three of the four bytes of an emoji show nothing; what never becomes a character is replaced at the end."""
    shown = []
    text = Growing(lambda one: bytes([one]), (), shown.append)
    for one in "😀".encode()[:3]:
        assert not text.take(one)
    assert shown == []
    text.take("😀".encode()[3])
    assert shown == ["😀"]
    text.take(0xC3)
    assert shown == ["😀"]
    assert text.finish() == "😀\ufffd"
    assert shown == ["😀", "\ufffd"]


def test_what_may_become_a_stop_is_held_back():
    """The beginning of a stop string waits until it is one, or cannot be one any more."""
    shown = []
    pieces = [b"yes", b"\n", b"no", b"\n", b">", b" more"]
    text = Growing(lambda one: pieces[one], ("\n> ",), shown.append)
    told = []
    for one in range(len(pieces)):
        stopped = text.take(one)
        told.append("".join(shown))
        assert stopped == (one == 5)
    assert told == ["yes", "yes", "yes\nno", "yes\nno", "yes\nno", "yes\nno"]
    assert text.finish() == "yes\nno"
    assert text.tokens == 6


def test_an_unfinished_stop_is_text():
    """What was held back is shown at the end, when nothing follows."""
    shown = []
    assert grow([b"a\n", b">"], ("\n> ",), shown.append).finish() == "a\n>"
    assert shown == ["a", "\n>"]


def test_an_empty_stop_is_refused():
    """It would end every text before it begins."""
    with pytest.raises(AndreaError, match="a stop string is empty"):
        check_stops(["x", ""])
    check_stops([])
    check_stops(["x"])
