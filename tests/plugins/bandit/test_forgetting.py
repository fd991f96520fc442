"""Bandits that forget: discounted and sliding-window UCB, Thompson sampling, Exp3.S."""

from __future__ import annotations

import math

import numpy as np
import pytest

from andrea import AndreaError
from andrea.plugins.bandit.discounted_thompson import DiscountedThompson
from andrea.plugins.bandit.discounted_ucb import DiscountedUCB
from andrea.plugins.bandit.exp3s import Exp3S, _quantile
from andrea.plugins.bandit.sliding_ucb import SlidingUCB

HISTORY = [(0, 2.0), (1, 1.0), (0, 4.0), (2, 9.0)]  # source and reward of each step; d was never tried
FORGETTING = (DiscountedUCB, DiscountedThompson, SlidingUCB, Exp3S)


@pytest.fixture
def make_bandit(make_run, make_record, make_pull):
    def make(kind, history=HISTORY, **options):
        bandit = kind(**options)
        bandit.on_start(run=make_run())
        for step, (source, reward) in enumerate(history):
            bandit.on_step(record=make_record(step, make_pull(source, reward=reward)))
        return bandit

    return make


# -- discounted UCB ----------------------------------------------------------------------------------------------------


def test_discounted_statistics_are_weighted_sums(make_bandit):
    """With a discount of 1/2 the four pulls count 1/8, 1/4, 1/2 and 1, in means, counts and spread alike."""
    bandit = make_bandit(DiscountedUCB, discount=0.5)
    weights, rewards = np.array([1 / 8, 1 / 4, 1 / 2, 1]), np.array([2.0, 1.0, 4.0, 9.0])
    total = weights.sum()
    mean = (weights * rewards).sum() / total
    spread = math.sqrt((weights * (rewards - mean) ** 2).sum() / total)
    assert bandit.counts.tolist() == [5 / 8, 1 / 4, 1.0, 0.0]
    expected = [
        (2 / 8 + 4 / 2) / (5 / 8) + spread * math.sqrt(math.log(total) / (5 / 8)),
        1 + spread * math.sqrt(math.log(total) / (1 / 4)),
        9 + spread * math.sqrt(math.log(total)),
    ]
    scores = bandit.score_sources()
    assert scores[3] == math.inf
    assert scores[:3] == pytest.approx(expected, rel=1e-13)  # running sums round otherwise than the hand's


def test_without_a_discount_it_is_ucb1(make_bandit):
    """A discount of 1 forgets nothing: the scores are those of bandit.ucb1."""
    from andrea.plugins.bandit.ucb1 import UCB1

    ours, published = make_bandit(DiscountedUCB, discount=1.0), make_bandit(UCB1)
    assert ours.score_sources() == pytest.approx(published.score_sources(), rel=1e-14)  # the sums run alike


def test_a_source_tried_long_ago_stays_tried(make_bandit):
    """Its count fades, but never to that of a source never tried, and its bonus stays a number."""
    scores = make_bandit(DiscountedUCB, [(0, 1.0), *[(1, 0.5)] * 2000], discount=0.5).score_sources()
    assert math.isfinite(scores[0])
    assert scores[0] > scores[1]
    assert scores[2] == math.inf


# -- sliding window ----------------------------------------------------------------------------------------------------


def test_a_window_knows_the_last_pulls_only(make_bandit):
    """A window of 3 holds b 1, a 4, c 9: means of one pull each, and a bonus of sqrt(ln 3) spreads."""
    scores = make_bandit(SlidingUCB, window=3).score_sources()
    bonus = float(np.std([1.0, 4.0, 9.0])) * math.sqrt(math.log(3))
    assert scores.tolist() == [4 + bonus, 1 + bonus, 9 + bonus, math.inf]


def test_a_source_that_left_the_window_comes_first(make_bandit):
    """It scores at least as every source in the window, and below one never tried."""
    scores = make_bandit(SlidingUCB, [(0, 5.0), (1, 1.0), (2, 2.0), (2, 1.5)], window=3).score_sources()
    assert scores[0] == max(scores[:3])
    assert math.inf > scores[0] > scores[2]


def test_a_step_of_many_pulls_fills_the_window_in_order(make_bandit, make_record, make_pull):
    """What four steps of one pull remember, one step of four pulls does."""
    mixed = make_bandit(SlidingUCB, [], window=3)
    mixed.on_step(record=make_record(0, *(make_pull(source, reward=reward) for source, reward in HISTORY)))
    assert mixed.score_sources().tolist() == make_bandit(SlidingUCB, window=3).score_sources().tolist()


# -- Thompson ----------------------------------------------------------------------------------------------------------


def test_draws_scatter_around_the_belief(make_bandit, make_run):
    """Over 4,000 steps the scores of a source have the belief's mean and deviation."""
    bandit = make_bandit(DiscountedThompson, discount=1.0)
    scores = np.array([bandit.score_sources(step=step, run=make_run())[:3] for step in range(4000)])
    # Two pulls of a: (2 + 4 + the overall mean 4) / 3; one of b and of c: (1 + 4) / 2, (9 + 4) / 2.
    beliefs, deviations = [10 / 3, 2.5, 6.5], math.sqrt(9.5) / np.sqrt([3, 2, 2])
    # Five standard errors of a mean and of a deviation over 4,000 draws.
    assert scores.mean(axis=0) == pytest.approx(beliefs, abs=5 * deviations.max() / math.sqrt(4000))
    assert scores.std(axis=0) == pytest.approx(deviations, rel=5 / math.sqrt(8000))


