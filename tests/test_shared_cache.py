"""A cache of prepared data that several users of a machine share: who may only read there finds what is whole."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Root may write wherever it likes, unless it gives up the right to.
BOUND = (
    ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if hasattr(os, "geteuid") and not os.geteuid() else []
)

pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or (bool(BOUND) and not shutil.which("setpriv")), reason="rights of users are of Unix"
)


@pytest.fixture
def shared(andrea, experiment, current_folder, monkeypatch):
    """Yield a cache that was filled and can only be read from then on, without a memory of unchanged files."""
    cache = current_folder / "shared"
    monkeypatch.setenv("ANDREA_CACHE", str(cache))
    assert andrea("prepare", experiment).code == 0
    shutil.rmtree(cache / "unchanged", ignore_errors=True)
    allow(cache, 0o555, 0o444)
    yield cache
    allow(cache, 0o755, 0o644)


def allow(cache, folders, files):
    for path in [cache, *cache.rglob("*")]:
        path.chmod(folders if path.is_dir() else files)


def command(*arguments):
    """Return a command of someone whose rights are those that files and folders give."""
    return [*BOUND, sys.executable, "-m", "andrea", *map(str, arguments)]


def reader(*arguments):
    """Run a command as someone who may only read the cache."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=120)


def test_who_may_only_read_finds_what_is_whole(shared, andrea, experiment):
    """A run on the same data as for who made it, with nothing written; a report of the machine says so."""
    before = {path: path.stat().st_mtime_ns for path in shared.rglob("*")}
    ran = reader("run", experiment, "--steps", 1, "--device", "cpu", "--out", "run")
    assert ran.returncode == 0, ran.stderr
    assert "reading one" in ran.stderr
    doctor = json.loads(reader("doctor", experiment, "--json").stdout)
    assert doctor["problems"] == []
    assert (
        doctor["cache"] == f"{shared}, which can only be read: what was prepared there is found, and nothing is added"
    )
    assert {path: path.stat().st_mtime_ns for path in shared.rglob("*")} == before
    allow(shared, 0o755, 0o644)
    record = json.loads(Path("run/checkpoints/step_000001.json").read_text())
    assert json.loads(andrea("prepare", experiment, "--json").out)["sha256"] == record["data_sha256"]


def test_what_is_missing_cannot_be_added(shared, experiment):
    """It is said with the place, before a tokenizer is trained in vain."""
    refused = reader("prepare", experiment, "--plugin", "tokenizer.bpe")
    assert refused.returncode == 2
    assert f"cannot write prepared data at {shared / 'tokenizers'}" in refused.stderr
    assert "ANDREA_CACHE=FOLDER" in refused.stderr
    assert "training the tokenizer" not in refused.stderr


def test_a_lock_of_another_user_is_waited_for(shared, experiment):
    """In a folder where both may write, though the lock's file is not ours to write."""
    fcntl = pytest.importorskip("fcntl")
    allow(shared, 0o755, 0o644)
    (shared / "lock").chmod(0o444)
    with (shared / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        process = subprocess.Popen(command("prepare", experiment), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert process.stderr.readline() == b"waiting for another preparation ...\n"
        fcntl.flock(file, fcntl.LOCK_UN)
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_an_empty_cache_that_cannot_be_written_is_said_first(current_folder, experiment, monkeypatch):
    """There is nothing to find in it."""
    cache = current_folder / "empty"
    cache.mkdir(mode=0o555)
    monkeypatch.setenv("ANDREA_CACHE", str(cache))
    refused = reader("prepare", experiment)
    assert refused.returncode == 2
    assert f"cannot write prepared data at {cache / 'lock'}" in refused.stderr
    assert "reading" not in refused.stderr
