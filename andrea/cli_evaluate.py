"""``andrea evaluate``: bits per byte and perplexity of every source, and tasks of the lm-evaluation-harness."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from andrea.cli_answers import print_json, print_table
from andrea.cli_options import AsJson, CheckpointName, DeviceName, RunFolder, text_option
from andrea.errors import AndreaError
from andrea.extras import import_extra

if TYPE_CHECKING:
    from andrea.types import Evaluation


def evaluate(
    folder: RunFolder = None,
    checkpoint: CheckpointName = None,
    rows: Annotated[int, typer.Option(min=0, help="held-out rows of each source; 0 takes all")] = 0,
    bigram: Annotated[
        bool, typer.Option("--bigram", help="beside it a Kneser-Ney bigram model of the same tokens")
    ] = False,
    tasks: Annotated[
        str,
        text_option(
            "--tasks", metavar="NAME,NAME", help="instead, tasks of the lm-evaluation-harness, for instance piqa"
        ),
    ] = "",
    task_folder: Annotated[Path | None, typer.Option(help="folder with further tasks of the harness, as YAML")] = None,
    shots: Annotated[int | None, typer.Option(min=0, help="examples before each question of a task")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="questions of each task")] = None,
    cache: Annotated[Path | None, typer.Option(help="file that keeps answers to tasks, to go on from")] = None,
    device: DeviceName = "auto",
    json_: AsJson = False,
) -> None:
    """Measure bits per byte and perplexity of held-out text, by source; or run tasks of the lm-evaluation-harness."""
    if tasks:
        if bigram or rows:
            raise AndreaError("--tasks measures tasks, not held-out text", "leave --bigram and --rows out")
        _evaluate_tasks(folder, checkpoint, tasks, task_folder, shots, limit, cache, device, json_)
        return
    if given := [
        name for name, value in (("--shots", shots), ("--limit", limit), ("--cache", cache)) if value is not None
    ]:
        raise AndreaError(f"{given[0]} belongs to tasks", "name some: --tasks piqa,arc_easy")
    from andrea.bigram import bigram_of
    from andrea.bigram import bits_per_byte as bigram_bits
    from andrea.progress import Preparing, print_line
    from andrea.trained import evaluate_run

    with Preparing() as progress:
        evaluation, files = evaluate_run(folder, checkpoint, rows, device, print_line, progress)
    pairs = bigram_of([train for train, _ in files.values()]) if bigram else None
    baseline = {name: bigram_bits(pairs, held_out) for name, (_, held_out) in files.items()} if pairs else {}
    if json_:
        value = {
            "step": evaluation.step,
            "loss": dict(evaluation.loss),
            "perplexity": perplexities(evaluation),
            "bits_per_byte": dict(evaluation.bits_per_byte),
            **({"bigram_bits_per_byte": baseline} if bigram else {}),
        }
        print_json(value)
        return
    _print_table(evaluation, baseline)


def perplexities(evaluation: Evaluation) -> dict[str, float]:
    """Return exp(loss) of every source: among how many equally likely tokens the model seems to choose; inf beyond."""
    return {name: math.exp(loss) if loss < 700 else math.inf for name, loss in evaluation.loss.items()}


def _print_table(evaluation: Evaluation, baseline: dict[str, float]) -> None:
    rows = []
    for name, perplexity in perplexities(evaluation).items():
        extra = [f"{baseline[name]:.3f}"] if baseline else []
        bits = f"{evaluation.bits_per_byte[name]:.3f}"
        rows.append((name, f"{evaluation.loss[name]:.3f}", f"{perplexity:.1f}", bits, *extra))
    mean = [f"{sum(baseline.values()) / len(baseline):.3f}"] if baseline else []
    rows.append(("mean", "", "", f"{evaluation.mean:.3f}", *mean))
    print_table(("source", "loss", "perplexity", "bits per byte", *(["bigram"] if baseline else [])), rows)


# -- tasks -------------------------------------------------------------------------------------------------------------


def _evaluate_tasks(
    folder: Path | None,
    checkpoint: Path | None,
    tasks: str,
    task_folder: Path | None,
    shots: int | None,
    limit: int | None,
    cache: Path | None,
    device: str,
    json_: bool,
) -> None:
    names = [name.strip() for name in tasks.split(",") if name.strip()]
    if not names:
        raise AndreaError(f"--tasks {tasks!r} names no task", "for instance --tasks piqa,arc_easy")
    if task_folder is not None and not task_folder.is_dir():
        raise AndreaError(f"there is no folder {task_folder}", "--task-folder holds the YAML files of tasks")
    harness = import_extra("andrea.harness", "lm-eval", "--tasks runs the lm-evaluation-harness")
    from andrea.progress import Preparing, print_line
    from andrea.trained import open_model

    model = open_model(folder, checkpoint, device, print_line)
    with Preparing() as progress:
        found = harness.run_tasks(
            model, names, folder=task_folder, shots=shots, limit=limit, cache=cache, progress=progress
        )
    if json_:
        print_json({"step": model.step, **found})
        return
    _print_tasks(found["results"])


def _print_tasks(results: dict[str, dict[str, Any]]) -> None:
    rows = []
    for task, metrics in results.items():
        for name, value in metrics.items():
            metric, _, kind = name.partition(",")
            if isinstance(value, float) and not metric.endswith("_stderr"):
                error = metrics.get(f"{metric}_stderr,{kind}")
                rows.append((task, metric, f"{value:.4f}", f"{error:.4f}" if isinstance(error, float) else ""))
    print_table(("task", "metric", "value", "standard error"), rows)
