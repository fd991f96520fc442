"""Builders for what plugins receive, and the walk that every plugin with a memory has to pass."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from andrea import Choice, Limits, Pull, Run, StepRecord
from andrea.plugin import get_state, set_state


def build_run(sources=("a", "b", "c", "d"), **changes):
    """Return a run over `sources`, of 100 documents each, that nothing has been drawn from."""
    count = len(sources)
    fields = {
        "name": "test",
        "seed": 1,
        "documents": np.full(count, 100),
        "tokens": np.full(count, 10_000),
        "drawn": np.zeros(count, dtype=np.int64),
        "distinct": np.zeros(count, dtype=np.int64),
        "pulls": np.zeros(count, dtype=np.int64),
        "rows": 4,
        "context": 16,
        "steps": 1000,
        "warmup_steps": 10,
    }
    return Run(sources=tuple(sources), **(fields | changes))


def build_limits(count, floor=0.0, cap=np.inf):
    """Return limits for `count` sources."""
    return Limits(np.broadcast_to(floor, count).astype(float), np.broadcast_to(cap, count).astype(float))


def build_pull(source, loss=3.0, reward=None, detail=None, count=4):
    """Return a pull of a source; `reward` None leaves the terms empty, as after a skipped update."""
    rewards = {} if reward is None else {"term": reward}
    return Pull(source, (0,), loss, np.ones(count), np.ones(count), build_limits(count), detail or {}, rewards)


def build_record(step, *pulls, loss=3.0, skipped=False, tokens=64):
    """Return the record of a step."""
    return StepRecord(step, tuple(pulls), loss, 1.0, 3e-4, skipped, tokens)


@pytest.fixture
def make_run():
    return build_run


@pytest.fixture
def make_limits():
    return build_limits


@pytest.fixture
def make_pull():
    return build_pull


@pytest.fixture
def make_record():
    return build_record


@pytest.fixture
def assert_resumes():
    """Return a function that plays a plugin uncut, then cut and resumed at every step, and compares with ``==``.

    `make` gives a started plugin; `play(plugin, step)` makes one step and returns what it decided.
    """

    def check(make, play, steps):
        plugin = make()
        uncut, states = [], []
        for step in range(steps):
            states.append(copy.deepcopy(get_state(plugin)))
            uncut.append(play(plugin, step))
        assert len({repr(answer) for answer in uncut}) > 1, "a walk without change proves nothing"
        for cut, saved in enumerate(states):
            resumed = make()
            set_state(resumed, saved, "resumed")
            assert [play(resumed, step) for step in range(cut, steps)] == uncut[cut:]
            assert repr(get_state(resumed)) == repr(get_state(plugin))

    return check


def count_draws(select, draws, **arguments):
    """Return how often each source was chosen by a sampler over steps 0..draws-1, int64 (S,)."""
    chosen = []
    for step in range(draws):
        answer = select(step=step, **arguments)
        chosen.append(answer.source if isinstance(answer, Choice) else answer)
    return np.bincount(chosen, minlength=len(arguments["scores"]))


@pytest.fixture
def draw_counts():
    return count_draws


@pytest.fixture
def chi_square_tail():
    """Return a function that gives the probability of a chi-square this large or larger with two degrees of freedom.

    With three possible sources it is exactly exp(-x / 2), so no statistics library is needed.
    """

    def tail(counts, shares):
        possible = np.asarray(shares) > 0
        assert possible.sum() == 3, "the closed form holds for three possible sources"
        assert counts[~possible].sum() == 0, "an impossible source was drawn"
        expected = counts.sum() * np.asarray(shares)[possible] / np.sum(shares)
        return float(np.exp(-np.sum((counts[possible] - expected) ** 2 / expected) / 2))

    return tail
