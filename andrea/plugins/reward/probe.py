"""A pull is worth how far the update lowered the loss on held-out text of its own source."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from andrea import Evaluation, Pull, Run, StepRecord, hookimpl, option, plugin, state
from andrea.plugins.reward.probe_density import refuse_unknown_unit, tokens_per_byte


@plugin
class Probe:
    """Reward (held-out loss before - after the update) x scale, on the fixed held-out batch of the pulled source.

    Several pulls of one source in a step share its drop evenly. It can be negative, and it cannot be earned by noise or
    by learning text by heart. It costs two forward passes of a batch for each source of a step.

    Tokens of different sources stand for different amounts of text. In the unit bits_per_byte, a drop counts by the
    source's tokens per byte, known from the first evaluation on; until then, and with nats, by 1.
    """

    scale: float = option(1000.0, help="reward of a drop by one nat per (average) token")
    unit: str = option("bits_per_byte", help="in which drops of different sources are equal: bits_per_byte or nats")
    densities: npt.NDArray[np.float64] = state()

    def __attrs_post_init__(self) -> None:
        refuse_unknown_unit("reward.probe", self.unit)

    @hookimpl
    def on_start(self, run: Run) -> None:
        """Begin with sources that are all alike."""
        self.densities = np.ones(len(run.sources))

    @hookimpl
    def request_probes(self, pulls: Sequence[int], run: Run) -> list[str]:
        """Ask for the sources of this step."""
        return [run.sources[source] for source in dict.fromkeys(pulls)]

    @hookimpl
    def reward(self, pull: Pull, record: StepRecord, run: Run) -> dict[str, float]:
        """Return the one term ``probe``; 0 where a loss is not finite."""
        before, after = record.probes.get(run.sources[pull.source], (math.nan, math.nan))
        drop = before - after
        if not math.isfinite(drop):
            return {"probe": 0.0}
        shared = sum(other.source == pull.source for other in record.pulls)
        return {"probe": float(drop * self.scale * self.densities[pull.source] / shared)}

    @hookimpl
    def on_evaluation(self, evaluation: Evaluation, run: Run) -> None:
        """Learn how dense the tokens of each source are."""
        if self.unit == "bits_per_byte":
            self.densities = tokens_per_byte(evaluation, run.sources)
