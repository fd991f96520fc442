"""The prepared text of an experiment, for the scripts beside this one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from andrea.config import RunConfig
from andrea.interrupts import Interrupts
from andrea.loop import Hooks
from andrea.planning import Request, plan
from andrea.progress import Preparing
from andrea.registry import create, register
from andrea.run_data import prepare_data
from andrea.tokenfile import TokenFile
from andrea.tokens import Prepared


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that asks for an experiment and where its text lies."""
    asking = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    asking.add_argument("experiment", nargs="?", help="a file or a name; none: the quickstart")
    asking.add_argument("--data", type=Path, help="stands for {data} in the experiment")
    asking.add_argument("--out", type=Path, help="a JSON file for the figures")
    return asking


def prepare(asked: argparse.Namespace) -> tuple[RunConfig, Prepared]:
    """Take the experiment's sources to token files, or find them in the cache."""
    planned = plan(Request(experiment=asked.experiment, data=asked.data), lambda line: None)
    hooks = Hooks(register(create(planned.chosen)))
    with Interrupts() as interrupts, Preparing() as preparing:
        return planned.config, prepare_data(planned.config, planned.chosen, hooks, preparing, interrupts)


def documents(prepared: Prepared, path: Path, most: int | None = None) -> Iterator[str]:
    """Yield the documents of a token file; at most about `most`, evenly over it."""
    file = TokenFile.open(path)
    step = max(1, file.documents // most) if most else 1
    for number in range(0, file.documents, step):
        yield prepared.tokenizer.decode(file.document(number)).decode(errors="replace")
