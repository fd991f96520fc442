"""What the tests of several packages share: a run of a second on text that is made here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from andrea.cli import main

WORDS = ("seed", "root", "leaf", "stem", "grows", "under", "rain", "and", "light")
EXPERIMENT: dict[str, Any] = {
    "name": "tiny",
    "model": {"n_layer": 1, "n_head": 2, "d_model": 8, "context": 16},
    "batch": {"batch_size": 4},
    "schedule": {"steps": 30, "warmup_steps": 5, "peak": 3e-3},
    "sampling": {"sample_every": 6, "count": 2, "max_tokens": 6, "prompts": ["seed", ""]},
    "evaluation": {"eval_every": 5, "rows": 4},
    "checkpoints": {"every": 10},
    "engine": {"threads": 1},
    "plugins": {"tokenizer.byte": {}, "bandit.ucb1": {}},
}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two sources, the file of an experiment on them, and a cache."""
    folder = tmp_path_factory.mktemp("tiny")
    for shift, name in enumerate(("one", "two")):
        texts = (" ".join(WORDS[(n * n + shift + k * k) % len(WORDS)] for k in range(12)) for n in range(30))
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    sources = [
        {"name": name, "reader": "source.jsonl", "options": {"path": str(folder / f"{name}.jsonl")}}
        for name in ("one", "two")
    ]
    (folder / "tiny.json").write_text(json.dumps({**EXPERIMENT, "sources": sources}))
    return folder


@pytest.fixture
def andrea(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return a function that runs a command line in this process, in a folder of its own, and returns the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANDREA_CACHE", str(tiny / "cache"))

    def call(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["andrea", *map(str, arguments)])
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    return call


@pytest.fixture
def log_runs(tiny: Path, andrea: Callable[..., int], tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """Return a function that makes two runs of 30 steps with a plugin: one at once, one killed at step 17.

    The second one goes on from its checkpoint of step 10, so that it makes steps 11 to 17 twice.
    """

    def make(*arguments: str) -> tuple[Path, Path]:
        command = ("run", tiny / "tiny.json", "--device", "cpu", *arguments)
        assert andrea(*command, "--out", "whole") == 0
        assert andrea(*command, "--out", "cut", "--steps", "17") == 0
        for path in Path("cut/checkpoints").glob("step_000017.*"):  # as if it had been killed, not stopped
            path.unlink()
        assert andrea("run", "--resume", "--out", "cut", "--device", "cpu", "--steps", "30") == 0
        return tmp_path / "whole", tmp_path / "cut"

    return make


@pytest.fixture
def interrupt(tiny: Path, tmp_path: Path) -> Callable[[Sequence[str], Path], int]:
    """Return a function that runs a command line in a process, ends it by SIGTERM in a step, and returns its code."""

    def run(arguments: Sequence[str], journal: Path) -> int:
        environment = {**os.environ, "ANDREA_CACHE": str(tiny / "cache")}
        command = [sys.executable, "-m", "andrea", "run", str(tiny / "tiny.json"), "--device", "cpu", *arguments]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
        for _ in range(6000):
            if journal.is_file() and journal.read_bytes().count(b'{"kind":"step"') > 25:
                break
            assert process.poll() is None, "it ended before it could be interrupted"
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        return process.wait(timeout=60)

    return run


@pytest.fixture
def journal_of() -> Callable[[Path], Iterator[dict[str, Any]]]:
    """Return a function that yields the lines of a run's journal."""

    def read(folder: Path) -> Iterator[dict[str, Any]]:
        return (json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines())

    return read
