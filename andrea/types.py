"""What travels between the parts, frozen: documents, batches, records, samples, and the run as plugins see it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from andrea.rng import Draws

if TYPE_CHECKING:
    from andrea.notebook import OpenRun

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.int32]


# -- before training: sources, documents, tokenizers ----------------------------------------------------------------


@frozen
class SourceInput:
    """One of several inputs that make a source; `reader`, `options` and `licence` as in `SourceSpec`."""

    reader: str
    options: Mapping[str, Any] = field(factory=dict)
    licence: str = ""


@frozen
class SourceSpec:
    """One source of an experiment: an arm of the bandit.

    Attributes
    ----------
    name
        How the run calls it.
    reader
        Name of the plugin that reads it, for instance ``source.text``; empty when there are `inputs`.
    options
        What the reader is told: paths, columns, package names.
    licence
        Of the text, as the user gives it; kept in the manifest.
    inputs
        In place of a reader: several, whose documents make one source, one input after another.
    """

    name: str
    reader: str = ""
    options: Mapping[str, Any] = field(factory=dict)
    licence: str = ""
    inputs: tuple[SourceInput, ...] = ()

    @property
    def parts(self) -> tuple[SourceSpec, ...]:
        """The descriptions that readers get, one for each input; the source itself when it has one reader."""
        if not self.inputs:
            return (self,)
        return tuple(SourceSpec(self.name, one.reader, one.options, one.licence or self.licence) for one in self.inputs)


@frozen
class Document:
    """One text, the unit that is counted, filtered and split.

    Attributes
    ----------
    text
        The text itself.
    name
        Where it comes from, for error messages: a path and a line, a commit, an object's name.
    group
        The *work* it belongs to. All pieces of one work fall on the same side of the held-out split.
    """

    text: str
    name: str
    group: str


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back, without loss for any bytes.

    Attributes
    ----------
    size
        Number of ids, `bos` included.
    bos
        The id that stands before every document; never produced by `encode`.
    fingerprint
        Hex digest of everything that decides how text is encoded.
    """

    size: int
    bos: int
    fingerprint: str

    def encode(self, data: bytes) -> Tokens:
        """Return the ids of any bytes, int32 (n,)."""

    def decode(self, ids: npt.ArrayLike) -> bytes:
        """Return the bytes of any ids; `bos` gives no bytes."""

    def save(self, folder: Path) -> None:
        """Write what is needed to load it again into an existing folder."""


class NeedsTextError(Exception):
    """A tokenizer asked for text to be trained on where there is none."""


def no_text(limit: int) -> Iterator[bytes]:
    """Be the sample where a tokenizer is to be had without training."""
    raise NeedsTextError("this tokenizer is loaded, not trained: there is no sample")


@frozen
class TokenizerRequest:
    """What a tokenizer plugin is given.

    Attributes
    ----------
    sample
        `sample(limit)` yields training text as bytes, a document at a time, in the proportions of the mix, at
        most `limit` bytes in all. Never held-out text. Calling it twice gives the same. By default there is no text.
    saved
        A folder that `Tokenizer.save` wrote: load that and train nothing. None: train.
    """

    sample: Callable[[int], Iterator[bytes]] = no_text
    saved: Path | None = None


# -- precision -------------------------------------------------------------------------------------------------------


@frozen
class Device:
    """Where the engine runs: `kind` is ``cpu`` or ``cuda``; a card has a `capability` (major, minor) and an `index`."""

    kind: str
    name: str = ""
    capability: tuple[int, int] = (0, 0)
    index: int = 0


