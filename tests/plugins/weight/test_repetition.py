"""weight.repetition against the published fit."""

from __future__ import annotations

import numpy as np
import pytest

from andrea import AndreaError
from andrea.plugins.weight.repetition import Repetition


def test_the_worth_of_a_pass_is_the_published_one(make_run):
    """After 1, 2, 4 and 8 epochs it is 0.94, 0.88, 0.77 and 0.59; untouched text is worth 1."""
    run = make_run(drawn=np.array([100, 200, 400, 800]))
    # The published figures have two digits.
    assert Repetition().weigh_sources(run=run) == pytest.approx([0.94, 0.88, 0.77, 0.59], abs=0.005)
    assert Repetition().weigh_sources(run=make_run()).tolist() == [1.0] * 4


def test_no_number_of_epochs_masks_a_source(make_run):
    """A weight of 0 would; what underflows stays just above."""
    assert (Repetition().weigh_sources(run=make_run(drawn=np.full(4, 10**9))) > 0).all()


def test_a_decay_of_nothing_is_refused():
    """It would divide by 0."""
    with pytest.raises(AndreaError, match=r"weight\.repetition\.decay is 0"):
        Repetition(decay=0.0)
