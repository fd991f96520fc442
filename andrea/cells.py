"""The support table: which precision plugin runs on which architecture, compiled cell by cell."""

from __future__ import annotations

from collections.abc import Iterator

from andrea.engine.compiler import ARCHITECTURES, capability_of
from andrea.engine.kernel_table import Row, compile_cell
from andrea.errors import AndreaError, did_you_mean
from andrea.loop import Hooks
from andrea.registry import Chosen, available, create, register
from andrea.types import Device


def compile_table(architecture: str, precision: str | None) -> Iterator[list[Row]]:
    """Compile every cell asked for and yield its rows; a precision that refuses an architecture has no cell there.

    Parameters
    ----------
    architecture
        One, or ``all``.
    precision
        One variant such as ``bf16``; None takes every installed precision.

    Raises
    ------
    AndreaError
        When there is no such architecture or precision, or a kernel does not compile.
    """
    if architecture != "all" and architecture not in ARCHITECTURES:
        hint = did_you_mean(architecture, ARCHITECTURES) or f"architectures: all, {', '.join(ARCHITECTURES)}"
        raise AndreaError(f"there is no architecture {architecture!r}", hint)
    installed = {name.partition(".")[2]: entry for name, entry in available().items() if entry.kind == "precision"}
    if precision is not None and precision not in installed:
        raise AndreaError(f"there is no precision {precision!r}", f"precisions: {', '.join(installed)}")
    for variant, entry in installed.items():
        if precision not in (None, variant):
            continue
        hooks = Hooks(register(create([Chosen(entry, {})])))
        for name in ARCHITECTURES if architecture == "all" else [architecture]:
            device = Device("cuda", name, capability_of(name))
            try:
                chosen = hooks.choose_precision(device)
            except AndreaError:
                continue
            yield list(compile_cell(chosen, name))
