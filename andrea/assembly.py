"""Puts a run together: configuration, plugins, data, engine, folder; anew, resumed, forked or polished."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any

import attrs
import platformdirs
from attrs import frozen

from andrea import __version__
from andrea.batches import Batches
from andrea.checkpoint import Checkpoints, Snapshot, complete_steps, newest_checkpoint, read_checkpoint
from andrea.config import RunConfig, absolute_paths, from_json, override, parse_setting, read_experiment, to_json
from andrea.engine import Engine, EngineConfig, open_engine
from andrea.engine.buffers import describe_memory
from andrea.engine.device import find_device
from andrea.errors import AndreaError, cure
from andrea.evaluate import held_out_sets
from andrea.filters import Report
from andrea.folder_lock import FolderLock
from andrea.interrupts import Interrupts
from andrea.journal import Journal
from andrea.loop import COUNT_STOP, Hooks, Loop, missing_kind
from andrea.placeholders import fill_data
from andrea.registry import EXCLUSIVE, Chosen, available, choose, create, find, path_options, register, source_digest
from andrea.sources import missing
from andrea.tokenfile import TokenFile, partial_name, write_whole
from andrea.tokens import Prepared, StoppedError, prepare, reopen, survey
from andrea.types import Device, Document, NeedsTextError, Precision, SourceSpec, Tokenizer, TokenizerRequest
from andrea.workers import count_processes

RUNS = Path("runs")
REFERENCE = ("__init__", "model", "network", "operations", "reference", "sampling", "schedule")  # engine of the CPU
Say = Callable[[str], None]
Progress = Callable[[str, int, int], None]


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


def cache_folder() -> Path:
    """Return the folder of prepared data: ``ANDREA_CACHE``, else the user's cache."""
    return Path(os.environ.get("ANDREA_CACHE") or platformdirs.user_cache_dir("andrea"))


# -- planning ----------------------------------------------------------------------------------------------------------


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
    names = list(available())
    for setting in request.settings:
        key, new = parse_setting(setting)
        override(value, key, new, names)
    if request.seed is not None:
        value["seed"] = request.seed
    if request.mode is Mode.NEW:
        absolute_paths(value, path_options)  # a resume may be started in another folder
    config = from_json(value, where)
    chosen = _choose(request, config, device)
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
        folder = request.out or _free_folder(name)
        _refuse_run(folder)
        return folder, None
    if request.mode is Mode.FORK:
        if request.checkpoint is None or request.out is None:
            raise AndreaError("a fork needs a folder of its own", "andrea run --from CHECKPOINT --out NEW")
        _refuse_run(request.out)
        return request.out, read_checkpoint(_marker(request.checkpoint))
    folder = request.out or newest_run()
    begun = request.mode is Mode.RESUME and (folder / "config.json").is_file()
    if not complete_steps(folder / "checkpoints"):
        if begun:
            say(f"{folder} has no checkpoint yet: the run begins again")
            return folder, None
        raise AndreaError(f"{folder} holds no run with a checkpoint", "andrea run begins one; --out names its folder")
    return folder, newest_checkpoint(folder / "checkpoints", say)


def _refuse_run(folder: Path) -> None:
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
    """Return the path of a checkpoint's ``.json``, given any of its files or its name without a suffix."""
    marker = path.with_suffix(".json")
    if not marker.is_file():
        raise AndreaError(f"there is no checkpoint {path}", "give one of its files: RUN/checkpoints/step_NNNNNN.json")
    return marker


def _free_folder(name: str) -> Path:
    taken = [path.name for path in RUNS.glob(f"{name}-*")]
    numbers = [int(t.rsplit("-", 1)[1]) for t in taken if t.rsplit("-", 1)[1].isdigit()]
    return RUNS / f"{name}-{max(numbers, default=0) + 1:03d}"


def newest_run(folder: Path = RUNS) -> Path:
    """Return the run in `folder` whose configuration was written last."""
    runs = [path.parent for path in folder.glob("*/config.json")]
    if not runs:
        raise AndreaError(f"there is no run in {folder}/", "andrea run begins one; --out names a folder elsewhere")
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


# -- opening -----------------------------------------------------------------------------------------------------------


