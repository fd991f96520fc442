"""The law of a fixed mix: what is put in comes out, and no other mix is better."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

_file = Path(__file__).parents[1] / "benchmarks/mixing_law.py"
_spec = importlib.util.spec_from_file_location("mixing_law", _file)
assert _spec is not None
assert _spec.loader is not None
mixing_law = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(mixing_law)

SIZES = np.array([1e6, 4e4, 3e7, 5e5])
B = np.array([0.05, 0.1, 0.2, 0.15])
C = np.array([2.0, 2.5, 4.0, 3.0])
LAW = mixing_law.Law(C, B, SIZES, 1e7)
MIXES = np.random.default_rng(0).dirichlet(np.ones(4), size=200)
ALL = np.ones_like(MIXES, dtype=bool)


def test_fresh_tokens_are_worth_themselves_and_repeated_ones_less():
    """Up to one epoch; then ever less, at most R + 1 epochs' worth."""
    n = np.array([0.5, 1.0, 2.0, 1000.0])
    one, two, three, four = mixing_law.worth(n, np.ones(4))
    assert (one, two) == (0.5, 1.0)
    assert three == pytest.approx(1 + 15.39 * (1 - np.exp(-1 / 15.39)))
    assert four == pytest.approx(16.39)


def test_a_law_is_found_again():
    """Losses made by a law give that law back, to the digits of least squares."""
    found = mixing_law.fit(LAW.losses(MIXES), MIXES, SIZES, 1e7, ALL)
    np.testing.assert_allclose(found.b, B, rtol=1e-9)
    np.testing.assert_allclose(found.c, C, rtol=1e-9)


def test_more_tokens_never_harm_in_the_law():
    """Where runs say so it has no slope."""
    found = mixing_law.fit(-LAW.losses(MIXES), MIXES, SIZES, 1e7, ALL)
    assert (found.b == 0).all()


def test_no_mix_is_better_than_the_best():
    """Neither a random one nor one nearby."""
    best = LAW.best()
    assert best.sum() == pytest.approx(1)
    lowest = LAW.losses(best).mean()
    near = best * np.exp(np.random.default_rng(1).normal(0, 0.05, (200, 4)))
    near /= near.sum(axis=1, keepdims=True)
    for mixes in (MIXES, near):
        assert (LAW.losses(mixes).mean(axis=1) >= lowest - 1e-12).all()


def test_endless_sources_share_by_their_slopes():
    """Without repetition the best shares are b_k / sum b."""
    endless = mixing_law.Law(C, B, np.full(4, 1e12), 1e7)
    np.testing.assert_allclose(endless.best(), B / B.sum(), rtol=1e-9)


def test_a_run_that_does_not_count_for_a_source_moves_no_law():
    """However far off it is; for the other sources it counts."""
    losses, counts = LAW.losses(MIXES), ALL.copy()
    losses[:20, 1] += 3
    counts[:20, 1] = False
    found = mixing_law.fit(losses, MIXES, SIZES, 1e7, counts)
    np.testing.assert_allclose(found.b, B, rtol=1e-9)


def test_a_source_that_tokens_do_not_help_gets_none():
    """Its share falls to 0, and the others are as if it were not there."""
    useless = mixing_law.Law(C, np.array([0.05, 0.0, 0.2, 0.15]), SIZES, 1e7)
    best = useless.best()
    assert best[1] == 0
    assert useless.losses(best)[1] == C[1]
    kept = np.array([True, False, True, True])
    without = mixing_law.Law(C[kept], useless.b[kept], SIZES[kept], 1e7)
    np.testing.assert_allclose(best[kept], without.best(), rtol=1e-9)


def test_runs_that_read_a_source_too_often_are_named(capsys, monkeypatch):
    """In the trial of the package uniform shares read the smallest source 168 times; every figure is a number."""
    report = _file.parent / "results/trials/mixed/report.json"
    monkeypatch.setattr("sys.argv", ["mixing_law.py", str(report)])
    mixing_law.main()
    said = capsys.readouterr().out
    assert "uniform, seed 0, reads chat-qa 168 times: not in its law" in said
    assert "nan" not in said.lower()
