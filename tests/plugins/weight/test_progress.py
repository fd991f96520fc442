"""weight.progress: what falls behind is drawn less, the rest is left alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from andrea import AndreaError, Evaluation
from andrea.loss_curves import WINDOW, fall, sure
from andrea.plugin import get_state
from andrea.plugins.weight.progress import Progress

FALLS = (0.3, 0.2, 0.1, 0.0)  # of the loss of each source per doubling of its pulls; 0.15 is the median


@pytest.fixture
def made(make_run):
    """Return what makes a started plugin."""

    def start(**options):
        plugin = Progress(**options)
        plugin.on_start(run=make_run())
        return plugin

    return start


@pytest.fixture
def play(make_record, make_pull):
    """Return what pulls every source once, for some rounds."""

    def rounds(plugin, first, last, falls=FALLS):
        for step in range(first, last):
            pulls = [make_pull(k, loss=9 - fall * math.log2(step + 1)) for k, fall in enumerate(falls)]
            plugin.on_step(record=make_record(step, *pulls))

    return rounds


def test_what_falls_behind_weighs_less_and_the_rest_is_alike(made, play):
    """Medians are 0.15: three quarters of that are enough, 0.1 has (0.1 / 0.1125)^2, nothing has the floor."""
    plugin = made()
    play(plugin, 0, 600)
    # A point is a mean over 15% of a curve, and lies at the middle of its pulls: off by less than a percent.
    assert plugin.weigh_sources() == pytest.approx([1.0, 1.0, (0.1 / 0.1125) ** 2, 0.1], rel=0.01)
    assert made(enough=0.5, floor=0.3).weigh_sources().tolist() == [1.0] * 4
    other = made(enough=0.5, floor=0.3)
    play(other, 0, 600)
    assert other.weigh_sources() == pytest.approx([1.0, 1.0, 1.0, 0.3])


def test_nothing_is_held_against_a_source_before_five_points(made, play):
    """What a line leaves of few points says little of how wrong it may be."""
    plugin = made()
    play(plugin, 0, 4)
    assert plugin.weigh_sources().tolist() == [1.0] * 4
    play(plugin, 4, 5)
    assert plugin.weigh_sources()[3] == 0.1


@pytest.mark.parametrize(("doubt", "low", "high"), [(0.0, 0.07, 0.2), (0.5, 0.02, 0.05)])
def test_a_source_has_the_benefit_of_the_doubt(made, make_record, make_pull, doubt, low, high):
    """Four sources fall by 0.2 a doubling and scatter by 0.3: after 30 pulls of each, few have lost half their weight.

    Their falls are known to about 0.12. Without any doubt 0.088 have, with half a standard error 0.031; the
    draws are the same each time.
    """
    weights = []
    for seed in range(40):
        plugin = made(doubt=doubt)
        scatter = np.random.default_rng(seed).normal(0.0, 0.3, (30, 4))
        for step, losses in enumerate(5 - 0.2 * np.log2(np.arange(1, 31))[:, None] + scatter):
            plugin.on_step(record=make_record(step, *(make_pull(k, loss=loss) for k, loss in enumerate(losses))))
        weights.append(plugin.weigh_sources())
    assert low <= np.mean(np.array(weights) < 0.5) <= high


def test_weights_are_those_of_the_formula(made, make_record, make_pull, make_run):
    """Scattered losses, tokens of unequal worth: falls and standard errors both count by it."""
    plugin = made()
    for step, losses in enumerate(
        np.random.default_rng(3).normal(4.0, 0.1, (200, 4)) - np.log2(np.arange(1, 201))[:, None] * FALLS
    ):
        plugin.on_step(record=make_record(step, *(make_pull(k, loss=loss) for k, loss in enumerate(losses))))
    bits = {"a": 3.0, "b": 4.0, "c": 2.0, "d": 3.0}
    plugin.on_evaluation(
        evaluation=Evaluation(step=1, loss=dict.fromkeys(bits, 2.0), bits_per_byte=bits), run=make_run()
    )
    worth = np.array([3.0, 4.0, 2.0, 3.0]) / 3
    lines = [
        fall(places[-WINDOW:], losses[-WINDOW:]) for places, losses in zip(plugin.places, plugin.losses, strict=True)
    ]
    falls, errors = np.array(lines).T * worth
    expected = (
        (falls + 0.5 * errors) / (0.75 * np.median([sure(*line) for line in zip(falls, errors, strict=True)]))
    ).clip(0) ** 2
    assert plugin.weigh_sources() == pytest.approx(expected.clip(0.1, 1.0), rel=1e-12)
    assert np.any((expected > 0.1) & (expected < 1.0))


def test_where_nothing_is_learned_all_weigh_alike(made, play):
    """A median of 0 says nothing."""
    plugin = made()
    play(plugin, 0, 50, falls=(0.3, 0.0, 0.0, 0.0))
    assert plugin.weigh_sources().tolist() == [1.0] * 4


def test_where_all_only_scatter_hardly_any_weighs_less(made, make_record, make_pull):
    """The median is of what is sure: it takes weight from 0.08 of these sources, the plain one from 0.29."""
    weights = []
    for seed in range(25):
        plugin = made()
        for step, losses in enumerate(np.random.default_rng(seed).normal(4.0, 0.3, (300, 4))):
            plugin.on_step(record=make_record(step, *(make_pull(k, loss=loss) for k, loss in enumerate(losses))))
        weights.append(plugin.weigh_sources())
    assert np.mean(np.array(weights) < 0.5) < 0.15


def test_progress_counts_in_bits_per_byte(made, play, make_run):
    """Twice the tokens for a byte make a fall of 0.1 nats a token one of 0.2; in nats it is none."""
    loss = dict.fromkeys("abcd", 2.0)
    evaluation = Evaluation(step=1, loss=loss, bits_per_byte={**loss, "c": 4.0})
    for unit, expected in (("bits_per_byte", 1.0), ("nats", (0.1 / 0.1125) ** 2)):
        plugin = made(unit=unit)
        play(plugin, 0, 600)
        plugin.weigh_sources()
        plugin.on_evaluation(evaluation=evaluation, run=make_run())
        assert plugin.weigh_sources()[2] == pytest.approx(expected, rel=0.01)


def test_it_goes_on_where_it_was(made, play, assert_resumes):
    """Weights are kept between points of the curves, and not saved: a resume works them out again."""
    assert "_weights" not in get_state(made())

    def step(plugin, number):
        play(plugin, number, number + 1)
        return plugin.weigh_sources().tolist()

    assert_resumes(made, step, 40)


def test_what_was_returned_is_the_caller_s(made, play):
    """Who changes the weights that it was given changes nothing here."""
    plugin = made()
    play(plugin, 0, 20)
    given = plugin.weigh_sources()
    given[:] = 7
    assert np.all(plugin.weigh_sources() <= 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enough", 0.0),
        ("enough", 1.5),
        ("floor", 0.0),
        ("floor", -1.0),
        ("doubt", -0.5),
        ("doubt", math.nan),
        ("doubt", math.inf),
    ],
)
def test_options_that_mean_nothing_are_refused(name, value):
    """Nothing may divide by 0, weigh all alike or mask a source for good."""
    with pytest.raises(AndreaError, match=rf"weight\.progress\.{name} is"):
        Progress(**{name: value})
