"""A trained model opened from its run's folder, to write and to be measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import numpy as np
from attrs import frozen

from andrea.assembly import engine_config
from andrea.checkpoint import Snapshot, complete_steps, marker_of, newest_checkpoint, read_checkpoint, stem
from andrea.config import RunConfig, from_json
from andrea.engine import Engine, GenerateOptions, open_engine
from andrea.engine.device import find_device
from andrea.errors import AndreaError
from andrea.evaluate import evaluate, held_out_sets
from andrea.loop import Hooks
from andrea.planning import newest_run
from andrea.registry import Chosen, available, create, register
from andrea.run_data import cache_folder
from andrea.tokenfile import TokenFile
from andrea.tokens import reopen
from andrea.types import Evaluation, Tokenizer, TokenizerRequest, Tokens
from andrea.writing import Growing, Show, Written, check_stops

Say = Callable[[str], None]


@frozen(eq=False)
class Model:
    """A model ready to use: its engine, its tokenizer, and how many updates made it."""

    engine: Engine
    tokenizer: Tokenizer
    step: int
    config: RunConfig
    snapshot: Snapshot
    hooks: Hooks

    def generate(self, prompts: Sequence[str], options: GenerateOptions) -> list[str]:
        """Return the texts that the model adds to the prompts."""
        return [one.text for one in self.write(prompts, options)]

    def write(
        self,
        prompts: Sequence[str],
        options: GenerateOptions,
        stops: Sequence[str] = (),
        show: Show | None = None,
        halt: Callable[[], bool] = lambda: False,
    ) -> list[Written]:
        """Return what the model adds to the prompts, and why each text ends.

        Parameters
        ----------
        prompts
            Each begins a document; an empty one lets the model begin it.
        options
            How ids are drawn; those that end a row are no part of the text.
        stops
            A text ends before the first of these.
        show
            Is told (row, what is new of its text), of several rows perhaps from several threads at once. What it was
            told of a row, joined, is the row's text.
        halt
            Asked after every token; true ends all texts.
        """
        check_stops(stops)
        rows = [Growing(self._bytes, stops, show and (lambda new, n=n: show(n, new))) for n in range(len(prompts))]
        ids = self.engine.generate(
            [self.begin(prompt) for prompt in prompts], options, lambda row, one: rows[row].take(one) or halt()
        )

        def ended(row: int) -> str:
            if rows[row].stopped:
                return "stop"
            if ids[row].size and int(ids[row][-1]) in options.stop:
                return "end"
            return "length" if ids[row].size == options.max_tokens else "interrupted"

        return [Written(p, rows[n].finish(), rows[n].tokens, ended(n)) for n, p in enumerate(prompts)]

    def begin(self, text: str) -> Tokens:
        """Return the ids of a text that begins a document, int32 (n,).

        Bytes of a command line that are no UTF-8, which Python holds as lone surrogates, are encoded as they were.
        """
        data = text.encode("utf-8", "surrogateescape")
        return np.append(self.tokenizer.bos, self.tokenizer.encode(data)).astype(np.int32)

    def _bytes(self, one: int) -> bytes:
        return self.tokenizer.decode([one])


@frozen(eq=False)
class Found:
    """A checkpoint of a run, its configuration, the tokenizer it was trained with, and the plugins that made it."""

    folder: Path
    snapshot: Snapshot
    config: RunConfig
    tokenizer: Tokenizer
    hooks: Hooks


def find_model(folder: Path | None, checkpoint: Path | None, say: Say, device: str = "cpu") -> Found:
    """Find a run's model, and open no engine.

    Parameters
    ----------
    folder
        Of the run; the newest in ``runs/`` when None.
    checkpoint
        One of its checkpoints; the newest when None.
    say
        Is told what a person may want to know.
    device
        Kind of the device that will compute, ``cpu`` or ``cuda``.

    Raises
    ------
    AndreaError
        When there is no such run or checkpoint, or it is damaged.
    """
    if checkpoint is not None and marker_of(checkpoint).exists():
        folder = folder or checkpoint.parent.parent
        snapshot = read_checkpoint(checkpoint)
    else:
        folder = folder or newest_run("name its folder, as in andrea sample FOLDER")
        snapshot = _chosen(folder / "checkpoints", checkpoint, say)
    config = from_json(snapshot.record["config"], "the checkpoint's configuration")
    hooks = Hooks(register(create(_needed(config, device))))
    tokenizer = hooks.make_tokenizer(TokenizerRequest(saved=folder / "tokenizer"))
    if tokenizer.fingerprint != snapshot.record["fingerprint"]["tokenizer"]:
        raise AndreaError(
            f"{folder / 'tokenizer'} is not the tokenizer that the model was trained with",
            "put the folder back, or take it from the run that this one was made of",
        )
    say(f"model: {folder}, step {snapshot.step}")
    return Found(folder, snapshot, config, tokenizer, hooks)


def open_model(folder: Path | None, checkpoint: Path | None, device: str, say: Say, rows: int | None = None) -> Model:
    """Open a run's model.

    Parameters
    ----------
    folder, checkpoint, say
        As for `find_model`.
    device
        As for ``andrea run``.
    rows
        Texts that are computed at once, at most as many as in training; by default so many. Fewer need less memory.

    Raises
    ------
    AndreaError
        When there is no such run or checkpoint, it is damaged, or the device cannot hold it.
    """
    notes: list[str] = []  # told when everything is in order: an error is to stand alone
    device_found = find_device(device, notes.append)
    found = find_model(folder, checkpoint, notes.append, device_found.kind)
    shapes = attrs.evolve(engine_config(found.config, found.tokenizer.size), training=False)
    if rows is not None:
        shapes = attrs.evolve(shapes, batch_size=max(1, min(rows, shapes.batch_size)), accumulation=1)
    engine = open_engine(shapes, device_found, found.hooks.choose_precision(device_found))
    engine.import_state({"weights": found.snapshot.engine["weights"]})
    for note in notes:
        say(note)
    return Model(engine, found.tokenizer, found.snapshot.step, found.config, found.snapshot, found.hooks)


def _chosen(place: Path, checkpoint: Path | None, say: Say) -> Snapshot:
    """Return the newest checkpoint of a run, or the one that is called as asked."""
    steps = complete_steps(place)
    if not steps:
        raise AndreaError(f"{place.parent} holds no run with a checkpoint", "andrea run begins one")
    if checkpoint is None:
        return newest_checkpoint(place, say)
    path = marker_of(place / checkpoint.name)
    if not path.exists():
        names = ", ".join(stem(step) for step in steps)
        raise AndreaError(f"there is no checkpoint {checkpoint}", f"those of {place.parent} are {names}")
    return read_checkpoint(path)


def _needed(config: RunConfig, device: str) -> list[Chosen]:
    """Return the plugins that using a model takes: its tokenizer and its precision, or fp32 where there is no card."""
    installed = available()
    needed = []
    for name, options in config.plugins.items():
        kind = name.partition(".")[0]
        if kind == "precision" and device == "cpu":
            name, options = "precision.fp32", {}
        if kind in ("tokenizer", "precision"):
            if name not in installed:
                raise AndreaError(f"the run needs the plugin {name}, which is not installed", "install its package")
            needed.append(Chosen(installed[name], options))
    return needed


def evaluate_run(
    folder: Path | None,
    checkpoint: Path | None,
    rows: int,
    device: str,
    say: Say,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> tuple[Evaluation, dict[str, tuple[TokenFile, TokenFile]]]:
    """Measure a run's model on its held-out text.

    Parameters
    ----------
    folder, checkpoint, device, say
        As for `open_model`.
    rows
        Held-out rows of each source; 0 takes all.
    progress
        Told (stage, done, total) before each source.

    Returns
    -------
    Evaluation
        By source.
    files
        (training, held-out) token file of each source.
    """
    model = open_model(folder, checkpoint, device, say)
    prepared = reopen(cache_folder(), str(model.snapshot.record["data_sha256"]), model.hooks.make_tokenizer)
    files = {s.name: (TokenFile.open(s.train), TokenFile.open(s.held_out)) for s in prepared.sources}
    context = model.config.model.context
    most = rows or max(int(held_out.tokens.size) // context + 1 for _, held_out in files.values())
    sets = held_out_sets({name: held_out for name, (_, held_out) in files.items()}, context, most)
    losses: dict[str, float] = {}
    bits: dict[str, float] = {}
    for number, (name, held_out) in enumerate(sets.items()):
        progress(f"measuring {name}", number, len(sets))
        one = evaluate(model.engine, {name: held_out}, model.step)
        losses |= one.loss
        bits |= one.bits_per_byte
    return Evaluation(model.step, losses, bits), files
