"""Checkpoints: the published layout, exact round trips, and what is done about damage and full disks."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest

from andrea import checkpoint as module
from andrea.checkpoint import (
    Checkpoints,
    Snapshot,
    complete_steps,
    newest_checkpoint,
    newest_name,
    read_checkpoint,
    write_checkpoint,
)
from andrea.config import CheckpointConfig
from andrea.errors import AndreaError

PLUGINS = {
    "bandit.ucb1": {"means": np.array([1.5, np.nan, -np.inf]), "counts": np.array([3, 0, 2]), "total": 5},
    "sampler.dice": {"focus": [0, 2], "detail": {"start": 7, "nested": [[1, 2.5], {"a": None}]}, "name": "x"},
    "reward.ema_drop": {"odd": [float("inf"), float("-inf")], "nan": float("nan"), "seen": True, "zero": -0.0},
    "log.console": {},
    "mine.odd": {
        "a.b": np.arange(3),
        "a": {"b": np.arange(4), "$array": "text", "$float": "1", "$dict": {}},
        "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
        "empty": np.zeros((0, 2)),
        "scalar": np.array(2.5),
        "flags": np.array([True, False]),
        "big": 2**60,
        "arrays": [np.array([1], dtype=np.uint64), {"deep": np.array([b"ab"])}],
        "": "an empty key",
        "é/../x": np.ones(1),
    },
}


def make_snapshot(step=3, size=6, plugins=PLUGINS, **changes):
    """Return a snapshot with weights that say of which step they are."""
    engine = {
        "weights": np.arange(size, dtype=np.float32) + step,
        "first_moments": np.full(size, 0.5, dtype=np.float32),
        "second_moments": np.full(size, 0.25, dtype=np.float32),
        "applied_updates": np.array([step], dtype=np.int64),
    }
    data = {"sources": ["one"], "seed": 0, "epoch": np.array([1]), "index": np.array([2])}
    record = {"config": {"name": "x"}, "reasons": {}, "journal": 17, "fingerprint": {"a": "b"}}
    return Snapshot(step, {**engine, **changes}, data, plugins, record)


def same(left, right):
    """Say whether two state values are equal bit for bit, types included."""
    if isinstance(left, np.ndarray):
        return isinstance(right, np.ndarray) and (left.dtype, left.shape, left.tobytes()) == (
            right.dtype,
            right.shape,
            right.tobytes(),
        )
    if isinstance(left, dict):
        return isinstance(right, dict) and list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and repr(left) == repr(right)


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the complete checkpoints of steps 1, 2 and 3."""
    for step in (1, 2, 3):
        write_checkpoint(tmp_path, make_snapshot(step))
    return tmp_path


# -- what is written ---------------------------------------------------------------------------------------------------


def test_the_bin_file_has_the_published_layout(tmp_path):
    """[int32 step][int32 P][P float32 weights][P first moments][P second moments], little-endian, nothing else."""
    write_checkpoint(tmp_path, make_snapshot(258, size=2))

    content = (tmp_path / "step_000258.bin").read_bytes()

    assert content == struct.pack("<ii", 258, 2) + struct.pack("<6f", 258, 259, 0.5, 0.5, 0.25, 0.25)
    assert content[:8] == bytes([2, 1, 0, 0, 2, 0, 0, 0])


def test_weights_of_the_other_byte_order_are_written_little_endian(tmp_path):
    """The file does not depend on how the engine holds its numbers."""
    snapshot = make_snapshot(1, size=2)
    turned = {k: v.astype(">f4") for k, v in snapshot.engine.items() if v.dtype == np.float32}
    write_checkpoint(tmp_path, make_snapshot(1, size=2, **turned))

    assert (tmp_path / "step_000001.bin").read_bytes()[8:12] == struct.pack("<f", 1.0)


def test_three_files_and_nothing_else_are_written(tmp_path):
    """No temporary file stays, and names sort up to a million steps and beyond."""
    write_checkpoint(tmp_path, make_snapshot(7))
    write_checkpoint(tmp_path, make_snapshot(1234567))

    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"{stem}.{end}" for stem in ("step_000007", "step_1234567") for end in ("bin", "json", "npz")]
    assert complete_steps(tmp_path) == [7, 1234567]
    assert newest_name(tmp_path) == "step_1234567.json"


