"""Rewards beside reward.ema_drop, against numbers worked by hand: normalised, probe, probe_all, slope."""

from __future__ import annotations

import math

import attrs
import numpy as np
import pytest

from andrea import AndreaError, Evaluation
from andrea.loss_curves import WINDOW, fall, sure
from andrea.plugins.reward.doubling import Doubling
from andrea.plugins.reward.normalised import Normalised
from andrea.plugins.reward.probe import Probe
from andrea.plugins.reward.probe_all import ProbeAll
from andrea.plugins.reward.slope import Slope, fit
from andrea.testing import run_steps

NAMES = ("a", "b", "c", "d")


@pytest.fixture
def make_reward(make_run):
    def make(kind, **options):
        plugin = kind(**options)
        plugin.on_start(run=make_run())
        return plugin

    return make


@pytest.fixture
def play(make_record, make_pull):
    """Return a function that makes one step of (source, loss) pulls and returns its rewards."""

    def step_once(plugin, *pulls, step=0, skipped=False):
        record = make_record(step, *(make_pull(source, loss) for source, loss in pulls), skipped=skipped)
        wanted = {"pull", "record"} & set(type(plugin).reward.__annotations__)
        given = ({"pull": pull, "record": record} for pull in record.pulls)
        rewards = [sum(plugin.reward(**{k: v for k, v in g.items() if k in wanted}).values()) for g in given]
        plugin.on_step(record=record)
        return rewards

    return step_once


# -- normalised --------------------------------------------------------------------------------------------------------


def test_a_drop_counts_in_spreads_of_its_own_source(make_reward, play):
    """Losses 4, 3, 2.5: average 3.9, variance 0.9 x 0.1, so the third is worth 1.4 / 0.3 without the clip."""
    plugin = make_reward(Normalised, clip=100.0)
    assert play(plugin, (0, 4.0), (0, 3.0)) == [0.0, 0.0]
    assert play(plugin, (0, 2.5), step=1) == [pytest.approx(1.4 / math.sqrt(0.09), rel=1e-14)]  # rounded products


def test_units_cancel(make_reward, play):
    """Losses times 1024 earn exactly the same."""
    losses = [4.0, 3.5, 3.75, 3.0, 3.25, 2.0]
    small, large = make_reward(Normalised), make_reward(Normalised)
    for step, loss in enumerate(losses):
        assert play(small, (1, loss), step=step) == play(large, (1, 1024 * loss), step=step)


def test_rises_are_negative_and_rewards_are_clipped(make_reward, play):
    """A jump up earns -3 and, unsigned, 0; a jump down 3."""
    for signed, low in ((True, -3.0), (False, 0.0)):
        plugin = make_reward(Normalised, signed=signed)
        play(plugin, (0, 4.0), (0, 3.9))
        assert play(plugin, (0, 9.0), step=1) == [low]
        plugin = make_reward(Normalised, signed=signed)
        play(plugin, (0, 4.0), (0, 3.9))
        assert play(plugin, (0, 0.0), step=1) == [3.0]


def test_normalised_pulls_of_one_step_count_one_after_the_other(make_reward, play):
    """Mixed pulls earn and move exactly what they do in steps of their own."""
    mixed, single = make_reward(Normalised), make_reward(Normalised)
    pulls = [(0, 3.5), (1, 2.0), (0, 3.0), (0, 3.2), (1, 1.5), (1, 1.7)]
    assert play(mixed, *pulls) == [play(single, pull)[0] for pull in pulls]
    assert mixed.variances.tolist() == single.variances.tolist()


def test_normalised_ignores_what_is_not_finite_and_what_was_skipped(make_reward, play):
    """Neither moves anything."""
    plugin = make_reward(Normalised)
    play(plugin, (0, 4.0), (0, 3.0))
    before = plugin.averages.tolist()
    assert play(plugin, (0, math.nan)) == [0.0]
    play(plugin, (0, 1.0), skipped=True)
    assert plugin.averages.tolist()[:1] == before[:1]


# -- probes ------------------------------------------------------------------------------------------------------------


def with_probes(record, **probes):
    return attrs.evolve(record, probes=probes)


