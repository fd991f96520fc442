"""A tiny experiment on text that is made here, and the command line called in this process."""

from __future__ import annotations

import json
import os
import shutil
import sys

import attrs
import numpy as np
import pytest

WORDS = ["seed", "root", "leaf", "stem", "grows", "under", "rain", "and", "light"]


def write_source(path, documents, seed):
    """Write a source of short documents made of few words."""
    rng = np.random.default_rng(seed)
    texts = (" ".join(rng.choice(WORDS, size=rng.integers(8, 30))) for _ in range(documents))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    """Return a folder with the text of two sources and a cache, which is filled once for all tests."""
    folder = tmp_path_factory.mktemp("shared")
    for seed, (name, documents) in enumerate((("one", 30), ("two", 40))):
        write_source(folder / f"{name}.jsonl", documents, seed)
    return folder


@pytest.fixture
def tiny(shared_folder):
    """Return the JSON value of an experiment that trains in a second, everything on that has a schedule."""
    return {
        "name": "tiny",
        "model": {"n_layer": 1, "n_head": 2, "d_model": 8, "context": 16},
        "batch": {"batch_size": 4},
        "schedule": {"steps": 30, "warmup_steps": 5, "peak": 3e-3},
        "sampling": {"sample_every": 7, "count": 2, "max_tokens": 6},
        "evaluation": {"eval_every": 10, "rows": 4},
        "checkpoints": {"every": 10},
        "engine": {"threads": 1},
        "sources": [
            {"name": name, "reader": "source.jsonl", "options": {"path": str(shared_folder / f"{name}.jsonl")}}
            for name in ("one", "two")
        ],
        "plugins": {"tokenizer.byte": {}, "bandit.ucb1": {}, "sampler.dice": {}, "weight.epoch_penalty": {}},
    }


@pytest.fixture
def current_folder(tmp_path, monkeypatch, shared_folder):
    """Make a temporary folder the current one, with a cache that is not the user's; return it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANDREA_CACHE", str(shared_folder / "cache"))
    return tmp_path


@pytest.fixture
def write_experiment(current_folder):
    """Return a function that writes an experiment's JSON value to a file and returns the file's name."""

    def write(value, name="tiny.json"):
        (current_folder / name).write_text(json.dumps(value))
        return name

    return write


@pytest.fixture
def experiment(tiny, write_experiment):
    """Return the name of the tiny experiment's file in the current folder."""
    return write_experiment(tiny)


@pytest.fixture(scope="module")
def chromium():
    """Yield a browser: of ANDREA_CHROMIUM, as ``.ci/browser`` sets it up, else a Chromium that is there, else skip."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    place = os.environ.get("ANDREA_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if "ANDREA_CHROMIUM" not in os.environ:
        for library in ("playwright", "axe_playwright_python"):
            pytest.importorskip(library, reason=f"{library} is not installed: .ci/browser does that")
        if place is None:
            pytest.skip("there is no Chromium: .ci/browser installs one")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=place)
        yield browser
        browser.close()


@attrs.frozen
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def andrea(current_folder, monkeypatch, capsys):
    """Return a function that runs a command line in this process, on the CPU, and says how it ended."""
    from andrea.cli import main

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["andrea", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        return Ended(code, out, err)

    return call
