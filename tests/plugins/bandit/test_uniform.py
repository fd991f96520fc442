"""bandit.uniform: all sources alike."""

from __future__ import annotations

import numpy as np

from andrea.plugins.bandit import uniform


def test_every_source_scores_one(make_run):
    """The scores are float64 ones, one a source."""
    scores = uniform.score_sources(run=make_run(["a", "b", "c"]))
    assert scores.dtype == np.float64
    assert scores.tolist() == [1.0, 1.0, 1.0]
