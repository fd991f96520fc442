"""weight.coverage_bonus against the published numbers."""

from __future__ import annotations

import numpy as np
import pytest

from andrea import AndreaError
from andrea.plugins.weight.coverage_bonus import CoverageBonus


def test_worked_numbers(make_run):
    """Coverage 0, 25, 50 and 100% give the factors 1.3, 1.15, 1 and 1."""
    run = make_run(distinct=np.array([0, 25, 50, 100]), drawn=np.array([0, 900, 50, 100]))
    assert CoverageBonus().weigh_sources(run=run).tolist() == [1.3, 1.15, 1.0, 1.0]


def test_options_move_height_and_end(make_run):
    """A bonus of 1 below full coverage is 2 - coverage."""
    run = make_run(distinct=np.array([0, 25, 50, 100]))
    assert CoverageBonus(bonus=1.0, below=1.0).weigh_sources(run=run).tolist() == [2.0, 1.75, 1.5, 1.0]


@pytest.mark.parametrize("options", [{"below": 0.0}, {"bonus": -0.1}, {"bonus": float("inf")}])
def test_impossible_options_are_refused(options):
    """Nothing may divide by 0, mask a source or outgrow every number."""
    with pytest.raises(AndreaError, match="coverage_bonus"):
        CoverageBonus(**options)
