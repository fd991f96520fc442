"""The greatest weight that a source may have: the tool of a polish."""

from __future__ import annotations

import numpy as np

from andrea import AndreaError, Limits, Run, hookimpl, option, plugin


@plugin
class Caps:
    """Lower the final weight of a source to its cap: final = min(final, cap); the cap wins over a floor.

    A cap is a weight before normalising, not a share. Cap 0 keeps a source from being drawn. A sampler that ranks and
    does not draw, such as sampler.argmax, has no use for caps.
    """

    caps: dict[str, float] = option(
        factory=dict, help="source name to highest final weight; others unbounded", sources=True
    )

    def __attrs_post_init__(self) -> None:
        """Refuse values that bound nothing."""
        wrong = [f"{name} = {value}" for name, value in self.caps.items() if not value >= 0]
        if wrong:
            raise AndreaError(
                f"limit.caps.caps has {', '.join(wrong)}",
                "a cap is a number of at least 0",
            )

    @hookimpl
    def limit_sources(self, run: Run) -> Limits:
        """Return the bounds, float64 (S,) each."""
        values = np.full(len(run.sources), np.inf)
        for name, value in self.caps.items():
            values[run.sources.index(name)] = value
        return Limits(floor=np.zeros(len(values)), cap=values)
