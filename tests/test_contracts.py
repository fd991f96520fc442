"""Every installed plugin keeps every contract of its kind."""

from __future__ import annotations

import json
import subprocess

import pytest

from andrea.registry import available
from andrea.testing import SOURCES, check_plugin, run_steps

OPTIONS = {
    "bandit.fixed": {"weights": {SOURCES[0]: 0.3, SOURCES[2]: 0.7}},
    "bandit.odm": {"warmup_share": 0.005},
    "filter.duplicate": {"near": True},
    "filter.length": {"min_characters": 20, "max_bytes": 500},
    "limit.caps": {"caps": {SOURCES[0]: 0.5, SOURCES[1]: 0.1}},
    "limit.floors": {"floors": {SOURCES[1]: 0.4}},
    "stop.coherence": {"grace_steps": 5, "threshold": 100.0, "failures": 2},
    "stop.human_range": {"grace_steps": 5, "failures": 1, "evaluations": 1},
    "stop.max_steps": {"steps": 10},
    "stop.not_finite": {"patience": 1},
    "reward.probe_all": {"probed": 2},
    "tokenizer.bpe": {"segments": 80},
    "tokenizer.harris": {"segments": 80},
    "weight.coverage_bonus": {"bonus": 2.0},
    "weight.warmup": {"curriculum_warmup_steps": 12, "curriculum_warmup_sources": [SOURCES[2], SOURCES[0]]},
}


ELSEWHERE = ("bandit.replay", "tokenizer.library")  # these need files, and so have a test of their own


READERS = (
    "text",
    "jsonl",
    "licences",
    "markdown",
    "docstrings",
    "commits",
    "parquet",
    "hub",
    "chat",
    "gutenberg",
    "dictionary",
)


@pytest.fixture
def texts(tmp_path):
    """Return a folder with something for every reader."""
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(f"Text {number}.\n\nAnother paragraph.\n", encoding="utf-8")
        (tmp_path / f"{number}.md").write_text(f"# Title {number}\n\nText.\n", encoding="utf-8")
        lines = "".join(json.dumps({"text": f"{number} {line}"}) + "\n" for line in range(4))
        (tmp_path / f"{number}.jsonl").write_text(lines, encoding="utf-8")
    return tmp_path


@pytest.fixture
def repository(tmp_path):
    """Return a git repository with three commits."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=Test", "-c", "user.email=test@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    for number in range(3):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", f"Change number {number}"], check=True)
    return tmp_path


@pytest.mark.parametrize(
    "name", [name for name in available() if not name.startswith("source.") and name not in ELSEWHERE]
)
def test_an_installed_plugin_keeps_its_contracts(name):
    """With options that make it act within the few steps of a contract, or with its defaults."""
    check_plugin(name, **OPTIONS.get(name, {}))


@pytest.mark.parametrize("order", ["average", "same", "reversed"])
def test_the_replay_of_another_run_keeps_its_contracts(order, tmp_path):
    """On the journal of a run of 12 steps, over whose end a contract's run goes on."""
    run_steps(["bandit.ucb1"], 12, folder=tmp_path)
    check_plugin("bandit.replay", path=str(tmp_path), order=order)


@pytest.mark.parametrize("name", ["source.text", "source.jsonl", "source.markdown", "source.gutenberg"])
def test_a_reader_of_files_keeps_its_contracts(name, texts):
    """On a folder with three files of its own."""
    check_plugin(name, path=str(texts))


def test_the_reader_of_docstrings_keeps_its_contracts():
    """On a package that is installed wherever this test runs."""
    check_plugin("source.docstrings", packages=["pluggy"])


def test_the_reader_of_licences_keeps_its_contracts():
    """On a distribution that is installed wherever this test runs."""
    check_plugin("source.licences", distributions=["numpy"])


def test_the_reader_of_commits_keeps_its_contracts(repository):
    """On a repository of three commits."""
    check_plugin("source.commits", path=str(repository))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("source.chat", {"path": "rows.parquet"}),
        ("source.parquet", {"path": "rows.parquet"}),
        ("source.dictionary", {"path": "rows.parquet", "word": "name", "definition": "text"}),
        ("source.hub", {"dataset": "."}),
    ],
)
def test_a_reader_of_rows_keeps_its_contracts(name, options, tmp_path, monkeypatch):
    """On a file with three rows of its own."""
    rows = [{"name": f"n{n}", "text": f"t{n}", "messages": [{"role": "user", "content": f"c{n}"}]} for n in range(3)]
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist(rows), tmp_path / "rows.parquet")
    monkeypatch.chdir(tmp_path)
    check_plugin(name, **options)


def test_no_installed_reader_is_left_out():
    """Readers need options of their own, so they stand above by name; a new one must be added there."""
    readers = {name for name in available() if name.startswith("source.")}
    assert readers == {f"source.{name}" for name in READERS}