def rewards_of(plugin, record, run):
    from inspect import signature

    wanted = signature(plugin.reward).parameters
    given = ({"pull": pull, "record": record, "run": run} for pull in record.pulls)
    return [sum(plugin.reward(**{k: v for k, v in g.items() if k in wanted}).values()) for g in given]


def test_probe_pays_the_drop_on_held_out_text(make_reward, make_run, make_record, make_pull):
    """Source b went from 3.0 to 2.5, worth 500; two pulls of c share its rise."""
    record = make_record(0, make_pull(1), make_pull(2), make_pull(2))
    record = with_probes(record, b=(3.0, 2.5), c=(2.0, 2.25))
    assert rewards_of(make_reward(Probe), record, make_run()) == [500.0, -125.0, -125.0]
    assert make_reward(Probe).request_probes(pulls=[1, 2, 2], run=make_run()) == ["b", "c"]


def test_probe_all_pays_the_mean_drop_of_all(make_reward, make_run, make_record, make_pull):
    """Drops of 0.4, 0, 0 and 0.2 have the mean 0.15; two pulls share it."""
    record = with_probes(
        make_record(0, make_pull(1), make_pull(2)), a=(3.0, 2.6), b=(1.0, 1.0), c=(1.0, 1.0), d=(2.0, 1.8)
    )
    plugin = make_reward(ProbeAll)
    assert plugin.request_probes(step=0, run=make_run()) == list(NAMES)
    assert rewards_of(plugin, record, make_run()) == [pytest.approx(75.0, rel=1e-12)] * 2  # differences of losses


def test_probe_all_of_a_few_draws_them_anew_and_covers_all(make_reward, make_run):
    """Two of four in each step, the same when asked again, every source in about half of 400 steps."""
    plugin, run = make_reward(ProbeAll, probed=2), make_run()
    asked = [plugin.request_probes(step=step, run=run) for step in range(400)]
    assert asked == [plugin.request_probes(step=step, run=run) for step in range(400)]
    counts = [sum(name in names for names in asked) for name in NAMES]
    assert all(len(set(names)) == 2 for names in asked)
    assert all(150 < count < 250 for count in counts)  # five standard deviations of a binomial around 200


@pytest.mark.parametrize("kind", [Probe, ProbeAll])
def test_drops_count_by_the_text_behind_a_token(make_reward, make_run, make_record, make_pull, kind):
    """B needs three times the tokens of the others for a byte: the same drop is worth three times as much there."""
    loss, density = dict.fromkeys(NAMES, 2.0), {"a": 0.5, "b": 1.5, "c": 0.5, "d": 0.5}
    evaluation = Evaluation(5, loss, {name: density[name] * 2.0 / math.log(2) for name in NAMES})
    plugin, run = make_reward(kind), make_run()
    before = plugin.densities.tolist()
    plugin.on_evaluation(evaluation=evaluation, run=run)
    assert before == [1.0] * 4
    assert plugin.densities == pytest.approx([2 / 3, 2, 2 / 3, 2 / 3], rel=1e-14)  # quotients, relative to their mean
    drop = dict.fromkeys(NAMES, (2.0, 1.0))
    record = with_probes(make_record(6, make_pull(1)), **drop)
    expected = 2000.0 if kind is Probe else 1000.0
    assert rewards_of(plugin, record, run) == [pytest.approx(expected, rel=1e-14)]
    nats = make_reward(kind, unit="nats")
    nats.on_evaluation(evaluation=evaluation, run=run)
    assert nats.densities.tolist() == [1.0] * 4


@pytest.mark.parametrize("kind", [Probe, ProbeAll])
def test_a_probe_that_is_not_finite_is_worth_nothing(make_reward, make_run, make_record, make_pull, kind):
    """A loss of NaN must not reach the bandit."""
    record = with_probes(make_record(0, make_pull(0)), **dict.fromkeys(NAMES, (math.nan, 1.0)))
    assert rewards_of(make_reward(kind), record, make_run()) == [0.0]


