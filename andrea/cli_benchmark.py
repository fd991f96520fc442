"""`andrea benchmark`: how fast a model trains here, what bounds it, and what PyTorch reaches with the same model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea.cli_answers import print_json, print_table
from andrea.cli_options import AsJson, DeviceName
from andrea.errors import AndreaError, did_you_mean

if TYPE_CHECKING:  # the command line must answer --help without loading an engine
    from andrea.engine import EngineConfig
    from andrea.types import Device, Precision

MODEL_SIZES = ("n_layer", "n_head", "d_model", "context")
BYTE_IDS = 257  # what every tokenizer here has beside its segments


def benchmark(
    model: Annotated[str, typer.Argument(help="12M, 120M, 480M or GPT-2, or an experiment")] = "12M",
    batch: Annotated[int | None, typer.Option(help="rows of a micro-batch; 8, or the experiment's")] = None,
    accumulation: Annotated[int | None, typer.Option(help="micro-batches of an update")] = None,
    layers: Annotated[int | None, typer.Option(help="another number of layers")] = None,
    heads: Annotated[int | None, typer.Option(help="another number of heads")] = None,
    width: Annotated[int | None, typer.Option(help="another width, d_model")] = None,
    context: Annotated[int | None, typer.Option(help="another context")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="another number of ids")] = None,
    steps: Annotated[int | None, typer.Option(help="steps that are timed; 30 on a card, 3 on the CPU")] = None,
    precision: Annotated[str | None, typer.Option(help="a precision plugin, for instance bf16")] = None,
    device: DeviceName = "auto",
    kernels: Annotated[bool, typer.Option("--kernels", help="then time every launch of a step by itself")] = False,
    tune: Annotated[bool, typer.Option("--tune", help="first time every algorithm of every product")] = False,
    table: Annotated[Path | None, typer.Option(help="where --tune writes; the table of the package else")] = None,
    peer: Annotated[bool, typer.Option("--peer", help="then the same model in PyTorch, and the ratio")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="engine.NAME=VALUE", help="set an option of the engine; repeatable"),
    ] = None,
    suggest: Annotated[
        int | None,
        typer.Option("--suggest", metavar="TOKENS", help="find the fastest batch and accumulation of so large a step"),
    ] = None,
    json_: AsJson = False,
) -> None:
    """Time training steps on random tokens: speed, share of the card's peak, memory, and who waits for whom."""
    from andrea.engine.benchmark import measure, measure_peer
    from andrea.engine.device import find_device
    from andrea.engine.gemm import TABLE
    from andrea.progress import Preparing, print_line

    if steps is not None and steps < 1:
        raise AndreaError(f"--steps {steps} is less than one step", "for instance --steps 30")
    found = find_device(device, print_line)
    if peer and found.kind == "cpu":
        raise AndreaError("--peer measures PyTorch on a card; this runs on the CPU", "--device cuda, or leave it out")
    shape = {"n_layer": layers, "n_head": heads, "d_model": width, "context": context, "vocabulary": vocabulary}
    config, options = configuration(model, shape | {"batch_size": batch, "accumulation": accumulation}, settings or [])
    chosen = choose_precision(precision, options, found)
    if suggest is not None:
        given = {"--batch": batch, "--accumulation": accumulation, "--kernels": kernels, "--tune": tune, "--peer": peer}
        if unused := [name for name, value in given.items() if value]:
            raise AndreaError(
                f"--suggest tries every batch and accumulation by itself, so {unused[0]} says nothing to it",
                f"leave out {unused[0]}, or --suggest",
            )
        _suggest(config, suggest, found, chosen, steps, json_)
        return
    count = steps or (3 if found.kind == "cpu" else 30)
    warmup = 1 if found.kind == "cpu" else 5
    with Preparing() as progress:
        figures = measure(config, found, chosen, count, warmup, tune, kernels, progress)
        if tune:
            _write_table(table or TABLE, figures.pop("gemm_table"))
        if peer:
            progress("measuring PyTorch", 0, 0)
            theirs = measure_peer(config)
    sizes = {key: getattr(config.model, key) for key in MODEL_SIZES}
    document = {"model": sizes, "vocabulary": config.vocabulary, "device": found.name, **figures}
    if peer:
        document |= {"torch": theirs, "ratio": figures["tokens_per_second"] / theirs["tokens_per_second"]}
    print_json(document) if json_ else print("\n".join(report(document)))


