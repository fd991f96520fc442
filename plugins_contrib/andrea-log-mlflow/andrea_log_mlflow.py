"""Runs in MLflow, in a local database or on a server."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from andrea import AndreaError, Evaluation, Run, Sample, StepRecord, hookimpl, option, plugin
from andrea.figures import configuration, evaluation_figures, step_figures

STATUS = {"done": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
MOST = 1000  # metrics that MLflow takes at once; 100 parameters
LONGEST = 6000  # characters of a parameter
TRAIN, HELD_OUT = "train/loss", "held_out/mean"  # by their histories a resume knows what is logged


@plugin
class MLflow:
    """Log a run to MLflow: losses, shares, held-out figures, samples, the configuration.

    `mlflow.json` in the run's folder remembers the id. MLflow takes no point back, so a resumed run asks for the last
    points and leaves out what is logged already: its numbers are the same, bit for bit. Points are sent together every
    few seconds; a server that does not answer is told of, tried again, and holds up no run.
    """

    uri: str | None = option(None, help="of the store; MLFLOW_TRACKING_URI, or mlflow.db beside the run, when null")
    experiment: str = option("andrea", help="of MLflow, under which the run is listed")
    every: int = option(10, help="steps between two points of training")
    seconds: float = option(5.0, help="between two times that points are sent")
    _client: Any = attrs.field(init=False, default=None)
    _run_id: str = attrs.field(init=False, default="")
    _known: dict[str, int] = attrs.field(init=False, factory=dict)
    _waiting: list[Metric] = attrs.field(init=False, factory=list)
    _sent: float = attrs.field(init=False, default=0.0)

    @hookimpl
    def on_start(self, run: Run) -> None:
        """Refuse options that cannot be, and a store that does not answer."""
        if self.every < 1 or not self.seconds >= 0:
            raise AndreaError(
                f"log.mlflow has every {self.every} and seconds {self.seconds}",
                "at least 1 and at least 0: --set log.mlflow.every=10 --set log.mlflow.seconds=5",
            )
        if run.folder is not None:
            place = run.folder.resolve().parent
            uri = self.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{place / 'mlflow.db'}"
            try:
                self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)
                self._experiment(uri, place)
            except Exception as error:  # of MLflow, SQLAlchemy or the network, each with classes of its own
                hint = "--set log.mlflow.uri=sqlite:///mlflow.db, or the http URL of a server"
                raise AndreaError(f"log.mlflow cannot open {uri}: {error}", hint) from error

    @hookimpl
    def on_step(self, record: StepRecord, run: Run) -> None:
        """Log the figures of the first step and of every `every`-th."""
        if self._client is not None and not self._run_id:
            self._open(run)
        step = record.step + 1
        if step == 1 or step % self.every == 0:
            self._log(TRAIN, step, step_figures(record, run))

    @hookimpl
    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Log held-out figures."""
        self._log(HELD_OUT, evaluation.step, evaluation_figures(evaluation))

    @hookimpl
    def on_sample(self, sample: Sample) -> None:
        """Log generated texts as a file; the same step writes the same file."""
        rows = [{"prompt": p, "text": t} for p, t in zip(sample.prompts, sample.texts, strict=True)]
        self._keep(f"samples/step_{sample.step:06d}.json", json.dumps(rows, indent=1, ensure_ascii=False))

    @hookimpl
    def on_finish(self, ending: str) -> None:
        """Send what waits, and close the run as finished, killed or failed."""
        if self._run_id:
            self._send()
            self._try(lambda: self._client.set_terminated(self._run_id, STATUS[ending]))
        self._client, self._run_id, self._known, self._waiting = None, "", {}, []

    # -- the store ---------------------------------------------------------------------------------------------------

    def _experiment(self, uri: str, place: Path) -> str:
        found = self._client.get_experiment_by_name(self.experiment)
        if found is not None:
            return str(found.experiment_id)
        local = (place / "mlflow-artifacts").as_uri() if uri.startswith("sqlite:") else None
        return str(self._client.create_experiment(self.experiment, artifact_location=local))

    def _open(self, run: Run) -> None:
        """Go on with the run that the folder remembers, or begin one."""
        assert run.folder is not None
        memory = run.folder / "mlflow.json"
        if memory.is_file():
            try:
                self._run_id = str(json.loads(memory.read_bytes())["run_id"])
                self._client.update_run(self._run_id, status="RUNNING")
            except (ValueError, LookupError, TypeError, MlflowException) as error:
                raise AndreaError(
                    f"log.mlflow cannot go on with the run that {memory} names: {error}",
                    "remove the file: the run is then logged as a new one",
                ) from None
        else:
            number = self._client.get_experiment_by_name(self.experiment).experiment_id
            self._run_id = self._client.create_run(number, run_name=run.folder.name).info.run_id
            parameters = [Param(_name(key), str(value)[:LONGEST]) for key, value in _flat(configuration(run))]
            for begin in range(0, len(parameters), 100):
                self._client.log_batch(self._run_id, params=parameters[begin : begin + 100])
            memory.write_text(json.dumps({"run_id": self._run_id}), encoding="utf-8")
        for key in (TRAIN, HELD_OUT):
            history = self._client.get_metric_history(self._run_id, key)
            self._known[key] = max((point.step for point in history), default=0)
        self._keep("config.json", json.dumps(configuration(run), indent=1))
        self._sent = time.monotonic()

    def _log(self, key: str, step: int, figures: Mapping[str, float]) -> None:
        """Let points wait that are not logged yet; send them when it is time."""
        if not self._run_id or step <= self._known[key]:
            return
        self._known[key] = step
        now = int(time.time() * 1000)
        self._waiting += [Metric(_name(name), value, now, step) for name, value in figures.items()]
        if len(self._waiting) >= MOST or time.monotonic() - self._sent >= self.seconds:
            self._send()

    def _send(self) -> None:
        self._sent = time.monotonic()
        while self._waiting:
            batch = self._waiting[:MOST]
            if not self._try(lambda batch=batch: self._client.log_batch(self._run_id, metrics=batch)):
                return
            del self._waiting[: len(batch)]

    def _keep(self, name: str, text: str) -> None:
        if self._run_id:
            self._try(lambda: self._client.log_text(self._run_id, text, name))

    def _try(self, send: Any) -> bool:
        """Say whether something could be sent; a log that fails must not end a run."""
        try:
            send()
        except Exception as error:  # as in on_start
            print(f"log.mlflow: {error}", file=sys.stderr)
            return False
        return True


def _name(text: str) -> str:
    """Return a name that MLflow takes: other characters become underscores."""
    return re.sub(r"[^\w\-. :/]", "_", text)[:250]


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of every leaf of a JSON value."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            yield from _flat(item, f"{path}.{index}")
    else:
        yield path, json.dumps(value)
