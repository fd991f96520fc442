"""`andrea prepare --dry-run`, and preparing with processes from the command line."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def filtered(tiny, write_experiment, monkeypatch, current_folder):
    """Return an experiment with filters, in a cache of its own."""
    monkeypatch.setenv("ANDREA_CACHE", str(current_folder / "cache"))
    tiny["plugins"]["filter.length"] = {"min_characters": 100}
    tiny["plugins"]["filter.duplicate"] = {}
    twice = {"reader": "source.jsonl", "options": tiny["sources"][0]["options"]}
    tiny["sources"].append({"name": "both", "inputs": [twice, twice], "licence": "CC0"})
    tiny["sources"][2]["inputs"].append({"reader": "source.docstrings", "options": {"packages": ["json"]}})
    return write_experiment(tiny)


def test_a_dry_run_writes_nothing_and_reports_what_a_preparation_would(filtered, andrea, current_folder):
    """Kept, bytes and reasons are those of the manifests; no file is made."""
    before = sorted(current_folder.rglob("*"))
    dry = andrea("prepare", filtered, "--dry-run", "--json")
    assert dry.code == 0, dry.err
    assert sorted(current_folder.rglob("*")) == before
    table = andrea("prepare", filtered, "--dry-run").out
    assert "shorter than 100 characters" in table
    reports = json.loads(dry.out)["sources"]
    manifests = json.loads(andrea("prepare", filtered, "--json").out)["sources"]
    keys = ("source", "kept", "bytes", "dropped")
    assert reports == [{key: manifest[key] for key in keys} for manifest in manifests]
    dropped = reports[2]["dropped"]["duplicate of an earlier document"]
    assert dropped == 2 * reports[0]["kept"]  # both inputs repeat the first source
    assert manifests[2]["licences"] == ["CC0", "CC0", "CC0"]


def test_processes_prepare_the_same(filtered, andrea, current_folder, monkeypatch):
    """Plugins are made again in processes, and the files are those of one process."""

    def files(cache):
        found = {p.relative_to(cache).as_posix(): p.read_bytes() for p in sorted(cache.rglob("*")) if p.is_file()}
        assert len(found) >= 9
        return found

    monkeypatch.setenv("ANDREA_PROCESSES", "1")
    one = andrea("prepare", filtered, "--json")
    monkeypatch.setenv("ANDREA_PROCESSES", "2")
    monkeypatch.setenv("ANDREA_CACHE", str(current_folder / "other"))
    monkeypatch.setattr("andrea.tokens.SMALL_BYTES", 0)
    two = andrea("prepare", filtered, "--json")
    assert two.code == 0, two.err
    assert one.out == two.out
    assert files(current_folder / "cache") == files(current_folder / "other")


def test_a_nonsensical_number_of_processes_is_refused(filtered, andrea, monkeypatch):
    """It is the user's error, and nothing is read."""
    monkeypatch.setenv("ANDREA_PROCESSES", "few")
    ended = andrea("prepare", filtered)
    assert ended.code == 2
    assert "ANDREA_PROCESSES is 'few'" in ended.err
