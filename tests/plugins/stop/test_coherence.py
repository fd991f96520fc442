"""stop.coherence: when samples stop a run."""

from __future__ import annotations

import pytest

from andrea import Evaluation, Sample
from andrea.coherence import score_texts
from andrea.plugin import get_state
from andrea.plugins.stop.coherence import Coherence
from andrea.words import split_words

GOOD = " ".join(f"{first}{second}q" for second in "aeiou" for first in "bcdfghjklmnpqrstvwxz")  # no word twice
BAD = "I think that it is good. " * 40
KNOWN = frozenset(split_words(f"{GOOD} {BAD}"))


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
    run_words = frozenset(split_words(loop))
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
    walk([(100, GOOD)], plugin)
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
