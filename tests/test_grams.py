"""Runs of words as hashes: the same for the same words, other ones else, and never over the end of a document."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea import grams
from andrea.grams import WordHashes, distinct, hash_documents, hash_runs, is_in, whole_runs

DOCUMENTS = st.lists(st.lists(st.sampled_from(["a", "b", "c", "don't", "é"]), max_size=9), max_size=6)


def test_hash_of_a_word():
    """The first 8 bytes of its BLAKE2b hash, little-endian, as on every machine."""
    digest = hashlib.blake2b("été".encode(), digest_size=8).digest()
    assert WordHashes()["été"] == int.from_bytes(digest, "little")


def test_hash_of_a_run_by_hand():
    """A polynomial of the words' hashes modulo 2^64, stirred; golden, since files in the cache hold such hashes."""
    words, whole = [3, 5, 2**64 - 1], (1 << 64) - 1
    value = ((3 * 0x9E3779B97F4A7C15 + 5) * 0x9E3779B97F4A7C15 + 2**64 - 1) & whole
    value ^= value >> 32
    value = value * 0xD6E8FEB86659FD93 & whole
    value ^= value >> 32
    assert hash_runs(np.array(words, dtype=np.uint64), 3).tolist() == [value]


@given(documents=DOCUMENTS, length=st.integers(1, 5))
@settings(max_examples=200, deadline=None)
def test_equal_runs_have_equal_hashes(documents, length):
    """Two runs of documents have the same hash exactly when their words are the same ones in the same order."""
    words, lengths = hash_documents(documents, WordHashes())
    runs = hash_runs(words, length)[whole_runs(lengths, length)].tolist()
    plain = [tuple(one[i : i + length]) for one in documents for i in range(len(one) - length + 1)]
    assert len(runs) == len(plain)
    assert len(dict.fromkeys(runs)) == len(dict.fromkeys(plain)) == len(set(zip(runs, plain, strict=True)))


def test_hashing_does_not_change_what_it_is_given():
    """Runs are made in place, of a copy."""
    words = np.arange(5, dtype=np.uint64)
    hash_runs(words, 1)
    hash_runs(words, 3)
    assert words.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("length", [1, 3])
def test_too_short_a_text_has_no_run(length):
    """Nor has nothing."""
    words, lengths = hash_documents([["a"] * (length - 1), []], WordHashes())
    assert hash_runs(words, length).size == whole_runs(lengths, length).size == 0


def test_remembered_words_are_bounded(monkeypatch):
    """What is forgotten is hashed again, to the same."""
    monkeypatch.setattr(grams, "MOST_WORDS", 10)
    hashes, fresh = WordHashes(), WordHashes()
    words = [f"w{i % 25}" for i in range(200)]
    assert hashes.of(words).tolist() == [fresh[word] for word in words]
    assert len(hashes) <= 10


@given(parts=st.lists(st.lists(st.integers(0, 9)), min_size=1), asked=st.lists(st.integers(0, 12)))
def test_distinct_and_is_in_are_those_of_sets(parts, asked):
    """Sorted, each once; and found exactly when it is there."""
    arrays = [np.array(part, dtype=np.uint32) for part in parts]
    everything = {value for part in parts for value in part}
    assert distinct(arrays).tolist() == sorted(everything)
    assert is_in(np.array(asked, dtype=np.uint32), distinct(arrays)).tolist() == [
        value in everything for value in asked
    ]
