"""Options and arguments that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

EMPTY_TEXTS: set[str] = set()  # names of options made by `text_option`


def text_option(name: str, **settings: Any) -> Any:
    """Return an option whose value may be empty; an empty value of any other one is refused."""
    EMPTY_TEXTS.add(name)
    return typer.Option(name, **settings)


# -- an experiment -----------------------------------------------------------------------------------------------------

Experiment = Annotated[str | None, typer.Argument(help="JSON file or bundled experiment; quickstart when left out")]
Plugins = Annotated[list[str] | None, typer.Option("--plugin", metavar="NAME", help="use a plugin; repeatable")]
Without = Annotated[list[str] | None, typer.Option("--without", metavar="NAME", help="leave a plugin out; repeatable")]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="set a key; repeatable")]
DataFolder = Annotated[Path | None, typer.Option("--data", help="folder that {data} stands for in the experiment")]

# -- a run -------------------------------------------------------------------------------------------------------------

Steps = Annotated[int | None, typer.Option(help="stop after this many steps in all")]
RunSeed = Annotated[int | None, typer.Option(help="seed of the run")]
NewRun = Annotated[Path | None, typer.Option(help="folder of the run; runs/NAME-NNN when left out")]
Trace = Annotated[bool, typer.Option("--trace-hooks", help="print the time of every plugin at the end")]
RunFolder = Annotated[Path | None, typer.Argument(help="folder of a run; the newest in runs/ when left out")]
CheckpointName = Annotated[Path | None, typer.Option("--checkpoint", help="one of its checkpoints; the newest else")]

# -- drawing text ------------------------------------------------------------------------------------------------------

Temperature = Annotated[float, typer.Option(min=0.0, help="0 is greedy")]
TopK = Annotated[int, typer.Option(min=0, help="keep the k best tokens; 0 keeps all")]
TopP = Annotated[float, typer.Option(min=0.0, max=1.0, help="keep the likeliest tokens up to p")]
Penalty = Annotated[float, typer.Option(min=0.0, help="above 1 discourages repeats")]
DrawSeed = Annotated[int, typer.Option(help="of the draws")]
Stops = Annotated[list[str] | None, text_option("--stop", metavar="TEXT", help="end before this; repeatable")]
Speed = Annotated[bool, typer.Option("--speed", help="say how fast the text came")]

# -- where, and how it is shown ----------------------------------------------------------------------------------------

DeviceName = Annotated[str, typer.Option("--device", metavar="auto|cpu|cuda[:N]", help="where to compute")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON document")]
