"""An engine that learns nothing real, in no time: for tests of everything around an engine."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea.engine import Buffer, EngineConfig, GenerateOptions, StepResult, Watch, sum_losses
from andrea.engine.schedule import learning_rate
from andrea.rng import Draws
from andrea.types import Tokens

GROUPS = 16
LETTERS = np.frombuffer(b"etaoinshrdlu    ", dtype=np.uint8).astype(np.int32)


class FakeEngine:
    """Losses fall as tokens are seen, and depend on which tokens; every number is a function of the batches so far.

    Ids fall into 16 groups by their remainder. A weight for each group holds how often it was a target, in batches of
    64 tokens, and a target costs ln V / (1 + weight of its group) nats.

    Parameters
    ----------
    config
        As of any engine.
    skipped
        Steps whose gradient is not finite: nothing moves, and their losses are NaN when the step is odd.
    """

    def __init__(self, config: EngineConfig, skipped: Collection[int] = ()) -> None:
        self.config = config
        self._skipped = frozenset(skipped)
        self._state: dict[str, npt.NDArray[Any]] = {
            "weights": np.zeros(GROUPS, dtype=np.float32),
            "first_moments": np.zeros(GROUPS, dtype=np.float32),
            "second_moments": np.zeros(GROUPS, dtype=np.float32),
            "applied_updates": np.zeros(1, dtype=np.int64),
        }

    def train_step(
        self, step: int, inputs: Tokens, targets: Tokens, probes: Mapping[str, tuple[Tokens, Tokens]] | None = None
    ) -> StepResult:
        """Count the targets."""
        row_losses = self.evaluate(inputs, targets)
        before = {name: self._mean(*batch) for name, batch in (probes or {}).items()}
        gradient = np.bincount(targets.ravel() % GROUPS, minlength=GROUPS).astype(np.float32) / np.float32(64)
        skipped = step in self._skipped
        if not skipped:
            self._state["weights"] += gradient
            self._state["first_moments"] = gradient
            self._state["second_moments"] = gradient * gradient
            self._state["applied_updates"] += 1
        elif step % 2:
            row_losses = np.full_like(row_losses, np.nan)
        return StepResult(
            row_losses=row_losses,
            grad_norm=math.inf if skipped else float(np.linalg.norm(gradient)),
            learning_rate=learning_rate(self.config.schedule, step),
            skipped=skipped,
            probe_losses={name: (before[name], self._mean(*batch)) for name, batch in (probes or {}).items()},
        )

    def _mean(self, inputs: Tokens, targets: Tokens) -> float:
        total, count = sum_losses(self.evaluate(inputs, targets), targets)
        return total / count

    def evaluate(self, inputs: Tokens, targets: Tokens) -> npt.NDArray[np.float32]:
        """Return the mean cost of each row's valid targets, float32 (rows,)."""
        costs = math.log(self.config.vocabulary) / (1 + self._state["weights"].astype(np.float64))
        valid = targets >= 0
        total = np.where(valid, costs[targets % GROUPS], 0.0).sum(axis=1)
        return np.asarray(total / valid.sum(axis=1), dtype=np.float32)

    def generate(
        self, prompts: Sequence[npt.ArrayLike], options: GenerateOptions, watch: Watch | None = None
    ) -> list[Tokens]:
        """Return letters and spaces drawn from (seed, row, number of updates)."""
        updates = int(self._state["applied_updates"][0])
        rows = []
        for row in range(len(prompts)):
            words = Draws(options.seed, "fake.generate", options.first + row, updates).words(options.max_tokens)
            ids = LETTERS[(words % np.uint64(len(LETTERS))).astype(np.int64)] % self.config.vocabulary
            ends = (place for place, one in enumerate(ids.tolist(), start=1) if watch and watch(row, one))
            rows.append(ids[: next(ends, len(ids))])
        return rows

    def export_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of all arrays."""
        return {name: array.copy() for name, array in self._state.items()}

    def import_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `export_state` gave."""
        own = {name: (array.shape, array.dtype) for name, array in self._state.items()}
        if {name: (array.shape, array.dtype) for name, array in state.items()} != own:
            raise ValueError("this is not a state of a FakeEngine")
        self._state = {name: array.copy() for name, array in state.items()}

    def memory_plan(self) -> list[Buffer]:
        """Return the arrays."""
        return [Buffer(n, "state", a.shape, str(a.dtype), a.nbytes) for n, a in self._state.items()]

    def fingerprint(self) -> dict[str, str]:
        """Return its name: the numbers depend on nothing else."""
        return {"device": "fake"}

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""
