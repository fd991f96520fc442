"""A few steps of a run without data and without learning: a real loop on made-up text and the engine that pretends."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field

from andrea.batches import Batches
from andrea.checkpoint import Checkpoints, Snapshot
from andrea.config import RunConfig, from_json
from andrea.engine import Engine, EngineConfig
from andrea.evaluate import held_out_sets
from andrea.human import Human, make_human, measure_held_out
from andrea.interrupts import Interrupts
from andrea.journal import Journal
from andrea.known import known_of
from andrea.loop import Hooks, Loop
from andrea.plugin import hookimpl
from andrea.registry import choose, create, find, register
from andrea.rng import Draws
from andrea.settings import override
from andrea.testing.engine import FakeEngine
from andrea.tokens import TokenFile, TokenWriter
from andrea.types import Evaluation, Sample, StepRecord, Tokenizer, TokenizerRequest
from andrea.words import split_words

SOURCES = ("prose", "verse", "letters", "notes")
"""Names of the made-up sources: a plugin whose options name sources can name these."""

_DOCUMENTS = (40, 3, 17, 8)  # so that within 40 steps some sources wrap and some do not
_COMPANIONS = ("bandit.uniform", "sampler.proportional", "reward.ema_drop")
_SYLLABLES = ("an", "dre", "a", "sto", "ne", "mi", "lor", "ka", "ti", "su", "ven", "ro")

Plugins = Mapping[str, Mapping[str, Any]] | Sequence[str | tuple[str, Any]]


@define
class History:
    """What happened.

    Attributes
    ----------
    records, samples, evaluations
        In order.
    reasons
        Why the run ended, by plugin name.
    plugins
        The plugin objects by name, as they are after the last step.
    """

    records: list[StepRecord] = field(factory=list)
    samples: list[Sample] = field(factory=list)
    evaluations: list[Evaluation] = field(factory=list)
    reasons: Mapping[str, str] = field(factory=dict)
    plugins: Mapping[str, Any] = field(factory=dict)

    @hookimpl
    def on_step(self, record: StepRecord) -> None:
        """Keep the record."""
        self.records.append(record)

    @hookimpl
    def on_sample(self, sample: Sample) -> None:
        """Keep the sample."""
        self.samples.append(sample)

    @hookimpl
    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Keep the evaluation."""
        self.evaluations.append(evaluation)


def run_steps(
    plugins: Plugins,
    steps: int,
    *,
    sources: Mapping[str, Sequence[str]] | None = None,
    engine: Callable[[EngineConfig], Engine] = FakeEngine,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    folder: Path | None = None,
) -> History:
    """Run a real loop for some steps and return what happened.

    Parameters
    ----------
    plugins
        Names; or options by name, ``{"bandit.ucb1": {"exploration": 2.0}}``; or (name, object) pairs of plugins that
        are not installed. What a run cannot do without is added: bandit.uniform, sampler.proportional,
        reward.ema_drop.
    steps
        Number of steps, unless a plugin stops the run before.
    sources
        Texts by source name; the last text of each is held out. Four made-up sources by default.
    engine
        Makes the engine.
    seed
        Of the run.
    settings
        Keys of the configuration, ``{"batch.pulls_per_step": 2}``.
    folder
        Where checkpoints and journal go; nothing is written by default.

    Raises
    ------
    AndreaError
        As in a real run.
    """
    history = History()
    with tempfile.TemporaryDirectory() as place:
        files = write_sources(Path(place), sources or made_up_sources())
        loop = build_loop(
            [*resolve(plugins, tuple(files)), ("log.history", history), ("stop.steps", StopAfter(steps))],
            files,
            configure(tuple(files), seed, settings or {}),
            engine,
            folder,
        )
        loop.start()
        outcome = loop.run()
        if loop.journal:
            loop.journal.close()
    history.reasons, history.plugins = outcome.reasons, dict(loop.plugins)
    return history


@define(eq=False)
class StopAfter:
    """Ends a run when `steps` updates are done, whatever stop.max_steps says."""

    steps: int

    @hookimpl
    def should_stop(self, record: StepRecord) -> str | None:
        """Compare."""
        return f"{self.steps} steps are done" if record.step + 1 >= self.steps else None


# -- its parts ---------------------------------------------------------------------------------------------------------


def resolve(plugins: Plugins, sources: Sequence[str] | None = None) -> list[tuple[str, Any]]:
    """Return (name, object) pairs in call order, completed by what a run of sources cannot do without."""
    asked = [plugin if isinstance(plugin, tuple) else (plugin, None) for plugin in plugins]
    options = dict(plugins) if isinstance(plugins, Mapping) else {}
    made = dict(_create([name for name, target in asked if target is None], options, sources))
    kinds = {name.partition(".")[0] for name, _ in asked}
    missing = [name for name in _COMPANIONS if name.partition(".")[0] not in kinds]
    return [(name, made.get(name, target)) for name, target in asked] + _create(missing, {}, sources)


