"""Decides what a run is to be: new, resumed, forked or polished, in which folder, under which configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from andrea.checkpoint import Snapshot, complete_steps, marker_of, newest_checkpoint, read_checkpoint
from andrea.config import RunConfig, from_json
from andrea.engine.device import find_device
from andrea.errors import AndreaError
from andrea.experiment_file import absolute_paths, read_experiment
from andrea.loop import COUNT_STOP, missing_kind
from andrea.placeholders import fill_data
from andrea.registry import EXCLUSIVE, Chosen, available, choose, path_options
from andrea.settings import override, parse_setting
from andrea.sources import missing
from andrea.strict_json import to_json
from andrea.types import Device

RUNS = Path("runs")
Say = Callable[[str], None]


class Mode(Enum):
    """How a run begins."""

    NEW = "new"
    RESUME = "resume"
    FORK = "fork"
    POLISH = "polish"


@frozen
class Request:
    """What the user asked for; the fields are the options of ``andrea run``."""

    mode: Mode = Mode.NEW
    experiment: str | None = None
    plugins: Sequence[str] = ()
    without: Sequence[str] = ()
    settings: Sequence[str] = ()
    steps: int | None = None
    seed: int | None = None
    device: str = "auto"
    out: Path | None = None
    checkpoint: Path | None = None
    allow_drift: bool = False
    trace_hooks: bool = False
    data: Path | None = None


@frozen
class Plan:
    """A request that has been checked: what will run, where, and from which state."""

    request: Request
    config: RunConfig
    chosen: Sequence[Chosen]
    device: Device
    folder: Path
    snapshot: Snapshot | None = None

    @property
    def steps(self) -> int | None:
        """Updates after which the run stops by count; None when nothing counts."""
        if all(one.name != COUNT_STOP for one in self.chosen):
            return None
        configured = self.config.plugins.get(COUNT_STOP, {}).get("steps")
        return self.request.steps or configured or self.config.schedule.steps

    @property
    def done(self) -> bool:
        """True when a resumed run has already come as far as it is asked to."""
        return self.request.mode is Mode.RESUME and self.at_its_steps

    @property
    def at_its_steps(self) -> bool:
        """True when there is no step to make."""
        return self.snapshot is not None and self.steps is not None and self.snapshot.step >= self.steps


def plan(request: Request, say: Say) -> Plan:
    """Check a request without changing anything on disk.

    Raises
    ------
    AndreaError
        On anything that cannot be done as asked.
    """
    if request.steps is not None and request.steps < 1:
        raise AndreaError(f"--steps {request.steps} is less than one step", "--steps is the total, for instance 1000")
    notes: list[str] = []  # told when everything is in order: an error is to stand alone
    device = find_device(request.device, notes.append)
    folder, snapshot = _place(request, say)
    value, where = _experiment(request, folder, snapshot)
    before = None if request.mode is Mode.NEW else to_json(from_json(value, where))
    names = list(available()) if request.settings else []
    settings = [parse_setting(setting) for setting in request.settings]
    owners = {key: override(value, key, new, names) for key, new in settings}
    if request.seed is not None:
        value["seed"] = request.seed
    if request.mode is Mode.NEW:
        absolute_paths(value, path_options)  # a resume may be started in another folder
    config = from_json(value, where)
    chosen = _choose(request, config, device)
    _refuse_idle(owners, [one.name for one in chosen])
    config = attrs.evolve(
        config,
        plugins={one.name: dict(one.options) for one in chosen},
        without=tuple(dict.fromkeys([*config.without, *request.without])),
    )
    if request.mode is Mode.NEW and config.data.tokenizer and not Path(config.data.tokenizer).exists():
        gone = missing(Path(config.data.tokenizer))
        raise AndreaError(f"data.tokenizer: {gone.message}", f"{gone.hint}\nandrea tokenizer train writes one")
    if before is not None:
        _refuse_changes(request.mode, before, to_json(config))
    result = Plan(request, config, chosen, device, folder, snapshot)
    if request.steps is not None and result.steps is None:
        raise AndreaError(f"--steps needs {COUNT_STOP}", f"leave --without {COUNT_STOP} out")
    if result.at_its_steps and not result.done:
        assert snapshot is not None
        raise AndreaError(
            f"the checkpoint is at step {snapshot.step}, and the run would end at step {result.steps}",
            f"say how far it shall go, in all: --steps {snapshot.step + 1000}",
        )
    for note in notes:
        say(note)
    return result


def _place(request: Request, say: Say) -> tuple[Path, Snapshot | None]:
    """Return the folder of the run, and the state to go on from."""
    if request.mode is Mode.NEW:
        name = Path(request.experiment or "quickstart").stem
        folder = request.out or free_folder(name)
        refuse_run(folder)
        return folder, None
    if request.mode is Mode.FORK:
        if request.checkpoint is None or request.out is None:
            raise AndreaError("a fork needs a folder of its own", "andrea run --from CHECKPOINT --out NEW")
        refuse_run(request.out)
        return request.out, read_checkpoint(_marker(request.checkpoint))
    elsewhere = "andrea run --resume --out FOLDER" if request.mode is Mode.RESUME else "andrea polish FOLDER"
    folder = request.out or newest_run(elsewhere)
    begun = request.mode is Mode.RESUME and (folder / "config.json").is_file()
    if not complete_steps(folder / "checkpoints"):
        if begun:
            say(f"{folder} has no checkpoint yet: the run begins again")
            return folder, None
        raise AndreaError(f"{folder} holds no run with a checkpoint", f"andrea run begins one; then: {elsewhere}")
    return folder, newest_checkpoint(folder / "checkpoints", say)


def refuse_run(folder: Path) -> None:
    """Refuse a folder in which no run can begin, since it holds one or something else."""
    if (folder / "config.json").exists() or (folder / "checkpoints").exists():
        raise AndreaError(
            f"{folder} already holds a run",
            f"go on with it: andrea run --resume --out {folder}; or name another folder with --out",
        )
    if folder.exists() and not folder.is_dir():
        raise AndreaError(f"{folder} is a file", "name a folder with --out")
    if not folder.is_dir() or (folder / "lock").exists():  # a start of ours that was killed leaves its lock
        return
    if others := sorted(path.name for path in folder.iterdir()):
        raise AndreaError(
            f"{folder} is not empty: it holds {', '.join(others[:3])}{', ...' if len(others) > 3 else ''}",
            "a run has a folder of its own; name a new one with --out",
        )


def _marker(path: Path) -> Path:
    """Return the path of the ``.json`` of a checkpoint that is there."""
    marker = marker_of(path)
    if not marker.is_file():
        there = sorted(one.stem for one in marker.parent.glob("step_*.json"))
        hint = f"{marker.parent} has {', '.join(there)}" if there else "as in RUN/checkpoints/step_NNNNNN.json"
        raise AndreaError(f"there is no checkpoint {path}", hint)
    return marker


def free_folder(name: str) -> Path:
    """Return the folder of the next run called `name`: its number is one above the highest there is."""
    taken = [path.name for path in RUNS.glob(f"{name}-*")]
    numbers = [int(t.rsplit("-", 1)[1]) for t in taken if t.rsplit("-", 1)[1].isdigit()]
    return RUNS / f"{name}-{max(numbers, default=0) + 1:03d}"


def newest_run(elsewhere: str, folder: Path = RUNS) -> Path:
    """Return the run in `folder` whose configuration was written last; `elsewhere` is how to name one that is not."""
    runs = [path.parent for path in folder.glob("*/config.json")]
    if not runs:
        raise AndreaError(f"there is no run in {folder}/", f"andrea run begins one; for one elsewhere: {elsewhere}")
    return max(runs, key=lambda run: ((run / "config.json").stat().st_mtime_ns, run.name))


def _experiment(request: Request, folder: Path, snapshot: Snapshot | None) -> tuple[dict[str, Any], str]:
    """Return the JSON object that the run starts from; a run that is gone on with brings its own."""
    if request.mode is Mode.NEW:
        value, where = read_experiment(request.experiment or "quickstart")
        return fill_data(value, request.data, where), where
    if request.experiment is not None:
        raise AndreaError(
            f"a run that goes on has its own configuration; EXPERIMENT {request.experiment} has no place",
            "leave it out",
        )
    if snapshot is None:
        return read_experiment(str(folder / "config.json"))
    value = json.loads(json.dumps(snapshot.record["config"]))
    return value, "the checkpoint's configuration"


def _choose(request: Request, config: RunConfig, device: Device) -> list[Chosen]:
    asked = list(request.plugins)
    readers = list(dict.fromkeys(part.reader for spec in config.sources for part in spec.parts))
    precision = "precision.bf16" if device.kind == "cuda" and device.capability >= (8, 0) else "precision.fp32"
    without = [*config.without, *request.without]
    chosen = choose(asked, [name for name in without if name not in asked], config.plugins, readers, precision)
    kinds = {one.entry.kind for one in chosen}
    for kind in EXCLUSIVE:
        if kind not in kinds:
            raise missing_kind(kind)
    return chosen


def _refuse_idle(owners: Mapping[str, str | None], used: Sequence[str]) -> None:
    """Refuse a setting of a plugin that the run leaves out, or that another of its kind took the place of."""
    for key, owner in owners.items():
        if owner is not None and owner not in used:
            raise AndreaError(
                f"--set {key}: {owner} is not used in this run",
                f"leave the setting out, or use it: --plugin {owner}; in use: {', '.join(used)}",
            )


def _refuse_changes(mode: Mode, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse what cannot change: for a resume everything but log plugins, else what the weights were made of."""
    before, now = _comparable(before), _comparable(now)
    keys = [*now] if mode is Mode.RESUME else ["model", "sources", "seed", "data", "tokenizer"]
    changed = [key for key in keys if json.dumps(now.get(key)) != json.dumps(before.get(key))]
    if not changed:
        return
    if mode is Mode.RESUME:
        raise AndreaError(
            f"a resume goes on exactly as before; {', '.join(changed)} would change",
            "to change settings: andrea polish RUN, or fork: andrea run --from CHECKPOINT --out NEW",
        )
    raise AndreaError(
        f"{', '.join(changed)} cannot change under a trained model", "leave it as it is, or begin a new run"
    )


def _comparable(value: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration without log plugins, with plugins as a list since their order counts."""
    plugins = [[name, options] for name, options in value["plugins"].items() if not name.startswith("log.")]
    return {
        **value,
        "plugins": plugins,
        "without": [name for name in value["without"] if not name.startswith("log.")],
        "tokenizer": [one for one in plugins if one[0].startswith("tokenizer.")],
    }
