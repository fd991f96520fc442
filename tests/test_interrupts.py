"""Signals: remembered between steps, in the shell's exit codes, and what they leave on disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from andrea.checkpoint import complete_steps, read_checkpoint
from andrea.interrupts import Interrupts, exit_code, leaving

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="these signals are POSIX")


# -- in this process ---------------------------------------------------------------------------------------------------


def test_signals_are_remembered_in_order_until_taken():
    """What arrives inside the block is kept, taken once, and handlers are put back afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts() as interrupts:
        assert not interrupts.stop_asked()
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1):
            os.kill(os.getpid(), number)
        assert interrupts.take() == ["SIGUSR1", "SIGTERM", "SIGUSR1"]
        assert interrupts.take() == []
        assert interrupts.stop_asked()
        assert interrupts.stopped_by == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_request_for_a_checkpoint_is_no_stop():
    """SIGUSR1 alone does not ask the run to end."""
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert interrupts.take() == ["SIGUSR1"]
        assert not interrupts.stop_asked()


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_the_exit_code_is_the_shells(name, code):
    """128 and the number of the signal, inside a run and outside of one."""
    assert exit_code(name) == code

    def wait():
        os.kill(os.getpid(), signal.Signals[name])
        time.sleep(5)  # the handler runs before this is over

    with pytest.raises(SystemExit) as caught, leaving():
        wait()
    assert caught.value.code == code


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.fixture
def start(current_folder):
    """Return a function that starts ``andrea`` in a process of its own, with standard error to be read."""
    started = []

    def call(*arguments):
        command = [sys.executable, "-m", "andrea", *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield call
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for_line(process, beginning):
    """Read standard error up to a line that begins so."""
    for line in process.stderr:
        if line.startswith(beginning):
            return line
    raise AssertionError(f"the process ended without a line that begins with {beginning!r}")


LONG = ["--set", "checkpoints.every=0", "--set", "log.console.every=5", "--set", "sampling.sample_every=0"]


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_saves_and_ends_and_the_resume_equals_an_uncut_run(
    start, andrea, experiment, current_folder, name, code
):
    """A signal amid the steps: a checkpoint of that very step, the exit code, and the same end with ``==``."""
    process = start("run", experiment, "--out", "cut", "--steps", 5000, "--device", "cpu", *LONG)
    wait_for_line(process, "step 20/")
    process.send_signal(signal.Signals[name])
    _, err = process.communicate(timeout=60)

    assert process.returncode == code, err
    assert f": {name}" in next(line for line in err.splitlines() if line.startswith("finished after"))
    assert err.splitlines()[-1] == "  go on:         andrea run --resume --out cut --steps 5000"
    steps = complete_steps(current_folder / "cut" / "checkpoints")
    assert len(steps) == 1
    assert 20 <= steps[0] < 5000
    total = steps[0] + 15
    assert andrea("run", "--resume", "--out", "cut", "--steps", total, "--device", "cpu").code == 0
    assert andrea("run", experiment, "--out", "uncut", "--steps", total, "--device", "cpu", *LONG).code == 0
    for suffix in ("bin", "npz", "json"):
        path = f"checkpoints/step_{total:06d}.{suffix}"
        assert (current_folder / "cut" / path).read_bytes() == (current_folder / "uncut" / path).read_bytes()
    assert (current_folder / "cut" / "journal.jsonl").read_bytes() == (
        current_folder / "uncut" / "journal.jsonl"
    ).read_bytes()


def test_sigusr1_saves_and_goes_on(start, experiment, current_folder):
    """The run writes a checkpoint at the signal, and ends by itself with exit code 0."""
    process = start("run", experiment, "--out", "run", "--steps", 400, "--device", "cpu", *LONG)
    wait_for_line(process, "step 20/")
    process.send_signal(signal.SIGUSR1)
    _, err = process.communicate(timeout=60)

    assert process.returncode == 0, err
    steps = complete_steps(current_folder / "run" / "checkpoints")
    assert len(steps) == 2
    assert 20 <= steps[0] < steps[1] == 400
    assert read_checkpoint(current_folder / "run" / "checkpoints" / f"step_{steps[0]:06d}").step == steps[0]


SLOW_READER = """
import sys, time
from andrea import store
from andrea.cli import main
real = store.keep

def slow(*arguments):
    for number, pair in enumerate(real(*arguments)):
        time.sleep(0.002)
        yield pair

store.keep, store._REPORT_EVERY = slow, 8
sys.argv = ["andrea", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
@pytest.mark.parametrize(
    "command",
    [
        ["run", "EXPERIMENT", "--out", "made", "--device", "cpu", "--steps", "3"],
        ["prepare", "EXPERIMENT"],
        ["tokenizer", "train", "EXPERIMENT", "--out", "made"],
        ["tokenizer", "diet", "EXPERIMENT", "--sizes", "9", "--plot", "made.svg"],
    ],
    ids=["run", "prepare", "train", "diet"],
)
def test_a_signal_while_data_is_prepared_leaves_a_usable_cache(
    andrea, experiment, current_folder, monkeypatch, command, name, code
):
    """A signal during the preparation ends it with its code and nothing made; the same command then goes on."""
    monkeypatch.setenv("ANDREA_CACHE", str(current_folder / "cache"))
    command = [experiment if part == "EXPERIMENT" else part for part in command]
    before = {path.name for path in current_folder.iterdir()}
    with subprocess.Popen([sys.executable, "-c", SLOW_READER, *command], stderr=subprocess.PIPE, text=True) as process:
        wait_for_line(process, "reading one")
        process.send_signal(signal.Signals[name])
        err = process.stderr.read()
        process.wait(60)

    assert process.returncode == code, err
    assert "the same command again goes on" in err
    assert "Traceback" not in err
    assert {path.name for path in current_folder.iterdir()} == before | {"cache"}
    assert not list((current_folder / "cache").glob("*/*.partial"))
    assert andrea(*command).code == 0


STUCK = """
import sys, time
from andrea import {module}
from andrea.cli import main

def stuck(*arguments):
    print("stuck ...", file=sys.stderr, flush=True)
    time.sleep(60)

{module}.{function} = stuck
sys.argv = ["andrea", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
@pytest.mark.parametrize(
    ("module", "function", "command"),
    [
        ("vocabulary", "copy_tokenizer", ["train", "EXPERIMENT", "--out", "made"]),
        ("diet", "saturation", ["diet", "EXPERIMENT", "--sizes", "9", "--plot", "made.svg"]),
        ("vocabulary", "known_uses", ["inspect", "ready"]),
    ],
    ids=["train", "diet", "inspect"],
)
def test_a_signal_ends_whatever_a_tokenizer_command_does(
    andrea, experiment, current_folder, module, function, command, name, code
):
    """Outside of preparing, `andrea tokenizer` ends at once, with the code of the signal and nothing half written."""
    assert andrea("tokenizer", "train", experiment, "--out", "ready").code == 0
    command = [experiment if part == "EXPERIMENT" else part for part in command]
    before = {path.name for path in current_folder.iterdir()}
    script = STUCK.format(module=module, function=function)
    with subprocess.Popen(
        [sys.executable, "-c", script, "tokenizer", *command], stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for_line(process, "stuck")
        process.send_signal(signal.Signals[name])
        err = process.stderr.read()
        process.wait(30)

    assert process.returncode == code
    assert err == ""
    assert {path.name for path in current_folder.iterdir()} == before


def test_a_signal_while_a_tokenizer_is_trained_ends_at_the_next_document(experiment, current_folder, monkeypatch):
    """The sample of a tokenizer stops where the user stops it."""
    monkeypatch.setenv("ANDREA_CACHE", str(current_folder / "cache"))
    script = """
import sys, time
from andrea import store
from andrea.cli import main
real = store.Store.sample

def slow(self, budget):
    for text in real(self, budget):
        time.sleep(0.05)
        yield text

store.Store.sample = slow
sys.argv = ["andrea", *sys.argv[1:]]
main()
"""
    arguments = ["tokenizer", "train", experiment, "--plugin", "tokenizer.harris", "--out", "made"]
    with subprocess.Popen([sys.executable, "-c", script, *arguments], stderr=subprocess.PIPE, text=True) as process:
        wait_for_line(process, "training the tokenizer")
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        err = process.stderr.read()
        process.wait(60)
    assert process.returncode == 130, err
    assert time.monotonic() - started < 10  # the sample alone takes longer
    assert not (current_folder / "made").exists()


def test_a_second_sigint_ends_at_once(start, experiment):
    """Who presses Ctrl-C twice does not wait: exit code 130, no traceback."""
    blocked = """
import sys
from andrea import checkpoint
from andrea.cli import main
import time

def stuck(folder, snapshot):
    print("stuck ...", file=sys.stderr, flush=True)
    time.sleep(60)

checkpoint.write_checkpoint = stuck
sys.argv = ["andrea", *sys.argv[1:]]
main()
"""
    command = [sys.executable, "-c", blocked, "run", experiment, "--out", "run", "--device", "cpu", *LONG]
    with subprocess.Popen([*command, "--steps", "5000"], stderr=subprocess.PIPE, text=True) as process:
        wait_for_line(process, "step 5/")
        process.send_signal(signal.SIGINT)
        wait_for_line(process, "stuck")
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        err = process.stderr.read()
        process.wait(30)

    assert process.returncode == 130
    assert time.monotonic() - started < 10  # far below the 60 seconds of the write that is stuck
    assert "Traceback" not in err
