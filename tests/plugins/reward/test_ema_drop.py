"""reward.ema_drop against numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from andrea import AndreaError
from andrea.plugin import get_state
from andrea.plugins.reward.ema_drop import EmaDrop


@pytest.fixture
def make_reward(make_run):
    def make(averages=(math.nan,) * 4, **options):
        plugin = EmaDrop(**options)
        plugin.on_start(run=make_run())
        plugin.averages[:] = averages
        return plugin

    return make


@pytest.fixture
def play(make_record, make_pull):
    """Return a function that makes one step of (source, loss) pulls and returns its rewards."""

    def step_once(plugin, *pulls, step=0, skipped=False):
        record = make_record(step, *(make_pull(source, loss) for source, loss in pulls), skipped=skipped)
        rewards = [plugin.reward(pull=pull, record=record)["ema_drop"] for pull in record.pulls]
        plugin.on_step(record=record)
        return rewards

    return step_once


def test_published_example(make_reward, play):
    """An average of 4.521 and a loss of 4.520 are worth 1.0, and the average moves a tenth of the way."""
    plugin = make_reward([4.521, 2.0, 3.0, math.nan])
    # 4.521 - 4.520 cancels all but the last digits: their rounding (4e-16 each) times 1000.
    assert play(plugin, (0, 4.520)) == [pytest.approx(1.0, abs=1e-12)]
    assert plugin.averages[0] == pytest.approx(4.5209, rel=1e-15)  # one rounding each of two products and a sum
    assert plugin.averages[1:3].tolist() == [2.0, 3.0]  # only the pulled source moves
    assert math.isnan(plugin.averages[3])


def test_first_pull_sets_the_average_and_is_worth_nothing(make_reward, play):
    """There is nothing to compare the first loss with."""
    plugin = make_reward()
    assert play(plugin, (2, 5.5)) == [0.0]
    assert plugin.averages[2] == 5.5
    assert play(plugin, (2, 4.5), step=1) == [1000.0]


def test_a_rise_is_worth_nothing_but_moves_the_average(make_reward, play):
    """The reward is never negative."""
    plugin = make_reward([4.0] * 4)
    assert play(plugin, (1, 5.0)) == [0.0]
    assert plugin.averages.tolist() == [4.0, 4.1, 4.0, 4.0]


def test_options_set_smoothing_and_scale(make_reward, play):
    """With a = 0.5 and scale 2, a drop by 1 from 4 is worth 2 and leaves the average at 3.5."""
    plugin = make_reward([4.0] * 4, smoothing=0.5, scale=2.0)
    assert play(plugin, (0, 3.0)) == [2.0]
    assert plugin.averages[0] == 3.5


def test_pulls_of_one_step_count_one_after_the_other(make_reward, play):
    """Mixed pulls are rewarded and averaged exactly as the same pulls in steps of their own."""
    mixed, single = make_reward([4.0, 3.0, 2.0, math.nan]), make_reward([4.0, 3.0, 2.0, math.nan])
    pulls = [(0, 3.5), (1, 2.0), (0, 3.0), (3, 1.5), (3, 1.0)]
    rewards = play(mixed, *pulls)
    assert rewards == [play(single, pull)[0] for pull in pulls]
    assert rewards[2] == pytest.approx(950.0, rel=1e-15)  # average 3.95 after the first pull; it rounds once
    assert mixed.averages.tolist() == single.averages.tolist()


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_loss_that_is_not_finite_is_worth_nothing_and_moves_nothing(make_reward, play, loss):
    """Neither a set average nor an unset one takes it in."""
    plugin = make_reward([4.0, math.nan, 4.0, 4.0])
    assert play(plugin, (0, loss), (1, loss), (0, 3.0)) == [0.0, 0.0, 1000.0]
    assert plugin.averages[0] == 0.9 * 4.0 + 0.1 * 3.0
    assert math.isnan(plugin.averages[1])


def test_skipped_update_moves_nothing(make_reward, play):
    """The drop that was not paid is paid at the next pull."""
    plugin = make_reward([4.0] * 4)
    play(plugin, (0, 3.0), skipped=True)
    assert plugin.averages.tolist() == [4.0] * 4
    assert play(plugin, (0, 3.0), step=1) == [1000.0]


def test_rewarding_is_pure(make_reward, make_record, make_pull):
    """Asking twice answers the same and changes no state."""
    plugin, record = make_reward([4.0] * 4), make_record(0, make_pull(0, 3.0))
    before = get_state(plugin)
    answers = [plugin.reward(pull=record.pulls[0], record=record) for _ in range(2)]
    assert answers == [{"ema_drop": 1000.0}] * 2
    assert np.array_equal(plugin.averages, before["averages"])


def test_resume_at_every_step_equals_the_uncut_run(make_reward, play, assert_resumes):
    """Rewards after a restored state are those of the run that was never cut, bit for bit."""

    def step_once(plugin, step):
        return play(plugin, (step % 3, 5 * math.exp(-step / 9)), (step * step % 4, 4 + math.sin(step)), step=step)

    assert_resumes(make_reward, step_once, steps=20)


@pytest.mark.parametrize("smoothing", [0.0, -0.1, 1.5, math.nan])
def test_an_impossible_smoothing_is_refused(make_run, smoothing):
    """The weight of the newest loss is above 0 and at most 1."""
    with pytest.raises(AndreaError, match=r"reward\.ema_drop\.smoothing"):
        EmaDrop(smoothing=smoothing)
    EmaDrop(smoothing=1.0)
