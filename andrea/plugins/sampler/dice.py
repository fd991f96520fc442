"""Phases of random length with a random focus: dice decide how narrow the diet is, the bandit decides on what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, Choice, Limits, Run, StepRecord, combine, hookimpl, option, plugin, state

Floats = npt.NDArray[np.float64]


@plugin
class Dice:
    """Draw sources from a focus set that is rolled anew in every phase.

    At the start of a phase: its length is drawn from `lengths`; 1d3 says how many of the best-ranked sources form the
    focus set; 1d4 says how many of the others join at random. Rank is score x weight, untried sources (score inf)
    first, equals in random order, and only sources that may be drawn at all (weight > 0, cap > 0). Focus sources have
    the tentative weight 1.0, joined ones 0.5, the rest 0; then weights, floors and caps act, so a source with a floor
    is drawn outside its phases too. A phase whose sources have all been masked ends at once.

    Choosing is a question, so it only works out which phase applies; `on_step` makes it the current one. All pulls of a
    step are given the same scores, weights and limits, so they work out the same phase.
    """

    lengths: list[int] = option(factory=lambda: [7, 14, 21, 28, 42], help="steps that a phase may last, equally likely")
    start: int = state(0)
    length: int = state(0)
    focus: list[int] = state(factory=list)
    joined: list[int] = state(factory=list)

    def __attrs_post_init__(self) -> None:
        if not self.lengths or min(self.lengths) < 1:
            raise AndreaError(
                f"sampler.dice.lengths is {self.lengths}, which leaves a phase without steps",
                "give one or more lengths of at least 1: --set 'sampler.dice.lengths=[7, 14, 21]'",
            )

    @hookimpl
    def on_start(self, run: Run) -> None:
        """Begin without a phase: the first step rolls one."""
        self.start, self.length, self.focus, self.joined = 0, 0, [], []

    @hookimpl
    def select_source(self, step: int, pull: int, scores: Floats, weights: Floats, limits: Limits, run: Run) -> Choice:
        """Draw from the current phase, or from the one that starts at this step."""
        allowed = [weight > 0 and cap > 0 for weight, cap in zip(weights.tolist(), limits.cap.tolist(), strict=True)]
        phase = self._current(step, allowed) or self._roll(step, scores, weights, allowed, run)
        tentative = np.zeros(len(scores))
        for sources, weight in ((phase["focus"], 1.0), (phase["joined"], 0.5)):
            for source in sources:  # one after another: an array of so few takes longer
                tentative[source] = weight
        shares = combine(tentative, weights, limits)
        drawn = run.draws("sampler.dice", step, pull).choice(shares)
        return Choice(drawn, {**phase, "share": float(shares[drawn])})

    @hookimpl
    def on_step(self, record: StepRecord) -> None:
        """Make the phase that the first pull of the step was drawn from the current one."""
        phase = record.pulls[0].detail
        if phase["start"] < self.start:  # chosen ahead, when the phase that is current now was not known yet
            return
        self.start, self.length = phase["start"], phase["length"]
        self.focus, self.joined = list(phase["focus"]), list(phase["joined"])

    def _current(self, step: int, allowed: Sequence[bool]) -> Mapping[str, Any] | None:
        """Return the latched phase; None when it is over or nothing in it may be drawn any more."""
        if step >= self.start + self.length or not any(allowed[source] for source in self.focus + self.joined):
            return None
        return {"start": self.start, "length": self.length, "focus": list(self.focus), "joined": list(self.joined)}

    def _roll(self, step: int, scores: Floats, weights: Floats, allowed: Sequence[bool], run: Run) -> Mapping[str, Any]:
        """Return the phase that starts at a step: a function of the step and of what the sampler is given."""
        draws = run.draws("sampler.dice.phase", step)
        length = self.lengths[draws.integer(len(self.lengths))]
        focused, joining = 1 + draws.integer(3), 1 + draws.integer(4)
        shuffled = [source for source in draws.permutation(len(scores)).tolist() if allowed[source]]
        ranked = sorted(shuffled, key=lambda source: -scores[source] * weights[source])  # stable: equals stay shuffled
        focus, rest = ranked[:focused], set(ranked[focused:])
        others = [source for source in draws.permutation(len(scores)).tolist() if source in rest]
        return {"start": step, "length": length, "focus": focus, "joined": others[:joining]}
