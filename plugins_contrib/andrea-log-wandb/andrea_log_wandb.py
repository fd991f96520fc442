"""Runs in Weights & Biases, online or kept on disk to be synchronised later."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import wandb

from andrea import AndreaError, Evaluation, Run, Sample, StepRecord, hookimpl, option, plugin
from andrea.figures import configuration, evaluation_figures, step_figures

MODES = ("online", "offline", "disabled", "shared")
FINISH = {"done": 0, "interrupted": 130, "failed": 1}


@plugin
class Wandb:
    """Log a run to Weights & Biases: losses, shares, held-out figures, samples, the configuration.

    `wandb/andrea.json` in the run's folder remembers the id and how far was logged. Weights & Biases takes no point
    back, so a resumed run leaves out what it has logged already: its numbers are the same, bit for bit.
    """

    project: str = option("andrea", help="of the run")
    entity: str | None = option(None, help="team or user; the account's own when null")
    mode: str | None = option(None, help="online, offline or disabled; as wandb is set up when null")
    every: int = option(10, help="steps between two points of training")
    _run: Any = attrs.field(init=False, default=None)
    _memory: Any = attrs.field(init=False, default=None)

    @hookimpl
    def on_start(self) -> None:
        """Refuse options that cannot be; the run is opened at its first step, when its configuration is written."""
        if self.every < 1 or self.mode not in (None, *MODES):
            raise AndreaError(
                f"log.wandb has every {self.every} and mode {self.mode!r}",
                f"at least 1, and one of {', '.join(MODES)}: --set log.wandb.every=10 --set log.wandb.mode=offline",
            )

    @hookimpl
    def on_step(self, record: StepRecord, run: Run) -> None:
        """Log the figures of the first step and of every `every`-th."""
        if self._run is None and run.folder is not None:
            self._open(run, run.folder)
        step = record.step + 1
        if step == 1 or step % self.every == 0:
            self._log("train", step, step_figures(record, run))

    @hookimpl
    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Log held-out figures."""
        self._log("evaluation", evaluation.step, evaluation_figures(evaluation))

    @hookimpl
    def on_sample(self, sample: Sample) -> None:
        """Log generated texts as a table."""
        rows = [list(pair) for pair in zip(sample.prompts, sample.texts, strict=True)]
        self._log("sample", sample.step, {"samples": wandb.Table(columns=["prompt", "text"], data=rows)})

    @hookimpl
    def on_finish(self, ending: str) -> None:
        """Close the run with an exit code that says whether it is done, interrupted or failed."""
        if self._run is not None:
            self._run.finish(exit_code=FINISH[ending])
            self._run = self._memory = None

    def _open(self, run: Run, folder: Path) -> None:
        self._memory = _Memory.open(folder / "wandb" / "andrea.json")
        try:
            self._run = wandb.init(
                id=self._memory.id,
                name=folder.name,
                project=self.project,
                entity=self.entity,
                mode=self.mode,
                dir=str(folder.resolve()),  # its own process works elsewhere
                resume="allow",
                config=configuration(run),
                settings=wandb.Settings(console="off"),  # what the run prints is the terminal's
            )
        except wandb.errors.Error as error:
            raise AndreaError(
                f"log.wandb cannot open a run: {error}", "wandb login; or keep it on disk: --set log.wandb.mode=offline"
            ) from error

    def _log(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        if self._run is not None and self._memory.pass_on(kind, step):
            self._run.log(dict(values), step=step)


@attrs.define
class _Memory:
    """What outlasts the process: the id of the run, and the last step that was logged of each kind."""

    path: Path
    id: str
    steps: dict[str, int]

    @classmethod
    def open(cls, path: Path) -> _Memory:
        """Read it, or begin one."""
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            return cls(path, secrets.token_hex(4), {})
        try:
            value = json.loads(path.read_bytes())
            return cls(path, str(value["id"]), {kind: int(step) for kind, step in value["steps"].items()})
        except (ValueError, LookupError, TypeError, AttributeError):
            raise AndreaError(f"{path} is damaged", "remove it: the run is then logged under a new id") from None

    def pass_on(self, kind: str, step: int) -> bool:
        """Say whether a point is new, and remember it before it is logged: a kill then loses one, and doubles none."""
        if step <= self.steps.get(kind, 0):
            return False
        self.steps[kind] = step
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps({"id": self.id, "steps": self.steps}), encoding="utf-8")
        partial.replace(self.path)
        return True
