"""How commands answer: one JSON document, a table, or the exit code of a signal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.table import Column

    from andrea.interrupts import Interrupts


def print_json(value: Any) -> None:
    """Print a value as the one JSON document on standard output."""
    from andrea.journal import plain

    print(json.dumps(plain(value), indent=1, allow_nan=False))


def print_fields(value: Mapping[str, Any]) -> None:
    """Print a line for every key."""
    width = max(map(len, value))
    for key, item in value.items():
        print(f"{key:>{width}}  {item if isinstance(item, str) else json.dumps(item)}")


def print_table(headings: Iterable[str | Column], rows: Iterable[Iterable[str]], to_error: bool = False) -> None:
    """Print rows under headings; what stands in square brackets is text like any other."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*headings, box=None)
    for row in rows:
        table.add_row(*row)
    Console(stderr=to_error, markup=False, emoji=False, highlight=False).print(table)


@contextmanager
def ending_as_asked(interrupts: Interrupts) -> Iterator[None]:
    """End the command with the signal's exit code when preparing text is stopped by one."""
    from andrea.interrupts import exit_code
    from andrea.progress import print_line
    from andrea.tokens import StoppedError

    try:
        yield
    except StoppedError as stopped:
        print_line(f"{stopped.message}; {stopped.hint}")
        raise typer.Exit(exit_code(interrupts.stopped_by)) from None