def _create(
    names: Sequence[str], options: Mapping[str, Mapping[str, Any]], sources: Sequence[str] | None
) -> list[tuple[str, Any]]:
    if not names:
        return []
    return create([one for one in choose(names, [], options, [], "precision.fp32") if one.name in names], sources)


def made_up_sources() -> dict[str, list[str]]:
    """Return documents of invented words for each of `SOURCES`; the same ones every time."""
    return {
        name: [_made_up_text(name, number) for number in range(count + 1)]
        for name, count in zip(SOURCES, _DOCUMENTS, strict=True)
    }


def _made_up_text(source: str, number: int) -> str:
    draws = Draws(0, f"made up.{source}", number)
    words = [
        "".join(_SYLLABLES[draws.integer(len(_SYLLABLES))] for _ in range(1 + draws.integer(3)))
        for _ in range(12 + draws.integer(24))
    ]
    return " ".join(words).capitalize() + "."


def write_sources(
    folder: Path, sources: Mapping[str, Sequence[str]], tokenizer: Tokenizer | None = None
) -> dict[str, tuple[TokenFile, TokenFile]]:
    """Write the texts as token files and return (training, held-out) files by source."""
    tokenizer = tokenizer or byte_tokenizer()
    files = {}
    for number, (name, texts) in enumerate(sources.items()):
        pair = []
        for side, part in (("train", texts[:-1]), ("held_out", texts[-1:])):
            path = folder / f"{number}.{side}.btok"
            with TokenWriter(path, tokenizer) as writer:
                for text in part:
                    writer.add(text.encode())
            pair.append(TokenFile.open(path, tokenizer.fingerprint))
        files[name] = (pair[0], pair[1])
    return files


@functools.cache
def byte_tokenizer() -> Tokenizer:
    """Return the tokenizer of the made-up text."""
    made: Tokenizer = find("tokenizer.byte").load()().make_tokenizer(TokenizerRequest(lambda limit: iter(())))
    return made


def configure(sources: Sequence[str], seed: int, settings: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of a small run in which everything is due often."""
    value: dict[str, Any] = {
        "name": "trial",
        "seed": seed,
        "model": {"n_layer": 1, "n_head": 1, "d_model": 4, "context": 16},
        "batch": {"batch_size": 4},
        "schedule": {"steps": 1000, "warmup_steps": 5},
        "sampling": {"sample_every": 5, "count": 2, "max_tokens": 48, "prompts": ["", "An"]},
        "evaluation": {"eval_every": 7, "rows": 2},
        "checkpoints": {"every": 0},
        "sources": [{"name": name, "reader": "source.text"} for name in sources],
    }
    for key, new in settings.items():
        override(value, key, new, ())
    return from_json(value, "settings")


def build_loop(
    plugins: Sequence[tuple[str, Any]],
    files: Mapping[str, tuple[TokenFile, TokenFile]],
    config: RunConfig,
    engine: Callable[[EngineConfig], Engine] = FakeEngine,
    folder: Path | None = None,
    hooks: Callable[[Any], Hooks] = Hooks,
    interrupts: Interrupts | None = None,
    snapshot: Snapshot | None = None,
) -> Loop:
    """Return a loop that is ready to start; with a folder it writes and goes on there."""
    tokenizer, asking = byte_tokenizer(), hooks(register(plugins))
    train = {name: pair[0] for name, pair in files.items()}
    held_out = {name: pair[1] for name, pair in files.items()}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    return Loop(
        config=config,
        plugins=plugins,
        hooks=asking,
        engine=engine(
            EngineConfig(
                model=config.model,
                vocabulary=tokenizer.size,
                optimizer=config.optimizer,
                schedule=config.schedule,
                batch_size=config.batch.batch_size,
                accumulation=config.batch.accumulation,
                seed=config.seed,
            )
        ),
        batches=Batches(train, config.batch.rows, config.model.context, config.seed),
        tokenizer=tokenizer,
        held_out=held_out_sets(held_out, config.model.context, config.evaluation.rows),
        known_words=frozenset(_SYLLABLES),
        human=_human(files, tokenizer, config.sampling.max_tokens),
        folder=folder,
        journal=Journal(folder, config.name, tuple(files), _length(snapshot)) if folder else None,
        checkpoints=Checkpoints(folder / "checkpoints", config.checkpoints) if folder else None,
        interrupts=interrupts or Interrupts(),
    )


def _human(files: Mapping[str, tuple[TokenFile, TokenFile]], tokenizer: Tokenizer, window: int) -> Human:
    """Return what is known of the text of these files."""
    texts = {
        name: [tokenizer.decode(train.document(i)).decode() for i in range(train.documents)]
        for name, (train, _) in files.items()
    }
    known = [known_of([split_words(text) for text in one]) for one in texts.values()]
    held_out = [held_out for _, held_out in files.values()]
    return make_human(
        known, [measure_held_out(file, tokenizer, one, window) for file, one in zip(held_out, known, strict=True)]
    )


def _length(snapshot: Snapshot | None) -> int:
    return int(snapshot.record["journal"]) if snapshot else 0
