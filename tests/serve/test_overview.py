"""A curve of a few points of a journal, however long that is."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest

from andrea.serve import overview as module
from andrea.serve.overview import overview, thinned


def losses(path):
    return {line["step"]: line["loss"] for line in map(json.loads, path.read_text().splitlines()) if "pulls" in line}


def test_a_short_journal_is_given_exactly(journal_of, lines):
    """Every step, when there are no more than asked for."""
    path = journal_of(lines.run(50))
    assert overview(path, 50) == list(losses(path).items())


def test_of_a_longer_one_evenly_many_are_given_the_last_among_them(journal_of, lines):
    """So that the curve ends where the run is."""
    path = journal_of(lines.run(50))
    assert [step for step, _ in overview(path, 10)] == [4, 9, 14, 19, 24, 29, 34, 39, 44, 49]
    assert [step for step, _ in overview(path, 2)] == [24, 49]


def test_a_long_journal_is_looked_into_here_and_there(journal_of, lines, monkeypatch):
    """The points are true, ascending, spread over the whole, and end with the last step."""
    path = journal_of(lines.run(2000))
    monkeypatch.setattr(module, "WHOLE", 1000)
    found = overview(path, 40)
    known = losses(path)
    assert all(known[step] == loss for step, loss in found)
    steps = [step for step, _ in found]
    assert steps == sorted(set(steps))
    assert steps[-1] == 1999
    assert 30 <= len(steps) <= 40
    assert max(b - a for a, b in pairwise(steps)) <= 3 * 2000 / 40


@pytest.mark.parametrize("whole", [10**6, 100])
def test_what_is_damaged_is_left_out(journal_of, lines, monkeypatch, whole):
    """A loss that is not finite is a number here; a journal that is not there has no points."""
    path = journal_of(["garbage", *lines.run(30), lines.step(30, loss="nan"), "\0" * 50])
    monkeypatch.setattr(module, "WHOLE", whole)
    step, loss = overview(path, 100)[-1]
    assert step == 30
    assert math.isnan(loss)
    assert overview(path.with_name("none"), 100) == []


def test_thinning_keeps_the_last():
    """And what is few enough as it is."""
    assert thinned(range(10), 4) == [1, 4, 6, 9]
    assert thinned(range(10), 3) == [2, 5, 9]
    assert thinned(range(10), 10) == list(range(10))
    assert thinned([], 5) == []
