"""Which batch size makes a step of so many tokens fastest: each that fits is tried, shortly.

A step of R rows may be one micro-batch of R rows, or R micro-batches of one row, or anything between: the update is
the same but for the order of its sums, the time and the memory are not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from attrs import evolve

from andrea.engine import EngineConfig, reference
from andrea.engine.benchmark import Tell, measure, say_nothing
from andrea.engine.buffers import plan_memory, readable
from andrea.errors import AndreaError
from andrea.types import Device, Precision


def divide(config: EngineConfig, tokens: int) -> list[EngineConfig]:
    """Return every batch size and accumulation that make a step of so many tokens, the largest batch first.

    Raises
    ------
    AndreaError
        When the tokens are no whole number of rows.
    """
    context = config.model.context
    rows, rest = divmod(tokens, context)
    if rows < 1 or rest:
        near = max(1, round(tokens / context)) * context
        raise AndreaError(
            f"a step of {tokens} tokens is not one row of {context} or several whole ones",
            f"for instance {near}, which is near",
        )
    sizes = [size for size in range(rows, 0, -1) if rows % size == 0]
    return [evolve(config, batch_size=size, accumulation=rows // size) for size in sizes]


def planned_memory(config: EngineConfig, device: Device, precision: Precision) -> int:
    """Return the bytes that an engine would take."""
    if device.kind == "cpu":
        return sum(buffer.bytes for buffer in reference.plan_memory(config))
    return plan_memory(config, precision).total


def room(config: EngineConfig, device: Device) -> int | None:
    """Return the bytes that an engine may take on a device now, or None when that is not known."""
    if device.kind == "cuda":
        from andrea.engine.launcher import context
        from andrea.engine.machine import usable_memory

        with context(device.index):
            return usable_memory(config)
    if {"SC_AVPHYS_PAGES", "SC_PAGE_SIZE"} <= set(getattr(os, "sysconf_names", ())):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def suggest(
    config: EngineConfig,
    tokens: int,
    device: Device,
    precision: Precision,
    steps: int,
    warmup: int,
    tell: Tell = say_nothing,
) -> Iterator[dict[str, Any]]:
    """Measure every division of a step that fits into memory, and yield each as soon as it is measured.

    Parameters
    ----------
    config
        What is trained; its own batch size and accumulation do not matter.
    tokens
        Of one step: rows times context.
    steps, warmup
        Timed and untimed steps of each.
    tell
        Hears how far that is.

    Yields
    ------
    dict
        One for each division, the largest batch first: ``batch_size``, ``accumulation``, ``memory_planned`` in bytes,
        ``fits``; and of those that do ``median_ms`` of a step and ``tokens_per_second``.

    Raises
    ------
    AndreaError
        When the tokens are no whole number of rows, or not even one row at a time fits.
    """
    divisions, fitting = divide(config, tokens), 0
    for number, one in enumerate(divisions):
        size, B, A = planned_memory(one, device, precision), one.batch_size, one.accumulation
        free = room(config, device)  # asked each time: libraries keep some of what the one before took
        row = {"batch_size": B, "accumulation": A, "memory_planned": size, "fits": free is None or size <= free}
        if row["fits"]:
            fitting += 1
            tell(f"batch size {B} of {tokens // config.model.context} rows", number, len(divisions))
            figures = measure(one, device, precision, steps, warmup)
            row |= {name: figures[name] for name in ("median_ms", "tokens_per_second")}
        yield row
    if not fitting:
        raise AndreaError(
            f"one row at a time needs {readable(size)}; {readable(free or 0)} may be used",
            "take a smaller model, a shorter context or a smaller storage type",
        )


def fastest(found: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the division with the most tokens a second, or None when none was measured."""
    measured = [row for row in found if "tokens_per_second" in row]
    return max(measured, key=lambda row: float(row["tokens_per_second"]), default=None)
