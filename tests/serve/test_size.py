"""A hundred long runs in a folder: what the server takes of memory and time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

MOST_MEMORY = 150 * 2**20


@contextmanager
def serving(folder):
    """Yield (address, process) of a server in a process of its own."""
    command = [sys.executable, "-m", "andrea", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield re.search(r"http://[\d.:]+", process.stderr.readline())[0], psutil.Process(process.pid)
        finally:
            process.terminate()


def ask(url):
    """Return an answer and the seconds it took."""
    begin = time.monotonic()
    with urllib.request.urlopen(url, timeout=120) as answer:
        return answer.read(), time.monotonic() - begin


def highest(process):
    """Return the most memory that a process has had resident, in bytes."""
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        return process.memory_info().rss
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1])


@pytest.fixture
def hundred(tmp_path, long_run):
    """Yield a folder with a hundred runs of 200,000 steps, which share one file on the disk."""
    for number in range(100):
        folder = tmp_path / f"run-{number:03d}"
        folder.mkdir()
        for name in ("config.json", "journal.jsonl"):
            os.link(long_run / name, folder / name)
    return tmp_path


def test_a_hundred_runs_of_200_000_steps_take_less_than_150_mb(hundred):
    """Whatever is asked, of several runs one after the other; curves of all are there in seconds."""
    with serving(hundred) as (url, process):
        runs = json.loads(ask(f"{url}/runs")[0])["runs"]
        assert [run["step"] for run in runs] == [200_000] * 100
        text, seconds = ask(f"{url}/loss")
        curves = json.loads(text)["saved"]
        assert {len(points) for points in curves.values()} <= set(range(900, 1001))
        assert {points[-1][0] for points in curves.values()} == {199_999}
        for number in range(5):
            text, _ = ask(f"{url}/loss/run-{number:03d}")
            assert len(json.loads(text)["points"]) == 200_000
            assert len(json.loads(ask(f"{url}/samples/run-{number:03d}")[0])["samples"]) == 1600
            ask(f"{url}/history/run-{number:03d}")
        ask(f"{url}/metrics")
        memory = highest(process)
    print(f"memory of the server: {memory / 2**20:.0f} MiB; /loss of all: {seconds:.1f} s")
    assert memory < MOST_MEMORY
    assert seconds < 20  # a tenth of a second for a run is what it takes on a slow disk