class Asked:
    """The hooks that data is prepared with, which another process can make again from the plugins' names and options.

    Parameters
    ----------
    chosen
        Plugins of a run; those of other kinds are left out.
    hooks
        Of this process, when it has them already.
    saved
        Folder of a tokenizer that is taken instead of training one; empty when one is trained.
    """

    def __init__(self, chosen: Sequence[Chosen], hooks: Hooks | None = None, saved: str = "") -> None:
        kinds = ("source", "filter", "tokenizer")
        self._plugins = [(one.name, dict(one.options)) for one in chosen if one.entry.kind in kinds]
        self._hooks, self._saved = hooks, saved

    def __getstate__(self) -> dict[str, Any]:
        return {"_plugins": self._plugins, "_hooks": None, "_saved": self._saved}

    @property
    def hooks(self) -> Hooks:
        """The hooks, made when they are first needed."""
        if self._hooks is None:
            chosen = [Chosen(find(name), options) for name, options in self._plugins]
            self._hooks = Hooks(register(create(chosen)))
        return self._hooks

    def open_source(self, spec: SourceSpec) -> Any:
        """Ask the reader of a source."""
        return self.hooks.open_source(spec)

    def keep_document(self, document: Document, source: str) -> str | None:
        """Ask the filters."""
        return self.hooks.keep_document(document, source)

    def identify_document(self, document: Document, source: str) -> list[int]:
        """Ask the filters for the keys of a document."""
        return self.hooks.identify_document(document, source)

    def make_tokenizer(self, request: TokenizerRequest) -> Tokenizer:
        """Ask the tokenizer plugin."""
        if self._saved and request.saved is None:
            request = TokenizerRequest(request.sample, Path(self._saved))
        return self.hooks.make_tokenizer(request)


def prepare_data(
    config: RunConfig, chosen: Sequence[Chosen], hooks: Hooks, progress: Progress, interrupts: Interrupts
) -> Prepared:
    """Take the sources of a run to token files, or find them in the cache."""
    asked = Asked(chosen, hooks, config.data.tokenizer)
    return prepare(
        config.sources,
        open_source=asked.open_source,
        keep_document=asked.keep_document,
        identify_document=asked.identify_document,
        make_tokenizer=asked.make_tokenizer,
        tokenizer_key=_tokenizer_key(next(one for one in chosen if one.entry.kind == "tokenizer"), config, asked),
        cache=cache_folder(),
        held_out_share=config.data.held_out_share,
        mix=config.data.mix,
        window=config.sampling.max_tokens,
        progress=progress,
        stopped=interrupts.stop_asked,
        processes=count_processes(),
    )


def _tokenizer_key(tokenizer: Chosen, config: RunConfig, asked: Asked) -> str:
    """Return what decides a tokenizer beside the text that it is trained on.

    That is the plugin, its own text included, and its options. One that needs no text, because it is saved or a file
    says all of it, is known by what it is: the file may be another one tomorrow.
    """
    entry, given = tokenizer.entry, given_tokenizer(asked)
    known_by = given.fingerprint if given else dict(tokenizer.options)
    return json.dumps([entry.name, entry.version, source_digest(entry.load()), known_by], sort_keys=True)


def given_tokenizer(asked: Asked) -> Tokenizer | None:
    """Return the tokenizer where it needs no text, so that a wrong one is told at once; None where one is trained.

    Raises
    ------
    AndreaError
        When it cannot be had, or be trained as asked.
    """
    with suppress(NeedsTextError):
        return asked.make_tokenizer(TokenizerRequest())
    return None


def survey_data(
    config: RunConfig, chosen: Sequence[Chosen], hooks: Hooks, progress: Progress, interrupts: Interrupts
) -> dict[str, Report]:
    """Read and filter the sources of a run, write nothing, and say what would become of each."""
    asked = Asked(chosen, hooks, config.data.tokenizer)
    given_tokenizer(asked)
    return survey(
        config.sources,
        open_source=asked.open_source,
        keep_document=asked.keep_document,
        identify_document=asked.identify_document,
        held_out_share=config.data.held_out_share,
        progress=progress,
        stopped=interrupts.stop_asked,
        processes=count_processes(),
    )