@pytest.mark.parametrize("kind", ["reward.probe", "reward.probe_all"])
def test_probes_are_measured_by_the_loop(kind):
    """In a real loop the terms are the drops of the record's own probes."""
    records = run_steps({kind: {"unit": "nats"}}, 12, settings={"batch.pulls_per_step": 2}).records
    for record in records:
        drops = {name: 1000 * (before - after) for name, (before, after) in record.probes.items()}
        total = math.fsum(pull.reward for pull in record.pulls)
        number = len(drops) if kind == "reward.probe_all" else 1
        assert total == pytest.approx(math.fsum(drops.values()) / number, rel=1e-12)  # the same sum in another order
    assert any(pull.reward > 0 for record in records for pull in record.pulls)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Probe, {"unit": "bits"}),
        (ProbeAll, {"unit": "bits"}),
        (Slope, {"unit": "bits"}),
        (Doubling, {"unit": "bits"}),
        (ProbeAll, {"probed": -1}),
    ],
)
def test_probes_refuse_what_does_not_exist(make_reward, kind, options):
    """The error names the option."""
    with pytest.raises(AndreaError, match=next(iter(options))):
        make_reward(kind, **options)


# -- slope -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("irreducible", "factor", "exponent"), [(2.0, 3.0, 0.5), (0.0, 5.0, 0.3), (4.0, 1.0, 1.0)])
def test_fit_finds_a_power_law_with_an_irreducible_part(irreducible, factor, exponent):
    """Points that lie on a curve of the grid give its parameters back."""
    places = np.array([1.0, 2, 4, 8, 16, 32, 64])
    found = fit(places, irreducible + factor * places**-exponent)
    assert found == pytest.approx((factor, exponent), rel=1e-9)  # least squares squares the rounding errors


def test_fit_does_not_go_below_zero():
    """A straight line down would have a negative irreducible part; a rising curve has no slope."""
    places = np.arange(1.0, 9.0)
    factor, exponent = fit(places, 10 - places)
    assert factor > 0
    assert exponent > 0
    assert fit(places, places)[0] == 0.0


def test_a_slope_counts_by_how_sure_it_is():
    """Of points that only scatter most fits keep nothing: A is at or below its own deviation in 84% of them.

    Of a clear curve little is taken: the variance by the formula, of what is left over the points less two.
    """
    places = np.arange(1.0, 21.0)
    found = [fit(places, 5 + np.random.default_rng(seed).standard_normal(20))[0] for seed in range(100)]
    assert 0.7 < found.count(0.0) / 100 < 0.95
    clear, noise = 3 + 6 / places, 0.2 * np.random.default_rng(1).standard_normal(20)
    factor, exponent = fit(places, clear + noise)
    powers = places**-exponent
    away = powers - powers.mean()
    plain = float(away @ (clear + noise)) / float(away @ away)
    rest = clear + noise - (clear + noise).mean() - plain * away
    assert factor == pytest.approx(plain * (1 - float(rest @ rest) / 18 / float(away @ away) / plain**2), rel=1e-12)
    assert 0.9 * plain < factor < plain


def test_slope_is_that_of_the_curve(make_reward, play):
    """On losses 2 + 3 / sqrt(n) the reward after 400 pulls is within 10% of 1000 x 1.5 n^-1.5."""
    plugin = make_reward(Slope)
    for step in range(400):
        reward = play(plugin, (0, 2 + 3 / math.sqrt(step + 1)), step=step)[0]
    # Points are means over stretches of a convex curve, and the grid of exponents is coarse.
    assert reward == pytest.approx(1500 * 400**-1.5, rel=0.1)


def test_noise_has_no_slope_and_a_slow_learner_has_one(make_reward, play):
    """A source that scatters around 5 earns less than one that still falls slowly below it."""
    plugin = make_reward(Slope)
    noise = np.random.default_rng(0).normal(5.0, 0.3, 500)
    for step in range(500):
        scatter, learner = play(plugin, (0, float(noise[step])), (1, 3 + 2 * (step + 1) ** -0.3), step=step)
    assert learner > 3 * scatter


def test_few_pulls_pay_the_mean_drop_so_far(make_reward, play):
    """The first point has nothing to compare with; after 5 and 4 the slope is 1 nat a pull, and a rise is worth 0."""
    plugin = make_reward(Slope)
    assert [play(plugin, (0, loss), step=step)[0] for step, loss in enumerate((5.0, 4.0, 9.0, 9.0))] == [0, 0, 1000, 0]


