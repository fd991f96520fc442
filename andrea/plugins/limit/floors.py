"""The least weight that a source may have, so that the bandit cannot starve it."""

from __future__ import annotations

import numpy as np

from andrea import AndreaError, Limits, Run, hookimpl, option, plugin


@plugin
class Floors:
    """Raise the final weight of a source to its floor: final = max(tentative x weight, floor).

    A floor is a weight before normalising, not a share: beside tentative weights up to 1 a floor of 0.8 is high. A mask
    (weight 0) drops a source whatever its floor, and a cap below the floor wins.
    """

    floors: dict[str, float] = option(factory=dict, help="source name to lowest final weight; others 0", sources=True)

    def __attrs_post_init__(self) -> None:
        """Refuse values that bound nothing."""
        wrong = [f"{name} = {value}" for name, value in self.floors.items() if not 0 <= value < np.inf]
        if wrong:
            raise AndreaError(f"limit.floors.floors has {', '.join(wrong)}", "a floor is a number of at least 0")

    @hookimpl
    def limit_sources(self, run: Run) -> Limits:
        """Return the bounds, float64 (S,) each."""
        values = np.zeros(len(run.sources))
        for name, value in self.floors.items():
            values[run.sources.index(name)] = value
        return Limits(floor=values, cap=np.full(len(values), np.inf))
