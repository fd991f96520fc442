"""A trial: the same experiment under several arms of plugins and several seeds, each a run of its own.

TRIAL/trial.json                 what was asked
TRIAL/experiments/ARM.SEED.json  the experiment of each run, with everything that the trial sets
TRIAL/runs/ARM.SEED/             the run itself
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from attrs import astuple, field, frozen

from andrea.config import from_json
from andrea.errors import AndreaError, did_you_mean
from andrea.experiment_file import read_experiment
from andrea.placeholders import fill_data, mapped, texts
from andrea.registry import DEFAULTS, EXCLUSIVE, available, choose, create
from andrea.resources import experiments_folder
from andrea.settings import override
from andrea.strict_json import read_json, structure
from andrea.tokenfile import write_whole

TEST, COST = "test.json", "cost.json"
RESULT = "result.json"  # what a finished run came to, read from its journal once
LONGEST_STOP = 100_000  # bytes of a journal's last line, if that says why the run has stopped
Figures = TypeVar("Figures")
RUN_OF = re.compile(r"\{run:([^}]*)\}")


@frozen
class Arm:
    """What one arm of a trial changes in the experiment.

    Attributes
    ----------
    plugins
        Options by name. One of an exclusive kind takes the place of the experiment's; the others come behind them.
    without
        Plugins of the experiment, or default ones, that are left out.
    set
        Other keys of the experiment, ``{"batch.pulls_per_step": 4}``.
    """

    plugins: dict[str, dict[str, Any]] = field(factory=dict)
    without: tuple[str, ...] = ()
    set: dict[str, Any] = field(factory=dict)


@frozen
class Trial:
    """What a trial file says.

    Attributes
    ----------
    experiment
        The JSON object of an experiment; in the file also the name of one, or a path as seen from the file.
    steps
        Of every run; they replace the experiment's `schedule.steps`, and an arm's `set` replaces them.
    seeds
        Every arm runs once with each.
    arms
        By name. ``{run:ARM}`` in a text stands for the folder of that arm's run with the same seed, and makes this arm
        wait for it; ``{data}`` for the folder that the command line names.
    baseline
        The arm that "tokens to reach" and the number of worse sources refer to.
    against
        Arms that every arm is compared with, seed by seed; the baseline when none is named.
    test_rows
        Held-out rows of each source behind those that are evaluated during the run, measured once at its end.
    """

    experiment: dict[str, Any]
    steps: int
    seeds: tuple[int, ...]
    arms: dict[str, Arm]
    baseline: str
    against: tuple[str, ...] = ()
    test_rows: int = 0

    def __attrs_post_init__(self) -> None:
        if self.steps < 1 or self.test_rows < 0:
            raise AndreaError(f"steps is {self.steps} and test_rows {self.test_rows}", "at least 1, and at least 0")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise AndreaError(f"seeds is {list(self.seeds)}", "one seed or more, each once: [0, 1, 2]")
        for name in self.arms:
            if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
                raise AndreaError(f"the arm {name!r} cannot be part of a file name", "use a-z, 0-9, '-' and '_'")
        if not self.arms:
            raise AndreaError("arms is empty, so there is nothing to run", 'at least one: "arms": {"uniform": {}}')
        for key, name in (("baseline", self.baseline), *(("against", other) for other in self.against)):
            if name not in self.arms:
                hint = did_you_mean(name, list(self.arms)) or _arms(self.arms)
                raise AndreaError(f"{key} names {name!r}, which is no arm", hint)

    @property
    def compared(self) -> tuple[str, ...]:
        """Arms that every arm is compared with."""
        return self.against or (self.baseline,)


@frozen
class Job:
    """One run of a trial.

    Attributes
    ----------
    arm, seed
        Which.
    experiment, path
        The JSON object of its experiment, and the file that holds it.
    folder
        Of the run.
    test_rows
        As of the trial.
    waits_for
        Names of the jobs that must be done before.
    """

    arm: str
    seed: int
    experiment: dict[str, Any]
    path: Path
    folder: Path
    test_rows: int = 0
    waits_for: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """How a person calls it."""
        return f"{self.arm}.{self.seed}"

    @property
    def done(self) -> bool:
        """True when the run has ended by itself, be it early, and all is measured; a signal only interrupts it."""
        return ended(self.folder) and self._measured

    @property
    def unmeasured(self) -> bool:
        """True when of a run that has ended only the test losses are missing."""
        return ended(self.folder) and not self._measured

    @property
    def _measured(self) -> bool:
        return not self.test_rows or (self.folder / TEST).is_file()


def ended(folder: Path) -> bool:
    """Say whether the run in a folder has ended by itself: its journal's last line says why.

    Of a run whose journal is gone, what was kept of it says so.
    """
    journal = folder / "journal.jsonl"
    if not journal.is_file():
        return (folder / RESULT).is_file()
    with journal.open("rb") as file:
        file.seek(max(0, journal.stat().st_size - LONGEST_STOP))
        last = file.read().splitlines(keepends=True)[-1:]
    if not last or not last[0].startswith(b'{"kind":"stop"') or not last[0].endswith(b"\n"):
        return False
    return "signal" not in json.loads(last[0])["reasons"]


def read_beside(path: Path, take: Callable[[Any], Figures], cure: str) -> Figures | None:
    """Return what a file of a run says, None where there is none.

    Parameters
    ----------
    path
        Of a file that a trial keeps beside the journal. What it measured may be NaN, which strict JSON has not.
    take
        Takes what is wanted from its value; may fail as one does on a value of another kind.
    cure
        What happens when the file is deleted.

    Raises
    ------
    AndreaError
        When it cannot be read, or is not what was written.
    """
    try:
        return take(json.loads(path.read_bytes())) if path.is_file() else None
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        raise AndreaError(f"{path} is damaged", f"delete it: {cure}") from None
    except OSError as error:
        raise AndreaError(f"cannot read {path}: {error.strerror or error}", f"or delete it: {cure}") from None


@frozen
class Cost:
    """What training a run took: its time, its steps, and the part of the time that the curriculum's plugins took."""

    seconds: float = 0.0
    steps: int = 0
    curriculum_seconds: float = 0.0


