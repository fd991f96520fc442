"""Every hook, in the order in which a run calls them.

    tokenizer = make_tokenizer;  documents = open_source, keep_document, identify_document;
    precision = choose_precision
    on_start
    for each step:
        score_sources, weigh_sources, limit_sources;  for each pull:  select_source
        request_probes;  [the engine updates the weights];  reward for each pull;  on_step
        on_sample, on_evaluation when due
        should_stop;  on_signal for what arrived
    on_finish

A plugin implements any of them and takes any of their arguments, by name. Questions (all but the ``on_...`` hooks)
change nothing: asking twice gives the same answer. Only ``andrea.loop`` calls hooks.
"""

# mypy: disable-error-code=empty-body
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from andrea.plugin import hookspec
from andrea.types import (
    Choice,
    Device,
    Document,
    Evaluation,
    Floats,
    Limits,
    Precision,
    Pull,
    Run,
    Sample,
    SourceSpec,
    StepRecord,
    Tokenizer,
    TokenizerRequest,
)

# -- before the run --------------------------------------------------------------------------------------------------


@hookspec
def open_source(spec: SourceSpec) -> Iterable[Document] | None:
    """Read a source.

    When: while data is prepared; the plugin that `spec.reader` names is asked.
    Returns: an iterable of documents; iterating twice gives the same documents. Errors of the user's are `AndreaError`.
    Combine: the answer of the named reader.
    Example: ``return Lines(spec.options["path"])``.
    """


@hookspec
def keep_document(document: Document, source: str) -> str | None:
    """Say why a document is to be dropped, or None to keep it.

    When: for every document of every source while data is prepared.
    Returns: the reason, which is counted in the report.
    Combine: any text drops it; the first reason counts.
    Example: ``return "shorter than 20 characters" if len(document.text) < 20 else None``.
    """


@hookspec
def identify_document(document: Document, source: str) -> Sequence[int]:
    """Give the keys by which a document is known as a duplicate.

    When: for every document that is kept, while data is prepared.
    Returns: whole numbers from 0 to 2**64 - 1. A document that shares a key with an earlier one is dropped.
    Combine: all keys of all answers.
    Example: ``return [hash_of(document.text)]``.
    """


@hookspec
def make_tokenizer(request: TokenizerRequest) -> Tokenizer:
    """Make the tokenizer, or load it where `request.saved` says.

    When: once, before data is encoded.
    Combine: one plugin of the kind tokenizer.
    Example: ``return Bytes()``.
    """


@hookspec
def choose_precision(device: Device) -> Precision:
    """Say how numbers are stored and multiplied on a device.

    When: once, before the engine is opened.
    Raises: `AndreaError` when the device cannot do it.
    Combine: one plugin of the kind precision.
    Example: ``return Precision("fp32")``.
    """


@hookspec
def on_start(run: Run) -> None:
    """Allocate state for ``len(run.sources)`` sources, open files.

    When: once, before the first step; on resume the saved state is restored right after it.
    Combine: all are called.
    """


# -- before the update: what comes next --------------------------------------------------------------------------------


@hookspec
def score_sources(step: int, run: Run) -> Floats:
    """Say how promising each source is.

    When: once a step, before its first pull; the answer holds for all of them.
    Returns: float64 (S,), higher is better; inf = never tried, which samplers take first.
    Combine: one plugin of the kind bandit.
    Example: ``return np.ones(len(run.sources))``.
    """


@hookspec
def weigh_sources(step: int, run: Run) -> Floats:
    """Weigh each source up or down.

    When: once a step, before its first pull; the answer holds for all of them.
    Returns: float64 (S,), >= 0 and finite; 0 = must not be drawn.
    Combine: the product of all answers, in the listed order.
    Example: ``return 1 / (1 + run.epochs)``.
    """


@hookspec
def limit_sources(step: int, run: Run) -> Limits:
    """Bound the final weights.

    When: once a step, before its first pull; the answer holds for all of them.
    Returns: `Limits` of float64 (S,): floor >= 0, cap may be inf.
    Combine: the highest floor and the lowest cap of all answers.
    """


@hookspec
def select_source(
    step: int, pull: int, pulls: Sequence[int], scores: Floats, weights: Floats, limits: Limits, run: Run
) -> int | Choice:
    """Choose the next source.

    When: for every pull; `pulls` holds the sources already chosen for this step, `pull` their number.
    Arguments: `scores`, `weights` float64 (S,), `limits` as combined from the other hooks.
    Returns: an index into `run.sources`, or a `Choice` with the reason. A source of weight 0 is refused.
    Combine: one plugin of the kind sampler.
    """


@hookspec
def request_probes(step: int, pulls: Sequence[int], run: Run) -> Sequence[str]:
    """Ask for held-out losses around this update.

    When: once a step, when its sources are chosen.
    Returns: names of sources whose fixed held-out batch is measured before and after the update.
    Combine: the union of all answers.
    """


# -- after the update ------------------------------------------------------------------------------------------------


@hookspec
def reward(pull: Pull, record: StepRecord, run: Run) -> dict[str, float]:
    """Say what a pull was worth.

    When: after the update, once for every pull of the step; not after a skipped update, whose rewards are empty.
    Returns: named terms; their sum is the reward, and the journal keeps the terms.
    Combine: one plugin of the kind reward.
    Example: ``return {"low_loss": 10 - pull.loss}``.
    """


@hookspec
def on_step(record: StepRecord, run: Run) -> None:
    """Learn from a step: the only place, beside `on_sample` and `on_evaluation`, where a plugin's state moves.

    When: after every update, with the rewards in the record; a log hears of it while the next step is computed.
    Combine: all are called.
    """


@hookspec
def on_sample(sample: Sample, run: Run) -> None:
    """Look at freshly generated text.

    When: every `sample_every` steps.
    Combine: all are called.
    """


@hookspec
def on_evaluation(evaluation: Evaluation, run: Run) -> None:
    """Look at held-out losses.

    When: every `eval_every` steps.
    Combine: all are called.
    """


@hookspec
def should_stop(record: StepRecord, run: Run) -> str | None:
    """Say why the run should stop, or None.

    When: after every step, when all `on_...` hooks have run.
    Returns: the reason, kept in the journal and the checkpoint with the plugin's name.
    Combine: all are asked; any text stops.
    Example: ``return "loss below 2" if record.loss < 2 else None``.
    """


@hookspec
def on_signal(signal: str, step: int, run: Run) -> set[str] | None:
    """React to a signal of the operating system.

    When: between steps, for every signal that arrived: ``SIGINT``, ``SIGTERM``, ``SIGUSR1``.
    Arguments: `step` is the number of completed updates.
    Returns: a set of the words ``"checkpoint"`` and ``"stop"``. SIGINT and SIGTERM that all answer with None stop.
    Combine: the union of all answers.
    """


@hookspec
def on_finish(record: StepRecord | None, reasons: Sequence[str], ending: str, run: Run) -> None:
    """Close files, print a summary.

    When: once at the end, also after an interruption; `record` is None when no step was made.
    Arguments: `ending` is ``"done"`` (plugins gave reasons to stop, or a model was imported), ``"interrupted"`` (by a
    signal) or ``"failed"`` (by an error); `reasons` are for people to read.
    Combine: all are called.
    """


def hook_names() -> list[str]:
    """Return the names of all hooks in the order of this file."""
    return [name for name, value in globals().items() if _is_hook(value)]


def _is_hook(value: Any) -> bool:
    return callable(value) and hasattr(value, "andrea_spec")
