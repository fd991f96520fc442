"""The second stage: documents become token files.

`prepare` takes the sources of an experiment to token files in a cache where a file's name is the digest of all that
decides its content. So what is whole is never rewritten, what is damaged can be made again under its name, an
interrupted preparation goes on where it was, and two experiments share what they have in common. `survey` only reads
and filters.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from andrea.errors import AndreaError, cure
from andrea.filters import IdentifyDocument, KeepDocument, Report, no_keys
from andrea.human import FORMAT as HUMAN_FORMAT
from andrea.human import HeldOut, Human, make_human, measure_held_out
from andrea.known import FORMAT as KNOWN_FORMAT
from andrea.known import Gatherer, Known
from andrea.seal import is_whole, publish_folder, sealing, unseal
from andrea.sources import reading
from andrea.split import group_hash, held_out_mask, is_held_out
from andrea.store import Asks, Chunk, Place, Store, find_duplicates, read_documents
from andrea.tokenfile import (
    PREPARE_AGAIN,
    VERSION,
    Encoder,
    TokenFile,
    TokenWriter,
    bytes_of_tokens,
    partial_name,
    write_whole,
)
from andrea.types import Document, SourceSpec, Tokenizer, TokenizerRequest
from andrea.words import merge_runs, split_words, write_runs
from andrea.workers import Workers, asked_to_end

__all__ = [
    "Prepared",
    "PreparedSource",
    "StoppedError",
    "TokenFile",
    "TokenWriter",
    "group_hash",
    "held_out_mask",
    "is_held_out",
    "prepare",
    "reopen",
    "sample_budgets",
    "split_words",
    "survey",
]

SMALL_BYTES = 8 << 20  # text up to which starting processes takes longer than it saves


# -- preparation -------------------------------------------------------------------------------------------------------


class StoppedError(AndreaError):
    """The user asked a preparation to stop; what was finished is kept."""

    def __init__(self) -> None:
        super().__init__("the preparation was stopped; what was finished is kept", "the same command again goes on")

    def __reduce__(self) -> tuple[type[StoppedError], tuple[()]]:
        return StoppedError, ()  # it travels from a worker, and takes no argument


@frozen(eq=False)
class PreparedSource:
    """A source as token files.

    Attributes
    ----------
    name
        Of the source.
    train, held_out
        Paths of the token files.
    manifest
        Counts, bytes, digests and the report of what was dropped: plain values, the same on every machine.
    """

    name: str
    train: Path
    held_out: Path
    manifest: Mapping[str, Any]

    @property
    def sha256(self) -> str:
        """Digest of the manifest: two sources with the same digest give the same batches."""
        return digest_of(self.manifest)


@frozen(eq=False)
class Prepared:
    """The data of an experiment, ready to be trained on.

    Attributes
    ----------
    tokenizer
        That made the token files.
    tokenizer_folder
        Where it was saved.
    sources
        In the order in which they were given.
    words
        A sorted text file of the training words that occur at least twice, one a line.
    human
        For each source a folder with what is remembered of its training text, and a file with what windows of its
        held-out text measure; empty when not asked for.
    window
        Tokens of such a window.
    sha256
        Digest of the record in the cache from which `reopen` finds all of this again.
    """

    tokenizer: Tokenizer
    tokenizer_folder: Path
    sources: tuple[PreparedSource, ...]
    words: Path
    sha256: str
    human: tuple[tuple[Path, Path], ...] = ()
    window: int = 0

    def open_human(self) -> Human:
        """Return what is known of human text; windows that are not measured yet are measured now."""
        known, held_out = [], []
        for source, (folder, path) in zip(self.sources, self.human, strict=True):
            known.append(Known.open(folder))
            if is_whole(path):
                held_out.append(HeldOut.read(path))
            else:
                file = TokenFile.open(source.held_out, self.tokenizer.fingerprint)
                held_out.append(measure_held_out(file, self.tokenizer, known[-1], self.window))
        return make_human(known, held_out)

    def known_words(self) -> frozenset[str]:
        """Return the training words that occur at least twice, lower case."""
        with reading(self.words):
            return frozenset(self.words.read_text(encoding="utf-8").split("\n")[:-1])


@frozen(eq=False)
class _Task:
    """What every stage of one preparation needs to know."""

    asks: Asks
    share: float
    progress: Callable[[str, int, int], None]
    stopped: Callable[[], bool]
    cache: Path = Path()
    mix: Mapping[str, float] = field(factory=dict)
    tokenizer_key: str = ""
    window: int = 0

    def tick(self, stage: str, done: int, total: int = 0) -> None:
        """Report progress, and leave if the user wants to."""
        self.progress(stage, done, total)
        self.look()

    def place(self, folder: str, name: str) -> Path:
        """Return the path of a file in the cache, whose folder then exists."""
        (self.cache / folder).mkdir(parents=True, exist_ok=True)
        return self.cache / folder / name

    def workers(self, processes: int) -> Workers:
        """Return who does the work."""
        return Workers(processes, self.asks, self.look)

    def look(self) -> None:
        """Leave if the user wants to."""
        if self.stopped():
            raise StoppedError


def prepare(
    sources: Sequence[SourceSpec],
    *,
    open_source: Callable[[SourceSpec], Iterable[Document] | None],
    keep_document: KeepDocument,
    make_tokenizer: Callable[[TokenizerRequest], Tokenizer],
    tokenizer_key: str,
    cache: Path,
    identify_document: IdentifyDocument = no_keys,
    held_out_share: float = 0.05,
    mix: Mapping[str, float] | None = None,
    window: int = 256,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
    stopped: Callable[[], bool] = lambda: False,
    processes: int = 1,
    small_bytes: int | None = None,
) -> Prepared:
    """Take sources to token files, or find in the cache that it was done before.

    Parameters
    ----------
    sources
        What to read, each with a name of its own.
    open_source, keep_document, identify_document, make_tokenizer
        The hooks' answers; picklable when there are several processes.
    tokenizer_key
        Says which tokenizer is made: the plugin's name, version and options. Another key trains another tokenizer.
    cache
        Folder of prepared files; made when it does not exist.
    held_out_share
        Share of the works kept from training, in (0, 1).
    mix
        Share of each source in the tokenizer's training text; equal when not given.
    window
        Tokens of the windows in which held-out text is measured, as samples will be.
    progress
        Called with (stage, done, total), total 0 when it is not known.
    stopped
        Asked as often; True ends the preparation with `StoppedError`.
    processes
        That read, count and encode. The files are the same whatever their number.
    small_bytes
        Text up to which everything is done in this process; `SMALL_BYTES` by default.

    Raises
    ------
    AndreaError
        On a source that cannot be read or of which nothing is left, a full disk, a cache that cannot be written.
    """
    asks = Asks(open_source, keep_document, identify_document, make_tokenizer)
    task = _Task(asks, held_out_share, progress, stopped, cache, _shares(sources, mix), tokenizer_key, window)
    with (
        _writing(cache),
        _locked(task) as writable,
        _scratch(cache, writable) as folder,
        task.workers(processes) as workers,
    ):
        stores = _read_all(sources, folder, workers, task, small_bytes)
        counted = _begin_counting(stores, workers, task)
        tokenizer, saved = _obtain_tokenizer(stores, task)
        words = _finish_counting(stores, counted, task)
        prepared = _encode_all(stores, tokenizer, saved, workers, task)
        human = _measure_all(prepared, saved, workers, task)
        return _record(prepared, tokenizer, saved, words, human, task)


def survey(
    sources: Sequence[SourceSpec],
    *,
    open_source: Callable[[SourceSpec], Iterable[Document] | None],
    keep_document: KeepDocument,
    identify_document: IdentifyDocument = no_keys,
    held_out_share: float = 0.05,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
    stopped: Callable[[], bool] = lambda: False,
    processes: int = 1,
    small_bytes: int | None = None,
) -> dict[str, Report]:
    """Read and filter sources as `prepare` would, keep nothing, and return what would become of each, by name.

    The parameters are those of `prepare`.
    """
    asks = Asks(open_source, keep_document, identify_document, _no_tokenizer)
    task = _Task(asks, held_out_share, progress, stopped)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, task.workers(processes) as workers:
        stores = _read_all(sources, Path(folder), workers, task, small_bytes, texts=False)
        return {store.spec.name: store.report for store in stores}


def _no_tokenizer(request: TokenizerRequest) -> Tokenizer:
    raise ValueError("a survey makes no tokenizer")


def reopen(
    cache: Path,
    sha256: str,
    make_tokenizer: Callable[[TokenizerRequest], Tokenizer],
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
    stopped: Callable[[], bool] = lambda: False,
    window: int | None = None,
) -> Prepared:
    """Open exactly the data that an earlier preparation made, by its `Prepared.sha256`; nothing is read or trained.

    `progress`, `stopped` and `window` are those of `prepare`; without `window` what is known of human text is left out.

    Raises
    ------
    AndreaError
        When a part of it is gone or is not what it was: every file is read once to tell.
    """
    path = cache / "prepared" / f"{sha256}.json"
    if not path.exists():
        raise AndreaError(
            f"the prepared data {sha256[:16]} is not in {cache}",
            "prepare it again, from the same sources it will be the same: andrea prepare EXPERIMENT",
        )
    record = _read_record(path)
    folder, words = cache / "tokenizers" / record["tokenizer"]["folder"], cache / "words" / record["words"]
    human = () if window is None else tuple(_human_paths(cache, one, window) for one in record["sources"])
    for part in (folder, words, *(known for known, _ in human)):
        if not is_whole(part):
            raise AndreaError(f"{part} is {'damaged' if part.exists() else 'gone'}", PREPARE_AGAIN)
    tokenizer = make_tokenizer(TokenizerRequest(saved=folder))
    if tokenizer.fingerprint != record["tokenizer"]["fingerprint"]:
        raise AndreaError(
            f"the tokenizer in {folder} is not what it was: its fingerprint is {tokenizer.fingerprint[:16]}, "
            f"not {record['tokenizer']['fingerprint'][:16]}",
            PREPARE_AGAIN,
        )
    sources = []
    for number, manifest in enumerate(record["sources"]):
        progress("verifying token files", number, len(record["sources"]))
        if stopped():
            raise StoppedError
        sources.append(_reopen_source(cache, manifest))
    progress("verifying token files", len(sources), len(sources))
    return Prepared(tokenizer, folder, tuple(sources), words, sha256, human, window or 0)


def _read_record(path: Path) -> dict[str, Any]:
    with reading(path):
        data = path.read_bytes()
    try:
        record: dict[str, Any] = json.loads(data)
    except ValueError:  # no JSON, or not even text
        record = {}
    if digest_of(record) != path.stem:
        raise AndreaError(f"{path} is damaged: it does not have the digest that is its name", PREPARE_AGAIN)
    return record


def _reopen_source(cache: Path, manifest: Mapping[str, Any]) -> PreparedSource:
    paths = []
    for side in ("train", "held_out"):
        file = TokenFile.open(cache / "tokens" / manifest[side]["file"], manifest["tokenizer"])
        if file.sha256 != manifest[side]["sha256"]:
            raise AndreaError(f"{file.path} is not what it was: its digest is another one", PREPARE_AGAIN)
        file.verify()
        paths.append(file.path)
    return PreparedSource(manifest["source"], paths[0], paths[1], manifest)


# -- stages of a preparation -------------------------------------------------------------------------------------------


def _shares(sources: Sequence[SourceSpec], mix: Mapping[str, float] | None) -> dict[str, float]:
    """Return the share of each source in the mix, of 1 in all; what a mix may be is checked with the configuration."""
    mix = dict.fromkeys((spec.name for spec in sources), 1.0) if mix is None else mix
    return {spec.name: mix.get(spec.name, 0.0) / sum(mix.values()) for spec in sources}


def _read_all(
    sources: Sequence[SourceSpec], folder: Path, workers: Workers, task: _Task, small: int | None, texts: bool = True
) -> list[Store]:
    """Read the sources one by one; once there is more than a little text, those still to come in processes."""
    small = SMALL_BYTES if small is None else small
    places = [Place(folder, number, texts) for number in range(len(sources))]
    elsewhere: dict[int, Callable[[], Report]] = {}
    reports: list[Report] = []

    for number, spec in enumerate(sources):

        def tick(documents: int, size: int, spec: SourceSpec = spec, first: int = number + 1) -> None:
            task.tick(f"reading {spec.name}", documents)
            enough = sum(report.bytes for report in reports) + size > small
            if enough and not elsewhere and first < len(sources) and workers.start():
                for later in range(first, len(sources)):
                    elsewhere[later] = workers.submit(_read_elsewhere, sources[later], places[later])

        if number in elsewhere:
            task.tick(f"reading {spec.name}", 0)
            reports.append(elsewhere[number]())
        else:
            reports.append(read_documents(task.asks, spec, places[number], tick))
    if sum(report.bytes for report in reports) > small:
        workers.start()
    duplicates = find_duplicates(places, [report.kept for report in reports])
    return [Store(*each, task.share) for each in zip(sources, places, reports, duplicates, strict=True)]


def _read_elsewhere(asks: Asks, spec: SourceSpec, place: Place) -> Report:
    def tick(documents: int, size: int) -> None:
        if asked_to_end():
            raise StoppedError

    return read_documents(asks, spec, place, tick)


def sample_budgets(available: Sequence[int], shares: Sequence[float], limit: int) -> list[int]:
    """Return the bytes that each source gives to a sample of `limit` bytes.

    Each gives its share of the mix; what a source is too small to give, the others give in proportion.
    """
    room, share = np.asarray(available, dtype=np.float64), np.asarray(shares, dtype=np.float64)
    full = share <= 0
    budget = np.zeros_like(room)
    while not full.all():
        offer = (limit - budget[full].sum()) * share / share[~full].sum()
        short = ~full & (offer >= room)
        if not short.any():
            budget[~full] = offer[~full]
            break
        budget[short] = room[short]
        full |= short
    return [int(value) for value in budget]


def _sample(stores: Sequence[Store], task: _Task, limit: int) -> Iterator[bytes]:
    available = [int(store.sizes(store.train).sum()) for store in stores]
    budgets = sample_budgets(available, [task.mix[store.spec.name] for store in stores], limit)
    for store, budget in zip(stores, budgets, strict=True):
        for text in store.sample(budget):
            task.look()
            yield text


def _obtain_tokenizer(stores: Sequence[Store], task: _Task) -> tuple[Tokenizer, Path]:
    """Load the tokenizer of this key and this training text, after training it if there is none yet."""
    texts = [[store.sha256, task.mix[store.spec.name]] for store in stores]
    folder = task.place("tokenizers", digest_of([task.tokenizer_key, task.share, texts])[:32])
    sample = functools.partial(_sample, stores, task)
    trained = None
    if not is_whole(folder):
        partial = partial_name(folder)
        partial.mkdir()  # first, for training is in vain where nothing can be kept
        task.tick("training the tokenizer", 0, 1)
        trained = task.asks.make_tokenizer(TokenizerRequest(sample))
        trained.save(partial)
        publish_folder(partial, folder)
        task.tick("training the tokenizer", 1, 1)
    tokenizer = task.asks.make_tokenizer(TokenizerRequest(sample, saved=folder))
    if trained is not None and trained.fingerprint != tokenizer.fingerprint:
        shutil.rmtree(folder)
        unseal(folder)
        raise ValueError("the tokenizer that was saved and loaded is not the one that was trained")
    return tokenizer, folder


@frozen(eq=False)
class _Counting:
    """The words of a source being counted: a function that waits for their files, and where its runs are put."""

    wait: Callable[[], list[Path]]
    partial: Path | None
    known: Path


def _begin_counting(stores: Sequence[Store], workers: Workers, task: _Task) -> list[_Counting]:
    """Let the words of each source be counted, beside the training of the tokenizer if there are processes."""
    count, counting = not is_whole(_words_path(stores, task)), []
    for store in stores:
        known = _known_path(task.cache, store.sha256, task.share)
        known.parent.mkdir(exist_ok=True)
        partial = None if is_whole(known) else known.with_name(f"{known.name}.{store.place.number}.partial")
        if count or partial:
            chunks = list(store.chunks(store.train))
            wait = workers.submit(_count_words, store.place, chunks, count, partial)
            counting.append(_Counting(wait, partial, known))
    return counting


def _count_words(asks: Asks, place: Place, chunks: Sequence[Chunk], count: bool, known: Path | None) -> list[Path]:
    """Write the words of a source if they are to be counted, and what is remembered of it if that has a place."""
    gatherer = Gatherer(sum(int((chunk.ends - chunk.starts).sum()) for chunk in chunks)) if known else None

    def documents() -> Iterator[list[str]]:
        for chunk in chunks:
            if asked_to_end():
                raise StoppedError
            words = [split_words(text.decode()) for text in chunk.texts()]
            if gatherer:
                gatherer.add(words)
            yield from words

    paths: list[Path] = []
    if count:
        paths = write_runs(documents(), place.path("words"))
    else:
        for _ in documents():
            pass
    if gatherer and known:
        known.mkdir()
        gatherer.finish().save(known)
    return paths


def _words_path(stores: Sequence[Store], task: _Task) -> Path:
    return task.place("words", digest_of([task.share, [store.sha256 for store in stores]])[:32] + ".txt")


def _finish_counting(stores: Sequence[Store], counting: Sequence[_Counting], task: _Task) -> Path:
    path, runs = _words_path(stores, task), []
    for number, one in enumerate(counting):
        task.tick("counting words", number, len(counting))
        runs += one.wait()
        if one.partial:
            publish_folder(one.partial, one.known)
    if counting:
        task.tick("counting words", len(counting), len(counting))
    if runs:
        with sealing(path) as file:
            file.writelines(word.encode() for word in merge_runs(runs))
    return path


def _encode_all(
    stores: Sequence[Store], tokenizer: Tokenizer, saved: Path, workers: Workers, task: _Task
) -> tuple[PreparedSource, ...]:
    """Encode every side of every source that has no whole file yet, in pieces, each file in its order."""
    sides = [(store, side, documents) for store in stores for side, documents in store.sides()]
    paths = [_token_path(store, side, tokenizer, task) for store, side, _ in sides]
    missing = [(*one, path) for one, path in zip(sides, paths, strict=True) if not _is_encoded(path, tokenizer, task)]
    pieces = (chunk for store, _, documents, _ in missing for chunk in store.chunks(documents))
    encoded = workers.map(functools.partial(_encode_chunk, saved=saved), pieces)
    lengths = bytes_of_tokens(tokenizer)
    for store, _, documents, path in missing:
        stage, done = f"encoding {store.spec.name}", 0
        with TokenWriter(path, tokenizer, lengths) as writer:
            task.tick(stage, 0, documents.size)
            while done < documents.size:
                tokens, sizes, text_bytes = next(encoded)
                writer.append(tokens, sizes, text_bytes)
                done += len(sizes)
                task.tick(stage, done, documents.size)
    return tuple(
        _prepared_source(store, paths[2 * number : 2 * number + 2], tokenizer, task)
        for number, store in enumerate(stores)
    )


def _token_path(store: Store, side: str, tokenizer: Tokenizer, task: _Task) -> Path:
    key = digest_of([VERSION, store.sha256, tokenizer.fingerprint, task.share])[:32]
    return task.place("tokens", f"{key}.{side}.btok")


def _is_encoded(path: Path, tokenizer: Tokenizer, task: _Task) -> bool:
    """Say whether a side has its token file, and every byte of it is what was written."""
    if not path.exists():
        return False
    task.tick("verifying token files", 0)
    try:
        TokenFile.open(path, tokenizer.fingerprint).verify()
    except AndreaError:
        return False
    return True


def _encode_chunk(asks: Asks, chunk: Chunk, saved: Path) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], int]:
    """Return the tokens of all documents, the tokens of each, and the bytes of their texts."""
    tokens, lengths = _encoder(asks.make_tokenizer, saved).encode_all(list(chunk.texts()))
    return tokens, lengths, int((chunk.ends - chunk.starts).sum())


@functools.lru_cache(maxsize=1)
def _encoder(make_tokenizer: Callable[[TokenizerRequest], Tokenizer], saved: Path) -> Encoder:
    return Encoder(make_tokenizer(TokenizerRequest(saved=saved)))


def _prepared_source(store: Store, paths: Sequence[Path], tokenizer: Tokenizer, task: _Task) -> PreparedSource:
    manifest: dict[str, Any] = {
        "source": store.spec.name,
        "readers": [part.reader for part in store.spec.parts],
        "licences": [part.licence for part in store.spec.parts],
        "content": store.sha256,
        "tokenizer": tokenizer.fingerprint,
        "held_out_share": task.share,
        **store.report.to_json(),
    }
    for side, path in zip(("train", "held_out"), paths, strict=True):
        file = TokenFile.open(path, tokenizer.fingerprint)
        manifest[side] = {
            "file": path.name,
            "documents": file.documents,
            "tokens": int(file.tokens.size),
            "bytes": file.bytes,
            "sha256": file.sha256,
        }
    return PreparedSource(store.spec.name, paths[0], paths[1], manifest)


def _measure_all(
    sources: Sequence[PreparedSource], saved: Path, workers: Workers, task: _Task
) -> tuple[tuple[Path, Path], ...]:
    """Measure the held-out text of every source of which that is not known yet."""
    human = tuple(_human_paths(task.cache, source.manifest, task.window) for source in sources)
    missing = {
        path: (source, known) for source, (known, path) in zip(sources, human, strict=True) if not is_whole(path)
    }
    waits = {
        path: workers.submit(_measure_held_out, source.held_out, known, saved, task.window)
        for path, (source, known) in missing.items()
    }
    for number, (path, wait) in enumerate(waits.items()):
        task.tick("measuring held-out text", number, len(waits))
        path.parent.mkdir(exist_ok=True)
        with sealing(path) as file:
            file.write(wait())
    if waits:
        task.tick("measuring held-out text", len(waits), len(waits))
    return human


def _measure_held_out(asks: Asks, path: Path, known: Path, saved: Path, window: int) -> bytes:
    tokenizer = _encoder(asks.make_tokenizer, saved).tokenizer
    return measure_held_out(TokenFile.open(path), tokenizer, Known.open(known), window).to_bytes()


def _known_path(cache: Path, content: str, share: float) -> Path:
    return cache / "known" / digest_of([KNOWN_FORMAT, content, share])[:32]


def _human_paths(cache: Path, manifest: Mapping[str, Any], window: int) -> tuple[Path, Path]:
    """Return where a source has what is remembered of it, and what windows of its held-out text measure."""
    known = _known_path(cache, manifest["content"], manifest["held_out_share"])
    key = digest_of([HUMAN_FORMAT, known.name, manifest["tokenizer"], window])[:32]
    return known, cache / "human" / f"{key}.json"


def _record(
    sources: tuple[PreparedSource, ...],
    tokenizer: Tokenizer,
    folder: Path,
    words: Path,
    human: tuple[tuple[Path, Path], ...],
    task: _Task,
) -> Prepared:
    """Write, last of all, what `reopen` needs, under the digest of its content."""
    record = {
        "tokenizer": {"folder": folder.name, "fingerprint": tokenizer.fingerprint},
        "words": words.name,
        "sources": [source.manifest for source in sources],
    }
    sha256 = digest_of(record)
    path = task.place("prepared", f"{sha256}.json")
    data = json.dumps(record, indent=1, sort_keys=True).encode() + b"\n"
    if not path.exists() or path.read_bytes() != data:
        write_whole(path, data)
    return Prepared(tokenizer, folder, sources, words, sha256, human, task.window)


def digest_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@contextmanager
def _writing(cache: Path) -> Iterator[None]:
    """Turn the operating system's refusal to write into an error of the user's."""
    try:
        yield
    except OSError as error:
        place = error.filename or cache
        raise AndreaError(
            f"cannot write prepared data at {place}: {error.strerror or error}",
            f"{cure(error)}, or name another folder than {cache}: ANDREA_CACHE=FOLDER; what was finished is kept, "
            "and the same command goes on",
        ) from error


@contextmanager
def _scratch(cache: Path, writable: bool) -> Iterator[Path]:
    """Make a folder for texts on their way; one that a killed preparation left is cleared away by the next.

    Beside a cache that can only be read it is one of the system's temporary folders.
    """
    if not writable:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    (cache / "scratch").mkdir(exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(".partial", dir=cache / "scratch", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    finally:
        with suppress(OSError):
            (cache / "scratch").rmdir()


@contextmanager
def _locked(task: _Task) -> Iterator[bool]:
    """Let one preparation at a time work in a cache; clear away what a killed one, or this one, left half written.

    Gives False for a cache that can only be read. It needs no lock: what has its name there is whole.
    """
    task.cache.mkdir(parents=True, exist_ok=True)
    file = _open_lock(task.cache)
    if file is None:
        yield False
        return
    with file:
        while not _lock(file):
            task.tick("waiting for another preparation", 0)
            time.sleep(0.1)
        _clear(task.cache)
        try:
            yield True
        finally:
            _clear(task.cache)


def _open_lock(cache: Path) -> IO[str] | None:
    """Open the lock of a cache; None where nothing can be written, if anything was prepared there."""
    try:
        return (cache / "lock").open("w")
    except OSError as error:
        if not is_read_only(cache, error):
            raise
    return (cache / "lock").open() if os.access(cache, os.W_OK) else None  # another user's file can be locked too


def is_read_only(cache: Path, refusal: OSError) -> bool:
    """Say whether a cache in which something was prepared can only be read, from what writing was refused with."""
    return refusal.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and (cache / "prepared").is_dir()


def _clear(cache: Path) -> None:
    """Remove what is half written. What is gone by then was finished by somebody who writes without the lock."""
    for path in sorted(cache.glob("*/*.partial")):
        with suppress(FileNotFoundError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _lock(file: IO[str]) -> bool:
    """Try to lock a file; the system releases it when the process ends, however it ends."""
    if sys.platform == "win32":
        return True  # there is no such lock; two preparations of one cache at once are then the user's to avoid
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
