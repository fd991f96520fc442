"""Held-out loss of every source, in nats per token and bits per byte, on a fixed set of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping

from attrs import frozen

from andrea.batches import held_out_rows
from andrea.engine import Engine, sum_losses
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


def evaluate(engine: Engine, sets: Mapping[str, HeldOut], step: int) -> Evaluation:
    """Measure every source.

    Parameters
    ----------
    engine
        Changes in nothing.
    sets
        By source name.
    step
        Completed updates.

    Returns
    -------
    Evaluation
        Loss is the mean over counted targets; bits per byte = summed loss / ln 2 / bytes.
    """
    losses, bits = {}, {}
    for name, held_out in sets.items():
        total, count = sum_losses(engine.evaluate(held_out.inputs, held_out.targets), held_out.targets)
        losses[name] = total / count
        bits[name] = total / math.log(2) / held_out.bytes
    return Evaluation(step, losses, bits)