def test_slopes_count_by_the_text_behind_a_token(make_reward, make_run, play):
    """Source b needs thrice the tokens of the others for a byte: from the evaluation on its slope counts double."""
    for unit, expected in (("bits_per_byte", [2000.0]), ("nats", [1000.0])):
        plugin = make_reward(Slope, unit=unit)
        play(plugin, (1, 5.0), (1, 4.0))
        bits = {"a": 1.0, "b": 3.0, "c": 1.0, "d": 1.0}
        plugin.on_evaluation(evaluation=Evaluation(2, dict.fromkeys(NAMES, 2.0), bits), run=make_run())
        assert play(plugin, (1, 9.0), step=1) == expected


def test_slope_ignores_what_is_not_finite_and_what_was_skipped(make_reward, play):
    """Neither counts as a pull."""
    plugin = make_reward(Slope)
    play(plugin, (0, math.inf))
    play(plugin, (0, 3.0), skipped=True)
    assert plugin.pulls.tolist() == [0] * 4


# -- all of them -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Normalised, Slope, Doubling])
def test_resume_at_every_step_equals_the_uncut_run(make_reward, play, assert_resumes, kind):
    """Rewards after a restored state are those of the run that was never cut, bit for bit."""

    def step_once(plugin, step):
        return play(plugin, (step % 3, 5 * math.exp(-step / 9)), (step * step % 4, 4 + math.sin(step)), step=step)

    assert_resumes(lambda: make_reward(kind), step_once, steps=30)


# -- doubling ----------------------------------------------------------------------------------------------------------


def test_fall_is_what_a_doubling_lowers_the_loss_by():
    """On a loss of 5 - 0.25 log2 n it is 0.25 wherever the points lie; of one point nothing is known."""
    places = np.array([3.0, 4, 9, 10, 17])
    assert fall(places, 5 - 0.25 * np.log2(places)) == pytest.approx((0.25, 0.0), rel=1e-12, abs=1e-12)
    assert fall(places, np.log2(places)) == pytest.approx((-1.0, 0.0), rel=1e-12, abs=1e-12)
    assert fall([7.0], [3.0]) == (0.0, 0.0)
    assert fall([1.0, 2.0], [3.0, 2.5]) == (0.5, 0.0)  # through two points a line goes exactly


def test_the_standard_error_of_a_fall_is_that_of_least_squares():
    """Eight points and two parameters leave six degrees of freedom."""
    logs = np.log2(100 * 1.15 ** np.arange(WINDOW))
    losses = 5 - 0.25 * logs + 0.01 * np.random.default_rng(1).standard_normal(WINDOW)
    (slope, _), rest, *_ = np.polyfit(logs, losses, 1, full=True)
    expected = math.sqrt(rest[0] / (WINDOW - 2) / np.sum((logs - logs.mean()) ** 2))
    assert fall(2**logs, losses) == pytest.approx((-slope, expected), rel=1e-9)


def test_a_fall_counts_by_how_sure_it_is():
    """What only scatters has none in most windows; a rise has none; of a clear one its variance over it is gone."""
    places = 100 * 1.15 ** np.arange(WINDOW)
    noise = [sure(*fall(places, np.random.default_rng(seed).normal(5.0, 0.3, WINDOW))) for seed in range(200)]
    # The slope of noise is at most its own deviation above 0 in 84% of the windows (less few: Student's t of 6).
    assert 0.7 < noise.count(0.0) / 200 < 0.95
    assert sure(-1.0, 0.1) == sure(0.0, 0.0) == 0.0
    assert sure(0.5, 0.1) == pytest.approx(0.5 * (1 - 0.1**2 / 0.5**2), rel=1e-14)
    assert sure(1e-300, 1.0) == 0.0


def test_doubling_rewards_what_falls_now(make_reward, play):
    """A source that stood still for 300 pulls and then falls by 0.2 a doubling has that after another 900."""
    plugin = make_reward(Doubling)
    for step in range(300):
        reward = play(plugin, (0, 5.0), step=step)[0]
    assert reward == 0.0
    for step in range(300, 1200):
        reward = play(plugin, (0, 5.0 - 0.2 * math.log2((step + 1) / 300)), step=step)[0]
    # Within the window, 2.7 times, all is new; a point is a mean over 15% of a curve in log n, which changes nothing
    # that 5% would not hold.
    assert reward == pytest.approx(0.2, rel=0.05)
