"""Puts a run together that has been planned: plugins, data, engine, folder, journal and the loop over them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import attrs

from andrea.batches import Batches
from andrea.checkpoint import Checkpoints, Snapshot
from andrea.config import RunConfig
from andrea.engine import Engine, EngineConfig, open_engine
from andrea.engine.buffers import describe_memory
from andrea.errors import AndreaError, writing_in
from andrea.evaluate import held_out_sets
from andrea.fingerprint import check_drift, fingerprint
from andrea.folder_lock import FolderLock
from andrea.interrupts import Interrupts
from andrea.journal import Journal
from andrea.loop import COUNT_STOP, Hooks, Loop
from andrea.planning import Mode, Plan, Say, free_folder, refuse_run
from andrea.registry import Chosen, create, register
from andrea.run_data import Progress, open_data
from andrea.strict_json import to_json
from andrea.tokenfile import TokenFile, partial_name, write_whole
from andrea.tokens import Prepared
from andrea.types import Precision
from andrea.workers import refuse_in_a_script_without_guard


def open_run(plan: Plan, say: Say, progress: Progress, interrupts: Interrupts) -> Loop:
    """Make everything that a planned run needs, write its configuration, and start its plugins.

    The folder is taken first, so that no other process can: `Loop.folder` is where the run then lives.

    Raises
    ------
    AndreaError
        When data, engine or folder refuse; a new run's folder is then left as it was.
    """
    refuse_in_a_script_without_guard()
    plugins = create(_with_steps(plan), plan.config.source_names)
    hooks = Hooks(register(plugins), plan.request.trace_hooks)
    say(f"plugins: {', '.join(name for name, _ in plugins)}")
    precision = hooks.choose_precision(plan.device)
    with ExitStack() as undo:
        plan, lock = _take_folder(plan, undo)
        prepared = open_data(plan, hooks, progress, interrupts)
        loop = _make_loop(plan, plugins, hooks, precision, prepared, interrupts, lock, say, undo)
        _begin(plan, loop, say)
        undo.pop_all()
    return loop


def _take_folder(plan: Plan, undo: ExitStack) -> tuple[Plan, FolderLock]:
    """Make and lock the folder; `undo` is told how to give it back. A number that is taken meanwhile is passed by."""
    begins = plan.request.mode in (Mode.NEW, Mode.FORK)
    while True:
        with writing_in(plan.folder):
            if not plan.folder.parent.exists():
                plan.folder.parent.mkdir(parents=True, exist_ok=True)
                undo.callback(_remove_empty, plan.folder.parent)
            try:
                plan.folder.mkdir()
            except FileExistsError:
                if plan.request.mode is Mode.NEW and plan.request.out is None:
                    plan = attrs.evolve(plan, folder=free_folder(plan.folder.name.rpartition("-")[0]))
                    continue
            else:
                undo.callback(shutil.rmtree, plan.folder, ignore_errors=True)
            lock = FolderLock(plan.folder)
        undo.callback(lock.release)
        if begins:
            refuse_run(plan.folder)  # once more: who had the lock before may have begun one
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
    check_drift(plan, identity)
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
    with writing_in(plan.folder):
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


def _restore(plan: Plan) -> Callable[[str], bool]:
    """Say whose state a start takes over: a resume everyone's, a fork of those it had before, a polish nobody's."""
    if plan.request.mode is Mode.POLISH:
        return lambda name: False
    had = plan.snapshot.plugins if plan.snapshot else {}
    return lambda name: name in had


def _settle(plan: Plan, prepared: Prepared) -> Journal:
    """Make the folder ready for the run and return its journal."""
    folder, names = plan.folder, tuple(s.name for s in prepared.sources)
    length = int(plan.snapshot.record["journal"]) if plan.snapshot else 0
    with writing_in(folder):
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
