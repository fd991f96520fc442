"""``andrea export`` and ``andrea import``: models to and from the formats of other programs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from andrea.cli_answers import ending_as_asked, print_json
from andrea.cli_options import (
    AsJson,
    CheckpointName,
    DeviceName,
    NewRun,
    Plugins,
    RunFolder,
    RunSeed,
    Settings,
    Without,
)


def export(
    folder: RunFolder = None,
    form: Annotated[str, typer.Option("--format", metavar="hf|gguf|npz", help="transformers, llama.cpp, numpy")] = "hf",
    out: Annotated[Path | None, typer.Option(help="folder or file that is made; in RUN/export when left out")] = None,
    dtype: Annotated[str, typer.Option(metavar="float32|float16", help="type of the weights")] = "float32",
    checkpoint: CheckpointName = None,
    json_: AsJson = False,
) -> None:
    """Write a trained model and its tokenizer for other programs."""
    from andrea.checkpoint import stem
    from andrea.export import SUFFIXES, check_form
    from andrea.export import export as write
    from andrea.export.portable import Portable
    from andrea.progress import print_line
    from andrea.trained import find_model

    check_form(form, dtype)
    found = find_model(folder, checkpoint, print_line)
    portable = Portable.of(found)
    default = found.folder / "export" / f"{portable.name}-{stem(portable.step)}{SUFFIXES[form]}"
    place = write(portable, form, out or default, dtype)
    paths = sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]
    sizes = {str(path.relative_to(place if place.is_dir() else place.parent)): path.stat().st_size for path in paths}
    if json_:
        value = {"format": form, "path": str(place), "step": portable.step, "parameters": portable.parameters}
        print_json({**value, "files": sizes})
        return
    for name, size in sizes.items():
        print(f"{size:>14,}  {name}")
    print_line(f"exported: {place}, {portable.parameters:,} parameters")
    print_line(f"  {_use(form, place)}")


def _use(form: str, place: Path) -> str:
    """Return how the model is taken up there."""
    if form == "hf":
        return f"AutoModelForCausalLM.from_pretrained({str(place)!r}), AutoTokenizer.from_pretrained({str(place)!r})"
    if form == "gguf":
        return f"llama-cli -m {shlex.quote(str(place))}"
    return f"numpy.load({str(place)!r})"


def import_(
    path: Annotated[
        Path, typer.Argument(help="folder of transformers, GPT-2-shaped; or a .bin in the published layout")
    ],
    experiment: Annotated[
        str | None, typer.Argument(help="JSON file or bundled experiment: its sources and schedule, and a .bin's shape")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="folder of the model's tokenizer, when it does not lie with the model")
    ] = None,
    plugin: Plugins = None,
    without: Without = None,
    set_: Settings = None,
    seed: RunSeed = None,
    device: DeviceName = "auto",
    out: NewRun = None,
) -> None:
    """Make a run of a model from elsewhere, to go on with, to measure, to write with."""
    from andrea.checkpoint import complete_steps
    from andrea.importing.adopt import Wanted, adopt
    from andrea.interrupts import Interrupts
    from andrea.planning import Request
    from andrea.progress import Preparing, print_line

    request = Request(
        experiment=experiment,
        plugins=plugin or (),
        without=without or (),
        settings=set_ or (),
        seed=seed,
        device=device,
        out=out,
    )
    with Interrupts() as interrupts, ending_as_asked(interrupts), Preparing() as preparing:
        planned = adopt(Wanted(path, tokenizer, request), print_line, preparing, interrupts)
    step = complete_steps(planned.folder / "checkpoints")[-1]
    place = shlex.quote(str(planned.folder))
    print_line(f"imported: {planned.folder}, step {step}")
    print_line(f"  measure it:    andrea evaluate {place}")
    print_line(f"  write with it: andrea sample {place}")
    print_line(f"  go on:         andrea run --resume --out {place} --steps {step + planned.config.schedule.steps}")
