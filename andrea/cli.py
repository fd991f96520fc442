"""The command line: reads options, calls the parts, prints results. Every import that costs is inside a command."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea.cli_answers import ending_as_asked, print_fields, print_json, print_table
from andrea.cli_audit import audit
from andrea.cli_benchmark import benchmark
from andrea.cli_evaluate import evaluate
from andrea.cli_export import export, import_
from andrea.cli_options import (
    EMPTY_TEXTS,
    AsJson,
    DataFolder,
    DeviceName,
    Experiment,
    NewRun,
    Plugins,
    RunFolder,
    RunSeed,
    Settings,
    Steps,
    Trace,
    Without,
)
from andrea.cli_sample import chat, sample
from andrea.cli_serve import serve
from andrea.cli_tokenizer import tokenizer
from andrea.cli_trial import trial
from andrea.errors import AndreaError

if TYPE_CHECKING:
    from andrea.loop import Loop

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help that answers at once: rich takes a fifth of a second to import
    help="Grow small language models on one GPU; every policy is a plugin.",
)

app.add_typer(audit, name="audit")
app.add_typer(tokenizer, name="tokenizer")


def main() -> None:
    """Run the command line; the user's errors end with exit code 2 and no traceback."""
    from andrea.interrupts import leaving

    try:
        with leaving():
            _refuse_empty(sys.argv[1:])
            app()
    except AndreaError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print("\n".join(f"  {line}" for line in error.hint.splitlines()), file=sys.stderr)
        sys.exit(2)


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Refuse an empty argument, which is mostly a variable of the shell that is not set; as a path it would be `.`."""
    for before, one in pairwise(["andrea", *arguments]):
        name, _, value = one.partition("=") if one.startswith("--") and "=" in one else (before, "", one)
        if not value and name not in _text_options():
            raise AndreaError(f"the argument behind {name} is empty", 'is a variable not set? this folder is "."')


def _text_options() -> set[str]:
    """Return the options that take an empty text, which they say when typer makes the commands."""
    typer.main.get_command(app)
    return EMPTY_TEXTS


def _version(wanted: bool) -> None:
    if wanted:
        from andrea import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print it")] = False,
) -> None:
    """Grow small language models on one GPU; every policy is a plugin."""


# -- training ----------------------------------------------------------------------------------------------------------


@app.command()
def run(
    experiment: Experiment = None,
    plugin: Plugins = None,
    without: Without = None,
    set_: Settings = None,
    steps: Steps = None,
    seed: RunSeed = None,
    device: DeviceName = "auto",
    out: NewRun = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in --out, or the newest")] = False,
    from_: Annotated[Path | None, typer.Option("--from", metavar="CHECKPOINT", help="fork it into --out")] = None,
    allow_drift: Annotated[
        bool, typer.Option("--allow-drift", help="resume although numbers will come out otherwise")
    ] = False,
    trace_hooks: Trace = False,
    data: DataFolder = None,
) -> None:
    """Train a model: prepare the text, train, sample, save; stop by plugin or signal."""
    from andrea.planning import Mode, Request

    if resume and from_:
        raise AndreaError(
            "--resume and --from exclude each other", "a fork has a new folder: --from CHECKPOINT --out NEW"
        )
    mode = Mode.RESUME if resume else Mode.FORK if from_ else Mode.NEW
    _train(
        Request(
            mode,
            experiment,
            plugin or (),
            without or (),
            set_ or (),
            steps,
            seed,
            device,
            out,
            from_,
            allow_drift,
            trace_hooks,
            data,
        )
    )


@app.command()
def polish(
    folder: RunFolder = None,
    plugin: Plugins = None,
    without: Without = None,
    set_: Settings = None,
    steps: Steps = None,
    device: DeviceName = "auto",
    trace_hooks: Trace = False,
) -> None:
    """Go on with a run under other settings: weights and counts stay, what the bandit learned starts over."""
    from andrea.planning import Mode, Request

    _train(
        Request(
            Mode.POLISH,
            None,
            plugin or (),
            without or (),
            set_ or (),
            steps,
            device=device,
            out=folder,
            trace_hooks=trace_hooks,
        )
    )


def _train(request: Any) -> None:
    from andrea.assembly import open_run
    from andrea.interrupts import Interrupts, exit_code
    from andrea.planning import plan
    from andrea.progress import Preparing, print_line

    planned = plan(request, print_line)
    if planned.done and planned.snapshot:
        print_line(f"{planned.folder} is already at step {planned.snapshot.step}; --steps is the total")
        return
    with Interrupts() as interrupts:
        with ending_as_asked(interrupts), Preparing() as preparing:
            loop = open_run(planned, print_line, preparing, interrupts)
        outcome = loop.run()
        loop.engine.close()
    _print_next(loop, outcome.step, planned.steps)
    if request.trace_hooks:
        _print_timings(loop)
    if outcome.signal:
        raise typer.Exit(exit_code(outcome.signal))
    from andrea.loop import COUNT_STOP

    if outcome.reasons and COUNT_STOP not in outcome.reasons:
        raise typer.Exit(3)


def _print_next(loop: Loop, step: int, steps: int | None) -> None:
    """Say what was written, and what to type next."""
    from andrea.checkpoint import stem
    from andrea.progress import print_line

    place = shlex.quote(str(loop.folder))
    more = steps if steps and step < steps else step + loop.config.schedule.steps
    print_line(f"run: {loop.folder}, checkpoint {stem(step)}, {loop.config.name}.loss.json, journal.jsonl")
    print_line(f"  write with it: andrea sample {place}")
    print_line(f"  measure it:    andrea evaluate {place}")
    print_line(f"  go on:         andrea run --resume --out {place} --steps {more}")


def _print_timings(loop: Loop) -> None:
    slowest_first = sorted(loop.hooks.timings.items(), key=lambda item: -item[1][1])
    rows = [
        (plugin, hook, f"{calls:.0f}", f"{seconds * 1e3:.1f}", f"{seconds / calls * 1e6:.1f}")
        for (plugin, hook), (calls, seconds) in slowest_first
    ]
    print_table(("plugin", "hook", "calls", "ms in all", "us a call"), rows, to_error=True)


@app.command()
def prepare(
    experiment: Experiment = None,
    plugin: Plugins = None,
    without: Without = None,
    set_: Settings = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only read and filter, write nothing, report")] = False,
    data: DataFolder = None,
    json_: AsJson = False,
) -> None:
    """Take the sources of an experiment to token files, ahead of a run."""
    from andrea.interrupts import Interrupts
    from andrea.loop import Hooks
    from andrea.planning import Request, plan
    from andrea.progress import Preparing
    from andrea.registry import create, register
    from andrea.run_data import prepare_data, survey_data

    request = Request(
        experiment=experiment, plugins=plugin or (), without=without or (), settings=set_ or (), data=data
    )
    planned = plan(request, lambda line: None)
    hooks = Hooks(register(create(planned.chosen, planned.config.source_names)))
    with Interrupts() as interrupts, ending_as_asked(interrupts), Preparing() as preparing:
        if dry_run:
            _print_survey(survey_data(planned.config, planned.chosen, hooks, preparing, interrupts), json_)
            return
        prepared = prepare_data(planned.config, planned.chosen, hooks, preparing, interrupts)
    manifests = [dict(source.manifest) for source in prepared.sources]
    if json_:
        print_json({"sha256": prepared.sha256, "sources": manifests})
        return
    headings = ("source", "documents", "held out", "tokens", "bytes a token", "dropped")
    print_table(headings, map(_prepared_row, manifests))


def _prepared_row(manifest: dict[str, Any]) -> tuple[str, ...]:
    train, held_out = manifest["train"], manifest["held_out"]
    dropped = ", ".join(f"{reason} {count}" for reason, count in manifest.get("dropped", {}).items()) or "none"
    counts = (f"{train['documents']:,}", f"{held_out['documents']:,}", f"{train['tokens']:,}")
    return (
        manifest["source"],
        *counts,
        f"{train['bytes'] / max(1, train['tokens'] - train['documents']):.2f}",
        dropped,
    )


def _print_survey(reports: dict[str, Any], json_: bool) -> None:
    if json_:
        print_json({"sources": [{"source": name, **report.to_json()} for name, report in reports.items()]})
        return
    rows = []
    for name, report in reports.items():
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in report.to_json()["dropped"].items())
        dropped = sum(report.dropped.values())
        rows.append((name, f"{report.kept:,}", f"{report.bytes:,}", f"{dropped:,}", reasons))
    print_table(("source", "kept", "bytes", "dropped", "why"), rows)


# -- using a run -------------------------------------------------------------------------------------------------------


app.command()(sample)
app.command()(chat)
app.command()(evaluate)
app.command()(export)
app.command("import")(import_)


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="run, checkpoint, .btok file or tokenizer")], json_: AsJson = False
) -> None:
    """Show what a run, a checkpoint, a token file or a tokenizer holds."""
    from andrea.inspection import inspect_path

    value = inspect_path(path)
    print_json(value) if json_ else print_fields(value)


# -- what is here ------------------------------------------------------------------------------------------------------


@app.command()
def plugins(
    name: Annotated[str | None, typer.Argument(help="one plugin, with its options")] = None,
    kind: Annotated[str | None, typer.Option(help="only this kind")] = None,
    json_: AsJson = False,
) -> None:
    """List the installed plugins."""
    from andrea.errors import did_you_mean
    from andrea.registry import KINDS, available, describe, find

    if kind is not None and kind not in KINDS:
        raise AndreaError(f"there is no kind {kind!r}", did_you_mean(kind, KINDS) or f"kinds: {', '.join(KINDS)}")
    entries = [find(name)] if name else [entry for entry in available().values() if kind in (None, entry.kind)]
    rows = [describe(entry) for entry in entries]
    if json_:
        print_json(rows)
        return
    _print_plugin(rows[0]) if name else _print_plugins(rows)


def _print_plugins(rows: list[dict[str, Any]]) -> None:
    from rich.table import Column

    print_table(
        (Column("name", no_wrap=True), "summary", "package", "hooks"),
        ((row["name"], row["summary"], f"{row['package']} {row['version']}", ", ".join(row["hooks"])) for row in rows),
    )


def _print_plugin(row: dict[str, Any]) -> None:
    print(f"{row['name']}: {row['summary']}\n{row['package']} {row['version']}; hooks: {', '.join(row['hooks'])}")
    for option in row["options"]:
        print(f"  --set {row['name']}.{option['name']}={_value(option)}  ({option['type']}) {option['help']}")
    if row["source_options"]:
        print(f'in a source of the experiment, {{"name": ..., "reader": "{row["name"]}", "options": {{...}}}}:')
    for option in row["source_options"]:
        print(f'  "{option["name"]}": {_value(option)}  ({option["type"]}) {option["help"]}')


def _value(option: dict[str, Any]) -> str:
    """Return the default of an option as it is typed, or a word that stands for what must be given."""
    return json.dumps(option["default"]) if "default" in option else "VALUE"


@app.command()
def kernels(
    compile_: Annotated[bool, typer.Option("--compile", help="compile them, which needs no GPU")] = False,
    arch: Annotated[str, typer.Option(help="an architecture such as sm_90a, or all")] = "all",
    precision: Annotated[str | None, typer.Option(help="only this one, for instance bf16")] = None,
    json_: AsJson = False,
) -> None:
    """List the CUDA kernels; with --compile, what each needs on every architecture and precision."""
    from andrea.engine.compiler import kernel_files

    if not compile_:
        print_json(kernel_files()) if json_ else print("\n".join(kernel_files()))
        return
    from andrea.cells import compile_table

    rows = []
    for cell in compile_table(arch, precision):
        rows += cell
        if not json_:
            _print_cell(cell)
    if json_:
        print_json([row.to_json() for row in rows])
    if spilling := [row for row in rows if row.spills]:
        names = sorted({f"{row.kernel.name} ({row.precision}, {row.architecture})" for row in spilling})
        raise AndreaError(f"hot kernels use local memory: {', '.join(names)}")


def _print_cell(cell: list[Any]) -> None:
    print(f"{cell[0].precision} on {cell[0].architecture}: {len(cell)} kernels")
    for row in cell:
        need, name = row.kernel, row.kernel.name + (f" (heads of {row.head_dim})" if row.head_dim else "")
        spills = f"{need.stack_frame} stack, {need.spill_stores}+{need.spill_loads} spilled"
        print(f"  {name:<40} {need.registers:>4} registers {need.shared:>6} shared  {spills}")


app.command()(serve)
app.command()(benchmark)
app.command()(trial)


@app.command()
def doctor(experiment: Experiment = None, data: DataFolder = None, json_: AsJson = False) -> None:
    """Say what this machine can do, and whether an experiment would start."""
    from andrea.inspection import examine

    value = examine(experiment, data)
    problems = value["problems"]
    if json_:
        print_json(value)
    else:
        print_fields({**value, "problems": str(len(problems) or "none")})
        print("".join("\n" + problem.replace("\n", "\n  ") + "\n" for problem in problems), end="")
    if problems:
        raise typer.Exit(2)