@frozen
class Precision:
    """How numbers are stored and multiplied; master weights, moments and gradients are float32 in every precision.

    Attributes
    ----------
    name
        As in the plugin name, for instance ``bf16``.
    storage
        Type of activations and working weights: ``float32``, ``float16``, ``bfloat16``.
    multiply
        Type in which matrix products take their operands: a storage type, or ``tf32``.
    macros
        Definitions for the kernel compiler, name to value.
    loss_scale
        Initial factor on the loss; 1 means none, and then it never changes.
    loss_scale_window
        Applied updates without overflow after which a dynamic scale doubles.
    fp8
        Matrix products whose operands are rounded to 8 bits, by the least width of a model: ``{768: ("w_1.y",)}`` is
        one product of every model of 768 or wider. ``w_1.y`` is the forward through a layer's matrix, ``w_1.dx`` the
        gradient of its input, ``w_1.dw`` that of the matrix; matrices are ``w_qkv``, ``w_o``, ``w_1`` and ``w_2``.
        Empty: none.
    """

    name: str
    storage: str = "float32"
    multiply: str = "float32"
    macros: Mapping[str, str] = field(factory=dict)
    loss_scale: float = 1.0
    loss_scale_window: int = 2000
    fp8: Mapping[int, tuple[str, ...]] = field(factory=dict)

    def fp8_products(self, width: int) -> tuple[str, ...]:
        """Return the products in 8 bits of a model of a width."""
        return self.fp8[max(known)] if (known := [least for least in self.fp8 if least <= width]) else ()


# -- during training -------------------------------------------------------------------------------------------------


@frozen(eq=False)
class Batch:
    """The rows of one pull.

    Attributes
    ----------
    source
        Index of the source in `Run.sources`.
    inputs, targets
        int32 (R, T); `targets` are `inputs` one token later.
    documents
        Indices of the documents that begin in this batch or continue into it, in order.
    """

    source: int
    inputs: Tokens
    targets: Tokens
    documents: tuple[int, ...]


@frozen(eq=False)
class Limits:
    """Bounds on final weights, float64 (S,) each: `floor` >= 0, `cap` may be inf."""

    floor: Floats
    cap: Floats


@frozen
class Choice:
    """A sampler's choice: the source's index and, if it likes, why; `detail` goes into the record and the journal."""

    source: int
    detail: Mapping[str, Any] = field(factory=dict)


@frozen(eq=False)
class Pull:
    """One pull as it went.

    Attributes
    ----------
    source
        Index of the source.
    documents
        Indices of the documents in the batch.
    loss
        Mean loss of the pull's rows, nats per token, before the update.
    scores, weights
        What the sampler was given, float64 (S,).
    limits
        Floors and caps that it was given.
    detail
        What the sampler said about its choice.
    rewards
        Named terms of the reward; empty while the reward is being asked for.
    """

    source: int
    documents: tuple[int, ...]
    loss: float
    scores: Floats
    weights: Floats
    limits: Limits
    detail: Mapping[str, Any] = field(factory=dict)
    rewards: Mapping[str, float] = field(factory=dict)

    @property
    def reward(self) -> float:
        """The sum of the terms, correctly rounded."""
        return math.fsum(self.rewards.values())


@frozen(eq=False)
class StepRecord:
    """One step as it went: one parameter update.

    Attributes
    ----------
    step
        Number of this step, from 0.
    pulls
        One by default; more for mixed batches.
    loss
        Mean over all rows, nats per token, before the update.
    grad_norm
        Global 2-norm of the gradient before clipping; not finite when the update was skipped.
    learning_rate
        Rate of this step.
    skipped
        True when a non-finite gradient made the update a no-op.
    tokens
        Tokens trained on in this step.
    probes
        Held-out loss (before, after) of each source that was asked for by name.
    """

    step: int
    pulls: tuple[Pull, ...]
    loss: float
    grad_norm: float
    learning_rate: float
    skipped: bool
    tokens: int
    probes: Mapping[str, tuple[float, float]] = field(factory=dict)


@frozen
class Sample:
    """Texts generated after `step` updates from fixed prompts and seeds; `loss` is the last training loss."""

    step: int
    loss: float
    prompts: tuple[str, ...]
    texts: tuple[str, ...]


@frozen
class Evaluation:
    """Held-out figures after `step` updates, by source name: `loss` in nats per token, `bits_per_byte`."""

    step: int
    loss: Mapping[str, float]
    bits_per_byte: Mapping[str, float]

    @property
    def mean(self) -> float:
        """Unweighted mean of the sources' bits per byte."""
        return sum(self.bits_per_byte.values()) / len(self.bits_per_byte)


