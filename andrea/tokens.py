"""The second stage: documents become token files.

First the held-out split, then `prepare`, which takes the sources of an experiment to token files in a cache where a
file's name is the digest of all that decides its content. So nothing in the cache is ever rewritten, an interrupted
preparation goes on where it was, and two experiments share what they have in common.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import struct
import sys
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from attrs import frozen

from andrea.errors import AndreaError
from andrea.filters import KeepDocument, Report, keep
from andrea.rng import Draws
from andrea.sources import read_source, reading
from andrea.tokenfile import (
    PREPARE_AGAIN,
    VERSION,
    TokenFile,
    TokenWriter,
    bytes_of_tokens,
    partial_name,
    sync_folder,
    write_whole,
)
from andrea.types import Document, SourceSpec, Tokenizer, TokenizerRequest

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
]

_REPORT_EVERY = 256  # documents between two calls of progress and stopped
_WORD = re.compile(r"(?:[^\W_]|')+")


# -- the held-out split ------------------------------------------------------------------------------------------------


def group_hash(group: str) -> int:
    """Return the 64-bit hash of a work's name, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(group.encode(errors="surrogatepass"), digest_size=8).digest(), "little")


def is_held_out(group: str, share: float) -> bool:
    """Say whether a work is held out by its hash alone."""
    return group_hash(group) < int(share * 2.0**64)


def held_out_mask(hashes: npt.NDArray[np.uint64], sizes: npt.NDArray[np.int64], share: float) -> npt.NDArray[np.bool_]:
    """Return which documents of a source are held out, bool (D,).

    The rule of `is_held_out`, mended where few works make it miss. If it holds out less than half its share of the
    bytes, further works are, in the order of their hashes, until it is half; the work with the highest hash always
    stays. A source that is one single work gives its last documents, at least one.

    Parameters
    ----------
    hashes
        Of each document's group, uint64 (D,).
    sizes
        Bytes of each document, int64 (D,).
    share
        In (0, 1).

    Raises
    ------
    AndreaError
        When there is only one document, which cannot be on both sides.
    """
    if not 0 < share < 1:
        raise AndreaError(f"the held-out share is {share}", "give a number between 0 and 1, for instance 0.05")
    if len(hashes) < 2:
        raise AndreaError(
            "one document alone cannot be split into a training and a held-out part",
            "add more text, or have it cut into smaller pieces, for instance with the reader's option `chunk`",
        )
    works, work_of = np.unique(hashes, return_inverse=True)  # sorted by hash
    if works.size == 1:
        return np.arange(len(hashes)) >= len(hashes) - max(1, int(len(hashes) * share))
    below = int((works < np.uint64(int(share * 2.0**64))).sum())
    bytes_up_to = np.cumsum(np.bincount(work_of, weights=sizes))
    enough = int(np.searchsorted(bytes_up_to, share / 2 * bytes_up_to[-1])) + 1
    return work_of < min(max(below, enough), works.size - 1)


# -- preparation -------------------------------------------------------------------------------------------------------


