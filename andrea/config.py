"""The configuration of a run: frozen classes, which refuse what cannot be.

An option of a plugin lives under ``plugins``, by the plugin's name; everything else has a section here. No section
is named like a kind of plugin, so that ``--set`` always knows whom it addresses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from andrea.engine import check_switches
from andrea.engine.model import ModelConfig
from andrea.engine.schedule import OptimizerConfig, ScheduleConfig
from andrea.errors import AndreaError
from andrea.plugin import option
from andrea.registry import available
from andrea.strict_json import structure
from andrea.types import SourceSpec

MOST_CHARACTERS = 100  # of a name: file systems end names at 255 bytes, and a file's has more than the run's


def _refuse_below(config: Any, section: str, hint: str, **least: int) -> None:
    """Refuse the first of the named numbers that is below its least value."""
    for name, bound in least.items():
        value = getattr(config, name)
        if value < bound:
            raise AndreaError(f"{section}.{name} is {value}; it must be at least {bound}", hint)


@frozen
class BatchConfig:
    """Rows of a step.

    Attributes
    ----------
    batch_size
        Rows of a micro-batch.
    accumulation
        Micro-batches of one update.
    pulls_per_step
        Sources mixed in one step; divides the rows.
    ahead
        Choose a step's sources while the one before it computes, so that the card never waits for a choice: whatever
        learns from a step is asked for the next but one only.
    """

    batch_size: int = 8
    accumulation: int = 1
    pulls_per_step: int = 1
    ahead: bool = False

    def __attrs_post_init__(self) -> None:
        _refuse_below(self, "batch", "", batch_size=1, accumulation=1, pulls_per_step=1)
        if self.rows % self.pulls_per_step:
            raise AndreaError(
                f"batch.pulls_per_step {self.pulls_per_step} does not divide the {self.rows} rows of a step",
                "rows of a step are batch_size x accumulation",
            )

    @property
    def rows(self) -> int:
        """Rows of one step (R)."""
        return self.batch_size * self.accumulation


@frozen
class SamplingConfig:
    """Text drawn during the run: `count` texts from `prompts` in turn, the same seeds every time.

    Attributes
    ----------
    sample_every
        Steps between samples; 0 draws none.
    prompts
        Beginnings; an empty text starts a document.
    count, max_tokens
        Texts, and tokens of each.
    temperature, top_p
        How each token is drawn.
    """

    sample_every: int = 2000
    prompts: tuple[str, ...] = ("",)
    count: int = 8
    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 0.95

    def __attrs_post_init__(self) -> None:
        none = "to draw no samples: sampling.sample_every 0"
        _refuse_below(self, "sampling", none, sample_every=0, count=1, max_tokens=1)
        if not self.prompts:
            raise AndreaError("sampling.prompts is empty", f'[""] begins documents of its own; {none}')
        _refuse_below(self, "sampling", "0 takes the likeliest token, 1 draws as the model says", temperature=0)
        if not 0 < self.top_p <= 1:
            raise AndreaError(f"sampling.top_p is {self.top_p}; it must be above 0 and at most 1", "1 leaves none out")


@frozen
class EvaluationConfig:
    """Held-out losses during the run: every `eval_every` steps (0: never), on the first `rows` rows of each source."""

    eval_every: int = 2000
    rows: int = 64

    def __attrs_post_init__(self) -> None:
        _refuse_below(self, "evaluation", "to evaluate never: evaluation.eval_every 0", eval_every=0, rows=1)


@frozen
class CheckpointConfig:
    """When checkpoints are written (0: at the end only) and which stay: the last `keep` and every `keep_every`-th."""

    every: int = 1000
    keep: int = 3
    keep_every: int = 0

    def __attrs_post_init__(self) -> None:
        _refuse_below(self, "checkpoints", "the last checkpoint must stay", keep=1)
        _refuse_below(self, "checkpoints", "it counts steps; 0 is never", every=0, keep_every=0)


@frozen
class DataConfig:
    """How text is prepared.

    Attributes
    ----------
    held_out_share
        Of the works.
    mix
        Each source's share of the tokenizer's sample; equal shares when left out.
    tokenizer
        Folder of a saved tokenizer, which is taken and not trained; the tokenizer plugin must be the one that saved it.
    """

    held_out_share: float = 0.05
    mix: dict[str, float] | None = None
    tokenizer: str = option("", help="folder of a saved tokenizer", path="folder")

    def __attrs_post_init__(self) -> None:
        if not 0 < self.held_out_share < 1:
            raise AndreaError(f"data.held_out_share is {self.held_out_share}", "a number between 0 and 1, as 0.05")


@frozen
class RunConfig:
    """Everything that decides a run.

    Attributes
    ----------
    name
        Of the model; files of the run begin with it.
    model, optimizer, schedule, batch, sampling, evaluation, checkpoints, data
        Sections.
    sources
        What is read: name, reader, options.
    plugins
        Options by plugin name, in call order. Naming a plugin here switches it on.
    without
        Default plugins that are left out.
    engine
        Switches of the engine, for instance ``{"graph": false}``.
    seed
        Decides weights, order, draws and samples.
    """

    name: str
    model: ModelConfig
    sources: tuple[SourceSpec, ...]
    seed: int = 0
    optimizer: OptimizerConfig = field(factory=OptimizerConfig)
    schedule: ScheduleConfig = field(factory=ScheduleConfig)
    batch: BatchConfig = field(factory=BatchConfig)
    sampling: SamplingConfig = field(factory=SamplingConfig)
    evaluation: EvaluationConfig = field(factory=EvaluationConfig)
    checkpoints: CheckpointConfig = field(factory=CheckpointConfig)
    data: DataConfig = field(factory=DataConfig)
    plugins: dict[str, dict[str, Any]] = field(factory=dict)
    without: tuple[str, ...] = ()
    engine: dict[str, Any] = field(factory=dict)

    @property
    def source_names(self) -> list[str]:
        """Names of the sources, in order."""
        return [spec.name for spec in self.sources]

    def __attrs_post_init__(self) -> None:
        check_switches(self.engine)
        if not self.sources:
            raise AndreaError("the experiment names no sources", 'give at least one: "sources": [{"name": ...}]')
        names = self.source_names
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise AndreaError(f"two sources are called {twice[0]!r}", "give every source a name of its own")
        if self.data.mix is not None:
            _check_mix(self.data.mix, names)
        for spec in self.sources:
            _check_source_name(spec.name)
            for part in spec.parts:
                _refuse_no_reader(part)
            if bool(spec.reader) == bool(spec.inputs) or (spec.inputs and spec.options):
                raise AndreaError(
                    f"source {spec.name!r} needs either a reader with its options, or inputs",
                    'for instance "reader": "source.text", or "inputs": [{"reader": "source.text", "options": {...}}]',
                )
        if not self.name or not all(c.isalnum() or c in "-_." for c in self.name) or self.name.startswith("."):
            raise AndreaError(f"name {self.name!r} cannot be part of a file name", "use letters, digits, '-' and '_'")
        if len(self.name) > MOST_CHARACTERS:
            raise AndreaError(
                f"name {self.name[:20]}... has {len(self.name)} characters", f"give at most {MOST_CHARACTERS}"
            )


def _check_mix(mix: Mapping[str, float], names: Sequence[str]) -> None:
    """Refuse a mix that names no source, or whose numbers are no shares of anything."""
    if unknown := [name for name in mix if name not in names]:
        raise AndreaError(f"data.mix names {unknown[0]!r}, which is no source", f"sources: {', '.join(names)}")
    if min(mix.values(), default=0) < 0 or not 0 < sum(mix.values()) < math.inf:
        raise AndreaError(f"data.mix is {dict(mix)}, which are no shares", "give numbers from 0 up, not all 0")


def _check_source_name(name: str) -> None:
    """Refuse what a journal, a table or a file name cannot hold."""
    if not name.strip() or not name.isprintable() or set(name) & set("/\\") or len(name) > MOST_CHARACTERS:
        raise AndreaError(
            f"a source cannot be called {name[:MOST_CHARACTERS]!r}",
            f"use 1 to {MOST_CHARACTERS} characters that can be printed, without '/' and '\\'",
        )


def _refuse_no_reader(spec: SourceSpec) -> None:
    """Refuse a plugin of another kind; what is no plugin at all is said with its neighbours when plugins are chosen."""
    if not spec.reader or spec.reader.startswith("source."):
        return
    plugins = available()
    if spec.reader in plugins:
        readers = [name for name, entry in plugins.items() if entry.kind == "source"]
        raise AndreaError(f"source {spec.name!r}: {spec.reader} is no reader", f"readers: {', '.join(readers)}")


def from_json(value: Any, where: str) -> RunConfig:
    """Return the configuration that a JSON value describes.

    Parameters
    ----------
    value
        A parsed JSON object.
    where
        File or experiment it came from, for messages.

    Raises
    ------
    AndreaError
        On unknown keys (with the nearest known one), missing keys and wrong types, all of them at once.
    """
    config: RunConfig = structure(value, RunConfig, where)
    return config
