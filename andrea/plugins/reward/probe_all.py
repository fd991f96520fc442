"""A pull is worth how far the update lowered the held-out loss of all sources, so that transfer counts."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, Evaluation, Run, StepRecord, hookimpl, option, plugin, state
from andrea.plugins.reward.probe_density import refuse_unknown_unit, tokens_per_byte


@plugin
class ProbeAll:
    """Reward the mean drop of the held-out losses around an update x scale, shared evenly by the pulls of the step.

    A step probes all sources, or `probed` of them, drawn anew in every step: an estimate of the same mean at a fraction
    of the price, which is two forward passes of a batch for each probed source. It can be negative. Unit as in
    reward.probe.
    """

    scale: float = option(1000.0, help="reward of a mean drop by one nat per (average) token")
    probed: int = option(0, help="sources probed in a step, drawn at random; 0 probes all")
    unit: str = option("bits_per_byte", help="in which drops of different sources are equal: bits_per_byte or nats")
    densities: npt.NDArray[np.float64] = state()

    def __attrs_post_init__(self) -> None:
        refuse_unknown_unit("reward.probe_all", self.unit)
        if self.probed < 0:
            raise AndreaError(f"reward.probe_all.probed is {self.probed}", "a number of sources, or 0 for all")

    @hookimpl
    def on_start(self, run: Run) -> None:
        """Begin with sources that are all alike."""
        self.densities = np.ones(len(run.sources))

    @hookimpl
    def request_probes(self, step: int, run: Run) -> list[str]:
        """Ask for this step's sources."""
        return [run.sources[source] for source in self._probed(step, run)]

    @hookimpl
    def reward(self, record: StepRecord, run: Run) -> dict[str, float]:
        """Return the one term ``probe_all``; 0 where no loss is finite."""
        drops = []
        for source in self._probed(record.step, run):
            before, after = record.probes.get(run.sources[source], (math.nan, math.nan))
            if math.isfinite(before - after):
                drops.append((before - after) * float(self.densities[source]))
        mean = math.fsum(drops) / len(drops) if drops else 0.0
        return {"probe_all": mean * self.scale / len(record.pulls)}

    @hookimpl
    def on_evaluation(self, evaluation: Evaluation, run: Run) -> None:
        """Learn how dense the tokens of each source are."""
        if self.unit == "bits_per_byte":
            self.densities = tokens_per_byte(evaluation, run.sources)

    def _probed(self, step: int, run: Run) -> list[int]:
        """Return the sources that this step probes; a function of the step."""
        count = len(run.sources)
        if not 0 < self.probed < count:
            return list(range(count))
        return sorted(run.draws("reward.probe_all", step).permutation(count)[: self.probed].tolist())
