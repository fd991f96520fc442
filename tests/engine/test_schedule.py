"""The learning rate at the steps that matter."""

from __future__ import annotations

import math

import pytest

from andrea.engine.schedule import OptimizerConfig, ScheduleConfig, learning_rate
from andrea.errors import AndreaError

SCHEDULE = ScheduleConfig(steps=20_000, warmup_steps=2_000, peak=3e-4, floor=0.1)


def cosine(step):
    """Return the specification's cosine, written down once more."""
    return 3e-4 * (0.1 + 0.9 * (1 + math.cos(math.pi * step / 20_000)) / 2)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 3e-4 / 2000),
        (999, cosine(999) / 2),
        (1_999, cosine(1_999)),
        (2_000, cosine(2_000)),
        (10_000, 3e-4 * 0.55),
        (19_999, cosine(19_999)),
        (20_000, 3e-5),
        (90_000, 3e-5),
    ],
)
def test_learning_rate(step, rate):
    """cosine(step) x min(1, (step + 1) / warm-up), then the floor."""
    # The same formula in another order of operations.
    assert learning_rate(SCHEDULE, step) == pytest.approx(rate, rel=1e-14)


def test_warmup_climbs_and_cosine_falls():
    """The rate has one summit, right where the warm-up ends."""
    rates = [learning_rate(SCHEDULE, step) for step in range(0, 20_000)]
    summit = rates.index(max(rates))
    assert summit == 1_999
    assert rates[: summit + 1] == sorted(rates[: summit + 1])
    assert rates[summit:] == sorted(rates[summit:], reverse=True)


def test_no_warmup():
    """Without warm-up the first step has the peak."""
    assert learning_rate(ScheduleConfig(steps=10, warmup_steps=0, peak=0.5), 0) == 0.5


@pytest.mark.parametrize(
    ("kind", "name", "wrong", "allowed"),
    [
        (ScheduleConfig, "steps", 0, "at least 1"),
        (ScheduleConfig, "warmup_steps", -1, "at least 0"),
        (ScheduleConfig, "peak", 0.0, "above 0"),
        (ScheduleConfig, "peak", math.nan, "above 0"),
        (ScheduleConfig, "floor", 1.5, "from 0 to 1"),
        (ScheduleConfig, "floor", -0.5, "from 0 to 1"),
        (OptimizerConfig, "beta1", 1.0, "below 1"),
        (OptimizerConfig, "beta2", -0.1, "at least 0"),
        (OptimizerConfig, "epsilon", 0.0, "above 0"),
        (OptimizerConfig, "weight_decay", -1.0, "at least 0"),
        (OptimizerConfig, "max_grad_norm", -1.0, "at least 0"),
    ],
)
def test_nonsense_is_refused(kind, name, wrong, allowed):
    """A value out of range is named with what was asked and what is allowed; the hint can be typed, and works."""
    section = {ScheduleConfig: "schedule", OptimizerConfig: "optimizer"}[kind]
    with pytest.raises(AndreaError) as caught:
        kind(**{name: wrong})
    assert caught.value.message.startswith(f"{section}.{name} is {wrong}; it must be ")
    assert allowed in caught.value.message
    assert "\n" not in caught.value.message
    key, _, value = caught.value.hint.removeprefix("for instance --set ").partition("=")
    assert key == f"{section}.{name}"
    assert getattr(kind(**{name: type(wrong)(value)}), name) == float(value)


def test_every_wrong_value_names_itself():
    """Values that are right are not spoken of."""
    with pytest.raises(AndreaError) as caught:
        OptimizerConfig(beta1=2.0, max_grad_norm=-1.0)
    assert [line.split()[0] for line in caught.value.message.splitlines()] == [
        "optimizer.beta1",
        "optimizer.max_grad_norm",
    ]


def test_the_bounds_are_allowed():
    """Where the bound means something, it is a value."""
    ScheduleConfig(steps=1, warmup_steps=0, floor=0.0)
    ScheduleConfig(floor=1.0)
    OptimizerConfig(beta1=0.0, beta2=0.0, weight_decay=0.0, max_grad_norm=0.0)
