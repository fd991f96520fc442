"""stop.max_steps: the only stop by count."""

from __future__ import annotations

import pytest

from andrea import AndreaError
from andrea.plugins.stop.max_steps import MaxSteps


@pytest.mark.parametrize(("option", "limit"), [(None, 1000), (20, 20), (2000, 2000)])
def test_stops_when_that_many_updates_are_done(make_run, make_record, option, limit):
    """The step before the limit goes on; the limit and anything behind it stops; none means the schedule's 1,000."""
    plugin = MaxSteps(steps=option)
    answers = [plugin.should_stop(record=make_record(limit - 1 + late), run=make_run()) for late in (-1, 0, 1)]
    assert answers == [None, f"{limit} steps are done", f"{limit} steps are done"]


def test_less_than_one_step_is_refused():
    """A run has at least one step."""
    with pytest.raises(AndreaError, match=r"stop\.max_steps\.steps is 0"):
        MaxSteps(steps=0)
    MaxSteps(steps=1)
