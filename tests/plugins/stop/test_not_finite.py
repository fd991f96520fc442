"""stop.not_finite: steps in a row without a usable update."""

from __future__ import annotations

import math

import pytest

from andrea import AndreaError
from andrea.plugins.stop.not_finite import NotFinite


def test_stops_after_that_many_failures_in_a_row(make_record):
    """Skipped updates and losses that are no number count together; one usable step starts the count anew."""
    plugin = NotFinite(patience=3)
    good, skipped = {}, {"skipped": True}
    steps = [skipped, {"loss": math.nan}, good, {"loss": math.inf}, skipped, skipped, good]
    answers = []
    for step, fields in enumerate(steps):
        plugin.on_step(record=make_record(step, **fields))
        answers.append(plugin.should_stop())
    assert [answer is not None for answer in answers] == [False, False, False, False, False, True, False]
    assert answers[5].startswith("3 steps in a row")


def test_default_patience_is_ten(make_record):
    """Nine skipped updates are a loss scale that searches; ten are a run that is lost."""
    plugin = NotFinite()
    answers = []
    for step in range(10):
        plugin.on_step(record=make_record(step, skipped=True))
        answers.append(plugin.should_stop() is not None)
    assert answers == [False] * 9 + [True]


def test_resume_at_every_step_equals_the_uncut_run(make_record, assert_resumes):
    """The count goes on where the checkpoint was written."""

    def play(plugin, step):
        plugin.on_step(record=make_record(step, skipped=step % 7 > 1))
        return plugin.should_stop()

    assert_resumes(lambda: NotFinite(patience=4), play, steps=15)


def test_a_patience_below_one_is_refused():
    """It would stop every run at its first step."""
    with pytest.raises(AndreaError, match=r"stop\.not_finite\.patience is 0"):
        NotFinite(patience=0)
    NotFinite(patience=1)
