"""stop.coherence: scores of texts worked by hand, and when they stop a run."""

from __future__ import annotations

import pytest

from andrea import Evaluation, Sample, tokens
from andrea.plugin import get_state
from andrea.plugins.stop import coherence
from andrea.plugins.stop.coherence import Coherence, score_texts

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
KNOWN = frozenset(coherence.split_words(ENGLISH + LOOP))
SALAD = " ".join(sorted(KNOWN, key=lambda word: (word[::-1], word)))


def test_words_are_what_the_preparation_of_data_calls_words():
    """Runs of letters, digits and apostrophes in lower case; split in another way, no word would be known."""
    text = "Don't STOP: the cat's x_1, na\u00efve 'quoted' -- 42!"
    assert coherence.split_words(text) == ["don't", "stop", "the", "cat's", "x", "1", "na\u00efve", "'quoted'", "42"]
    for sample in (text, ENGLISH, LETTERS, "\u0130\u00df\u4f60\u597d_\u0967"):
        assert coherence.split_words(sample) == tokens.split_words(sample)


def test_distinct_share_by_hand():
    """The words a b a b have the bigrams ab, ba, ab, so 2 of 3 are distinct; too short a text has none."""
    assert coherence.distinct_share("abab", 2) == 2 / 3
    assert coherence.distinct_share("abab", 3) == 1.0
    assert coherence.distinct_share("a", 2) == 0.0


def test_distinct_characters_by_hand():
    """Whole windows of 200 are averaged, what is left over does not count, a shorter text is one window."""
    assert coherence.distinct_characters("ab" * 100 + "c" * 200 + "xyz") == 1.5
    assert coherence.distinct_characters("abc") == 3.0
    assert coherence.distinct_characters("") == 0.0


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


GOOD, BAD = ENGLISH, LOOP


@pytest.fixture
def walk(make_run, make_record):
    """Return a function that plays events, (step, text) or (step, held-out mean), and says after which it stops."""

    def play(events, plugin=None, words=KNOWN):
        plugin = plugin or Coherence()
        run = make_run(known_words=words)
        answers = []
        for step, event in events:
            if isinstance(event, str):
                plugin.on_sample(sample=Sample(step, 2.0, ("",), (event,)), run=run)
            else:
                plugin.on_evaluation(evaluation=Evaluation(step, {"a": 1.0}, {"a": event}))
            answers.append(plugin.should_stop())
        return answers

    return play


def stops(answers):
    return [answer is not None for answer in answers]


def test_third_failure_in_a_row_stops_without_evaluations(walk):
    """Two failures, a good sample, then three: only the last of these stops, and the reason has the score."""
    answers = walk([(step, text) for step, text in enumerate([BAD, BAD, GOOD, BAD, BAD, BAD], start=100)])
    assert stops(answers) == [False] * 5 + [True]
    total = score_texts([BAD], KNOWN).total
    assert answers[-1].startswith(f"3 incoherent samples in a row, the last with {total:.1f} of 100")


def test_a_perfect_loop_of_known_words_stops_the_run(walk):
    """A repeated pangram keeps all points for words and characters, 30 in all, and must still count as a failure."""
    loop = "The quick brown fox jumps over the lazy dog. " * 30
    run_words = frozenset(coherence.split_words(loop))
    assert score_texts([loop], run_words).total == 30.0
    assert stops(walk([(step, loop) for step in (100, 200, 300)], words=run_words)) == [False, False, True]


def test_grace_period_is_the_warm_up_of_the_learning_rate(walk):
    """Samples up to step 10 are no failures, 11 is the first; an option moves it."""
    steps = [8, 9, 10, 11, 12, 13]
    assert stops(walk([(step, BAD) for step in steps])) == [False] * 5 + [True]
    assert stops(walk([(step, BAD) for step in steps], Coherence(grace_steps=8))) == [False] * 3 + [True] * 3
    assert stops(walk([(step, BAD) for step in steps], Coherence(grace_steps=100))) == [False] * 6


def test_better_held_out_loss_starts_the_count_anew(walk):
    """As long as held-out loss falls between the samples, incoherent ones stop nothing."""
    falling = [(100 + i, BAD if i % 2 else 3.0 - i / 100) for i in range(12)]
    assert stops(walk(falling)) == [False] * 12
    flat = [(100 + i, BAD if i % 2 else 3.0) for i in range(12)]
    assert stops(walk(flat)) == [False] * 5 + [True] * 7


def test_a_run_that_evaluates_waits_for_an_evaluation(walk):
    """Failures stop it only when a held-out figure of their own time has come; a better one frees it."""
    events = [(100, 3.0), (101, 3.1), (102, BAD), (103, BAD), (104, BAD), (105, BAD)]
    assert stops(walk([*events, (106, 3.0)])) == [False] * 6 + [True]
    assert stops(walk([*events, (106, 2.9)])) == [False] * 7


def test_an_evaluation_before_a_coherent_sample_is_out_of_date(walk):
    """After a coherent sample the failures need an evaluation of their own again."""
    events = [(100, 3.0), (101, BAD), (102, 3.1), (103, GOOD), (104, BAD), (105, BAD), (106, BAD), (107, 3.1)]
    assert stops(walk(events)) == [False] * 7 + [True]


def test_threshold_is_the_last_score_that_fails(walk):
    """A sample at the threshold is incoherent, one above it is coherent; fewer failures stop earlier."""
    total = score_texts([BAD], KNOWN).total
    events = [(step, BAD) for step in range(100, 103)]
    assert stops(walk(events, Coherence(threshold=total - 1e-9))) == [False] * 3
    assert stops(walk(events, Coherence(threshold=total))) == [False, False, True]
    assert stops(walk(events, Coherence(failures=1))) == [True, True, True]


def test_last_scores_are_kept(walk):
    """Whoever shows or saves the state finds the parts of the last score in it."""
    plugin = Coherence()
    walk([(100, ENGLISH)], plugin)
    assert get_state(plugin)["scores"] == {
        "bigrams": 35.0,
        "trigrams": 35.0,
        "words": 20.0,
        "characters": 10.0,
        "total": 100.0,
    }


def test_resume_at_every_step_equals_the_uncut_run(walk, assert_resumes):
    """Counts and the best held-out mean go on where the checkpoint was written."""
    events = [(100 + i, 3.0 - i // 5 / 10 if i % 5 == 0 else BAD if i % 7 else GOOD) for i in range(25)]
    events += [(200 + i, BAD if i % 2 else 3.0) for i in range(8)]
    assert_resumes(Coherence, lambda plugin, step: walk([events[step]], plugin), steps=len(events))
