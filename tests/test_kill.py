"""Runs killed without warning, at random and at every system call of a checkpoint: nothing is lost or half read."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from andrea.checkpoint import complete_steps, newest_checkpoint

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no SIGKILL")

# One process forks a child for each kill, so that the cost of starting Python is paid once. A child resumes from the
# newest checkpoint, checks that it is whole and of one piece, and writes the next ones, telling of each that is done.
WRITER = """
import os, sys
from pathlib import Path
import numpy as np
from andrea.checkpoint import Checkpoints, Snapshot, complete_steps, newest_checkpoint
from andrea.config import CheckpointConfig

def snapshot(step):
    full = {name: np.full(6_000, step + part / 4, dtype=np.float32)
            for part, name in enumerate(("weights", "first_moments", "second_moments"))}
    plugins = {"p": {"array": np.full(2_000, step), "number": step}}
    return Snapshot(step, full, {"index": np.array([step])}, plugins, {"journal": step})

def write(folder, out, stop=10**9):
    said = []
    step = newest_checkpoint(folder, said.append).step if complete_steps(folder) else 0
    assert not said, said
    checkpoints = Checkpoints(folder, CheckpointConfig(keep=2))
    while step < stop:
        step += 1
        checkpoints.save(snapshot(step), lambda: os.write(out, b"%d\\n" % step))
        checkpoints.wait()
"""

RANDOM = (
    WRITER
    + """
folder = Path(sys.argv[1])
for line in sys.stdin:
    child = os.fork()
    if not child:
        try:
            write(folder, 1)
        finally:
            os._exit(1)
    os.write(1, b"child %d\\n" % child)
    os.waitpid(child, 0)
    os.write(1, b"dead\\n")
"""
)

COUNTED = (
    WRITER
    + """
import pathlib, signal
calls, kill_at = 0, 0

def counted(real):
    def call(*arguments, **named):
        global calls
        calls += 1
        if calls == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)
    return call

for owner, name in ((os, "fsync"), (os, "replace"), (os, "open"), (pathlib.Path, "unlink"), (pathlib.Path, "open")):
    setattr(owner, name, counted(getattr(owner, name)))
for kill_at in range(1, 1000):
    child = os.fork()
    if not child:
        os.write(1, b"at %d\\n" % kill_at)
        folder = Path(sys.argv[1]) / str(kill_at)
        write(folder, 1, stop=3)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
"""
)


def check(folder, acknowledged):
    """Read the newest checkpoint, which must be of one piece and no older than the last that was acknowledged."""
    said = []
    if not complete_steps(folder):
        assert acknowledged == 0
        return 0
    newest = newest_checkpoint(folder, said.append)
    assert said == [], "a killed write left a checkpoint that looks complete and is damaged"
    assert newest.step >= acknowledged
    parts = [newest.engine[name] for name in ("weights", "first_moments", "second_moments")]
    assert all(np.all(array == newest.step + part / 4) for part, array in enumerate(parts))
    assert np.all(newest.plugins["p"]["array"] == newest.step)
    assert newest.plugins["p"]["number"] == newest.data["index"][0] == newest.record["journal"] == newest.step
    return newest.step


def test_a_hundred_kills_at_random_moments_lose_nothing(tmp_path):
    """After each of 100 SIGKILLs the newest checkpoint is whole and at least as new as the last acknowledged one."""
    delays = random.Random(7)
    writer = subprocess.Popen(
        [sys.executable, "-c", RANDOM, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    acknowledged, half = 0, 0
    with writer:
        for _ in range(100):
            writer.stdin.write("next\n")
            writer.stdin.flush()
            child = int(writer.stdout.readline().split()[1])
            time.sleep(delays.uniform(0.0, 0.08))  # some children are killed before, some during their first write
            os.kill(child, signal.SIGKILL)
            while (line := writer.stdout.readline().strip()) != "dead":
                acknowledged = int(line)
            half += bool(list(tmp_path.glob("*.partial")))
            acknowledged = check(tmp_path, acknowledged)
        writer.stdin.close()

    assert acknowledged > 20, "the children must have written"
    assert half > 5, "kills must have hit half-written files"


def test_a_kill_at_every_system_call_loses_nothing(tmp_path):
    """Three checkpoints, killed in front of each opening, fsync, rename and removal in turn, until none is left."""
    done = subprocess.run([sys.executable, "-c", COUNTED, str(tmp_path)], capture_output=True, text=True, check=True)
    ended = [part.split() for part in done.stdout.split("at ")[1:]]

    assert len(ended) > 40, "every call of three checkpoints is a place to be killed at"
    assert ended[-1][1:] == ["1", "2", "3"], "the last one came through"
    steps = [check(tmp_path / kill_at, max(map(int, told), default=0)) for kill_at, *told in ended]
    assert steps == sorted(steps)
    assert set(steps) == {0, 1, 2, 3}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_killed_run_resumes_to_the_uncut_one(experiment, andrea, current_folder, seed):
    """A real ``andrea run`` killed somewhere in its steps is resumed, and ends with the bytes of an uncut run."""
    settings = ["--set", "checkpoints.every=2", "--set", "checkpoints.keep=2", "--steps", "60", "--device", "cpu"]
    run = [sys.executable, "-m", "andrea", "run", experiment, "--out", "cut", *settings]
    journal = current_folder / "cut" / "journal.jsonl"
    with subprocess.Popen(run, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: complete_steps(current_folder / "cut" / "checkpoints"), process)
        time.sleep(random.Random(seed).uniform(0, 0.15))
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert complete_steps(current_folder / "cut" / "checkpoints")[-1] < 60

    assert andrea("run", "--resume", "--out", "cut", "--steps", "60", "--device", "cpu").code == 0
    assert andrea("run", experiment, "--out", "uncut", *settings).code == 0
    assert journal.read_bytes() == (current_folder / "uncut" / "journal.jsonl").read_bytes()
    for path in sorted((current_folder / "uncut").rglob("*")):
        if path.is_file():
            twin = current_folder / "cut" / path.relative_to(current_folder / "uncut")
            assert twin.read_bytes() == path.read_bytes(), path


def wait_for(condition, process):
    """Wait until something is so, while a process runs."""
    for _ in range(6000):
        if condition():
            return
        assert process.poll() is None, "the process ended before it came so far"
        time.sleep(0.005)
    raise AssertionError("it did not come so far in 30 seconds")
