"""weight.warmup: a restricted diet until a step."""

from __future__ import annotations

import pytest

from andrea import AndreaError
from andrea.plugins.weight.warmup import Warmup


@pytest.fixture
def warmup():
    return Warmup(curriculum_warmup_steps=5, curriculum_warmup_sources=["b", "d"])


def test_only_listed_sources_before_the_step_and_all_from_it_on(warmup, make_run):
    """The last restricted step is the one before `curriculum_warmup_steps`."""
    assert warmup.weigh_sources(step=0, run=make_run()).tolist() == [0, 1, 0, 1]
    assert warmup.weigh_sources(step=4, run=make_run()).tolist() == [0, 1, 0, 1]
    assert warmup.weigh_sources(step=5, run=make_run()).tolist() == [1, 1, 1, 1]


def test_an_empty_list_restricts_nothing(make_run):
    """Without a list every source may be drawn from the first step."""
    assert Warmup().weigh_sources(step=0, run=make_run()).tolist() == [1, 1, 1, 1]


def test_the_published_warmup_is_the_default():
    """20,000 steps."""
    assert Warmup().curriculum_warmup_steps == 20000


def test_a_length_below_0_is_refused():
    """No run has such a step."""
    with pytest.raises(AndreaError, match="curriculum_warmup_steps is -1"):
        Warmup(curriculum_warmup_steps=-1)
