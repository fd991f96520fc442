"""Checkpoints: everything that a bit-exact resume needs, written so that a half one is never taken for whole.

``step_NNNNNN.bin``   [int32 step][int32 P][P float32 weights][P first moments][P second moments], little-endian
``step_NNNNNN.npz``   arrays of the engine, the data and the plugins
``step_NNNNNN.json``  the rest, and sha256 of all three; written last: where it is, the checkpoint is complete
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from attrs import field, frozen

from andrea.config import CheckpointConfig
from andrea.errors import AndreaError, cure
from andrea.strict_json import read_json
from andrea.tokenfile import sync_folder, write_whole

FORMAT = 1
_FLAT = ("weights", "first_moments", "second_moments")
_NAME = re.compile(r"step_(\d{6,})\.json")


@frozen(eq=False)
class Snapshot:
    """The state of a run between two steps.

    Attributes
    ----------
    step
        Completed updates.
    engine
        `Engine.export_state()`.
    data
        `Batches.export_state()`.
    plugins
        State by plugin name, in call order; empty for those without.
    record
        JSON values: configuration, plugin list, fingerprint, reasons, journal length, digest of the data.
    ahead
        What was chosen already for the next step; empty where that is asked for when its time comes.
    """

    step: int
    engine: Mapping[str, np.ndarray[Any, Any]]
    data: Mapping[str, Any]
    plugins: Mapping[str, Mapping[str, Any]]
    record: Mapping[str, Any]
    ahead: Mapping[str, Any] = field(factory=dict)


# -- writing -----------------------------------------------------------------------------------------------------------


class Checkpoints:
    """The checkpoints of a run's folder; one write at a time goes on in the background.

    Parameters
    ----------
    folder
        Of the checkpoints; made when it does not exist.
    config
        How many stay.
    """

    def __init__(self, folder: Path, config: CheckpointConfig) -> None:
        self.folder, self._config = folder, config
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, snapshot: Snapshot, finish: Callable[[], None] = lambda: None) -> None:
        """Write a snapshot in the background, after the one before it is done.

        Parameters
        ----------
        snapshot
            Its arrays must be copies.
        finish
            Called in the background when the checkpoint is complete.

        Raises
        ------
        AndreaError
            When weights or moments are not finite, or the write before failed: the last good checkpoint stays.
        """
        self.wait()
        for name in _FLAT:
            if not np.isfinite(snapshot.engine[name]).all():
                raise AndreaError(
                    f"the {name.replace('_', ' ')} are not finite after step {snapshot.step}; nothing was saved",
                    f"the last good checkpoint is {newest_name(self.folder) or 'none'}",
                )
        self._thread = threading.Thread(target=self._write, args=(snapshot, finish), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait for the write that is under way; raise what went wrong in it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if isinstance(error, OSError):
            raise AndreaError(
                f"cannot write a checkpoint in {self.folder}: {error.strerror or error}",
                f"{cure(error)}, then resume; the last good checkpoint is {newest_name(self.folder) or 'none'}",
            ) from error
        if error is not None:
            raise error

    def _write(self, snapshot: Snapshot, finish: Callable[[], None]) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_checkpoint(self.folder, snapshot)
            self._prune()
            finish()
        except BaseException as error:
            self._error = error
            self._clear_partial()  # on a full disk it takes the room that the next attempt needs

    def _clear_partial(self) -> None:
        with suppress(OSError):
            for path in self.folder.glob("step_*.partial"):
                path.unlink(missing_ok=True)

    def _prune(self) -> None:
        """Remove old checkpoints, the marker first, and what a killed write left behind."""
        steps = complete_steps(self.folder)
        every = self._config.keep_every
        for step in steps[: -self._config.keep]:
            if not (every and step % every == 0):
                for suffix in ("json", "npz", "bin"):
                    (self.folder / f"{stem(step)}.{suffix}").unlink(missing_ok=True)
        kept = {stem(step) for step in complete_steps(self.folder)}
        for path in self.folder.iterdir():
            if path.name.startswith("step_") and path.name.split(".")[0] not in kept:
                path.unlink(missing_ok=True)


def stem(step: int) -> str:
    """Return the file name of a checkpoint without its suffix."""
    return f"step_{step:06d}"


def write_checkpoint(folder: Path, snapshot: Snapshot) -> Path:
    """Write one checkpoint and return the path of its ``.json``; each file is whole or absent."""
    base = folder / stem(snapshot.step)
    base.with_suffix(".json").unlink(missing_ok=True)  # one of the same step is incomplete from here on
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    engine = {k: v for k, v in snapshot.engine.items() if k not in _FLAT}
    record = {
        "format": FORMAT,
        "step": snapshot.step,
        **snapshot.record,
        "engine": _pack(engine, "engine", arrays),
        "data": _pack(dict(snapshot.data), "data", arrays),
        "plugins": {name: _pack(dict(s), f"plugin.{name}", arrays) for name, s in snapshot.plugins.items()},
    }
    if snapshot.ahead:
        record["ahead"] = _pack(dict(snapshot.ahead), "ahead", arrays)
    record["sha256"] = {
        "bin": _write_bin(base.with_suffix(".bin"), snapshot),
        "npz": _write_npz(base.with_suffix(".npz"), arrays),
    }
    record["sha256"]["json"] = _record_digest(record)
    write_whole(base.with_suffix(".json"), json.dumps(record, indent=1, allow_nan=False).encode() + b"\n")
    return base.with_suffix(".json")


def _write_bin(path: Path, snapshot: Snapshot) -> str:
    weights = snapshot.engine["weights"]
    partial = path.with_name(path.name + ".partial")
    digest = hashlib.sha256()
    with partial.open("wb") as file:
        for part in (np.array([snapshot.step, weights.size], dtype="<i4"), *(snapshot.engine[n] for n in _FLAT)):
            data = np.ascontiguousarray(part, dtype="<f4" if part.dtype.kind == "f" else None).view(np.uint8).data
            digest.update(data)
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)
    return digest.hexdigest()


def _write_npz(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    buffer = io.BytesIO()
    named: Any = arrays
    np.savez(buffer, **named)
    write_whole(path, buffer.getvalue())
    return hashlib.sha256(buffer.getvalue()).hexdigest()


def _record_digest(record: Mapping[str, Any]) -> str:
    """Return the digest of all values of a checkpoint's record but itself."""
    digests = {suffix: digest for suffix, digest in record["sha256"].items() if suffix != "json"}
    text = json.dumps({**record, "sha256": digests}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _pack(value: Any, path: str, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    """Return the JSON form of a state value; arrays go to `arrays`, odd floats become tagged texts."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError(f"{path} is an array of Python objects, which a checkpoint does not hold")
        while path in arrays:  # a key with a dot in it can look like two keys
            path += "'"
        arrays[path] = value
        return {"$array": path}
    if isinstance(value, float) and not np.isfinite(value):
        return {"$float": str(value)}
    if isinstance(value, (list, tuple)):
        return [_pack(item, f"{path}.{index}", arrays) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {"$dict": {key: _pack(item, f"{path}.{key}", arrays) for key, item in value.items()}}
    return value


def _unpack(value: Any, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    """Undo `_pack`."""
    if isinstance(value, list):
        return [_unpack(item, arrays) for item in value]
    if isinstance(value, dict):
        if "$array" in value:
            return arrays[value["$array"]]
        if "$float" in value:
            return float(value["$float"])
        return {key: _unpack(item, arrays) for key, item in value["$dict"].items()}
    return value


# -- reading -----------------------------------------------------------------------------------------------------------


def complete_steps(folder: Path) -> list[int]:
    """Return the steps of the complete checkpoints of a folder, ascending."""
    if not folder.is_dir():
        return []
    return sorted(int(found[1]) for path in folder.iterdir() if (found := _NAME.fullmatch(path.name)))


def newest_name(folder: Path) -> str:
    """Return the name of the newest complete checkpoint, or an empty text."""
    steps = complete_steps(folder)
    return f"{stem(steps[-1])}.json" if steps else ""


def marker_of(path: Path) -> Path:
    """Return the path of a checkpoint's ``.json``, given any of its files or its name without a suffix."""
    return path.parent / f"{path.stem}.json"  # not with_suffix, which fails where a folder such as . is given


def read_checkpoint(path: Path) -> Snapshot:
    """Read a checkpoint by the path of any of its files.

    Raises
    ------
    AndreaError
        When a file is missing, is not what was written, or is of another format.
    """
    base = path.with_suffix("")
    record = read_json(base.with_suffix(".json"))
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise AndreaError(
            f"{base}.json is not a checkpoint of format {FORMAT}", "it was written by another version of andrea"
        )
    _check_record(base.with_suffix(".json"), record)
    contents = {suffix: _checked(base.with_suffix(f".{suffix}"), record["sha256"][suffix]) for suffix in ("bin", "npz")}
    with np.load(io.BytesIO(contents["npz"]), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    engine = {**_unpack(record.pop("engine"), arrays), **_flat(contents["bin"])}
    data = _unpack(record.pop("data"), arrays)
    plugins = {name: _unpack(value, arrays) for name, value in record.pop("plugins").items()}
    ahead = _unpack(record.pop("ahead"), arrays) if "ahead" in record else {}
    return Snapshot(record["step"], engine, data, plugins, record, ahead)


def _check_record(path: Path, record: Mapping[str, Any]) -> None:
    digests = record.get("sha256")
    digest = digests.get("json") if isinstance(digests, dict) else None
    if digest is None or digest != _record_digest(record):
        raise AndreaError(f"{path} is damaged: it does not have the digest that it names", "use another checkpoint")


def _flat(content: bytes) -> dict[str, np.ndarray[Any, Any]]:
    _, count = struct.unpack_from("<ii", content)
    values = np.frombuffer(content, dtype="<f4", offset=8).reshape(3, count)
    return {name: values[index].astype(np.float32) for index, name in enumerate(_FLAT)}


def _checked(path: Path, digest: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise AndreaError(f"cannot read {path}: {error.strerror}", "use another checkpoint") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise AndreaError(f"{path} is damaged: its sha256 is not the one in its .json", "use another checkpoint")
    return content


def newest_checkpoint(folder: Path, say: Callable[[str], None]) -> Snapshot:
    """Return the newest checkpoint that is undamaged, telling of every damaged one that was passed over.

    Raises
    ------
    AndreaError
        When there is none.
    """
    for step in reversed(complete_steps(folder)):
        try:
            return read_checkpoint(folder / f"{stem(step)}.json")
        except AndreaError as error:
            say(f"passing over {stem(step)}: {error.message}")
    raise AndreaError(f"there is no complete checkpoint in {folder}", "begin a new run: andrea run --out NEW")
