"""The engine: numbers in, numbers out. It knows no hooks, no files and no plugins.

Two implementations of one protocol: `andrea.engine.reference` in numpy, which is also the specification, and the
CUDA one. `open_engine` chooses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from andrea.engine.model import ModelConfig
from andrea.engine.schedule import OptimizerConfig, ScheduleConfig
from andrea.errors import AndreaError, did_you_mean
from andrea.types import Device, Precision

Tokens = npt.NDArray[np.int32]
Watch = Callable[[int, int], bool]  # (row, id) as it comes; True ends the row
#: Options and what each may be, where int is a whole number from 1; the last two are of the numpy engine.
SWITCHES: Mapping[str, Any] = {
    "arena_limit": int,
    "attention": ("auto", "mma", "hopper", "cudnn"),
    "fused_gelu": (True, False),
    "gemm": ("auto", "cublaslt", "own"),
    "graph": (True, False),
    "overlap": (True, False),
    "slices": int,
    "threads": int,
}


@frozen
class EngineConfig:
    """Everything that decides what an engine computes.

    Attributes
    ----------
    model
        Shapes.
    vocabulary
        Ids of the tokenizer (V).
    optimizer, schedule
        How weights move.
    batch_size
        Rows of a micro-batch (B).
    accumulation
        Micro-batches of one update; a step has R = B x accumulation rows.
    seed
        Of the initial weights.
    training
        False: the engine evaluates and generates only. It holds no gradients and moments, and one layer's activations
        at a time. Its state is the weights alone, zeros until `Engine.import_state` brings a model's; its numbers are
        then those of an engine that trains.
    options
        Switches of one implementation, for instance ``{"graph": False}``; see `SWITCHES`.

    Raises
    ------
    AndreaError
        When there is no such switch, or its value is none of those it has.
    """

    model: ModelConfig
    vocabulary: int
    optimizer: OptimizerConfig = field(factory=OptimizerConfig)
    schedule: ScheduleConfig = field(factory=ScheduleConfig)
    batch_size: int = 8
    accumulation: int = 1
    seed: int = 0
    training: bool = True
    options: Mapping[str, Any] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        check_switches(self.options)

    @property
    def rows(self) -> int:
        """Rows of one step (R)."""
        return self.batch_size * self.accumulation


@frozen(eq=False)
class StepResult:
    """What one update did.

    Attributes
    ----------
    row_losses
        Mean loss of each row before the update, nats per token, float32 (R,).
    grad_norm
        Global 2-norm of the unscaled gradient before clipping.
    learning_rate
        Rate of this step.
    skipped
        True when the gradient norm was not finite and nothing moved.
    probe_losses
        Held-out loss (before, after) of each probe, nats per token.
    """

    row_losses: npt.NDArray[np.float32]
    grad_norm: float
    learning_rate: float
    skipped: bool
    probe_losses: Mapping[str, tuple[float, float]] = field(factory=dict)


@frozen
class GenerateOptions:
    """How text is drawn.

    Attributes
    ----------
    max_tokens
        Tokens to add to each prompt; the context slides when it is full.
    temperature
        0 is greedy.
    top_k
        Keep the k best ids; 0 keeps all.
    top_p
        Keep the smallest set of ids whose probability reaches p.
    repetition_penalty
        Divides positive and multiplies negative logits of ids already in the row; 1 is none.
    seed
        Of the draws: row r draws a number a token from (seed, "generate", first + r): rows do not depend on each other.
    stop
        Ids that end a row; the id itself is kept as the last.
    first
        Number of the first row: many prompts drawn in parts are drawn as if all at once.
    """

    max_tokens: int = 256
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[int, ...] = ()
    first: int = 0


@frozen
class Buffer:
    """One line of a memory plan: name, what it is for, shape, type and bytes."""

    name: str
    purpose: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


class Engine(Protocol):
    """What the loop needs of an engine."""

    config: EngineConfig

    def train_step(
        self, step: int, inputs: Tokens, targets: Tokens, probes: Mapping[str, tuple[Tokens, Tokens]] | None = None
    ) -> StepResult:
        """Do one update: forward, loss, backward, clip, AdamW.

        Parameters
        ----------
        step
            Number of this step, from 0: it decides the learning rate.
        inputs, targets
            int32 (R, T), every target valid. A pull's rows are neighbours; rows are averaged equally.
        probes
            By name, held-out (inputs, targets) measured before and after the update.

        An engine that computes beside the host may also have ``launch_step``, which takes the same, begins, and returns
        a function that gives the `StepResult`; nothing else is asked of the engine in between.
        """

    def evaluate(self, inputs: Tokens, targets: Tokens) -> npt.NDArray[np.float32]:
        """Return the mean loss of each row over its valid targets, float32 (rows,); a target of -1 is not counted.

        Any number of rows, any T up to the context. Changes nothing.
        """

    def generate(
        self, prompts: Sequence[npt.ArrayLike], options: GenerateOptions, watch: Watch | None = None
    ) -> list[Tokens]:
        """Return the ids added to each prompt (at least one id long); changes nothing.

        `watch` is told every id, of one row in order, of several rows perhaps from several threads at once. A true
        answer makes it the last id of its row; the ids themselves do not depend on being watched.
        """

    def export_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of everything that training needs; without training, ``weights`` alone.

        ``weights``, ``first_moments``, ``second_moments``: float32 (P,) in the order of `andrea.engine.model.layout`;
        ``applied_updates``: int64 (1,), which drives the bias correction; further keys belong to the engine.
        """

    def import_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `export_state` gave, bit for bit. ValueError when a key or shape does not fit."""

    def memory_plan(self) -> list[Buffer]:
        """Return every buffer that the engine holds."""

    def fingerprint(self) -> dict[str, str]:
        """Return what the numbers depend on beside the configuration: device, libraries, versions, threads."""

    def close(self) -> None:
        """Give the memory back; further calls are errors."""


def sum_losses(row_losses: npt.NDArray[np.floating[Any]], targets: Tokens) -> tuple[float, int]:
    """Return the loss of all valid targets in nats, and their number; their quotient is the mean over tokens.

    Parameters
    ----------
    row_losses
        What `Engine.evaluate` gives: the mean of each row over its valid targets, (rows,). A mean of these would count
        a row that is mostly padding like a full one.
    targets
        (rows, T); -1 is not counted.
    """
    counts = (targets >= 0).sum(axis=1)
    return math.fsum((row_losses.astype(np.float64) * counts).tolist()), int(counts.sum())


def check_training(config: EngineConfig) -> None:
    """Raise a RuntimeError when an engine that was opened without training is asked to train."""
    if not config.training:
        raise RuntimeError("this engine was opened without training: EngineConfig.training is False")


def check_switches(options: Mapping[str, Any]) -> None:
    """Refuse an option or a value that no engine has; each engine's must be right on the other too: one run fits both.

    Raises
    ------
    AndreaError
        With the nearest option, or with what the value may be.
    """
    if unknown := sorted(set(options) - set(SWITCHES)):
        raise AndreaError(
            f"the engine has no option {', '.join(unknown)}",
            did_you_mean(unknown[0], SWITCHES) or f"options are {', '.join(SWITCHES)}",
        )
    for name, value in options.items():
        known = SWITCHES[name]
        if known is int:
            fits, names = type(value) is int and value >= 1, ["a whole number from 1"]
        else:
            fits = any(type(value) is type(one) and value == one for one in known)  # to Python 1 is True
            names = [one if isinstance(one, str) else json.dumps(one) for one in known]
        if not fits:
            meant = did_you_mean(str(value), names)
            raise AndreaError(f"engine.{name} is {value!r}", f"{meant} it may be {', '.join(names)}".lstrip())


def open_engine(config: EngineConfig, device: Device, precision: Precision) -> Engine:
    """Return the engine for a device; GPU code is imported only when the device is a card.

    Raises
    ------
    AndreaError
        When the device cannot run the precision, or the memory does not suffice.
    """
    if device.kind == "cpu":
        from andrea.engine.reference import ReferenceEngine

        return ReferenceEngine(config, precision)
    from andrea.engine.step import CudaEngine

    return CudaEngine(config, device, precision)