class Human(Protocol):
    """What is known of human text, source by source, as training and held-out text show it.

    A measure is a share: how many of its trials in a text are hits; `andrea.human` lists them.
    """

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the measures (M)."""

    @property
    def held_out(self) -> tuple[Ints, ...]:
        """For each source what windows of its held-out text, cut as samples are, measure against it, (W, M, 2)."""

    @property
    def documents(self) -> tuple[int, ...]:
        """For each source how many held-out documents its windows are cut from."""

    def measure(self, texts: Sequence[str]) -> Ints:
        """Return what each text measures against each source, int64 (N, S, M, 2): hits and trials."""

    def log_likelihood(self, texts: Sequence[str]) -> Floats:
        """Return ln P of each text's words under the word frequencies of each source, float64 (N, S)."""


@frozen(eq=False)
class Run:
    """The run as plugins see it: a snapshot, true at the moment of the call.

    Attributes
    ----------
    name, seed
        Of the experiment.
    sources
        Names of the sources; an index into this tuple is what "source" means everywhere.
    documents
        Training documents of each source, int64 (S,).
    tokens
        Training tokens of each source, int64 (S,).
    drawn
        Documents drawn over the lifetime, int64 (S,).
    distinct
        Distinct documents drawn, int64 (S,).
    pulls
        Pulls of each source over the lifetime, int64 (S,).
    rows, context
        Rows of a step (R) and tokens of a row (T).
    steps
        Horizon of the learning rate schedule; not where the run stops.
    warmup_steps
        Steps of the learning rate's warm-up.
    pulls_per_step
        Pulls that make one step.
    folder
        Folder of the run; None when nothing is written.
    known_words
        Words that the training text contains at least twice; empty when the data does not say.
    stop_step
        Completed updates at which the run ends by count, to show progress; None when nothing counts.
    vocabulary
        Ids of the tokenizer (V); a guess among them costs ln V nats.
    human
        What is known of human text, to hold samples against; None when the data does not say.
    """

    name: str
    seed: int
    sources: tuple[str, ...]
    documents: Ints
    tokens: Ints
    drawn: Ints
    distinct: Ints
    pulls: Ints
    rows: int
    context: int
    steps: int
    warmup_steps: int
    pulls_per_step: int = 1
    folder: Path | None = None
    known_words: frozenset[str] = frozenset()
    stop_step: int | None = None
    vocabulary: int = 0
    human: Human | None = None

    @property
    def epochs(self) -> Floats:
        """Documents drawn over the lifetime / documents, float64 (S,)."""
        return self.drawn / self.documents

    @property
    def coverage(self) -> Floats:
        """Distinct documents drawn / documents, float64 (S,)."""
        return self.distinct / self.documents

    @staticmethod
    def open(path: str | Path | None = None) -> OpenRun:
        """Open the folder of a run, the newest in ``runs/`` by default: its history in columns, its model to write.

        The folder is another object than this snapshot; see `andrea.notebook.OpenRun`.
        """
        from andrea.notebook import open_folder

        return open_folder(path)

    def draws(self, consumer: str, step: int = 0, pull: int = 0) -> Draws:
        """Return the random values of `consumer` (a plugin's name) at a step and pull."""
        return Draws(self.seed, consumer, step, pull)


def combine(tentative: npt.ArrayLike, weights: npt.ArrayLike, limits: Limits) -> Floats:
    """Return the final share of every source: the one rule of every sampler.

    A source of weight 0 is dropped for good. Else tentative x weight, then at least the floor, then at most the cap
    (so the cap wins), then normalised to sum 1.

    Parameters
    ----------
    tentative
        What the sampler thinks of each source, (S,), >= 0 and finite.
    weights
        Product of all weights, (S,), >= 0.
    limits
        Floors and caps.

    Returns
    -------
    float64 (S,)
        Shares that sum to 1.

    Raises
    ------
    ValueError
        When no source has a share left.
    """
    weights = np.asarray(weights, dtype=np.float64)
    final = np.asarray(tentative, dtype=np.float64) * weights
    final = np.minimum(np.maximum(final, limits.floor), limits.cap)
    final = np.where(weights > 0, final, 0.0)
    total = float(final.sum())
    if not (math.isfinite(total) and total > 0):
        raise ValueError("no source has a share left: all weights are 0, or floors and caps leave nothing")
    return np.asarray(final / total, dtype=np.float64)
