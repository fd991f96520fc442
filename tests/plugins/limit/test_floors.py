"""limit.floors: lowest final weights by name."""

from __future__ import annotations

import numpy as np
import pytest

from andrea import AndreaError, combine
from andrea.plugins.limit.floors import Floors


def test_named_sources_get_their_floor_and_the_others_none(make_run):
    """Floors stand at the index of their source; caps stay open."""
    limits = Floors(floors={"c": 0.8, "a": 0.7}).limit_sources(run=make_run())
    assert limits.floor.tolist() == [0.7, 0.0, 0.8, 0.0]
    assert limits.cap.tolist() == [np.inf] * 4


def test_floor_is_a_weight_before_normalising_and_a_mask_wins(make_run):
    """Tentative 1, 0, 0, 0 with floors of 0.5 on the others, one of them masked, gives shares 2 : 1 : 1 : 0."""
    floors = Floors(floors={"b": 0.5, "c": 0.5, "d": 0.5})
    shares = combine([1, 0, 0, 0], [1, 1, 1, 0], floors.limit_sources(run=make_run()))
    assert shares.tolist() == [0.5, 0.25, 0.25, 0.0]


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_values_that_are_no_floor_are_refused(value):
    """A floor is a finite number of at least 0."""
    with pytest.raises(AndreaError, match=r"has a = "):
        Floors(floors={"a": value})