def test_every_kind_of_state_comes_back_as_it_was(tmp_path):
    """Arrays of every type and shape, NaN, infinities, -0.0, nested lists and dicts, keys that look like markers."""
    wanted = make_snapshot()
    read = read_checkpoint(write_checkpoint(tmp_path, wanted))

    assert read.step == wanted.step
    assert same(dict(read.plugins), dict(wanted.plugins))
    assert list(read.plugins) == list(wanted.plugins), "the call order is part of the state"
    assert same(dict(sorted(read.engine.items())), dict(sorted(wanted.engine.items())))
    assert same(dict(read.data), dict(wanted.data))
    for key, value in wanted.record.items():
        assert read.record[key] == value


def test_the_same_snapshot_gives_the_same_bytes(tmp_path):
    """No clock, no order of a set and no name of a folder gets into a checkpoint."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_checkpoint(tmp_path / name, make_snapshot())

    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_a_checkpoint_is_found_by_any_of_its_files(folder):
    """The path may be that of the .json, .bin or .npz, or have no suffix."""
    for name in ("step_000002.json", "step_000002.bin", "step_000002.npz", "step_000002"):
        assert read_checkpoint(folder / name).step == 2


def test_an_array_of_python_objects_is_refused(tmp_path):
    """What would need pickle is a plugin author's error, and nothing is completed."""
    with pytest.raises(TypeError, match="array of Python objects"):
        write_checkpoint(tmp_path, make_snapshot(plugins={"mine": {"x": np.array([object()])}}))

    assert complete_steps(tmp_path) == []


def test_the_npz_is_readable_without_andrea(folder):
    """Arrays lie in a plain .npz, under names that say whose they are, and none is pickled."""
    with np.load(folder / "step_000003.npz", allow_pickle=False) as file:
        assert file["plugin.bandit.ucb1.counts"].tolist() == [3, 0, 2]
        assert file["data.index"].tolist() == [2]
        assert file["engine.applied_updates"].tolist() == [3]


# -- damage ------------------------------------------------------------------------------------------------------------


def flip(path, position):
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def passed_over(folder):
    """Return the step that a resume would go on from, and what it said about the others."""
    said = []
    return newest_checkpoint(folder, said.append).step, said


@pytest.mark.parametrize("suffix", ["bin", "npz", "json"])
@pytest.mark.parametrize("place", [0, 0.5, -1])
def test_one_changed_bit_anywhere_is_noticed(folder, suffix, place):
    """A checkpoint with a flipped bit is damaged, is named, and the one before it is taken."""
    path = folder / f"step_000003.{suffix}"
    size = path.stat().st_size
    position = int(place * size) if place >= 0 else size - 3  # the end of the JSON is a newline and a brace
    flip(path, position)

    with pytest.raises(AndreaError) as caught:
        read_checkpoint(path)
    assert f"step_000003.{suffix}" in caught.value.message

    step, said = passed_over(folder)
    assert step == 2
    assert len(said) == 1
    assert said[0].startswith("passing over step_000003: ")


def test_a_changed_digit_in_the_record_is_noticed(folder):
    """The .json vouches for itself too: a number of a plugin's state cannot change unseen."""
    path = folder / "step_000003.json"
    text = path.read_text()
    assert text.count('"total": 5') == 1
    path.write_text(text.replace('"total": 5', '"total": 6'))

    with pytest.raises(AndreaError, match=r"step_000003.json is damaged"):
        read_checkpoint(path)
    assert passed_over(folder)[0] == 2


