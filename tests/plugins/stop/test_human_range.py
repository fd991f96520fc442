"""stop.human_range: when samples that are not like human text stop a run."""

from __future__ import annotations

import numpy as np
import pytest

from andrea import AndreaError, Evaluation, Sample
from andrea.grams import WordHashes
from andrea.human import HeldOut, make_human, measure, split
from andrea.known import known_of
from andrea.plugin import get_state
from andrea.plugins.stop.human_range import HumanRange
from andrea.rng import Draws
from andrea.words import split_words

BAD = "the rain fell on " * 30


def text(number):
    """Return a text of 60 words, of which some come back."""
    draws = Draws(0, "text", number)
    return " ".join(f"w{draws.integer(40) if draws.integer(2) else draws.integer(400)}" for _ in range(60))


GOOD = text(99)


@pytest.fixture(scope="module")
def human():
    """Return what is known of 60 texts, of which 20 are held out."""
    known, hashes = known_of([split_words(text(number)) for number in range(40)]), WordHashes()
    counts = np.array([measure(*split(text(number), hashes), known) for number in range(40, 60)])
    return make_human([known], [HeldOut(counts, 20)])


@pytest.fixture
def walk(make_run, human):
    """Return a function that plays events, (step, text) or (step, bits per byte), and says after which it stops."""

    def play(events, plugin=None, known=human):
        plugin = plugin or HumanRange()
        run = make_run(sources=("a",), human=known)
        answers = []
        for step, event in events:
            if isinstance(event, str):
                plugin.on_sample(sample=Sample(step, 2.0, ("",), (event,)), run=run)
            else:
                bits = event if isinstance(event, dict) else {"a": event}
                plugin.on_evaluation(evaluation=Evaluation(step, bits, bits))
            answers.append(plugin.should_stop())
        return answers

    return play


def stops(answers):
    return [answer is not None for answer in answers]


def quick(**options):
    return HumanRange(**{"failures": 2, "evaluations": 1, **options})


def test_failures_and_evaluations_without_a_better_one_stop_the_run(walk):
    """Three failures and five evaluations of their time, by default; the reason says what is outside."""
    events = [(100, 3.0), (101, BAD), (102, 3.0), (103, BAD), (104, 3.0), (105, BAD), (106, 3.0), (107, 3.0)]
    events += [(108, 3.1)]
    answers = walk(events)
    assert stops(answers) == [False] * 8 + [True]
    assert answers[-1].startswith("3 samples in a row outside the range of human text, the last with ")
    assert "repeats 0.679 above" in answers[-1]  # 114 of 118 runs and 0 of 50, as no run comes back in human text here
    assert answers[-1].endswith("; and no better held-out loss in 5 evaluations")


def test_grace_period_is_the_warm_up_of_the_learning_rate(walk):
    """Samples up to step 10 are no failures, 11 is the first; an option moves it."""
    events = [(8, 3.0), (9, BAD), (10, BAD), (11, BAD), (12, 3.0), (13, BAD)]
    assert stops(walk(events, quick())) == [False] * 5 + [True]
    assert stops(walk(events, quick(grace_steps=8))) == [False] * 4 + [True] * 2
    assert stops(walk(events, quick(grace_steps=100))) == [False] * 6


def test_a_sample_inside_the_range_starts_the_count_anew(walk):
    """Failures, and the evaluations of their time, are forgotten."""
    events = [(100, 3.0), (101, BAD), (102, 3.0), (103, GOOD), (104, BAD), (105, BAD), (106, 3.0)]
    assert stops(walk(events, quick())) == [False] * 6 + [True]


def test_better_held_out_text_starts_the_count_anew(walk):
    """A lower mean does, and so do more than half of the sources, though the mean is higher."""
    flat = [(100 + i, BAD if i % 2 else {"a": 3.0, "b": 3.0, "c": 3.0}) for i in range(9)]
    assert stops(walk(flat, quick())) == [False] * 3 + [True] * 6
    falling = [(100 + i, BAD if i % 2 else {"a": 3.0, "b": 3.0, "c": 3.0 - i / 100}) for i in range(9)]
    assert stops(walk(falling, quick())) == [False] * 9
    most = [(100 + i, BAD if i % 2 else {"a": 3.0 - i, "b": 3.0 - i, "c": 3.0 + 9 * i}) for i in range(9)]
    assert stops(walk(most, quick())) == [False] * 9
    one = [(100 + i, BAD if i % 2 else {"a": 3.0 - i, "b": 3.0 + i, "c": 3.0 + i}) for i in range(9)]
    assert stops(walk(one, quick())) == [False] * 3 + [True] * 6


def test_a_slow_fall_adds_up_and_a_slight_low_does_not_count(walk):
    """A part in 2,500 an evaluation is a part in 1,000 every third time; a part in 2,500 once is nothing."""
    slow = [(100 + i, BAD if i % 2 else 3.0 * (1 - 0.0004) ** (i // 2)) for i in range(40)]
    assert stops(walk(slow, quick(evaluations=3))) == [False] * 40
    slight = [(100 + i, BAD if i % 2 else 3.0 * (1 - 0.0004 * (i == 4))) for i in range(10)]
    assert stops(walk(slight, quick(evaluations=3))) == [False] * 6 + [True] * 4
    assert stops(walk(slight, quick(evaluations=3, gain=0.0))) == [False] * 10


def test_a_run_that_never_evaluates_is_never_stopped(walk):
    """Samples alone do not tell a bad model from a young one."""
    assert stops(walk([(step, BAD) for step in range(100, 120)], quick())) == [False] * 20


def test_data_without_human_text_stops_nothing(walk):
    """There is nothing to hold samples against."""
    events = [(100 + i, BAD if i % 2 else 3.0) for i in range(20)]
    plugin = quick()
    assert stops(walk(events, plugin, known=None)) == [False] * 20
    assert plugin.failed == 0


def test_the_last_verdict_is_kept(walk):
    """Whoever shows or saves the state finds the make-up of the batch, every share and its bounds."""
    plugin = HumanRange()
    walk([(100, BAD)], plugin)
    kept = get_state(plugin)
    assert kept["sources"] == {"a": 1}
    share, low, high = kept["found"]["repeats"]
    assert low < high < share
    assert any(reason.startswith("repeats 0.679 above") for reason in kept["outside"])


@pytest.mark.parametrize(("name", "value"), [("failures", 0), ("evaluations", 0), ("gain", -0.1), ("gain", 1.0)])
def test_stopping_for_nothing_is_refused(name, value):
    """The message names the option, the hint a value that it may have."""
    with pytest.raises(AndreaError, match=f"stop.human_range.{name} is {value}") as refused:
        HumanRange(**{name: value})
    assert f"--set stop.human_range.{name}=" in refused.value.hint


def test_resume_at_every_step_equals_the_uncut_run(walk, assert_resumes):
    """Counts, the best held-out figures and the last verdict go on where the checkpoint was written."""
    events = [(100 + i, 3.0 - i // 5 / 10 if i % 5 == 0 else BAD if i % 7 else GOOD) for i in range(25)]
    events += [(200 + i, BAD if i % 2 else 3.0) for i in range(8)]
    assert_resumes(quick, lambda plugin, step: walk([events[step]], plugin), steps=len(events))
