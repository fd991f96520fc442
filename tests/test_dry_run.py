"""`andrea prepare --dry-run`, and preparing with processes from the command line."""

from __future__ import annotations

import json
from pathlib import Path

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


def text(name, path, **options):
    return {"name": name, "reader": "source.text", "options": {"path": path, **options}}


TWICE = [
    ([text("a", "texts"), text("b", "texts/1.txt")], "by source a and by source b"),
    ([text("a", "texts/*.txt", chunk=100), text("b", ["texts/1.txt"], chunk=100)], "by source a and by source b"),
    (
        [{"name": "a", "inputs": [{"reader": "source.text", "options": {"path": "texts/1.txt"}}] * 2}],
        "by source a, input 1 and by source a, input 2",
    ),
]


@pytest.fixture
def texts(current_folder):
    """Make a folder with three texts, one of which has rows."""
    (current_folder / "texts").mkdir()
    for number in range(2):
        lines = (f"line {line} of text {number}, which has some words\n\n" for line in range(600))
        (current_folder / f"texts/{number}.txt").write_text("".join(lines))
    (current_folder / "texts/rows.jsonl").write_text('{"text": "ask for rain", "reply": "it grows"}\n' * 40)


@pytest.mark.parametrize(("sources", "said"), TWICE)
def test_a_file_of_two_sources_is_refused(texts, andrea, tiny, write_experiment, sources, said):
    """Its text would count twice, and one would train on what the other holds out."""
    tiny["sources"] = sources
    name = write_experiment(tiny)
    for command in (("prepare", name), ("prepare", name, "--dry-run"), ("run", name, "--device", "cpu")):
        ended = andrea(*command)
        assert ended.code == 2
        assert "texts/1.txt is given twice, " + said in ended.err.replace(f"{Path.cwd()}/", "")
        assert "reading" not in ended.err
    ended = andrea("doctor", name)
    assert (ended.code, "is given twice" in ended.out) == (2, True)


def test_a_filter_that_knows_duplicates_allows_a_file_twice(texts, andrea, tiny, write_experiment):
    """What was there before is dropped, so that one source may be a part of another's folder."""
    tiny["sources"] = [text("part", "texts/1.txt"), text("rest", "texts")]
    tiny["plugins"]["filter.duplicate"] = {}
    ended = andrea("prepare", write_experiment(tiny), "--json")
    assert ended.code == 0, ended.err
    part, rest = json.loads(ended.out)["sources"]
    assert rest["dropped"] == {"duplicate of an earlier document": part["kept"]}


def test_a_file_may_give_two_sources_other_text(texts, andrea, tiny, write_experiment):
    """Two fields of the same rows are two sources; of other options too only the reader knows what they mean."""
    tiny["sources"] = [
        {"name": name, "reader": "source.jsonl", "options": {"path": "texts/rows.jsonl", "text": name}}
        for name in ("text", "reply")
    ]
    tiny["sources"] += [text("long", "texts"), text("short", "texts/1.txt", chunk=100)]
    ended = andrea("prepare", write_experiment(tiny))
    assert ended.code == 0, ended.err


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
