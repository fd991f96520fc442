import math

import numpy as np
import pytest
from andrea_bandit_exp3 import Exp3, share_of

from andrea import AndreaError, Limits, Pull, StepRecord
from andrea.testing import check_plugin, run_steps


class ThreeSources:
    sources = ("a", "b", "c")


def started(**options):
    bandit = Exp3(**options)
    bandit.on_start(run=ThreeSources())
    return bandit


def pull(source, reward, scores=None, **detail):
    scores = np.full(3, 1 / 3) if scores is None else scores
    limits = Limits(np.zeros(3), np.full(3, np.inf))
    return Pull(source, (0,), 2.0, scores, np.ones(3), limits, detail, {"term": reward})


def record(*pulls, skipped=False):
    return StepRecord(0, pulls, 2.0, 1.0, 1e-3, skipped, 64)


@pytest.mark.parametrize("options", [{}, {"exploration": 0.5, "mixing": 0.0, "window": 3}])
def test_it_keeps_its_contracts(options):
    """All of the kit."""
    check_plugin("bandit.exp3", **options)


def test_scores_are_probabilities():
    """They sum to 1 and none is below gamma / S, however one-sided the rewards are."""
    bandit = started(exploration=0.3)
    for step in range(500):
        bandit.on_step(record=record(pull(step % 3, float(step % 3 == 1) + 0.001 * step)))
    scores = bandit.score_sources()
    assert math.isclose(scores.sum(), 1.0, rel_tol=1e-12)  # three additions round at 1e-16 each
    assert scores.min() >= 0.1
    assert scores.argmax() == 1


def test_an_update_by_hand():
    """gamma 0.5, q 0.25, reward at the top of its window: the logarithm grows by 0.5 / (0.25 x 3)."""
    bandit = started(exploration=0.5, mixing=0.0)
    bandit.rewards = [0.0, 0.0, 0.0, 0.0]
    bandit.on_step(record=record(pull(2, 1.0, share=0.25), pull(2, 1.0, share=0.25)))
    # The window [0, 0, 0, 0, 1] has the quantiles 0 and 0.2, and with one more 1 they are 0 and 1: both rewards are 1.
    # 0.5 / 0.75 each, and then the largest becomes 0.
    grown = 2 * (0.5 * (1 / 0.25) / 3)
    assert bandit.logs.tolist() == [-grown, -grown, 0.0]
    weights = np.exp([-grown, -grown, 0.0])
    assert bandit.score_sources().tolist() == (0.5 * weights / weights.sum() + 0.5 / 3).tolist()


def test_rare_draws_count_more():
    """The same reward moves a source twice as far that was drawn with half the probability."""
    moves = []
    for share in (0.4, 0.8):
        bandit = started(mixing=0.0)
        bandit.rewards = [0.0] * 4
        bandit.on_step(record=record(pull(0, 1.0, share=share)))
        moves.append(-bandit.logs[1])
    assert math.isclose(moves[0], 2 * moves[1], rel_tol=1e-12)  # one division and one product


def test_the_share_is_worked_out_where_the_sampler_is_silent():
    """It is that of a draw in proportion to score x weight."""
    assert share_of(pull(1, 1.0, np.array([0.2, 0.5, 0.3]))) == 0.5
    assert share_of(pull(1, 1.0, np.array([0.2, 0.5, 0.3]), share=0.9)) == 0.9


def test_the_unit_of_rewards_does_not_matter():
    """Rewards multiplied by 1024, which is exact, lead to the same scores."""
    bandits = [started(), started()]
    for step in range(100):
        reward = float((step * 7) % 11)
        for bandit, unit in zip(bandits, (1.0, 1024.0), strict=True):
            bandit.on_step(record=record(pull(step % 3, reward * unit)))
    assert bandits[0].score_sources().tolist() == bandits[1].score_sources().tolist()


def test_mixing_lets_a_late_source_come_up():
    """After a long time in which one source paid, another that pays now overtakes it sooner with mixing."""

    def steps_until_overtaken(mixing):
        bandit = started(mixing=mixing, window=20)
        for step in range(600):
            bandit.on_step(record=record(pull(step % 3, float(step % 3 == 0))))
        for step in range(3000):
            bandit.on_step(record=record(pull(step % 3, float(step % 3 == 1))))
            scores = bandit.score_sources()
            if scores[1] > scores[0]:
                return step
        return 3000

    assert steps_until_overtaken(0.01) < steps_until_overtaken(0.0) < 3000


def test_a_skipped_update_teaches_nothing():
    """Its pulls have no reward, which is not a reward of 0."""
    bandit = started()
    bandit.on_step(record=record(pull(0, 5.0)))
    before = bandit.logs.tolist(), list(bandit.rewards)
    bandit.on_step(record=record(pull(1, 0.0), skipped=True))
    assert (bandit.logs.tolist(), bandit.rewards) == before


def test_it_drives_a_run():
    """In a real loop the sampler draws by its scores and reports the share that it learns from."""
    history = run_steps(["bandit.exp3", "sampler.proportional"], 30)
    first = history.records[0].pulls[0]
    assert first.scores.tolist() == [0.25] * 4
    assert first.detail["share"] == 0.25
    assert len({tuple(one.pulls[0].scores) for one in history.records}) > 10


@pytest.mark.parametrize("options", [{"exploration": 0.0}, {"exploration": 1.5}, {"mixing": -0.1}, {"window": 1}])
def test_senseless_options_are_refused(options):
    """The error says what to type instead."""
    with pytest.raises(AndreaError, match=r"bandit\.exp3") as caught:
        started(**options)
    assert "--set" in caught.value.hint
