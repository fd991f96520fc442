"""bandit.ucb1 against numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from andrea import AndreaError
from andrea.plugin import get_state
from andrea.plugins.bandit.ucb1 import UCB1

# One step's source and reward each: a has 2 and 4, b has 1, c has 9, d was never tried.
HISTORY = [(0, 2.0), (1, 1.0), (0, 4.0), (2, 9.0)]


@pytest.fixture
def make_bandit(make_run, make_record, make_pull):
    def make(history=HISTORY, factor=1.0, **options):
        bandit = UCB1(**options)
        bandit.on_start(run=make_run())
        for step, (source, reward) in enumerate(history):
            bandit.on_step(record=make_record(step, make_pull(source, reward=reward * factor)))
        return bandit

    return make


def test_fixed_scale_is_the_published_formula(make_bandit):
    """Score = mean + C sqrt(ln N / n) with N = 4 pulls, C = 2; a source never tried scores inf."""
    scores = make_bandit(scale="fixed", exploration=2.0).score_sources()
    expected = [3 + 2 * math.sqrt(math.log(4) / 2), 1 + 2 * math.sqrt(math.log(4)), 9 + 2 * math.sqrt(math.log(4))]
    assert scores[3] == np.inf
    # The running mean adds in another order than the hand: a few units in the last place.
    np.testing.assert_allclose(scores[:3], expected, rtol=1e-14)


def test_auto_scale_is_the_standard_deviation_of_all_rewards(make_bandit):
    """The rewards 2, 1, 4, 9 have mean 4 and variance 38 / 4, so C = sqrt(9.5)."""
    scores = make_bandit().score_sources()
    expected = 9 + math.sqrt(9.5) * math.sqrt(math.log(4))
    # Welford's sums round differently from the hand's: a few units in the last place.
    assert scores[2] == pytest.approx(expected, rel=1e-14)


def test_auto_scale_makes_the_unit_of_rewards_irrelevant(make_bandit):
    """Rewards times 1024 give scores times 1024, exactly, as a power of two rounds nothing."""
    assert (make_bandit(factor=1024.0).score_sources() == 1024 * make_bandit().score_sources()).all()


def test_fixed_scale_lets_large_rewards_drown_the_bonus(make_bandit):
    """The property above is the automatic scale's: with a fixed one it must fail."""
    scaled, plain = make_bandit(factor=1024.0, scale="fixed"), make_bandit(scale="fixed")
    assert (scaled.score_sources()[:3] != 1024 * plain.score_sources()[:3]).all()


def test_equal_rewards_leave_the_scale_at_one(make_bandit):
    """With no spread to learn from, the rarely tried source still gets the larger bonus."""
    scores = make_bandit([(0, 0.0), (0, 0.0), (1, 0.0)]).score_sources()
    assert scores[0] == math.sqrt(math.log(3) / 2)
    assert scores[1] == math.sqrt(math.log(3))


def test_all_untried_at_the_start(make_bandit):
    """Before any pull every score is inf."""
    assert make_bandit([]).score_sources().tolist() == [np.inf] * 4


def test_skipped_update_counts_the_pull_with_reward_zero(make_bandit, make_record, make_pull):
    """A pull without reward terms is a pull of reward 0."""
    bandit = make_bandit([(0, 6.0)])
    bandit.on_step(record=make_record(1, make_pull(0), skipped=True))
    assert bandit.counts.tolist() == [2, 0, 0, 0]
    assert bandit.means.tolist() == [3.0, 0.0, 0.0, 0.0]


def test_every_pull_of_a_mixed_step_counts(make_bandit, make_record, make_pull):
    """Two pulls in one step give what the same two pulls in two steps give."""
    mixed = make_bandit([])
    mixed.on_step(record=make_record(0, make_pull(0, reward=2.0), make_pull(1, reward=5.0)))
    assert (mixed.score_sources() == make_bandit([(0, 2.0), (1, 5.0)]).score_sources()).all()


def test_scoring_is_pure(make_bandit):
    """Asking twice answers the same and changes no state."""
    bandit = make_bandit()
    before = repr(get_state(bandit))
    first = bandit.score_sources()
    first[:] = 0  # what is handed out is not the bandit's own memory
    assert bandit.score_sources()[2] > 9
    assert repr(get_state(bandit)) == before


def test_unknown_scale_is_refused():
    """The error names what was asked and what exists."""
    with pytest.raises(AndreaError, match="'automatic'") as caught:
        UCB1(scale="automatic")
    assert "auto and fixed" in caught.value.hint


def test_resume_at_every_step_equals_the_uncut_run(make_bandit, make_record, make_pull, assert_resumes):
    """Scores after a restored state are those of the run that was never cut, bit for bit."""

    def play(bandit, step):
        bandit.on_step(record=make_record(step, make_pull(step * step % 3, reward=math.exp(-step / 7) * (step % 5))))
        return bandit.score_sources().tolist()

    assert_resumes(lambda: make_bandit([]), play, steps=25)
