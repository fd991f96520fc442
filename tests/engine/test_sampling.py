"""The next id from logits: each rule alone, then all together, and the window of a long row."""

from __future__ import annotations

import math

import numpy as np
import pytest

from andrea.engine import GenerateOptions
from andrea.engine.sampling import check_options, choose, window_start
from andrea.errors import AndreaError
from andrea.rng import Draws

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.3], dtype=np.float32))


def chosen(options, logits=LOGITS, history=()):
    """Return the set of ids that a fine grid of uniform numbers reaches."""
    return {choose(logits, options, history, (i + 0.5) / 1000) for i in range(1000)}


def test_greedy_takes_the_highest_and_the_lowest_id_of_equals():
    """Temperature 0 ignores the uniform number; ties go to the lowest id."""
    greedy = GenerateOptions(temperature=0)
    assert chosen(greedy) == {1}
    assert choose(np.array([0.0, 2.0, 2.0], np.float32), greedy, (), 0.99) == 1


def test_inverse_of_the_cumulative_distribution():
    """In the order of ids: [0, 0.1) gives 0, [0.1, 0.5) gives 1, [0.5, 0.7) gives 2, the rest 3."""
    points = {0.0: 0, 0.0999: 0, 0.1001: 1, 0.4999: 1, 0.5001: 2, 0.6999: 2, 0.7001: 3, 1 - 2**-53: 3}
    for uniform, expected in points.items():
        assert choose(LOGITS, GenerateOptions(), (), uniform) == expected


def test_frequencies_are_the_softmax():
    """Chi-square of 20,000 draws at temperature 2 against the formula."""
    logits = Draws(1, "logits").normal(12)
    uniforms = Draws(1, "uniforms").uniform(20_000)
    counts = np.bincount([choose(logits, GenerateOptions(temperature=2), (), u) for u in uniforms], minlength=12)
    expected = np.exp(logits.astype(np.float64) / 2)
    expected *= 20_000 / expected.sum()
    # 31.3 is exceeded with probability 0.001 at 11 degrees of freedom; the draws are fixed, so it never flickers.
    assert ((counts - expected) ** 2 / expected).sum() < 31.3


def test_top_k_keeps_the_best():
    """K ids are left, ties broken by id; k = 0 or k >= V keeps all."""
    assert chosen(GenerateOptions(top_k=2)) == {1, 3}
    assert chosen(GenerateOptions(top_k=1)) == {1}
    assert chosen(GenerateOptions(top_k=0)) == chosen(GenerateOptions(top_k=99)) == {0, 1, 2, 3}
    assert chosen(GenerateOptions(top_k=2), np.zeros(4, np.float32)) == {0, 1}


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.39, {1}), (0.41, {1, 3}), (0.69, {1, 3}), (0.71, {1, 2, 3}), (1, {0, 1, 2, 3})]
)
def test_top_p_keeps_the_smallest_set(top_p, kept):
    """Ids from the most likely down, until their probability reaches p."""
    assert chosen(GenerateOptions(top_p=top_p)) == kept


def test_top_p_acts_on_what_top_k_left():
    """Of {1: 4/7, 3: 3/7} p = 0.55 keeps the first; of all four it would keep two."""
    assert chosen(GenerateOptions(top_k=2, top_p=0.55)) == {1}
    assert chosen(GenerateOptions(top_p=0.55)) == {1, 3}


def test_top_p_acts_at_the_temperature():
    """A high temperature flattens first, so more ids are needed to reach p."""
    assert chosen(GenerateOptions(top_p=0.6)) == {1, 3}
    assert chosen(GenerateOptions(top_p=0.6, temperature=100)) == {1, 2, 3}


def test_repetition_penalty():
    """Positive logits are divided, negative multiplied, once an id, however often it came."""
    greedy = GenerateOptions(temperature=0, repetition_penalty=2)
    assert choose(np.array([3.0, 2.0], np.float32), greedy, [0, 0, 0], 0) == 1
    assert choose(np.array([3.0, 1.4], np.float32), greedy, [0, 0, 0], 0) == 0
    assert choose(np.array([-1.0, -1.9], np.float32), greedy, [0], 0) == 1
    assert choose(np.array([-1.0, -2.1], np.float32), greedy, [0], 0) == 0


def test_logits_are_not_changed():
    """The caller's array stays as it was."""
    logits = LOGITS.copy()
    choose(logits, GenerateOptions(repetition_penalty=3, top_k=2, top_p=0.5), [1, 2], 0.3)
    assert (logits == LOGITS).all()


def test_tiny_temperature_does_not_overflow():
    """The maximum is taken off before dividing."""
    assert chosen(GenerateOptions(temperature=1e-6)) == {1}
    assert choose(np.array([-3000.0, 3000.0], np.float32), GenerateOptions(), (), 0.5) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_damaged_logits_are_refused(bad):
    """A logit that is not finite is an error, not a silent choice."""
    with pytest.raises(ValueError, match="not finite"):
        choose(np.array([0.0, bad], np.float32), GenerateOptions(), (), 0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": -1},
        {"temperature": -0.1},
        {"top_k": -1},
        {"top_p": 0},
        {"top_p": 1.1},
        {"repetition_penalty": 0},
        {"first": -1},
    ],
)
def test_options_are_checked(wrong):
    """Each option out of range is named with its range; what is in range passes."""
    with pytest.raises(AndreaError, match=f"{next(iter(wrong))} is") as caught:
        check_options(GenerateOptions(**wrong))
    assert "must be" in caught.value.hint
    check_options(GenerateOptions())


@pytest.mark.parametrize("context", [1, 2, 3, 8])
def test_window(context):
    """It never exceeds the context, never moves back, and keeps at least half a context of the past."""
    starts = [window_start(length, context) for length in range(1, 50)]
    assert starts == sorted(starts)
    assert starts[:context] == [0] * context
    for length, start in enumerate(starts, start=1):
        assert 1 <= length - start <= context
        assert length <= context or length - start > context // 2 or context == 1


def test_window_by_hand():
    """With 4 positions the window moves by 2 whenever it is full."""
    assert [window_start(length, 4) for length in range(1, 11)] == [0, 0, 0, 0, 2, 2, 4, 4, 6, 6]