def open_run(plan: Plan, say: Say, progress: Progress, interrupts: Interrupts) -> Loop:
    """Make everything that a planned run needs, write its configuration, and start its plugins.

    The folder is taken first, so that no other process can: `Loop.folder` is where the run then lives.

    Raises
    ------
    AndreaError
        When data, engine or folder refuse; a new run's folder is then left as it was.
    """
    plugins = create(_with_steps(plan))
    hooks = Hooks(register(plugins), plan.request.trace_hooks)
    say(f"plugins: {', '.join(name for name, _ in plugins)}")
    precision = hooks.choose_precision(plan.device)
    with ExitStack() as undo:
        plan, lock = _take_folder(plan, undo)
        prepared = _data(plan, hooks, progress, interrupts)
        loop = _make_loop(plan, plugins, hooks, precision, prepared, interrupts, lock, say, undo)
        _begin(plan, loop, say)
        undo.pop_all()
    return loop


def _take_folder(plan: Plan, undo: ExitStack) -> tuple[Plan, FolderLock]:
    """Make and lock the folder; `undo` is told how to give it back. A number that is taken meanwhile is passed by."""
    begins = plan.request.mode in (Mode.NEW, Mode.FORK)
    while True:
        with _writing(plan.folder):
            if not plan.folder.parent.exists():
                plan.folder.parent.mkdir(parents=True, exist_ok=True)
                undo.callback(_remove_empty, plan.folder.parent)
            try:
                plan.folder.mkdir()
            except FileExistsError:
                if plan.request.mode is Mode.NEW and plan.request.out is None:
                    plan = attrs.evolve(plan, folder=_free_folder(plan.folder.name.rpartition("-")[0]))
                    continue
            else:
                undo.callback(shutil.rmtree, plan.folder, ignore_errors=True)
            lock = FolderLock(plan.folder)
        undo.callback(lock.release)
        if begins:
            _refuse_run(plan.folder)  # once more: who had the lock before may have begun one
        return plan, lock


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # another run may have moved in
        folder.rmdir()


def _make_loop(
    plan: Plan,
    plugins: Sequence[tuple[str, Any]],
    hooks: Hooks,
    precision: Precision,
    prepared: Prepared,
    interrupts: Interrupts,
    lock: FolderLock,
    say: Say,
    undo: ExitStack,
) -> Loop:
    config = plan.config
    files = {s.name: TokenFile.open(s.train, prepared.tokenizer.fingerprint) for s in prepared.sources}
    held_out = {s.name: TokenFile.open(s.held_out, prepared.tokenizer.fingerprint) for s in prepared.sources}
    engine = _open_engine(plan, engine_config(config, prepared.tokenizer.size), precision, say)
    undo.callback(engine.close)
    identity = {
        "config": to_json(config),
        "plugins_in_order": [[one.name, one.entry.package, one.entry.version] for one in plan.chosen],
        "data_sha256": prepared.sha256,
        "fingerprint": fingerprint(plan, plugins, prepared, engine.fingerprint()),
    }
    _check_drift(plan, identity)
    journal = _settle(plan, prepared)
    undo.callback(journal.close)
    return Loop(
        config=config,
        plugins=plugins,
        hooks=hooks,
        engine=engine,
        batches=Batches(files, config.batch.rows, config.model.context, config.seed),
        tokenizer=prepared.tokenizer,
        held_out=held_out_sets(held_out, config.model.context, config.evaluation.rows),
        known_words=prepared.known_words(),
        human=prepared.open_human(),
        stop_step=plan.steps,
        folder=plan.folder,
        lock=lock,
        journal=journal,
        checkpoints=Checkpoints(plan.folder / "checkpoints", config.checkpoints),
        identity=identity,
        interrupts=interrupts,
    )


def _open_engine(plan: Plan, config: EngineConfig, precision: Precision, say: Say) -> Engine:
    """Say what the card's memory will hold, before any of it is taken, and open the engine."""
    if plan.device.kind == "cuda":
        say(f"device {plan.device.kind} {plan.device.name}, {precision.name}; memory:")
        for line in describe_memory(config, precision):
            say(line)
        return open_engine(config, plan.device, precision)
    engine = open_engine(config, plan.device, precision)
    say(f"device {plan.device.kind} {plan.device.name}: {sum(b.bytes for b in engine.memory_plan()) / 2**20:,.0f} MiB")
    return engine