def read_cost(folder: Path) -> Cost | None:
    """Return what the run in a folder took so far, None where it was not measured; as `read_beside`."""

    def take(value: Any) -> Cost:
        cost = Cost(value["seconds"] + 0.0, value["steps"] + 0, value["curriculum_seconds"] + 0.0)
        if not all(0 <= figure < math.inf for figure in astuple(cost)):
            raise ValueError
        return cost

    return read_beside(folder / COST, take, "of the time up to now nothing is then known")


def read_trial(path: Path, data: Path | None) -> Trial:
    """Read a trial file strictly.

    Parameters
    ----------
    path
        Of the file.
    data
        What ``{data}`` stands for.

    Raises
    ------
    AndreaError
        With every unknown key and wrong value; when the file needs a data folder and none is given.
    """
    value = read_json(path)
    if isinstance(value, dict) and isinstance(value.get("experiment"), str):
        beside = path.parent / value["experiment"]
        value["experiment"] = read_experiment(str(beside) if beside.is_file() else value["experiment"])[0]
    trial: Trial = structure(fill_data(value, data, str(path)), Trial, str(path))
    return trial


def find_trial(name: str) -> Path:
    """Return the path of a trial file, or of one that comes with the package, by its name."""
    bundled = experiments_folder() / "trials"
    path = bundled / f"{name}.json" if "/" not in name and (bundled / f"{name}.json").is_file() else Path(name)
    if not path.is_file():
        known = sorted(one.stem for one in bundled.glob("*.json"))
        raise AndreaError(
            f"there is no trial or file {name!r}",
            did_you_mean(name, known) or f"bundled trials: {', '.join(known)}; or give the path of a JSON file",
        )
    return path


def jobs_of(trial: Trial, where: str, folder: Path) -> list[Job]:
    """Return every run of a trial, seed by seed, each checked as far as it can be before it starts.

    Parameters
    ----------
    trial
        What was asked.
    where
        Its file, for messages.
    folder
        Of the trial.

    Raises
    ------
    AndreaError
        On an arm that is no experiment, that waits for itself, or whose run in the folder was another.
    """
    order = _in_order(trial.arms)
    jobs = [_job(trial, arm, seed, f"{where}: arm {arm}", folder) for seed in trial.seeds for arm in order]
    for job in jobs:
        _refuse_another(job)
    return jobs


