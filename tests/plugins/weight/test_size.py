"""weight.size: powers of the sizes, the largest source's being 1."""

from __future__ import annotations

import numpy as np
import pytest

from andrea import AndreaError
from andrea.plugins.bandit.proportional import Proportional
from andrea.plugins.weight.size import Size


def test_weights_are_powers_of_sizes(make_run):
    """A source of a quarter of the tokens weighs a half at 0.5, a quarter at 1, and as much as all at 0."""
    run = make_run(tokens=np.array([400, 100, 1600, 1600]))
    assert Size(exponent=0.5, final=None).weigh_sources(step=0, run=run).tolist() == [0.5, 0.25, 1.0, 1.0]
    assert Size(exponent=1.0).weigh_sources(step=0, run=run).tolist() == [0.25, 0.0625, 1.0, 1.0]
    assert Size(exponent=0.0).weigh_sources(step=0, run=run).tolist() == [1.0] * 4


def test_on_equal_scores_it_is_the_tempered_mix(make_run):
    """Uniform scores under it are the shares of bandit.proportional with the same exponent."""
    run = make_run(tokens=np.array([10, 3, 7000, 512]))
    weights = Size(exponent=0.3, final=None).weigh_sources(step=0, run=run)
    shares = Proportional(exponent=0.3).score_sources(run=run)
    assert (weights / weights.sum()).tolist() == shares.tolist()


def test_the_exponent_moves_over_the_schedule(make_run):
    """From size to even in a straight line, and even from then on; in the middle a half."""
    run = make_run(tokens=np.array([400, 100, 1600]), steps=10)
    size = Size(exponent=1.0)  # to 0 is the default
    assert size.weigh_sources(step=0, run=run).tolist() == [0.25, 0.0625, 1.0]
    assert size.weigh_sources(step=5, run=run).tolist() == [0.5, 0.25, 1.0]
    for step in (10, 99):
        assert size.weigh_sources(step=step, run=run).tolist() == [1.0, 1.0, 1.0]
    assert Size(exponent=0.0, final=1.0).weigh_sources(step=10, run=run).tolist() == [0.25, 0.0625, 1.0]


@pytest.mark.parametrize("exponent", [-0.1, 4.1, float("nan")])
def test_an_exponent_that_means_nothing_is_refused(exponent):
    """Negative ones would prefer the smallest."""
    with pytest.raises(AndreaError, match=r"weight\.size\.exponent is"):
        Size(exponent=exponent)
    with pytest.raises(AndreaError, match=r"weight\.size\.final is"):
        Size(final=exponent)
