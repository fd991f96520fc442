"""Scores of texts worked by hand."""

from __future__ import annotations

import pytest

from andrea.coherence import distinct_characters, distinct_share, score_texts
from andrea.words import split_words

ENGLISH = (
    "The ferry left a little before seven, while the harbour was still grey and the gulls argued over the nets. "
    "Marta stood at the rail with her collar up and counted the lamps along the mole until they ran together. Nobody "
    "had asked her to come, and she had told nobody that she would. Her brother's letter was in her pocket; she knew "
    "it by heart, as one knows a bill that cannot be paid. When the engine settled into its long even note, an old man "
    "beside her opened a tin of biscuits, offered her one without a word, and went on looking at the water."
)
LOOP = "I think that it is good. " * 40
COLLAPSE = "a" * 800
LETTERS = " ".join(f"{first}{second}qx" for first in "bcdfghjklm" for second in "npqrstvwxz")
KNOWN = frozenset(split_words(f"{ENGLISH} {LOOP}"))
SALAD = " ".join(sorted(KNOWN, key=lambda word: (word[::-1], word)))


def test_distinct_share_by_hand():
    """The words a b a b have the bigrams ab, ba, ab, so 2 of 3 are distinct; too short a text has none."""
    assert distinct_share("abab", 2) == 2 / 3
    assert distinct_share("abab", 3) == 1.0
    assert distinct_share("a", 2) == 0.0


def test_distinct_characters_by_hand():
    """Whole windows of 200 are averaged, what is left over does not count, a shorter text is one window."""
    assert distinct_characters("ab" * 100 + "c" * 200 + "xyz") == 1.5
    assert distinct_characters("abc") == 3.0
    assert distinct_characters("") == 0.0


def test_formula_by_hand():
    """One text with d_2 = 2/3 and d_3 = 1 of a b a b, half of whose words are known, with three characters."""
    scores = score_texts(["a b a b"], frozenset({"a"}))
    # Each part is a handful of operations on numbers near 1: 1e-12 is far above their rounding.
    assert scores.bigrams == pytest.approx(35 * (2 / 3 - 0.3) / 0.6, rel=1e-12)
    assert scores.trigrams == 35.0
    assert scores.words == 10.0
    assert scores.characters == pytest.approx(1.5, rel=1e-12)
    assert scores.total == scores.bigrams + 35.0 + 10.0 + scores.characters


def test_shares_of_samples_are_averaged_and_words_are_pooled():
    """Of two samples the diversity is the mean of both, while a long one has more words to be judged."""
    loop, plain = "a b " * 50, "c d e f g h"
    scores = score_texts([loop, plain], frozenset("cdefgh"))
    d_2 = (2 / 99 + 1) / 2
    assert scores.bigrams == pytest.approx(35 * (d_2 - 0.3) / 0.6, rel=1e-12)  # rounding, as above
    assert scores.words == pytest.approx(20 * 6 / 106, rel=1e-12)


def test_ordinary_english_is_coherent():
    """Written text has all of the points."""
    assert score_texts([ENGLISH], KNOWN).total == 100.0


def test_loops_and_collapse_are_incoherent():
    """A repeated sentence of known words keeps only words and characters; one letter or nothing keeps nothing."""
    assert score_texts([LOOP], KNOWN).total < 30
    assert score_texts([LOOP], KNOWN)[:3] == (0.0, 0.0, 20.0)
    assert score_texts([COLLAPSE], KNOWN).total == 0.5  # one character of twenty
    for nothing in ([""], [], ["", ""], ["?!.. --"]):
        assert score_texts(nothing, KNOWN)[:3] == (0.0, 0.0, 0.0)
    assert score_texts([""], KNOWN).total == 0.0


def test_salad_repeats_nothing_and_so_passes():
    """The published formulas cannot see order: random known words score full, unknown ones lose exactly the words."""
    assert score_texts([SALAD], KNOWN).total == 100.0
    assert score_texts([LETTERS], KNOWN)[:3] == (35.0, 35.0, 0.0)


def test_without_known_words_the_other_parts_are_stretched_to_100():
    """English keeps its 100, the loop stays below the threshold, and the words are not judged."""
    assert score_texts([ENGLISH], frozenset()).total == pytest.approx(100.0, rel=1e-15)  # 80 / 0.8 may round
    assert score_texts([ENGLISH], frozenset()).words is None
    assert score_texts([LOOP], frozenset()).total < 30