def engine_config(config: RunConfig, vocabulary: int) -> EngineConfig:
    """Return what an engine is told of a run, whose tokenizer has `vocabulary` ids."""
    return EngineConfig(
        model=config.model,
        vocabulary=vocabulary,
        optimizer=config.optimizer,
        schedule=config.schedule,
        batch_size=config.batch.batch_size,
        accumulation=config.batch.accumulation,
        seed=config.seed,
        options=config.engine,
    )


def _begin(plan: Plan, loop: Loop, say: Say) -> None:
    """Start the plugins, and make the folder that of a run: it is one from its ``config.json`` on."""
    loop.start(_fitted(plan, loop.engine, say), _restore(plan))
    if plan.request.mode is Mode.FORK:
        loop.save_now()
        loop.wait()
    with _writing(plan.folder):
        write_whole(plan.folder / "config.json", json.dumps(to_json(plan.config), indent=1).encode() + b"\n")


def _fitted(plan: Plan, engine: Engine, say: Say) -> Snapshot | None:
    """Return the snapshot with the engine's state as this engine has it.

    A fork or a polish may change the precision, and with it what belongs to the state: what this engine does not know
    is left behind, what it wants beside it begins anew, and both are said. A resume must find exactly what it wants.
    """
    if plan.snapshot is None:
        return None
    saved, own = plan.snapshot.engine, engine.export_state()
    unknown, missing = sorted(set(saved) - set(own)), sorted(set(own) - set(saved))
    if (unknown or missing) and plan.request.mode is Mode.RESUME:
        raise AndreaError(
            f"the checkpoint's engine saved {sorted(saved)}, this engine wants {sorted(own)}",
            "resume with the andrea and the precision that wrote it, or fork it: --from CHECKPOINT --out NEW",
        )
    if unknown:
        say(f"state of the engine that is left behind: {', '.join(unknown)}")
    if missing:
        say(f"state of the engine that begins anew: {', '.join(missing)}")
    return attrs.evolve(plan.snapshot, engine={name: saved.get(name, fresh) for name, fresh in own.items()})


def _with_steps(plan: Plan) -> list[Chosen]:
    """Return the chosen plugins with ``--steps`` set, which is no part of the configuration."""
    steps = plan.request.steps
    return [
        attrs.evolve(one, options={**one.options, "steps": steps}) if one.name == COUNT_STOP and steps else one
        for one in plan.chosen
    ]


def _data(plan: Plan, hooks: Hooks, progress: Progress, interrupts: Interrupts) -> Prepared:
    """Open the data: for a run that goes on exactly what it had, prepared again when it is gone.

    Either way every token file has been written just now, or has been read and compared with its digest: a flipped bit
    on the disk would train a wrong model.
    """
    if plan.snapshot is None:
        return prepare_data(plan.config, plan.chosen, hooks, progress, interrupts)
    wanted, window = str(plan.snapshot.record["data_sha256"]), plan.config.sampling.max_tokens
    try:
        return reopen(cache_folder(), wanted, hooks.make_tokenizer, progress, interrupts.stop_asked, window)
    except StoppedError:
        raise
    except AndreaError as gone:
        prepared = prepare_data(plan.config, plan.chosen, hooks, progress, interrupts)
        if prepared.sha256 != wanted:
            raise AndreaError(
                f"{gone.message}, and the sources give other data now than the run was trained on",
                "restore the sources, or begin a new run",
            ) from None
        return prepared


def _restore(plan: Plan) -> Callable[[str], bool]:
    """Say whose state a start takes over: a resume everyone's, a fork of those it had before, a polish nobody's."""
    if plan.request.mode is Mode.POLISH:
        return lambda name: False
    had = plan.snapshot.plugins if plan.snapshot else {}
    return lambda name: name in had


def fingerprint(
    plan: Plan, plugins: Sequence[tuple[str, Any]], prepared: Prepared, engine: Mapping[str, str]
) -> dict[str, str]:
    """Return everything that a bit-exact resume depends on, part by part."""
    versions = {one.name: one.entry.version for one in plan.chosen}
    parts = {f"engine {key}": value for key, value in sorted(engine.items())}
    parts["andrea"] = f"{__version__} {own_digest(plan.device.kind)}"
    parts["python"] = f"{sys.version_info.major}.{sys.version_info.minor}"
    for name, target in plugins:
        if not name.startswith("log."):
            parts[f"plugin {name}"] = f"{versions[name]} {source_digest(target)}"
    parts["data"] = prepared.sha256
    parts["tokenizer"] = prepared.tokenizer.fingerprint
    return parts