def part_of(jobs: Sequence[Job], arms: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """Return the runs of some arms and seeds, all where none is named, with the runs that these wait for.

    Raises
    ------
    AndreaError
        When the trial has no such arm or seed.
    """
    known, all_seeds = list(dict.fromkeys(job.arm for job in jobs)), list(dict.fromkeys(job.seed for job in jobs))
    for arm in arms:
        if arm not in known:
            raise AndreaError(f"there is no arm {arm!r}", did_you_mean(arm, known) or _arms(known))
    for seed in seeds:
        if seed not in all_seeds:
            raise AndreaError(f"the trial has no seed {seed}", f"its seeds are {', '.join(map(str, all_seeds))}")
    wanted = {job.name for job in jobs if job.arm in (arms or known) and job.seed in (seeds or all_seeds)}
    for job in reversed(jobs):  # each stands behind those that it waits for
        if job.name in wanted:
            wanted |= set(job.waits_for)
    return [job for job in jobs if job.name in wanted]


def write_trial(folder: Path, trial_file: Path, jobs: Sequence[Job]) -> None:
    """Keep what is asked for in the folder of the trial: the file as it is, and every run's experiment."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "trial.json", trial_file.read_bytes())
    for job in jobs:
        job.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(job.path, _text(job.experiment))


def _job(trial: Trial, name: str, seed: int, where: str, folder: Path) -> Job:
    arm = trial.arms[name]
    waits_for: list[str] = []

    def place(match: re.Match[str]) -> str:
        waits_for.append(f"{match[1]}.{seed}")
        return str(folder / "runs" / waits_for[-1])

    base = {**trial.experiment, "schedule": {**trial.experiment.get("schedule", {}), "steps": trial.steps}}
    try:
        plugins = mapped(arm.plugins, lambda text: RUN_OF.sub(place, text))
        value = _changed(base, Arm(plugins, arm.without, arm.set))
    except AndreaError as error:
        raise AndreaError(f"{where}: {error.message}", error.hint) from None
    value["seed"] = seed
    _check(value, where)
    file, run = folder / "experiments" / f"{name}.{seed}.json", folder / "runs" / f"{name}.{seed}"
    return Job(name, seed, value, file, run, trial.test_rows, tuple(dict.fromkeys(waits_for)))


def _changed(base: Mapping[str, Any], arm: Arm) -> dict[str, Any]:
    """Return an experiment's JSON object as an arm changes it."""
    value: dict[str, Any] = copy.deepcopy(dict(base))
    taken = {name.partition(".")[0] for name in arm.plugins} & set(EXCLUSIVE)
    kept = {n: o for n, o in value.get("plugins", {}).items() if n.partition(".")[0] not in taken or n in arm.plugins}
    if unknown := [name for name in arm.without if name not in kept and name not in DEFAULTS]:
        raise AndreaError(f"without names {unknown[0]}, which is not used", f"in use: {', '.join(kept)}")
    value["plugins"] = {name: options for name, options in {**kept, **arm.plugins}.items() if name not in arm.without}
    left_out = [name for name in arm.without if name in DEFAULTS]
    value["without"] = list(dict.fromkeys([*value.get("without", []), *left_out]))
    for key, new in arm.set.items():
        if (owner := override(value, key, copy.deepcopy(new), list(available()))) in arm.without:
            raise AndreaError(f"set names {key}, but without leaves {owner} out", "leave one of the two out")
    return value


def _check(value: dict[str, Any], where: str) -> None:
    """Refuse what would be refused only when the run starts, or would leave nothing to compare."""
    config = from_json(value, where)
    readers = list(dict.fromkeys(part.reader for spec in config.sources for part in spec.parts))
    try:
        create(choose([], config.without, config.plugins, readers, "precision.fp32"), config.source_names)
    except AndreaError as error:
        raise AndreaError(f"{where}: {error.message}", error.hint) from None
    every, steps = config.evaluation.eval_every, config.schedule.steps
    if every == 0 or steps % every:
        raise AndreaError(
            f"{where}: evaluation.eval_every is {every}, so {steps} steps do not end with an evaluation",
            "runs are compared by the one after their last step: let eval_every divide the steps",
        )


def _refuse_another(job: Job) -> None:
    if job.folder.exists() and job.path.is_file() and job.path.read_bytes() != _text(job.experiment):
        raise AndreaError(
            f"{job.folder} is a run of another experiment than the trial asks for now",
            f"move it away, or give the trial another folder with --out; {job.path} says what it was",
        )


def _in_order(arms: Mapping[str, Arm]) -> list[str]:
    """Return the arms such that each stands behind those that it waits for."""
    needs = {name: _waited_for(arm) for name, arm in arms.items()}
    for name, others in needs.items():
        for other in others:
            if other not in arms:
                hint = did_you_mean(other, list(arms)) or _arms(arms)
                raise AndreaError(f"the arm {name} waits for the run of {other!r}, which is no arm", hint)
    ordered: list[str] = []
    while len(ordered) < len(arms):
        ready = [name for name in arms if name not in ordered and needs[name] <= set(ordered)]
        if not ready:
            stuck = [name for name in arms if name not in ordered]
            raise AndreaError(f"the arms {', '.join(stuck)} wait for each other", "one of them must not use {run:...}")
        ordered += ready
    return ordered


def _waited_for(arm: Arm) -> set[str]:
    return {name for text in texts(arm.plugins) for name in RUN_OF.findall(text)}


def _arms(arms: Iterable[str]) -> str:
    return f"the arms are: {', '.join(arms)}"


def _text(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"