def _suggest(
    config: EngineConfig, tokens: int, device: Device, precision: Precision, steps: int | None, json_: bool
) -> None:
    """Print how fast each division of a step is, and what to type for the fastest.

    Ctrl-C ends the measurements at once, shows those that there are, and gives its exit code.
    """
    from andrea.engine.buffers import readable
    from andrea.engine.suggestion import fastest, suggest
    from andrea.interrupts import exit_code
    from andrea.progress import Preparing

    timed, warmup = (steps or 1, 1) if device.kind == "cpu" else (steps or 8, 3)
    found: list[dict[str, Any]] = []
    interrupted = False
    with Preparing() as progress:
        try:
            for division in suggest(config, tokens, device, precision, timed, warmup, progress):
                found.append(division)  # noqa: PERF402  (what is there stays when Ctrl-C ends the loop)
        except KeyboardInterrupt:
            interrupted = True
    best = fastest(found)
    settings = [f"batch.{name}={best[name]}" for name in ("batch_size", "accumulation")] if best else []
    if json_:
        about = {"tokens": tokens, "device": device.name, "precision": precision.name}
        print_json({**about, "divisions": found, "fastest": best, "set": settings})
    else:
        headings = ("batch size", "accumulation", "memory", "ms a step", "tokens/s")
        print_table(headings, ((*_division(row), readable(row["memory_planned"]), *_speed(row)) for row in found))
        if best:
            print(("fastest of these: " if interrupted else "fastest: ") + " ".join(f"--set {one}" for one in settings))
    if interrupted:
        raise typer.Exit(exit_code("SIGINT"))


def _division(row: dict[str, Any]) -> tuple[str, str]:
    return str(row["batch_size"]), str(row["accumulation"])


def _speed(row: dict[str, Any]) -> tuple[str, str]:
    if "median_ms" in row:
        return f"{row['median_ms']:,.1f}", f"{row['tokens_per_second']:,.0f}"
    return "does not fit", ""


def configuration(
    name: str, shape: Mapping[str, int | None], settings: Sequence[str] = ()
) -> tuple[EngineConfig, dict[str, dict[str, Any]]]:
    """Return what is measured, and the plugins' options of an experiment.

    Parameters
    ----------
    name
        A model of the family, a bundled experiment, or an experiment's JSON file.
    shape
        Fields of the model and of the engine's configuration that differ from its; None leaves one as it is.
    settings
        Options of the engine, for instance ``engine.graph=false``.

    Raises
    ------
    AndreaError
        When there is neither a model nor an experiment of this name, the shape cannot be, or a setting is none of the
        engine's.
    """
    import attrs

    from andrea.engine import EngineConfig
    from andrea.engine.benchmark import FAMILY

    options: dict[str, dict[str, Any]] = {}
    if name in FAMILY:
        model, vocabulary = FAMILY[name]
        config = EngineConfig(model, vocabulary)
    else:
        config, options = _experiment(name)
    given: dict[str, Any] = {key: value for key, value in shape.items() if value is not None}
    for key, value in given.items():
        if value < 1:
            raise AndreaError(f"{key} {value} is less than 1", "every size of a benchmark is at least 1")
    sizes = {key: given.pop(key) for key in MODEL_SIZES if key in given}
    given["options"] = {**config.options, **_engine_options(settings)}
    return attrs.evolve(config, model=attrs.evolve(config.model, **sizes), **given), options


def _engine_options(settings: Sequence[str]) -> dict[str, Any]:
    """Return the engine's options of `--set`; sizes have options of their own."""
    from andrea.settings import parse_setting

    found = {}
    for setting in settings:
        key, value = parse_setting(setting, example="engine.graph=false")
        section, _, name = key.partition(".")
        if section != "engine" or not name:
            raise AndreaError(
                f"--set {key}: a benchmark has only options of the engine to set",
                "for instance --set engine.graph=false; sizes are --batch, --accumulation, --layers and so on",
            )
        found[name] = value
    return found


def _experiment(name: str) -> tuple[EngineConfig, dict[str, dict[str, Any]]]:
    """Return what an experiment would train; its vocabulary is what its tokenizer is told to learn."""
    from andrea.assembly import engine_config
    from andrea.config import from_json
    from andrea.engine.benchmark import FAMILY
    from andrea.experiment_file import experiment_names, read_experiment
    from andrea.registry import choose, create

    try:
        value, where = read_experiment(name)
    except AndreaError as error:
        known = [*FAMILY, *experiment_names()]
        if Path(name).exists():
            raise
        hint = did_you_mean(name, known) or f"models: {', '.join(FAMILY)}; or an experiment, or its JSON file"
        raise AndreaError(f"there is no model or experiment {name!r}", hint) from error
    config = from_json(value, where)
    chosen = choose([], config.without, config.plugins, [], "precision.fp32")
    tokenizer = [target for name, target in create(chosen) if name.startswith("tokenizer.")]
    segments = getattr(tokenizer[0], "segments", 0) if tokenizer else 0
    return engine_config(config, BYTE_IDS + segments), config.plugins


