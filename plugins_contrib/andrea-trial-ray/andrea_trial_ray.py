"""The runs of a trial on a Ray cluster: Ray Tune places and watches them, andrea makes them as everywhere.

driver   andrea trial --queue ray
   |     Ready tells Tune which run may begin: those that it waits for are done
Ray Tune places each run where its resources are free
   |
worker   RunOfTrial keeps one process `python -m andrea.trial_run`, in the driver's folder
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from attrs import define, evolve, field
from ray import tune
from ray.tune.search import Searcher

from andrea import AndreaError
from andrea.interrupts import Interrupts
from andrea.trial import Job
from andrea.trial_queue import command_of, failure_of

PATIENCE = 600  # seconds that an interrupted run may take to write its checkpoint
LOOK = 1.0  # seconds between two looks at a run
# Threads decide the last bits of a run on the CPU, so a run sees the driver's settings; Ray would set some of its own.
SETTINGS = re.compile(r"ANDREA_|OMP_|OPENBLAS_|MKL_")
LAST_LINE = 100_000  # bytes of a journal in which its last step is looked for


@define
class RayQueue:
    """Runs jobs on a Ray cluster, as many at once as it has resources for.

    The cluster is the one that ``RAY_ADDRESS`` names, else one that is started on this machine and ended afterwards.
    A run on the CPU takes one of its CPUs, a run on a card one of its GPUs too. Every machine must see the trial's
    folder, the data and the current folder under the same paths.

    Attributes
    ----------
    jobs, devices, logs, say, failed
        As of `andrea.trial_queue.Queue`; of devices only whether they are cards counts, for Ray chooses which.
    """

    jobs: Sequence[Job]
    devices: Sequence[str]
    logs: Path
    say: Callable[[str], None]
    failed: list[str] = field(factory=list)

    def work(self) -> str:
        """Run until all is done; return the signal that ended it before, or an empty text."""
        waiting = [job for job in self.jobs if not job.done]
        self.say(f"{len(self.jobs)} runs, {len(self.jobs) - len(waiting)} of them done")
        kind = self._kind()
        if not waiting:
            return ""
        os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # signals are answered here
        os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"  # a run keeps its own journal
        os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # what has no switch to be silent
        os.environ["TUNE_FORCE_TRIAL_CLEANUP_S"] = str(PATIENCE)
        own = not ray.is_initialized()
        try:
            if own:
                ray.init(log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
            with Interrupts() as interrupts:
                self._tune(waiting, self._device(kind), interrupts)
            return interrupts.stopped_by
        finally:
            if own:
                ray.shutdown()

    def _kind(self) -> str:
        kinds = {device.partition(":")[0] for device in self.devices}
        if len(kinds) > 1 or not kinds <= {"auto", "cpu", "cuda"}:
            raise AndreaError(
                f"the queue ray has the devices {', '.join(self.devices)}",
                "name one kind, auto, cpu or cuda: Ray chooses which, and runs as many at once as there are",
            )
        return kinds.pop()

    def _device(self, kind: str) -> str:
        cards = ray.cluster_resources().get("GPU", 0)
        if kind == "cuda" and not cards:
            raise AndreaError("the Ray cluster has no GPU", "--device cpu, or start its nodes with --num-gpus")
        return "cuda" if cards and kind != "cpu" else "cpu"

    def _tune(self, waiting: Sequence[Job], device: str, interrupts: Interrupts) -> None:
        places = {job.name: _on_any_machine(job) for job in waiting}
        ready = Ready(waiting, self.failed, self._say_end, interrupts)
        config = {"cwd": str(Path.cwd()), "logs": str(self.logs.resolve()), "device": device}
        config |= {"environment": {name: value for name, value in os.environ.items() if SETTINGS.match(name)}}
        trainable = tune.with_parameters(RunOfTrial, places=places, how=config)
        resources = {"cpu": 1, "gpu": int(device == "cuda")}
        tune.Tuner(
            tune.with_resources(trainable, resources),
            tune_config=tune.TuneConfig(search_alg=ready, num_samples=len(waiting), reuse_actors=False),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(self.logs.resolve().parent / "ray"),
                stop=Asked(interrupts),
                verbose=0,
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        ).fit()
        ready.close()

    def _say_end(self, job: Job, code: int | None) -> None:
        if code is None:
            self.say(f"{job.name} begins or goes on")
        elif code == 0 and job.done:
            self.say(f"{job.name} is done")
        else:
            self.failed.append(job.name)
            self.say(f"{job.name} {failure_of(job, code, self.logs)}")


class Ready(Searcher):
    """Suggests to Tune the runs that may begin: those for which no run must be waited any more.

    Parameters
    ----------
    waiting
        Jobs that are not done, each behind those that it waits for.
    failed
        Names of those that failed; is added to.
    say
        Is told of a job and its exit code, None at its beginning.
    interrupts
        After a signal nothing begins.
    """

    def __init__(
        self,
        waiting: Sequence[Job],
        failed: list[str],
        say: Callable[[Job, int | None], None],
        interrupts: Interrupts,
    ) -> None:
        super().__init__(metric="steps", mode="max")
        self._waiting, self._failed, self._say, self._interrupts = list(waiting), failed, say, interrupts
        self._running: dict[str, Job] = {}

    def suggest(self, trial_id: str) -> Any:
        """Return the next run, None when it has to wait, FINISHED when no more will come."""
        for job in [job for job in self._waiting if set(job.waits_for) & set(self._failed)]:
            self._waiting.remove(job)
            self._failed.append(job.name)
        if not self._waiting or self._interrupts.stop_asked():
            return Searcher.FINISHED
        unfinished = {job.name for job in (*self._waiting, *self._running.values())}
        job = next((job for job in self._waiting if not set(job.waits_for) & unfinished), None)
        if job is None:
            return None
        self._waiting.remove(job)
        self._running[trial_id] = job
        self._say(job, None)
        return {"job": job.name}

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        """Take in how a run has ended; one that gave no exit code was ended before it could."""
        job = self._running.pop(trial_id, None)
        if job is not None:
            code = (result or {}).get("code")
            self._say(job, int(code) if code is not None else 1)

    def close(self) -> None:
        """Say of every run that Tune did not bring to an end that it is interrupted."""
        for job in self._running.values():
            self._say(job, 0 if job.done else -15)
        self._running.clear()

    def __getstate__(self) -> dict[str, Any]:
        """Give nothing: Tune keeps a copy to restore, and what is done is read from the runs instead."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Keep nothing, for the same reason."""

    def restore(self, checkpoint_path: str) -> None:
        """Take nothing."""


