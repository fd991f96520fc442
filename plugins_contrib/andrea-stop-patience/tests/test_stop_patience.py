import math

import pytest
from andrea_stop_patience import Patience

from andrea import AndreaError, Evaluation
from andrea.testing import check_plugin, run_steps


def reasons(values, **options):
    """Return the answers after each of a row of held-out means."""
    patience, answers = Patience(**options), []
    for step, value in enumerate(values):
        patience.on_evaluation(evaluation=Evaluation(step, {"a": value, "b": value}, {"a": value, "b": value}))
        answers.append(patience.should_stop())
    return answers


@pytest.mark.parametrize("options", [{}, {"evaluations": 1}, {"evaluations": 2, "improvement": 0.5}])
def test_it_keeps_its_contracts(options):
    """All of the kit, with options under which it acts and with its defaults."""
    check_plugin("stop.patience", **options)


def test_it_stops_after_so_many_evaluations_in_a_row():
    """An improvement starts the count anew; equal is not better."""
    answers = reasons([3.0, 2.0, 2.0, 2.5, 1.9, 1.9, 1.9, 1.9], evaluations=3)
    assert answers[:-1] == [None] * 7
    assert answers[-1] == "3 evaluations without improvement; the best mean is 1.9000 bits per byte"


def test_small_improvements_can_be_made_not_to_count():
    """With improvement 0.5, a fall by 0.5 or less is none, measured from the best that counted."""
    assert reasons([3.0, 2.7, 2.5], evaluations=2, improvement=0.5)[-1] is not None
    assert reasons([3.0, 2.7, 2.4], evaluations=2, improvement=0.5)[-1] is None


def test_a_mean_that_is_no_number_is_no_improvement():
    """NaN neither becomes the best nor hides a later better one."""
    assert reasons([math.nan, math.nan], evaluations=2)[-1] == "2 evaluations without improvement; none was a number"
    assert reasons([math.nan, 2.0], evaluations=2)[-1] is None
    assert reasons([2.0, math.nan, 1.0], evaluations=2)[-1] is None


def test_it_ends_a_run():
    """In a real loop its reason stands in the outcome under its name."""
    history = run_steps(
        {"stop.patience": {"evaluations": 2, "improvement": 100.0}}, 40, settings={"evaluation.eval_every": 3}
    )
    assert len(history.records) == 9
    assert history.reasons["stop.patience"].startswith("2 evaluations without improvement")


@pytest.mark.parametrize("options", [{"evaluations": 0}, {"improvement": -1.0}, {"improvement": math.nan}])
def test_senseless_options_are_refused(options):
    """The error says what to type instead."""
    with pytest.raises(AndreaError, match=r"stop\.patience") as caught:
        Patience(**options)
    assert "--set" in caught.value.hint