@pytest.mark.parametrize("suffix", ["bin", "npz"])
@pytest.mark.parametrize("fault", ["missing", "cut", "empty", "other"])
def test_a_missing_cut_or_foreign_file_is_noticed(folder, suffix, fault):
    """A file that is gone, half there, empty, or of another step makes its checkpoint damaged."""
    path = folder / f"step_000003.{suffix}"
    content = path.read_bytes()
    if fault == "missing":
        path.unlink()
    elif fault == "other":
        other = make_snapshot(2, plugins={})
        shutil.copy(write_checkpoint(folder, other).with_suffix(f".{suffix}"), path)
        write_checkpoint(folder, make_snapshot(2))
    else:
        path.write_bytes(content[: len(content) // 2] if fault == "cut" else b"")

    with pytest.raises(AndreaError, match=rf"step_000003\.{suffix}"):
        read_checkpoint(path)
    assert passed_over(folder)[0] == 2


@pytest.mark.parametrize(
    "record",
    [b"", b"[]", b"{}", b"3", b'{"format": 99}', b'{"format": 1}', b'{"format": 1, "sha256": 3}', b"\xff\xfe", b"{"],
)
def test_a_record_of_something_else_is_refused(folder, record):
    """An empty, foreign, cut or newer .json is an error of the user's that names the file."""
    (folder / "step_000003.json").write_bytes(record)

    with pytest.raises(AndreaError, match=r"step_000003\.json"):
        read_checkpoint(folder / "step_000003.json")
    assert passed_over(folder)[0] == 2


def test_damage_is_passed_over_until_a_whole_one(folder):
    """Two damaged checkpoints are both named, newest first; with none left, that is an error."""
    for step in (3, 2):
        flip(folder / f"step_{step:06d}.bin", 20)
    step, said = passed_over(folder)
    assert step == 1
    assert [re.search(r"step_\d+", line)[0] for line in said] == ["step_000003", "step_000002"]

    flip(folder / "step_000001.npz", 20)
    with pytest.raises(AndreaError, match="no complete checkpoint"):
        passed_over(folder)


def test_a_checkpoint_without_its_json_does_not_exist(folder):
    """The .json is written last, so where it is missing the checkpoint was never finished."""
    (folder / "step_000003.json").unlink()

    assert complete_steps(folder) == [1, 2]
    assert passed_over(folder) == (2, [])


def test_other_files_are_no_checkpoints(tmp_path):
    """Only whole names count; a folder that is not there has none."""
    for name in ("step_1.json", "step_000001.json.partial", "xstep_000001.json", "step_000001.jsonl", "notes.txt"):
        (tmp_path / name).write_text("{}")

    assert complete_steps(tmp_path) == []
    assert complete_steps(tmp_path / "none") == []
    assert newest_name(tmp_path) == ""


# -- which stay --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "keep_every", "stay"),
    [(1, 0, [60]), (3, 0, [40, 50, 60]), (2, 20, [20, 40, 50, 60]), (9, 0, [10, 20, 30, 40, 50, 60])],
)
def test_the_last_ones_and_every_so_many_th_stay(tmp_path, keep, keep_every, stay):
    """The last `keep` and those of every `keep_every`-th step stay, whole; of the others nothing is left."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", CheckpointConfig(keep=keep, keep_every=keep_every))
    for step in range(10, 70, 10):
        checkpoints.save(make_snapshot(step))
    checkpoints.wait()

    assert complete_steps(checkpoints.folder) == stay
    assert len(list(checkpoints.folder.iterdir())) == 3 * len(stay)
    assert all(read_checkpoint(checkpoints.folder / f"step_{step:06d}").step == step for step in stay)


def test_what_a_killed_write_left_is_cleared_away(tmp_path):
    """Files of an unfinished checkpoint go with the next one; foreign files stay."""
    for name in ("step_000005.bin", "step_000005.npz.partial", "notes.txt"):
        (tmp_path / name).write_text("x")
    checkpoints = Checkpoints(tmp_path, CheckpointConfig())
    checkpoints.save(make_snapshot(6))
    checkpoints.wait()

    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "notes.txt",
        "step_000006.bin",
        "step_000006.json",
        "step_000006.npz",
    ]


def test_one_write_at_a_time_goes_on_in_the_background(tmp_path, monkeypatch):
    """Save returns before the write is done; the next save waits for it; finish comes after the marker."""
    gate, order = threading.Event(), []
    real = module.write_checkpoint

    def slow(folder, snapshot):
        gate.wait(10)
        order.append(snapshot.step)
        return real(folder, snapshot)

    monkeypatch.setattr(module, "write_checkpoint", slow)
    checkpoints = Checkpoints(tmp_path, CheckpointConfig())
    checkpoints.save(make_snapshot(1), lambda: order.append(newest_name(tmp_path)))
    assert order == []
    gate.set()
    checkpoints.save(make_snapshot(2))
    assert order[:2] == [1, "step_000001.json"]
    checkpoints.wait()

    assert order == [1, "step_000001.json", 2]


# -- what must never be saved ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["weights", "first_moments", "second_moments"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_state_that_is_not_finite_is_never_saved(tmp_path, name, value):
    """One value that is not finite refuses the checkpoint and names the last good one, which stays."""
    checkpoints = Checkpoints(tmp_path, CheckpointConfig())
    checkpoints.save(make_snapshot(1))
    checkpoints.wait()
    bad = np.zeros(6, dtype=np.float32)
    bad[4] = value

    with pytest.raises(AndreaError, match=f"{name.replace('_', ' ')} are not finite after step 2") as caught:
        checkpoints.save(make_snapshot(2, **{name: bad}))

    assert "step_000001.json" in caught.value.hint
    checkpoints.wait()
    assert complete_steps(tmp_path) == [1]


# -- a full disk -------------------------------------------------------------------------------------------------------


class Full:
    """Lets the system's calls that make a checkpoint durable work until one of them, which finds the disk full."""

    def __init__(self, monkeypatch, fails_at):
        self.calls, self._fails_at = 0, fails_at
        for owner, name in ((os, "fsync"), (os, "replace"), (os, "open")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))
        monkeypatch.setattr("pathlib.Path.open", self._counted_open())

    def _count(self):
        self.calls += 1
        if self.calls == self._fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")

    def _counted(self, real):
        def call(*arguments, **named):
            self._count()
            return real(*arguments, **named)

        return call

    def _counted_open(self):
        full = self

        def call(path, mode="r", *arguments, **named):
            file = open(path, mode, *arguments, **named)  # noqa: PTH123, SIM115
            if "w" not in mode:
                return file
            file.close()
            raw = FullFile(path, "w")
            raw.full = full
            return io.BufferedWriter(raw)

        return call


