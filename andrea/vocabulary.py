"""Tokenizers and the text they are for, opened from where users have them: folders, runs, experiments, plain files."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from andrea.checkpoint import newest_checkpoint
from andrea.config import from_json
from andrea.diet import Counts, Diet, Texts, Usage, segment_flags, usage_of_file
from andrea.errors import AndreaError
from andrea.experiment_file import experiment_names, read_experiment
from andrea.interrupts import Interrupts
from andrea.loop import Hooks
from andrea.planning import Request, plan
from andrea.registry import Chosen, available, create, describe, find, register
from andrea.rng import Draws
from andrea.run_data import cache_folder, prepare_data
from andrea.settings import parse_setting
from andrea.tokenfile import TokenFile, partial_name
from andrea.tokens import Prepared, reopen, sample_budgets
from andrea.types import Tokenizer, TokenizerRequest

Progress = Callable[[str, int, int], None]
READERS = {".jsonl": "source.jsonl", ".md": "source.markdown"}
"""Reader of a plain file by its last suffix but that of a compression; anything else is text."""
COMPRESSED = (".gz", ".zst")


@frozen(eq=False)
class Data:
    """Prepared text with the plugin that made its tokens.

    Attributes
    ----------
    plugin
        Name of the tokenizer plugin.
    options
        That it was given.
    prepared
        Token files and the tokenizer.
    mix
        Share of each source in the training text; empty when all are the same.
    """

    plugin: str
    options: Mapping[str, Any]
    prepared: Prepared
    mix: Mapping[str, float]

    def usages(self) -> tuple[dict[str, Usage], dict[str, Usage]]:
        """Count the ids of the training and of the held-out files of every source."""
        sources = self.prepared.sources
        train = {source.name: usage_of_file(TokenFile.open(source.train)) for source in sources}
        return train, {source.name: usage_of_file(TokenFile.open(source.held_out)) for source in sources}

    def diet(self) -> Diet:
        """Return what all of the text makes of the vocabulary."""
        train, held_out = self.usages()
        return Diet(train, held_out, self.mix, segment_flags(self.prepared.tokenizer))

    def texts(self, limit: int) -> tuple[Texts, Texts]:
        """Return training text in the proportions of the mix and as much held-out text, at most `limit` bytes each."""
        tokenizer, sources = self.prepared.tokenizer, self.prepared.sources
        shares = [self.mix.get(source.name, 0.0) if self.mix else 1.0 for source in sources]
        sides: list[dict[str, list[bytes]]] = []
        for side in ("train", "held_out"):
            files = [TokenFile.open(getattr(source, side)) for source in sources]
            budgets = sample_budgets([file.bytes for file in files], shares, limit)
            each = zip(sources, files, budgets, strict=True)
            sides.append({source.name: list(sample_file(file, tokenizer, budget)) for source, file, budget in each})
        return sides[0], sides[1]


def sample_file(file: TokenFile, tokenizer: Tokenizer, budget: int) -> Iterator[bytes]:
    """Yield documents from all over a token file as long as they fit into `budget` bytes."""
    for index in Draws(0, "tokenizer.diet").permutation(file.documents):
        text = tokenizer.decode(file.document(int(index)))
        budget -= len(text)
        if budget < 0:
            return
        yield text


# -- from where users have them ----------------------------------------------------------------------------------------


def prepare_text(
    what: Sequence[str],
    settings: Sequence[str],
    plugins: Sequence[str],
    progress: Progress,
    interrupts: Interrupts,
    data: Path | None = None,
) -> Data:
    """Prepare the text of an experiment, or of plain files, with its tokenizer.

    Of plain files, settings may be options of their readers, such as ``source.jsonl.text=body``.

    Raises
    ------
    AndreaError
        When there is no such experiment or file, it cannot be prepared, or the user stops it.
    """
    name = what[0] if what else "quickstart"
    readers: Sequence[str] = ()
    with tempfile.TemporaryDirectory() as folder:
        if len(what) > 1 or (Path(name).is_file() and Path(name).suffix != ".json"):
            readers = list(dict.fromkeys(map(_reader_of, what)))
            own = [setting for setting in settings if setting.startswith(tuple(f"{reader}." for reader in readers))]
            name, settings = _experiment_of_files(what, own, Path(folder)), [one for one in settings if one not in own]
        request = Request(experiment=name, plugins=plugins, settings=settings, device="cpu", data=data)
        planned = plan(request, lambda line: None)
    hooks = Hooks(register(create(planned.chosen, planned.config.source_names)))
    tokenizer = next(one for one in planned.chosen if one.entry.kind == "tokenizer")
    with _advising(readers):
        prepared = prepare_data(planned.config, planned.chosen, hooks, progress, interrupts)
    return Data(tokenizer.name, tokenizer.options, prepared, planned.config.data.mix or {})


@contextmanager
def _advising(readers: Sequence[str]) -> Iterator[None]:
    """Say where the options have their place that an error about a source of plain files speaks of."""
    try:
        yield
    except AndreaError as error:
        of = [reader for reader in readers if error.message.startswith(f"source {reader}: ")]
        if not of:
            raise
        raise AndreaError(error.message, f"{error.hint}\noptions of the reader: --set {of[0]}.OPTION=VALUE") from error


def _experiment_of_files(files: Sequence[str], settings: Sequence[str], folder: Path) -> str:
    """Write an experiment whose text is that of plain files, a source for each reader; return its path."""
    options: dict[str, dict[str, Any]] = {}
    for setting in settings:
        key, value = parse_setting(setting)
        reader, _, option = key.rpartition(".")
        options.setdefault(reader, {})[option] = value
    paths: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    for name in files:
        path = Path(name).resolve()
        if Path(name).suffix == ".json" or (name in experiment_names() and not path.is_file()):
            raise AndreaError(
                f"{name} is an experiment, which has its own text and stands alone",
                f"andrea tokenizer train {name}; or files alone, of text, or of JSON lines that end in .jsonl",
            )
        if not path.is_file():
            raise AndreaError(f"there is no file {name}", "give one experiment, or files of text or JSON lines")
        reader = _reader_of(name)
        paths.setdefault(reader, []).append(str(path))
        sizes[reader] = sizes.get(reader, 0) + path.stat().st_size
    if empty := [reader for reader, size in sizes.items() if not size]:
        raise AndreaError(f"{', '.join(paths[empty[0]])}: there is no text in it", "give files that hold some")
    sources = [
        {"name": reader, "reader": reader, "options": {"path": found, **options.get(reader, {})}}
        for reader, found in paths.items()
    ]
    # Whatever else an experiment needs, a model for instance, is no matter here.
    value = {**read_experiment("quickstart")[0], "name": "files", "sources": sources, "plugins": {}}
    value["data"] = {"mix": sizes}
    place = folder / "files.json"
    place.write_text(json.dumps(value, indent=1), encoding="utf-8")
    return str(place)


def _reader_of(name: str) -> str:
    suffixes = [suffix for suffix in Path(name).suffixes if suffix not in COMPRESSED]
    return READERS.get(suffixes[-1] if suffixes else "", "source.text")


def open_tokenizer(folder: Path) -> tuple[str, Tokenizer]:
    """Load the tokenizer that was saved in a folder, or that of a run, with the name of its plugin.

    Raises
    ------
    AndreaError
        When no tokenizer plugin can load it.
    """
    place = folder / "tokenizer" if (folder / "tokenizer").is_dir() else folder
    problems = []
    for entry in available().values():
        if entry.kind == "tokenizer":
            try:
                return entry.name, _make(entry.name, {}, TokenizerRequest(saved=place))
            except AndreaError as error:
                problems.append(error.message)
    raise AndreaError(
        f"no tokenizer plugin can load {place}:\n  " + "\n  ".join(problems),
        "give a folder that andrea tokenizer train wrote, or that of a run",
    )


def open_run_text(folder: Path) -> Data:
    """Open the text that a run was trained on, from the cache.

    Raises
    ------
    AndreaError
        When the folder holds no run, or its data is gone from the cache.
    """
    snapshot = newest_checkpoint(folder / "checkpoints", lambda line: None)
    config = from_json(snapshot.record["config"], "the checkpoint's configuration")
    name = next(name for name in config.plugins if name.startswith("tokenizer."))
    options = config.plugins[name]
    hooks = Hooks(register(create([Chosen(find(name), options)])))
    prepared = reopen(cache_folder(), str(snapshot.record["data_sha256"]), hooks.make_tokenizer)
    return Data(name, options, prepared, config.data.mix or {})


def is_run(folder: Path) -> bool:
    """Say whether a folder is that of a run with a checkpoint."""
    return (folder / "config.json").is_file() and (folder / "checkpoints").is_dir()


def _make(name: str, options: Mapping[str, Any], request: TokenizerRequest) -> Tokenizer:
    return Hooks(register(create([Chosen(find(name), options)]))).make_tokenizer(request)


# -- training ----------------------------------------------------------------------------------------------------------


def maker(name: str, options: Mapping[str, Any], texts: Texts) -> Callable[[int], Tokenizer]:
    """Return a function that trains a tokenizer with so many segments on given text."""

    def sample(limit: int) -> Iterator[bytes]:
        for documents in texts.values():
            yield from documents

    def make(segments: int) -> Tokenizer:
        return _make(name, {**options, "segments": segments}, TokenizerRequest(sample))

    return make


def can_be_sized(name: str) -> bool:
    """Say whether a tokenizer plugin has the option `segments`."""
    return any(option["name"] == "segments" for option in describe(find(name))["options"])


def copy_tokenizer(data: Data, out: Path) -> None:
    """Copy the files of a tokenizer into a new folder, such that there is a whole one or none.

    Raises
    ------
    AndreaError
        When something is there already, or it cannot be written.
    """
    if out.exists():
        raise AndreaError(f"{out} exists already", "name another folder with --out")
    partial = partial_name(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)  # of a command that was killed
        shutil.copytree(data.prepared.tokenizer_folder, partial)
        partial.rename(out)
    except OSError as error:
        raise AndreaError(f"cannot write {out}: {error.strerror or error}", "name another folder with --out") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


# -- how often segments are used ---------------------------------------------------------------------------------------


def known_uses(tokenizer: Tokenizer, usages: Mapping[str, Usage] | None) -> Counts | None:
    """Return how often each id is used, int64 (V,): in given text, else in the sample as training counted it."""
    if usages is not None:
        return np.asarray(np.sum([usage.counts for usage in usages.values()], axis=0))
    counted = getattr(tokenizer, "segments", None)
    if counted is None:
        return None
    uses = np.zeros(tokenizer.size, dtype=np.int64)
    uses[257 : 257 + len(counted)] = [count for _, count in counted]
    return uses
