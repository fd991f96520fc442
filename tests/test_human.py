"""What human text measures: worked by hand, and windows as samples are cut."""

from __future__ import annotations

import numpy as np
import pytest

from andrea.grams import WordHashes
from andrea.human import (
    MEASURES,
    MOST_WINDOWS,
    NEAR,
    HeldOut,
    Human,
    comes_back,
    measure,
    measure_held_out,
    split,
    windows,
)
from andrea.known import Known, known_of
from andrea.testing.steps import byte_tokenizer
from andrea.tokenfile import TokenFile, TokenWriter
from andrea.words import split_words

HASHES = WordHashes()


def found(text, known=None):
    """Return {measure: (hits, trials)} of a text."""
    counts = measure(*split(text, HASHES), known or Known())
    return {name: tuple(pair) for name, pair in zip(MEASURES, counts.tolist(), strict=True)}


def write(path, texts):
    with TokenWriter(path, byte_tokenizer()) as writer:
        for text in texts:
            writer.add(text.encode())
    return TokenFile.open(path)


def test_words_and_runs_by_hand():
    """Every share of one sentence after three known pieces of text."""
    known = known_of([["the", "cat", "sat"], ["on", "a", "hat"], ["cat", "sat", "on"]])
    measured = found("The cat sat on a mat!", known)
    assert measured["words"] == (6, 21)
    assert measured["known"] == (5, 6)
    assert measured["pairs"] == (4, 5)  # the cat, cat sat, sat on, on a
    assert measured["order"] == (2, 3)  # the cat sat and cat sat on are known; sat on a is not, and both its pairs are
    assert measured["stitched"] == (1, 4)
    assert measured["repeats"] == (0, 4)
    assert measured["returns"] == (0, 0)
    assert measured["copied"] == (0, 0)


def test_copied_text_is_known_as_a_whole():
    """Every run of eight of it that would be remembered is."""
    words = [f"w{i}" for i in range(300)]
    known = known_of([words])
    hits, trials = found(" ".join(words[40:200]), known)["copied"]
    assert hits == trials > 20
    assert found(" ".join(words[200:40:-1]), known)["copied"][0] == 0


def test_what_comes_back():
    """A value counts when it stood among the `NEAR` before it, wherever else it stood."""
    values = np.array([1, 2, 1, *range(10, 10 + NEAR - 1), 1, *range(100, 100 + NEAR), 1])
    assert np.flatnonzero(comes_back(values)).tolist() == [2, 2 + NEAR]
    assert comes_back(np.empty(0, np.uint32)).size == 0


def test_returns_count_from_where_there_are_enough_words_before():
    """Else short texts would seem to come back to nothing."""
    assert found("a b " * (NEAR // 2))["returns"] == (0, 0)
    assert found("a b " * NEAR)["returns"] == (NEAR, NEAR)
    assert found("a b c " * 4)["repeats"] == (7, 10)


@pytest.mark.parametrize("text", ["", " \n", "?!", "one", "one two"])
def test_too_little_text_has_few_trials(text):
    """And no hits that it has no trials for."""
    measured = found(text, known_of([["one", "two", "three"]]))
    assert measured["words"] == (len(split_words(text)), len(text))
    assert all(hits <= trials for hits, trials in measured.values())


def test_texts_are_held_against_every_source():
    """Counts have texts first, then sources; a text is likeliest where its words are frequent."""
    known = tuple(known_of([split_words(text)]) for text in ("the cat sat on the mat", "rain and wind and rain"))
    human = Human(known, (), ())
    texts = ("the cat", "rain and rain", "")
    counts = human.measure(texts)
    assert counts.shape == (3, 2, len(MEASURES), 2)
    assert counts[0, 0].tolist() == [list(pair) for pair in found("the cat", known[0]).values()]
    likelihood = human.log_likelihood(texts)
    assert likelihood.argmax(axis=1).tolist()[:2] == [0, 1]
    assert likelihood[2].tolist() == [0.0, 0.0]


def test_windows_are_cut_as_samples_are(tmp_path):
    """The beginning of every document, and what follows it as long as it is whole."""
    file = write(tmp_path / "a.btok", ["abcdefgh", "xyz", "123456"])
    assert list(windows(file, byte_tokenizer(), 4)) == [(0, "abcd"), (0, "efgh"), (1, "xyz"), (2, "1234")]
    assert list(windows(file, byte_tokenizer(), 100)) == [(0, "abcdefgh"), (1, "xyz"), (2, "123456")]


def test_windows_come_from_all_over_a_large_file(tmp_path):
    """Not more than `MOST_WINDOWS`, always the same ones."""
    file = write(tmp_path / "a.btok", [f"{number:04d}" for number in range(3 * MOST_WINDOWS)])
    chosen = [int(text) for _, text in windows(file, byte_tokenizer(), 4)]
    assert len(set(chosen)) == MOST_WINDOWS
    assert chosen == [number for number, _ in windows(file, byte_tokenizer(), 4)]
    assert 1.2 * MOST_WINDOWS < np.mean(chosen) < 1.8 * MOST_WINDOWS


def test_a_character_cut_in_two_is_replaced(tmp_path):
    """A window may end within a character, as a sample may."""
    file = write(tmp_path / "a.btok", ["abé"])
    assert list(windows(file, byte_tokenizer(), 3)) == [(0, "ab\ufffd")]


def test_what_windows_measure_is_kept(tmp_path):
    """Written and read again, it is the same."""
    file, known = write(tmp_path / "a.btok", ["the cat sat down on", "on the mat"]), known_of([["the", "cat"]])
    held_out = measure_held_out(file, byte_tokenizer(), known, 8)
    assert held_out.counts.shape == (3, len(MEASURES), 2)
    assert held_out.documents == 2
    (tmp_path / "a.json").write_bytes(held_out.to_bytes())
    again = HeldOut.read(tmp_path / "a.json")
    assert again.documents == 2
    assert np.array_equal(again.counts, held_out.counts)