class Asked(tune.Stopper):
    """Stops every run when a signal has asked for it."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Stop no run by its result."""
        return False

    def stop_all(self) -> bool:
        """Say whether a signal has come."""
        return self._interrupts.stop_asked()

    def __getstate__(self) -> dict[str, Any]:
        """Give a copy nothing to ask: only the driver hears signals."""
        return {"_interrupts": Interrupts()}


class RunOfTrial(tune.Trainable):
    """One run in a process of its own, which is asked to end, and waited for, when Tune stops it."""

    _process: subprocess.Popen[bytes] | None = None

    def setup(self, config: dict[str, Any], places: Mapping[str, Job], how: Mapping[str, Any]) -> None:
        """Start the process where, and with the settings with which, the driver would have."""
        self._job, logs = places[config["job"]], Path(how["logs"])
        logs.mkdir(parents=True, exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if not SETTINGS.match(name)}
        with (logs / f"{self._job.name}.txt").open("ab") as log:
            self._process = subprocess.Popen(
                command_of(self._job, how["device"]),
                cwd=how["cwd"],
                env={**environment, **how["environment"]},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def step(self) -> dict[str, Any]:
        """Wait a while; return how far the run is, and its exit code when it has ended."""
        assert self._process is not None
        try:
            code = self._process.wait(LOOK)
        except subprocess.TimeoutExpired:
            return {**_progress(self._job.folder), "done": False}
        return {**_progress(self._job.folder), "done": True, "code": code}

    def cleanup(self) -> None:
        """Let a run that is stopped write its checkpoint."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE)
            finally:
                self._process.kill()


def _on_any_machine(job: Job) -> Job:
    """Return a job whose files are named from the root: a worker has a current folder of its own."""
    return evolve(job, experiment={}, path=job.path.resolve(), folder=job.folder.resolve())


def _progress(folder: Path) -> dict[str, Any]:
    """Return the last step and its loss, for Ray's own displays."""
    journal = folder / "journal.jsonl"
    if not journal.is_file():
        return {"steps": 0}
    with journal.open("rb") as file:
        file.seek(max(0, journal.stat().st_size - LAST_LINE))
        lines = file.read().split(b"\n")
    for line in reversed(lines):
        if line.startswith(b'{"kind":"step"') and line.endswith(b"}"):
            value = json.loads(line)
            return {"steps": value["step"] + 1, "loss": value["loss"]}
    return {"steps": 0}