def choose_precision(name: str | None, options: dict[str, dict[str, Any]], device: Device) -> Precision:
    """Ask a precision plugin: the one named, else the experiment's, else bf16 where the card has it, else fp32.

    Raises
    ------
    AndreaError
        When there is no such plugin, or the device cannot do it.
    """
    from andrea.loop import Hooks
    from andrea.registry import Chosen, available, create, register

    installed = {full.partition(".")[2]: entry for full, entry in available().items() if entry.kind == "precision"}
    configured = next((full.partition(".")[2] for full in options if full.startswith("precision.")), None)
    usual = "bf16" if device.kind == "cuda" and device.capability >= (8, 0) else "fp32"
    wanted = (name or configured or usual).removeprefix("precision.")
    if wanted not in installed:
        hint = did_you_mean(wanted, list(installed)) or f"precisions: {', '.join(installed)}"
        raise AndreaError(f"there is no precision {wanted!r}", hint)
    chosen = Chosen(installed[wanted], options.get(f"precision.{wanted}", {}))
    return Hooks(register(create([chosen]))).choose_precision(device)


def _write_table(path: Path, found: dict[str, dict[str, str]]) -> None:
    from andrea.engine.gemm import write_table

    try:
        write_table(path, found)
    except OSError as error:
        raise AndreaError(f"cannot write {path}: {error.strerror or error}", "--table names another file") from error


# -- for a person ------------------------------------------------------------------------------------------------------


def report(document: dict[str, Any]) -> list[str]:
    """Return the lines that a person reads; what cannot be known here is called unknown."""
    m = document["model"]
    planned, measured = document["memory_planned"] / 2**30, document.get("memory_measured")
    share = document["share_of_peak"]
    lines = {
        "device": document["device"],
        "model": f"{m['n_layer']} layers, {m['n_head']} heads, width {m['d_model']}, context {m['context']}, "
        f"{document['vocabulary']} ids",
        "step": f"{document['batch_size']} rows x {document['accumulation']}, {document['precision']}",
        "time": f"{document['median_ms']:.3f} ms median, {document['p95_ms']:.3f} ms at 95%",
        "speed": f"{document['tokens_per_second']:,.0f} tokens/s",
        "arithmetic": f"{document['model_tflops']:.3g} TFLOP/s of the model's own, "
        f"{'unknown' if share is None else format(share, '.1%')} of the dense peak",
        "memory": f"{planned:.3f} GiB planned, "
        f"{'unknown' if measured is None else format(measured / 2**30, '.3f') + ' GiB'} by the driver",
        "card": f"{_known(document, 'device_ms')} busy, {_known(document, 'idle_ms')} idle between steps",
        "host": f"{_known(document, 'host_ms')} a step",
    }
    if "torch" in document:
        theirs = document["torch"]
        lines["PyTorch"] = f"{theirs['tokens_per_second']:,.0f} tokens/s ({theirs['version']}, {theirs['backend']})"
        lines["ratio"] = f"{document['ratio']:.2f}"
    return [f"{key:>10}  {text}" for key, text in lines.items()] + _kernel_lines(document.get("kernels", []))


def _known(document: dict[str, Any], key: str) -> str:
    return f"{document[key]:.3f} ms" if key in document else "unknown"


def _kernel_lines(groups: list[dict[str, Any]]) -> list[str]:
    if not groups:
        return []
    total = sum(group["milliseconds"] for group in groups)
    lines = ["", f"{'ms a step':>10} {'share':>6} {'launches':>8} {'rate':>14} {'of roof':>8}  launch"]
    for group in groups:
        seconds = group["milliseconds"] / 1e3
        rate = "unknown"
        if seconds and group["operations"]:
            rate = f"{group['operations'] / seconds / 1e12:.1f} TFLOP/s"
        elif seconds and group["bytes"]:
            rate = f"{group['bytes'] / seconds / 1e9:.0f} GB/s"
        roof = "unknown" if group["share_of_roof"] is None else format(group["share_of_roof"], ".0%")
        share = group["milliseconds"] / total if total else 0.0
        lines.append(
            f"{group['milliseconds']:10.4f} {share:6.1%} {group['launches']:8d} {rate:>14} {roof:>8}  {group['name']}"
        )
    return [*lines, f"{total:10.4f}  in all, each launch alone"]
