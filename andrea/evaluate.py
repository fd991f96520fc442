"""Held-out loss of every source, in nats per token and bits per byte, on a fixed set of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from attrs import frozen

from andrea.batches import held_out_rows
from andrea.engine import Engine
from andrea.tokens import TokenFile
from andrea.types import Evaluation, Tokens


@frozen(eq=False)
class HeldOut:
    """The evaluation set of one source: inputs and targets int32 (R, T), and the bytes that its targets stand for."""

    inputs: Tokens
    targets: Tokens
    bytes: int


def held_out_sets(files: Mapping[str, TokenFile], context: int, rows: int) -> dict[str, HeldOut]:
    """Return the fixed evaluation set of each source, at most `rows` rows each."""
    return {name: HeldOut(*held_out_rows(file, context, rows)) for name, file in files.items()}


def evaluate(
    engine: Engine, sets: Mapping[str, HeldOut], step: int, stopped: Callable[[], bool] = lambda: False
) -> Evaluation | None:
    """Measure every source.

    Parameters
    ----------
    engine
        Changes in nothing.
    sets
        By source name.
    step
        Completed updates.
    stopped
        Asked before every source; True ends the evaluation without a result.

    Returns
    -------
    Evaluation or None
        Loss is the mean over counted targets; bits per byte = summed loss / ln 2 / bytes.
    """
    losses, bits = {}, {}
    for name, held_out in sets.items():
        if stopped():
            return None
        rows = engine.evaluate(held_out.inputs, held_out.targets).astype(np.float64)
        counts = (held_out.targets >= 0).sum(axis=1)
        total = math.fsum((rows * counts).tolist())
        losses[name] = total / int(counts.sum())
        bits[name] = total / math.log(2) / held_out.bytes
    return Evaluation(step, losses, bits)