def test_every_pull_of_a_step_has_a_draw_of_its_own(make_bandit, make_run):
    """The run's count of pulls moves within a step, and the draw with it; asked twice it is the same."""
    bandit = make_bandit(DiscountedThompson)
    first, second = make_run(), make_run(pulls=np.array([1, 0, 0, 0]))
    assert bandit.score_sources(step=3, run=first).tolist() == bandit.score_sources(step=3, run=first).tolist()
    assert (bandit.score_sources(step=3, run=first) != bandit.score_sources(step=3, run=second))[:3].all()


# -- Exp3.S ------------------------------------------------------------------------------------------------------------


def test_weights_grow_by_the_published_exponent(make_bandit, make_record, make_pull):
    """The second reward is above the 80% quantile, so x = 1: the log weight grows by gamma / (q S) = 0.2 / 0.5 / 4."""
    bandit = make_bandit(Exp3S, [], exploration=0.2, mixing=0.0)
    bandit.on_step(record=make_record(0, make_pull(1, reward=1.0, detail={"share": 0.5})))
    assert bandit.logs.tolist() == [0.0] * 4  # one reward has no quantiles
    bandit.on_step(record=make_record(1, make_pull(2, reward=2.0, detail={"share": 0.5})))
    weights = np.exp([-0.1, -0.1, 0.0, -0.1])
    expected = 0.8 * weights / weights.sum() + 0.2 / 4
    assert bandit.score_sources() == pytest.approx(expected, rel=1e-15)


def test_quantiles_are_those_of_numpy():
    """Of any number of rewards, to the last bit."""
    rng = np.random.default_rng(5)
    for count in range(1, 202):
        rewards = rng.normal(size=count) * 10.0 ** rng.integers(-3, 4)
        for share in (0.2, 0.8):
            assert _quantile(np.sort(rewards).tolist(), share) == np.quantile(rewards, share)


def test_mixing_brings_back_what_was_given_up(make_bandit):
    """After a change of the best source, Exp3.S follows within 300 pulls; without mixing it does not."""
    history = [(k, float(k == 0)) for k in (0, 1, 2, 3) * 300] + [(k, float(k == 1)) for k in (0, 1, 2, 3) * 75]
    assert np.argmax(make_bandit(Exp3S, history, mixing=0.01).score_sources()) == 1
    assert np.argmax(make_bandit(Exp3S, history, mixing=0.0).score_sources()) == 0


# -- all of them -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORGETTING)
def test_the_unit_of_rewards_does_not_matter(make_bandit, make_run, kind):
    """Rewards times 1024 rank the sources alike, exactly, as a power of two rounds nothing."""
    import inspect

    def rank(factor):
        bandit = make_bandit(kind, [(source, reward * factor) for source, reward in HISTORY * 3])
        wanted = inspect.signature(bandit.score_sources).parameters
        scores = bandit.score_sources(**{k: v for k, v in {"step": 5, "run": make_run()}.items() if k in wanted})
        return np.argsort(scores).tolist()

    assert rank(1024.0) == rank(1.0)


@pytest.mark.parametrize("kind", [DiscountedUCB, SlidingUCB])
def test_a_source_that_has_become_good_is_found_again(make_bandit, make_record, make_pull, kind):
    """Best source a for 600 pulls, then b: the last 200 of 1,000 pulls are mostly b."""
    bandit, chosen = make_bandit(kind, [], **({"window": 200} if kind is SlidingUCB else {"discount": 0.98})), []
    for step in range(1000):
        source = int(np.argmax(bandit.score_sources()))
        chosen.append(source)
        reward = float(source == (0 if step < 600 else 1))
        bandit.on_step(record=make_record(step, make_pull(source, reward=reward)))
    assert chosen[400:600].count(0) > 100
    assert chosen[800:].count(1) > 100


@pytest.mark.parametrize(
    ("kind", "options"),
    [(DiscountedUCB, {"discount": 0.0}), (SlidingUCB, {"window": 0}), (Exp3S, {"exploration": 0.0})],
)
def test_options_out_of_range_are_refused(kind, options):
    """The error says what was given."""
    with pytest.raises(AndreaError, match="0"):
        kind(**options)


@pytest.mark.parametrize("kind", FORGETTING)
def test_resume_at_every_step_equals_the_uncut_run(make_bandit, make_run, make_record, make_pull, assert_resumes, kind):
    """Scores after a restored state are those of the run that was never cut, bit for bit."""
    import inspect

    def play(bandit, step):
        reward = math.exp(-step / 7) * (step % 5)
        bandit.on_step(record=make_record(step, make_pull(step * step % 3, reward=reward), make_pull(3, reward=0.1)))
        wanted = inspect.signature(bandit.score_sources).parameters
        given = {k: v for k, v in {"step": step + 1, "run": make_run()}.items() if k in wanted}
        return bandit.score_sources(**given).tolist()

    assert_resumes(lambda: make_bandit(kind, []), play, steps=20)
