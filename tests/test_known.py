"""What of training text is remembered: what a plain count gives, however the documents come, and bounded."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea import known as module
from andrea.grams import WordHashes, hash_runs, is_in
from andrea.known import DISCOUNT, UNSEEN_WORDS, Gatherer, Known, keys_of, known_of
from andrea.rng import Draws

NAMES = ("words", "counts", "pairs", "triples", "longs")
DOCUMENTS = st.lists(st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=14), max_size=8)
HASHES = WordHashes()


def key(*words):
    """Return the key of one run."""
    return int(keys_of(HASHES.of(words), len(words))[0])


def made_up(count, seed=0):
    """Return documents of made-up words."""
    draws = Draws(seed, "documents")
    return [[f"w{int(u * 300)}" for u in draws.uniform(20 + draws.integer(60))] for _ in range(count)]


def equal(one, other):
    return one.modulus == other.modulus and all(np.array_equal(getattr(one, n), getattr(other, n)) for n in NAMES)


@given(documents=DOCUMENTS)
@settings(max_examples=100, deadline=None)
def test_what_is_remembered_is_what_occurs(documents):
    """Words with their counts, runs of two and three; of runs of eight those whose key is a multiple of the modulus."""
    known = known_of(documents)
    count = Counter(word for words in documents for word in words)
    assert dict(zip(known.words.tolist(), known.counts.tolist(), strict=True)) == {key(w): n for w, n in count.items()}
    for name, length in (("pairs", 2), ("triples", 3), ("longs", 8)):
        runs = {key(*one[i : i + length]) for one in documents for i in range(len(one) - length + 1)}
        kept = runs if name != "longs" else {run for run in runs if run % known.modulus == 0}
        assert getattr(known, name).tolist() == sorted(kept)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("text_bytes", [0, 5 * module.MOST_BYTES])
def test_how_documents_are_handed_over_changes_nothing(monkeypatch, size, text_bytes):
    """One by one, in threes or at once, with room for few or many runs before they are sorted in."""
    documents = made_up(40)
    whole = known_of(documents, text_bytes)
    monkeypatch.setattr(module, "PENDING", 500)
    monkeypatch.setattr(module, "MOST_LONG", 100)
    gatherer, other = Gatherer(text_bytes), Gatherer(text_bytes)
    other.add(documents)
    for start in range(0, len(documents), size):
        gatherer.add(documents[start : start + size])
    thinned = gatherer.finish()
    assert equal(thinned, other.finish())
    assert all(np.array_equal(getattr(thinned, name), getattr(whole, name)) for name in NAMES if name != "longs")
    assert set(thinned.longs.tolist()) < set(whole.longs.tolist())


def test_long_runs_are_thinned_until_they_are_few(monkeypatch):
    """The modulus is doubled; what is kept are all of its multiples, so a share of known runs stays what it is."""
    documents = made_up(60)
    everything = {int(k) for words in documents for k in keys_of(HASHES.of(words), 8)}
    monkeypatch.setattr(module, "MOST_LONG", 50)
    known = known_of(documents)
    assert known.modulus > module.LEAST_MODULUS
    assert known.longs.size <= 50 < sum(run % (known.modulus // 2) == 0 for run in everything)
    assert known.longs.tolist() == sorted(run for run in everything if run % known.modulus == 0)
    asked = keys_of(HASHES.of(documents[7]), 8)
    assert is_in(known.kept(asked), known.longs).all()


def test_of_much_text_every_nth_document_is_remembered():
    """But for the runs of eight, by which copies of any document are known."""
    documents = made_up(30)
    known, third = known_of(documents, 3 * module.MOST_BYTES), known_of(documents[::3])
    for name in ("words", "counts", "pairs", "triples"):
        assert np.array_equal(getattr(known, name), getattr(third, name))
    assert np.array_equal(known.longs, known_of(documents).longs)


def test_what_is_saved_is_opened(tmp_path):
    """As it was, from memory maps."""
    known = known_of(made_up(20))
    known.save(tmp_path)
    opened = Known.open(tmp_path)
    assert equal(opened, known)
    assert isinstance(opened.pairs, np.memmap)


def test_probabilities_by_hand():
    """Of 3 + 1 words: (3 - D) / 4, (1 - D) / 4, and 2 D / 4 spread over those that are not there."""
    known = known_of([["a", "b"], ["a", "a"]])
    found = np.exp(known.log_probability(HASHES.of(["a", "b", "z"]))).tolist()
    # Logarithms and back: a few roundings.
    assert found == pytest.approx([(3 - DISCOUNT) / 4, (1 - DISCOUNT) / 4, DISCOUNT * 2 / 4 / UNSEEN_WORDS], rel=1e-12)
    assert Known().log_probability(HASHES.of(["a"])).tolist() == [-math.log(UNSEEN_WORDS)]


def test_keys_are_the_upper_halves():
    """Of the runs' hashes."""
    words = HASHES.of(["a", "b", "c"])
    assert keys_of(words, 2).tolist() == [int(run) >> 32 for run in hash_runs(words, 2)]
