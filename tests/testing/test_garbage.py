"""Texts to try a stop on: what each kind is, and that the same draws make the same."""

from __future__ import annotations

import itertools

import pytest

from andrea.rng import Draws
from andrea.testing.garbage import KINDS, Garbage
from andrea.words import split_words

DOCUMENTS = ["The cat sat on the mat. The dog sat by the cat.", "A dog ran by the sea, and the cat ran on.", "Rain."]


@pytest.fixture
def garbage():
    return Garbage(DOCUMENTS)


def texts(garbage, kind, words=100):
    return [garbage.text(kind, Draws(seed, kind), words) for seed in range(20)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_draws_make_the_same_text(garbage, kind):
    """And others make others."""
    assert texts(garbage, kind) == texts(garbage, kind)
    assert len(set(texts(garbage, kind))) > 1


def test_a_loop_says_words_of_a_document_over_and_over(garbage):
    """As they stand there, until there are about a hundred."""
    for text in texts(garbage, "loop"):
        words = text.split()
        period = next(n for n in range(1, 21) if words[n:] == words[:-n])
        assert len(words) > 100 - period
        assert any(" ".join(words[:period]) in document for document in DOCUMENTS)


def test_word_salad_has_known_pairs_alone(garbage):
    """Every word follows the one before in some document, the first begins one, and the whole is no part of one."""
    plain = [split_words(document) for document in DOCUMENTS]
    pairs = {pair for words in plain for pair in itertools.pairwise(words)}
    salads = [split_words(text) for text in texts(garbage, "salad")]
    assert {words[0] for words in salads} == {words[0] for words in plain}
    assert {pair for words in salads for pair in itertools.pairwise(words)} <= pairs
    assert any(words not in [one[: len(words)] for one in plain] for words in salads)
    assert all(len(words) <= 5 for words in map(split_words, texts(garbage, "salad", words=5)))


def test_collapse_is_one_character(garbage):
    """Five for each word that was asked for."""
    assert all(text == text[0] * 500 for text in texts(garbage, "collapse"))


def test_a_copy_is_a_document(garbage):
    """Any of them."""
    assert set(texts(garbage, "copy")) == set(DOCUMENTS)
