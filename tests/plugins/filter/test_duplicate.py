"""filter.duplicate: the same key for the same text, and with `near` a shared key for nearly the same."""

from __future__ import annotations

import random
import sys

import pytest

from andrea import AndreaError, Document
from andrea.plugins.filter.duplicate import Duplicate


def keys(text, **options):
    return Duplicate(**options).identify_document(document=Document(text, "a", "a"))


def test_the_same_text_has_the_same_key():
    """One key, known for good, of the text alone; any other text has another one."""
    assert keys("one two") == keys("one two")
    assert len(keys("one two")) == 1
    texts = [f"text {number}" for number in range(1000)]
    assert len({keys(text)[0] for text in texts}) == 1000
    assert keys("")[0] == 13020603013274838756


def changed(words, share, draw):
    """Return a text of which a share of the runs of five words is other."""
    words = list(words)
    for place in draw.sample(range(len(words)), int(share * len(words) / 5)):
        words[place] = f"other{draw.random()}"
    return " ".join(words)


def found(share, **options):
    """Return how many of 60 texts changed so far share a key with the original."""
    draw, count = random.Random(5), 0
    for _ in range(60):
        words = [f"w{draw.randrange(10_000)}" for _ in range(400)]
        texts = " ".join(words), changed(words, share, draw)
        one, other = (set(keys(text, near=True, **options)) for text in texts)
        count += not one.isdisjoint(other)
    return count


def test_near_duplicates_share_a_key():
    """Texts that share nearly all runs of words are found, those that share half are not."""
    # A share c of changed runs leaves s = (1 - c) / (1 + c); the chance to be found is 1 - (1 - s^16)^8: more than
    # 0.999 at c = 0.02, under 1e-4 at c = 0.4, so that neither count can be missed.
    assert found(0.02) == 60
    assert found(0.4) == 0
    assert found(0.4, bands=1) == 0


def test_near_is_deterministic_and_ignores_case_and_space():
    """Keys of bands are those of the words, whatever their case and the space between them."""
    one, other = keys("A cat  sat on the\nmat today", near=True), keys("a cat sat on the mat Today", near=True)
    assert one[1:] == other[1:]
    assert one[0] != other[0]
    assert len(one) == 1 + 8
    assert all(0 <= key < 2**64 for key in one)
    assert keys("two words", near=True) == keys("two words", near=True)


def test_near_needs_its_library(monkeypatch):
    """Without it the error names the extra; exact duplicates need nothing."""
    monkeypatch.setitem(sys.modules, "rensa", None)
    with pytest.raises(AndreaError, match="needs rensa") as caught:
        Duplicate(near=True)
    assert "andrea[dedup]" in caught.value.hint
    assert Duplicate().near is False


def test_wrong_numbers_are_refused():
    """No band, or runs of no word, are the user's error."""
    for options in ({"bands": 0}, {"run": 0}):
        with pytest.raises(AndreaError, match="both are 1 or more"):
            Duplicate(**options)