class StoppedError(AndreaError):
    """The user asked a preparation to stop; what was finished is kept."""

    def __init__(self) -> None:
        super().__init__("the preparation was stopped; what was finished is kept", "the same command again goes on")


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
        return _digest(self.manifest)


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
    sha256
        Digest of the record in the cache from which `reopen` finds all of this again.
    """

    tokenizer: Tokenizer
    tokenizer_folder: Path
    sources: tuple[PreparedSource, ...]
    words: Path
    sha256: str

    def known_words(self) -> frozenset[str]:
        """Return the training words that occur at least twice, lower case."""
        with reading(self.words):
            return frozenset(self.words.read_text(encoding="utf-8").split("\n")[:-1])


@frozen(eq=False)
class _Task:
    """What every stage of one preparation needs to know."""

    cache: Path
    share: float
    mix: Mapping[str, float]
    make_tokenizer: Callable[[TokenizerRequest], Tokenizer]
    tokenizer_key: str
    progress: Callable[[str, int, int], None]
    stopped: Callable[[], bool]

    def tick(self, stage: str, done: int, total: int = 0) -> None:
        """Report progress, and leave if the user wants to."""
        self.progress(stage, done, total)
        if self.stopped():
            raise StoppedError

    def counted(self, stage: str, indices: npt.NDArray[np.int64]) -> Iterator[int]:
        """Yield the indices, with a tick now and then."""
        for done, index in enumerate(indices.tolist()):
            if done % _REPORT_EVERY == 0:
                self.tick(stage, done, len(indices))
            yield index
        self.tick(stage, len(indices), len(indices))

    def place(self, folder: str, name: str) -> Path:
        """Return the path of a file in the cache, whose folder then exists."""
        (self.cache / folder).mkdir(parents=True, exist_ok=True)
        return self.cache / folder / name


def prepare(
    sources: Sequence[SourceSpec],
    *,
    open_source: Callable[[SourceSpec], Iterable[Document] | None],
    keep_document: KeepDocument,
    make_tokenizer: Callable[[TokenizerRequest], Tokenizer],
    tokenizer_key: str,
    cache: Path,
    held_out_share: float = 0.05,
    mix: Mapping[str, float] | None = None,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Prepared:
    """Take sources to token files, or find in the cache that it was done before.

    Parameters
    ----------
    sources
        What to read, each with a name of its own.
    open_source, keep_document, make_tokenizer
        The hooks' answers.
    tokenizer_key
        Says which tokenizer is made: the plugin's name, version and options. Another key trains another tokenizer.
    cache
        Folder of prepared files; made when it does not exist.
    held_out_share
        Share of the works kept from training, in (0, 1).
    mix
        Share of each source in the tokenizer's training text; equal when not given.
    progress
        Called with (stage, done, total), total 0 when it is not known.
    stopped
        Asked as often; True ends the preparation with `StoppedError`.

    Raises
    ------
    AndreaError
        On a source that cannot be read or of which nothing is left, a full disk, a cache that cannot be written.
    """
    task = _Task(cache, held_out_share, _shares(sources, mix), make_tokenizer, tokenizer_key, progress, stopped)
    with _writing(cache), _locked(task), ExitStack() as opened:
        stores = []
        for spec in sources:
            file = opened.enter_context(tempfile.TemporaryFile(dir=cache))
            documents = read_source(spec, open_source)
            stores.append(_Store(spec, file, documents, keep_document, task))
        tokenizer, folder = _obtain_tokenizer(stores, task)
        words = _write_words(stores, task)
        lengths = bytes_of_tokens(tokenizer)
        prepared = tuple(_encode_source(store, tokenizer, lengths, task) for store in stores)
        return _record(prepared, tokenizer, folder, words, task)


def reopen(cache: Path, sha256: str, make_tokenizer: Callable[[TokenizerRequest], Tokenizer]) -> Prepared:
    """Open exactly the data that an earlier preparation made, by its `Prepared.sha256`; nothing is read or trained.

    Raises
    ------
    AndreaError
        When a part of it is gone or is not what it was.
    """
    path = cache / "prepared" / f"{sha256}.json"
    if not path.exists():
        raise AndreaError(
            f"the prepared data {sha256[:16]} is not in {cache}",
            "prepare it again, from the same sources it will be the same: andrea prepare EXPERIMENT",
        )
    with reading(path):
        record = json.loads(path.read_bytes())
    if _digest(record) != sha256:
        raise AndreaError(f"{path} is damaged: it does not have the digest that is its name", PREPARE_AGAIN)
    folder, words = cache / "tokenizers" / record["tokenizer"]["folder"], cache / "words" / record["words"]
    for part in (folder, words):
        if not part.exists():
            raise AndreaError(f"{part} is gone", "prepare the data again: andrea prepare EXPERIMENT")
    tokenizer = make_tokenizer(TokenizerRequest(_no_sample, saved=folder))
    if tokenizer.fingerprint != record["tokenizer"]["fingerprint"]:
        raise AndreaError(
            f"the tokenizer in {folder} is not what it was: its fingerprint is {tokenizer.fingerprint[:16]}, "
            f"not {record['tokenizer']['fingerprint'][:16]}",
            PREPARE_AGAIN,
        )
    sources = tuple(_reopen_source(cache, manifest) for manifest in record["sources"])
    return Prepared(tokenizer, folder, sources, words, sha256)


def _no_sample(limit: int) -> Iterator[bytes]:
    raise ValueError("a saved tokenizer is loaded, not trained: there is no sample")


def _reopen_source(cache: Path, manifest: Mapping[str, Any]) -> PreparedSource:
    paths = []
    for side in ("train", "held_out"):
        file = TokenFile.open(cache / "tokens" / manifest[side]["file"], manifest["tokenizer"])
        if file.sha256 != manifest[side]["sha256"]:
            raise AndreaError(f"{file.path} is not what it was: its digest is another one", PREPARE_AGAIN)
        paths.append(file.path)
    return PreparedSource(manifest["source"], paths[0], paths[1], manifest)


# -- stages of a preparation -------------------------------------------------------------------------------------------


def _shares(sources: Sequence[SourceSpec], mix: Mapping[str, float] | None) -> dict[str, float]:
    """Check the names and return the share of each source, normalised."""
    names = [spec.name for spec in sources]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names or twice:
        raise AndreaError(
            f"two sources are called {twice[0]}" if twice else "there is no source", "name each source once"
        )
    mix = dict.fromkeys(names, 1.0) if mix is None else mix
    if unknown := sorted(set(mix) - set(names)):
        raise AndreaError(f"the mix names {unknown[0]!r}, which is no source", f"sources: {', '.join(names)}")
    total = sum(mix.values())
    if not (all(share >= 0 for share in mix.values()) and 0 < total < float("inf")):
        raise AndreaError(f"the mix {dict(mix)} is not a set of shares", "give numbers from 0 up, not all 0")
    return {name: mix.get(name, 0.0) / total for name in names}


class _Store:
    """The kept documents of one source, in a temporary file without a name that vanishes with the process.

    A source is so read only once, and what is hashed is what is encoded.
    """

    def __init__(
        self, spec: SourceSpec, file: IO[bytes], documents: Iterable[Document], ask: KeepDocument, task: _Task
    ) -> None:
        self.spec, self._file = spec, file
        self.report = Report()
        digest, hashes, offsets = hashlib.sha256(), array("Q"), array("Q", [0])
        for document, data in keep(documents, spec.name, ask, self.report):
            if len(hashes) % _REPORT_EVERY == 0:
                task.tick(f"reading {spec.name}", len(hashes))
            for part in (document.name.encode(errors="surrogatepass"), document.group.encode(errors="surrogatepass")):
                digest.update(struct.pack("<Q", len(part)) + part)
            digest.update(struct.pack("<Q", len(data)) + data)
            file.write(data)
            hashes.append(group_hash(document.group))
            offsets.append(offsets[-1] + len(data))
        task.tick(f"reading {spec.name}", len(hashes))
        self.sha256 = digest.hexdigest()
        self._offsets = np.array(offsets, dtype=np.int64)
        held_out = self._split(np.array(hashes, dtype=np.uint64), task.share)
        self.train = np.flatnonzero(~held_out)
        # Shuffled, so that the first rows of the file, which evaluations use, come from all held-out works.
        self.held_out = np.flatnonzero(held_out)
        self.held_out = self.held_out[Draws(0, "held_out.order").permutation(self.held_out.size)]

    def _split(self, hashes: npt.NDArray[np.uint64], share: float) -> npt.NDArray[np.bool_]:
        name, dropped = self.spec.name, self.report.dropped
        if not hashes.size:
            reasons = ", ".join(f"{reason} ({count})" for reason, count in sorted(dropped.items()))
            raise AndreaError(f"source {name}: every document was dropped: {reasons}", "loosen or remove a filter")
        try:
            return held_out_mask(hashes, np.diff(self._offsets), share)
        except AndreaError as error:
            raise AndreaError(f"source {name}: {error.message}", error.hint) from error

    def read(self, index: int) -> bytes:
        """Return the text of a document in UTF-8."""
        self._file.seek(int(self._offsets[index]))
        return self._file.read(int(self._offsets[index + 1] - self._offsets[index]))

    def lengths(self) -> npt.NDArray[np.int64]:
        """Return the bytes of each training document."""
        return np.diff(self._offsets)[self.train]

    def sample(self, budget: int) -> Iterator[bytes]:
        """Yield training documents from all over the source, at most `budget` bytes."""
        order = Draws(0, "tokenizer.sample").permutation(self.train.size)
        count = int(np.searchsorted(np.cumsum(self.lengths()[order]), budget, side="right"))
        if count == 0 and budget > 0:  # not even one: its beginning, cut between two characters
            yield self.read(int(self.train[order[0]]))[:budget].decode(errors="ignore").encode()
        for index in np.sort(self.train[order[:count]]):
            yield self.read(int(index))


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


def _sample(stores: Sequence[_Store], mix: Mapping[str, float], limit: int) -> Iterator[bytes]:
    available = [int(store.lengths().sum()) for store in stores]
    budgets = sample_budgets(available, [mix[store.spec.name] for store in stores], limit)
    for store, budget in zip(stores, budgets, strict=True):
        yield from store.sample(budget)


def _obtain_tokenizer(stores: Sequence[_Store], task: _Task) -> tuple[Tokenizer, Path]:
    """Load the tokenizer of this key and this training text, after training it if there is none yet."""
    texts = [[store.sha256, task.mix[store.spec.name]] for store in stores]
    folder = task.place("tokenizers", _digest([task.tokenizer_key, task.share, texts])[:32])
    sample = functools.partial(_sample, stores, task.mix)
    trained = None
    if not folder.is_dir():
        task.tick("training the tokenizer", 0, 1)
        trained = task.make_tokenizer(TokenizerRequest(sample))
        _publish_tokenizer(trained, folder)
        task.tick("training the tokenizer", 1, 1)
    tokenizer = task.make_tokenizer(TokenizerRequest(sample, saved=folder))
    if trained is not None and trained.fingerprint != tokenizer.fingerprint:
        shutil.rmtree(folder)
        raise ValueError("the tokenizer that was saved and loaded is not the one that was trained")
    return tokenizer, folder


def _publish_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    partial = partial_name(folder)
    partial.mkdir()
    tokenizer.save(partial)
    for path in sorted(partial.rglob("*")):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
    sync_folder(partial)
    partial.rename(folder)
    sync_folder(folder.parent)


def split_words(text: str) -> list[str]:
    """Return the words of a text, lower case: the longest runs of letters, digits and apostrophes."""
    return _WORD.findall(text.lower())


def _write_words(stores: Sequence[_Store], task: _Task) -> Path:
    path = task.place("words", _digest([task.share, [store.sha256 for store in stores]])[:32] + ".txt")
    if path.exists():
        return path
    count: Counter[str] = Counter()
    for store in stores:
        for index in task.counted(f"counting words of {store.spec.name}", store.train):
            count.update(split_words(store.read(index).decode()))
    words = sorted(word for word, times in count.items() if times >= 2)
    write_whole(path, "".join(f"{word}\n" for word in words).encode())
    return path


def _encode_source(store: _Store, tokenizer: Tokenizer, lengths: npt.NDArray[np.uint32], task: _Task) -> PreparedSource:
    key = _digest([VERSION, store.sha256, tokenizer.fingerprint, task.share])[:32]
    manifest: dict[str, Any] = {
        "source": store.spec.name,
        "reader": store.spec.reader,
        "content": store.sha256,
        "tokenizer": tokenizer.fingerprint,
        "held_out_share": task.share,
        **store.report.to_json(),
    }
    paths = []
    for side, indices in (("train", store.train), ("held_out", store.held_out)):
        path = task.place("tokens", f"{key}.{side}.btok")
        if not path.exists():
            with TokenWriter(path, tokenizer, lengths) as writer:
                for index in task.counted(f"encoding {store.spec.name}", indices):
                    writer.add(store.read(index))
        file = TokenFile.open(path, tokenizer.fingerprint)
        manifest[side] = {
            "file": path.name,
            "documents": file.documents,
            "tokens": int(file.tokens.size),
            "bytes": file.bytes,
            "sha256": file.sha256,
        }
        paths.append(path)
    return PreparedSource(store.spec.name, paths[0], paths[1], manifest)


def _record(
    sources: tuple[PreparedSource, ...], tokenizer: Tokenizer, folder: Path, words: Path, task: _Task
) -> Prepared:
    """Write, last of all, what `reopen` needs, under the digest of its content."""
    record = {
        "tokenizer": {"folder": folder.name, "fingerprint": tokenizer.fingerprint},
        "words": words.name,
        "sources": [source.manifest for source in sources],
    }
    sha256 = _digest(record)
    path = task.place("prepared", f"{sha256}.json")
    if not path.exists():
        write_whole(path, json.dumps(record, indent=1, sort_keys=True).encode() + b"\n")
    return Prepared(tokenizer, folder, sources, words, sha256)


def _digest(value: Any) -> str:
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
            "make room or choose another folder; what was finished is kept, and the same command goes on from there",
        ) from error


@contextmanager
def _locked(task: _Task) -> Iterator[None]:
    """Let one preparation at a time work in a cache, and clear away what a killed one left half written."""
    task.cache.mkdir(parents=True, exist_ok=True)
    with (task.cache / "lock").open("w") as file:
        while not _lock(file):
            task.tick("waiting for another preparation", 0)
            time.sleep(0.1)
        for path in sorted(task.cache.glob("*/*.partial")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield


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
