"""What stands in a line of the journal, of which only what is shown is read: a long history is read in a second."""

from __future__ import annotations

import msgspec
from msgspec import Raw

Number = float | str  # what is not finite stands in the journal as a text: inf, -inf, nan
Numbers = list[Number]


class Pull(msgspec.Struct):
    """A source that was drawn; what the sampler said of it is looked into only where it is known."""

    source: str
    rewards: dict[str, Number]
    detail: Raw = Raw(b"{}")


class Step(msgspec.Struct, tag_field="kind", tag="step"):
    """One update."""

    step: int
    loss: Number
    grad_norm: Number
    learning_rate: Number
    skipped: bool
    tokens: int
    pulls: list[Pull]


class Sample(msgspec.Struct, tag_field="kind", tag="sample"):
    """Texts after so many completed updates, each with its prompt."""

    step: int
    loss: Number
    texts: list[str]


class Evaluation(msgspec.Struct, tag_field="kind", tag="evaluation"):
    """Held-out losses and bits per byte after so many completed updates, by source."""

    step: int
    loss: dict[str, Number]
    bits_per_byte: dict[str, Number]


class Polish(msgspec.Struct, tag_field="kind", tag="polish"):
    """The run goes on under other settings; samples begin anew."""

    step: int


class Stop(msgspec.Struct, tag_field="kind", tag="stop"):
    """Why the run ended."""

    step: int
    reasons: dict[str, str]


class Phase(msgspec.Struct):
    """What sampler.dice says of a pull: the phase that it belongs to, sources by their index."""

    start: int
    length: int
    focus: list[int]
    joined: list[int]


class Point(msgspec.Struct, tag_field="kind", tag="step"):
    """The two numbers of a step that make a curve."""

    step: int
    loss: Number


class _Arms(msgspec.Struct):
    scores: Numbers = []
    weights: Numbers = []


class _WithArms(msgspec.Struct):
    pulls: list[_Arms] = []


Line = Step | Sample | Evaluation | Polish | Stop

decode_line = msgspec.json.Decoder(Line).decode
decode_point = msgspec.json.Decoder(Point).decode
_decode_phase = msgspec.json.Decoder(Phase).decode
_decode_arms = msgspec.json.Decoder(_WithArms).decode

DAMAGED = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)  # what reading bad JSON may raise


def read_line(line: bytes) -> Line | None:
    """Return what a line says; None when it is damaged."""
    try:
        return decode_line(line)
    except DAMAGED:
        return None


def read_phase(detail: Raw) -> Phase | None:
    """Return the phase that a sampler speaks of; None when it speaks of something else."""
    try:
        return _decode_phase(detail)
    except DAMAGED:
        return None


def read_arms(line: bytes) -> tuple[list[float], list[float]]:
    """Return scores and weights of all sources, by which the first pull of a step was drawn."""
    try:
        pulls = _decode_arms(line).pulls or [_Arms()]
        return list(map(float, pulls[0].scores)), list(map(float, pulls[0].weights))
    except DAMAGED:
        return [], []