class FullFile(io.FileIO):
    """A file whose writes count as calls."""

    def write(self, data):
        self.full._count()
        return super().write(data)


def save_on_full_disk(folder, fails_at):
    """Save step 2 where step 1 is whole and the `fails_at`-th call finds the disk full; return error and calls."""
    checkpoints = Checkpoints(folder, CheckpointConfig())
    checkpoints.save(make_snapshot(1))
    checkpoints.wait()
    with pytest.MonkeyPatch.context() as patch:
        full = Full(patch, fails_at)
        checkpoints.save(make_snapshot(2))
        try:
            checkpoints.wait()
        except AndreaError as error:
            return error, full.calls
    return None, full.calls


def test_a_disk_that_is_full_at_any_call_leaves_the_last_good_checkpoint(tmp_path):
    """Whichever write, fsync, rename or folder sync fails: an error of the user's, no half file, step 1 is whole."""
    _, calls = save_on_full_disk(tmp_path / "whole", 0)
    assert calls > 10, "every call of a save is counted"

    for fails_at in range(1, calls + 1):
        folder = tmp_path / f"at{fails_at}"
        error, _ = save_on_full_disk(folder, fails_at)

        assert error is not None, fails_at
        assert "No space left on device" in error.message
        assert "make room" in error.hint
        step, said = passed_over(folder)
        assert said == []
        assert step == (2 if "step_000002.json" in error.hint else 1)
        assert read_checkpoint(folder / "step_000001").step == 1
        assert not list(folder.glob("*.partial")), "half files would take the room that is needed"

        again = Checkpoints(folder, CheckpointConfig())
        again.save(make_snapshot(3))
        again.wait()
        assert passed_over(folder) == (3, [])


LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then a write beyond the limit is an OSError, as on a full disk
from andrea import journal, loop
from andrea.cli import main
real = loop.Loop.save_now

def save_now(self, *arguments):
    if self._step == 20:
        self.checkpoints.wait()  # the one of step 10 is whole
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
    real(self, *arguments)

loop.Loop.save_now = save_now
sys.argv = ["andrea", *sys.argv[1:]]
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
def test_a_run_that_the_system_lets_write_no_more_ends_with_its_last_checkpoint(experiment, andrea, current_folder):
    """Really refused writes at step 20: exit 2, the reason said, the checkpoint of step 10 whole; then it resumes."""
    command = [sys.executable, "-c", LIMITED, "run", experiment, "--out", "run", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 2, done.stderr
    assert "error: cannot write" in done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert passed_over(current_folder / "run" / "checkpoints") == (10, [])

    assert andrea("run", "--resume", "--out", "run", "--device", "cpu").code == 0
    assert andrea("run", experiment, "--out", "uncut", "--device", "cpu").code == 0
    for path in (current_folder / "uncut").rglob("step_000030.*"):
        assert path.read_bytes() == (current_folder / "run" / "checkpoints" / path.name).read_bytes()
    assert json.loads((current_folder / "run" / "tiny.loss.json").read_text())[-1][0] == 29
