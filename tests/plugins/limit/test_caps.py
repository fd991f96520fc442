"""limit.caps: highest final weights by name."""

from __future__ import annotations

import numpy as np
import pytest

from andrea import AndreaError, Limits, combine
from andrea.plugins.limit.caps import Caps


def test_named_sources_get_their_cap_and_the_others_none(make_run):
    """Caps stand at the index of their source; floors stay 0."""
    limits = Caps(caps={"c": 0.8, "a": 0}).limit_sources(run=make_run())
    assert limits.cap.tolist() == [0.0, np.inf, 0.8, np.inf]
    assert limits.floor.tolist() == [0.0] * 4


def test_the_cap_wins_over_the_floor(make_run):
    """Floor 0.8 under cap 0.5 leaves 0.5, beside 0.5 and 1: shares 1 : 1 : 2 : 0."""
    cap = Caps(caps={"a": 0.5}).limit_sources(run=make_run()).cap
    shares = combine([0, 0.5, 1, 0], np.ones(4), Limits(np.array([0.8, 0, 0, 0]), cap))
    assert shares.tolist() == [0.25, 0.25, 0.5, 0.0]


@pytest.mark.parametrize("value", [-0.1, float("nan")])
def test_values_that_are_no_cap_are_refused(value):
    """A cap is at least 0."""
    with pytest.raises(AndreaError, match=r"has a = "):
        Caps(caps={"a": value})
