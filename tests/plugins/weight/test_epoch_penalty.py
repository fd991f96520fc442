"""weight.epoch_penalty against the published number."""

from __future__ import annotations

import numpy as np

from andrea.plugins.weight import epoch_penalty


def test_worked_numbers(make_run):
    """5,600 drawn of 1,400 are 4 epochs and give 0.2; nothing drawn gives 1, one epoch 0.5."""
    run = make_run(documents=np.array([1400, 10, 10, 10]), drawn=np.array([5600, 0, 10, 90]))
    assert epoch_penalty.weigh_sources(run=run).tolist() == [0.2, 1.0, 0.5, 0.1]
