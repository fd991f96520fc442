"""Bytes as characters, and what is cut out of bytes."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from andrea import AndreaError
from andrea.byte_level import BEGIN_NAME, CHARACTERS, VALUES, known_ids, utf8_runs, write_bytes

ByteLevel = tokenizers.pre_tokenizers.ByteLevel


def test_the_characters_are_the_library_s():
    """A byte stands for the character that the library writes for it; all 256 differ, and none is a space."""
    assert set(CHARACTERS) == set(ByteLevel.alphabet())
    assert [VALUES[character] for character in CHARACTERS] == list(range(256))
    assert " " not in VALUES
    assert " " in BEGIN_NAME
    write = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
    for text in ("".join(map(chr, range(0x80))), "".join(map(chr, range(0x80, 0x800))), "\u2014\uffff\U0001f600"):
        assert write(text)[0][0] == write_bytes(text.encode())


@given(st.binary())
def test_runs_join_to_the_data(data):
    """Stretches of UTF-8 and of other bytes are the data, cut."""
    assert b"".join(raw or text.encode() for text, raw in utf8_runs(data)) == data


def test_ids_that_do_not_exist():
    """An id outside of the tokenizer is refused with those that it has; others come back as they are."""
    assert known_ids(range(5), 5).tolist() == [0, 1, 2, 3, 4]
    assert known_ids([], 5).dtype == np.int64
    for wrong in ([4, 5], [-1], np.array([2**40])):
        with pytest.raises(AndreaError, match="has the ids 0 to 4"):
            known_ids(wrong, 5)