@functools.cache
def own_digest(device: str) -> str:
    """Return the digest of our own text that decides numbers: the engine in use, batches, loop, evaluation, draws.

    Read once: an edit on the disk changes the next process, not the one that has loaded its modules.
    """
    digest = hashlib.sha256()
    for path in own_files(device):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def own_files(device: str) -> list[Path]:
    """Return the files of `own_digest`: of the engine only those of the implementation that the device takes."""
    here = Path(__file__).parent
    engine = [here / "engine" / f"{name}.py" for name in REFERENCE] if device == "cpu" else here.glob("engine/*.py")
    own = ("batches", "evaluate", "grams", "human", "known", "loop", "rng", "types", "words")
    return [*(here / f"{name}.py" for name in own), *sorted(engine)]


def _check_drift(plan: Plan, identity: Mapping[str, Any]) -> None:
    """Refuse to resume where the numbers would come out otherwise, unless the user allows it."""
    if plan.snapshot is None or plan.request.mode is not Mode.RESUME or plan.request.allow_drift:
        return
    before, now = plan.snapshot.record["fingerprint"], identity["fingerprint"]
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    drift = [f"{key}: {before.get(key)} -> {now.get(key)}" for key in keys]
    if drift:
        raise AndreaError(
            "the run would not go on bit for bit, since this has changed:\n  " + "\n  ".join(drift),
            "--allow-drift goes on all the same",
        )


def _settle(plan: Plan, prepared: Prepared) -> Journal:
    """Make the folder ready for the run and return its journal."""
    folder, names = plan.folder, tuple(s.name for s in prepared.sources)
    length = int(plan.snapshot.record["journal"]) if plan.snapshot else 0
    with _writing(folder):
        if plan.request.mode is Mode.FORK:
            length = _copy_history(plan, length)
        elif plan.request.mode is Mode.POLISH:
            _archive(plan)
        going_on = plan.snapshot is not None and plan.request.mode is not Mode.FORK
        if not (going_on and (folder / "tokenizer").exists()):
            _copy_tokenizer(prepared.tokenizer_folder, folder / "tokenizer")
        journal = Journal(folder, plan.config.name, names, length)
    if plan.request.mode is Mode.POLISH and plan.snapshot:
        journal.polish(plan.snapshot.step)
    return journal


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn the operating system's refusal to write into an error of the user's."""
    try:
        yield
    except OSError as error:
        raise AndreaError(
            f"cannot write in {folder}: {error.strerror or error}",
            f"{cure(error)}, or choose another folder with --out",
        ) from error


def _copy_tokenizer(source: Path, target: Path) -> None:
    """Copy a tokenizer such that there is a whole one or none."""
    partial = partial_name(target)
    for old in (partial, target):
        if old.exists():
            shutil.rmtree(old)
    shutil.copytree(source, partial)
    partial.rename(target)


def _copy_history(plan: Plan, length: int) -> int:
    """Give a fork its parent's journal up to the checkpoint, if it is still there; return its length."""
    assert plan.request.checkpoint is not None
    parent = plan.request.checkpoint.parent.parent / "journal.jsonl"
    if not parent.is_file() or parent.stat().st_size < length:
        return 0
    with parent.open("rb") as file:
        write_whole(plan.folder / "journal.jsonl", file.read(length))
    return length


def _archive(plan: Plan) -> None:
    """Copy samples, state and configuration of a run that is polished aside.

    The journal only grows: a line in it says that samples begin anew, and until the first checkpoint under the new
    settings is whole, a resume goes on from the old one as if nothing had been asked.
    """
    assert plan.snapshot is not None
    place = plan.folder / "archive" / f"step_{plan.snapshot.step:06d}"
    place.mkdir(parents=True, exist_ok=True)
    before = plan.snapshot.record["config"]["name"]
    for name in (f"{before}.samples.json", f"{before}.state.json", "config.json"):
        if (plan.folder / name).exists() and not (place / name).exists():
            shutil.copy2(plan.folder / name, place / name)


def print_line(line: str) -> None:
    """Say something to the person at the terminal; standard output belongs to results."""
    print(line, file=sys.stderr)
