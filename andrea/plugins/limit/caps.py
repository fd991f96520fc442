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

    caps: dict[str, float] = option(factory=dict, help="source name to highest final weight; others unbounded")

    @hookimpl
    def on_start(self, run: Run) -> None:
        """Refuse names that are no source of the run, and values that bound nothing."""
        unknown = [name for name in self.caps if name not in run.sources]
        if unknown:
            raise AndreaError(
                f"limit.caps.caps names {', '.join(unknown)}, no source of this run",
                f"its sources are: {', '.join(run.sources)}",
            )
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
