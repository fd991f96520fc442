"""sampler.proportional: shares of score x weight, within floors and caps."""

from __future__ import annotations

import numpy as np
import pytest

from andrea.plugins.sampler.proportional import Proportional

# The seeds are fixed, so a test here gives the same number always; a right sampler passes with 999 of 1000 seeds.
LIKELY = 1e-3
DRAWS = 4000


@pytest.fixture
def count(make_run, make_limits, draw_counts):
    def run_draws(scores, weights=(1, 1, 1, 1), draws=DRAWS, **limits):
        return draw_counts(
            Proportional().select_source,
            draws,
            pull=0,
            pulls=(),
            scores=np.array(scores, dtype=float),
            weights=np.array(weights, dtype=float),
            limits=make_limits(4, **limits),
            run=make_run(),
        )

    return run_draws


def test_shares_follow_score_times_weight(count, chi_square_tail):
    """Scores 3, 1, 4, 0 and weights 1, 1, 0.5, 1 give the shares 3 : 1 : 2 : 0."""
    assert chi_square_tail(count([3, 1, 4, 0], [1, 1, 0.5, 1]), [3, 1, 2, 0]) > LIKELY


def test_wrong_shares_are_noticed(count, chi_square_tail):
    """The test above has the power to refuse what a sampler without weights would give."""
    assert chi_square_tail(count([3, 1, 4, 0], [1, 1, 0.5, 1]), [3, 1, 4, 0]) < 1e-20


def test_masked_source_with_a_floor_is_never_drawn(count, chi_square_tail):
    """A mask wins over a floor, and the others share by score."""
    assert chi_square_tail(count([3, 1, 9, 2], [1, 1, 0, 1], floor=[0, 0, 5, 0]), [3, 1, 0, 2]) > LIKELY


def test_floor_raises_and_cap_wins(count, chi_square_tail):
    """Final weights are max(score, floor), then min with the cap: 3, 0.5 -> 2, 8 -> 4 (floor 6, cap 4), 0."""
    counts = count([3, 0.5, 8, 0], floor=[0, 2, 6, 0], cap=[9, 9, 4, 9])
    assert chi_square_tail(counts, [3, 2, 4, 0]) > LIKELY


def test_scores_without_a_positive_one_mean_equal_shares(count, chi_square_tail):
    """Zero and negative scores of all allowed sources make them equal; the masked one's score does not count."""
    assert chi_square_tail(count([0, -1, 5, 0], [1, 1, 0, 1]), [1, 1, 0, 1]) > LIKELY


def test_negative_scores_count_as_zero(count):
    """A negative score beside a positive one is never drawn."""
    assert count([-1, 1, -5, 0], draws=50).tolist() == [0, 50, 0, 0]


def test_untried_source_is_taken_before_any_draw(count):
    """An allowed source of score inf comes first; masked or capped at 0 it never comes."""
    assert count([1, 1, np.inf, 1], draws=50).tolist() == [0, 0, 50, 0]
    assert count([1, np.inf, np.inf, 0], [1, 0, 1, 1], draws=50, cap=[9, 9, 0, 9]).tolist() == [50, 0, 0, 0]


def test_one_step_spreads_its_pulls_over_untried_sources(make_run, make_limits):
    """Four pulls of one step take four untried sources; a fifth still gets an answer."""
    pulls, details = [], []
    for pull in range(5):
        choice = Proportional().select_source(
            step=0,
            pull=pull,
            pulls=tuple(pulls),
            scores=np.full(4, np.inf),
            weights=np.ones(4),
            limits=make_limits(4),
            run=make_run(),
        )
        pulls.append(choice.source)
        details.append(choice.detail)
    assert sorted(pulls[:4]) == [0, 1, 2, 3]
    assert details == [{"untried": True}] * 4 + [{"share": 0.25}]


def test_choosing_is_pure(make_run, make_limits):
    """Asking twice answers the same; another pull of the same step draws anew."""
    arguments = {
        "pulls": (),
        "scores": np.arange(4.0),
        "weights": np.ones(4),
        "limits": make_limits(4),
        "run": make_run(),
    }
    first = [Proportional().select_source(step=5, pull=pull, **arguments) for pull in range(20)]
    assert first == [Proportional().select_source(step=5, pull=pull, **arguments) for pull in range(20)]
    assert len({choice.source for choice in first}) > 1


def test_shares_are_those_of_the_arrays_given(make_run, make_limits):
    """One sampler, asked with other scores, weights or limits, answers for them, also when they equal earlier ones."""
    sampler, run = Proportional(), make_run()

    def share(only, weights=(1.0,) * 4, **limits):
        arguments = {"scores": np.eye(4)[only], "weights": np.array(weights), "limits": make_limits(4, **limits)}
        choice = sampler.select_source(step=5, pull=0, pulls=(), run=run, **arguments)
        return choice.source, choice.detail["share"]

    assert share(0) == (0, 1.0)
    assert share(2) == (2, 1.0)
    assert share(2) == (2, 1.0)
    assert share(0) == (0, 1.0)
    scores, limits = np.ones(4), make_limits(4)
    first = sampler.select_source(
        step=5, pull=0, pulls=(), scores=scores, weights=np.array([1.0, 0, 0, 0]), limits=limits, run=run
    )
    second = sampler.select_source(
        step=5, pull=0, pulls=(), scores=scores, weights=np.array([0, 1.0, 0, 0]), limits=limits, run=run
    )
    assert (first.source, second.source) == (0, 1)
