"""Data is found again without reading, exactly as long as nothing that decides it has changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from andrea import hookimpl, option, plugin, registry, run_data, tokens, unchanged
from andrea.registry import find


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Return a folder of texts that count as settled at once, and a cache of one's own."""
    monkeypatch.setattr(unchanged, "SETTLED", -60.0)
    monkeypatch.setenv("ANDREA_CACHE", str(tmp_path / "own"))
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number}.txt").write_text(f"document {number} grows under rain and light\n")
    return folder


@pytest.fixture
def prepare(andrea, tiny, texts, write_experiment, monkeypatch):
    """Return a function that prepares the texts and says (digest of the data, whether sources were read)."""
    read = []
    honest = run_data.prepare
    monkeypatch.setattr(run_data, "prepare", lambda *a, **k: read.append(1) or honest(*a, **k))
    source = {"name": "one", "reader": "source.text", "options": {"path": str(texts)}}

    def call(**changes):
        read.clear()
        name = write_experiment({**tiny, "sources": [source], **changes}, "texts.json")
        ended = andrea("prepare", name, "--json")
        assert ended.code == 0, ended.err
        return json.loads(ended.out)["sha256"], bool(read)

    return call


def test_what_has_not_changed_is_not_read(prepare):
    """The second time the sources are not read, and the data is the same."""
    first, read = prepare()
    assert read
    assert prepare() == (first, False)
    assert prepare(name="other", schedule={"steps": 7, "warmup_steps": 1}) == (first, False)


def replace(folder):
    """Put other text of the same length and time in a file's place, as a careful copy does."""
    path = folder / "3.txt"
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_text(path.read_text().replace("rain", "hail"))
    os.utime(path, ns=times)


@pytest.mark.parametrize(
    "change",
    [
        replace,
        lambda folder: (folder / "3.txt").write_text("another text\n"),
        lambda folder: (folder / "new.txt").write_text("one more\n"),
        lambda folder: (folder / "3.txt").unlink(),
        lambda folder: (folder / "3.txt").rename(folder / "three.txt"),
    ],
    ids=["same length and time", "other text", "one more", "one less", "another name"],
)
def test_a_changed_file_is_read(prepare, texts, change):
    """Whatever happens to a file, its new text is what a run trains on."""
    first, _ = prepare()
    change(texts)
    second, read = prepare()
    assert read
    assert second != first
    assert prepare() == (second, False)


def test_a_touched_file_is_read_and_gives_the_same(prepare, texts):
    """A file that only looks changed costs a reading."""
    first, _ = prepare()
    os.utime(texts / "3.txt")
    assert prepare() == (first, True)
    assert prepare() == (first, False)


FILTERED = {"tokenizer.byte": {}, "filter.length": {"min_characters": 30}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"data": {"held_out_share": 0.2}}),
        ({}, {"plugins": FILTERED}),
        ({"plugins": FILTERED}, {"plugins": FILTERED | {"filter.length": {"min_characters": 31}}}),
        ({}, {"sampling": {"max_tokens": 7}}),
        ({}, {"plugins": {"tokenizer.harris": {"segments": 8}}}),
    ],
    ids=["split", "filter", "option of a filter", "window", "tokenizer"],
)
def test_what_else_decides_the_data_is_heeded(prepare, before, after):
    """Other settings that decide the data are another preparation."""
    prepare(**before)
    assert not prepare(**before)[1]
    assert prepare(**after)[1]


@pytest.mark.parametrize("changed", ["source.text", "filter.length", "andrea.tokens"])
def test_other_code_reads_again(prepare, monkeypatch, changed):
    """When a reader, a filter or the preparation itself was changed, its sources are read again."""
    target = tokens if changed == "andrea.tokens" else find(changed).load()
    prepare(plugins=FILTERED)
    assert not prepare(plugins=FILTERED)[1]
    digest = run_data.source_digest
    monkeypatch.setattr(run_data, "source_digest", lambda one: digest(one) + ("x" if one is target else ""))
    assert prepare(plugins=FILTERED)[1]


def test_another_python_reads_again(prepare, monkeypatch):
    """What Python's own parser finds in a module may differ between its versions."""
    prepare()
    monkeypatch.setattr(run_data.sys, "version", "4")
    assert prepare()[1]


@plugin
class Listed:
    """Drop the documents of a list."""

    path: str = option(help="one document a line", path=True)

    @hookimpl
    def keep_document(self, document):
        """Give a reason to drop it."""
        return "listed" if document.text.strip() in Path(self.path).read_text().splitlines() else None


def test_a_file_that_a_filter_is_told_of_is_heeded(prepare, tmp_path, monkeypatch):
    """A filter's list that changes drops other documents."""
    entry = attrs.evolve(find("filter.length"), name="filter.listed")
    load = type(entry).load
    monkeypatch.setattr(type(entry), "load", lambda self: Listed if self == entry else load(self))
    everything = registry.available
    monkeypatch.setattr(registry, "available", lambda: {**everything(), entry.name: entry})
    (tmp_path / "list.txt").write_text("document 3 grows under rain and light\n")
    listed = {"plugins": {"tokenizer.byte": {}, entry.name: {"path": str(tmp_path / "list.txt")}}}
    first, _ = prepare(**listed)
    assert prepare(**listed) == (first, False)
    (tmp_path / "list.txt").write_text("document 4 grows under rain and light\n")
    second, read = prepare(**listed)
    assert read
    assert second != first


def test_a_file_that_has_just_changed_is_not_trusted(prepare, texts, monkeypatch):
    """Within a tick of the file system's clock it could change again and look the same."""
    monkeypatch.setattr(unchanged, "SETTLED", 2.0)
    assert prepare()[1]
    assert prepare()[1]
    monkeypatch.setattr(unchanged.time, "time", lambda: texts.stat().st_ctime + 60)
    assert prepare()[1]
    assert not prepare()[1]


def test_a_file_that_changes_while_it_is_read_is_not_trusted(prepare, texts, monkeypatch):
    """What was read may be neither the old nor the new text."""
    honest = run_data.prepare

    def meanwhile(*arguments, **options):
        (texts / "3.txt").write_text("changed meanwhile\n")
        return honest(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(run_data, "prepare", meanwhile)
        prepare()
    assert prepare()[1]


@pytest.mark.parametrize("kind", ["tokens/*.train.btok", "prepared/*.json", "unchanged/*.json"])
def test_damaged_data_is_made_again(prepare, tmp_path, kind):
    """A part of the cache that was cut short is no data."""
    first, _ = prepare()
    (path,) = (tmp_path / "own").glob(kind)
    path.write_bytes(path.read_bytes()[:-3])
    assert prepare() == (first, True)
    assert prepare() == (first, False)


@pytest.mark.parametrize(
    "damage", ["[" * 100_000, '{"files": "FILES", "prepared": "' + "a" * 5000 + '"}', "[]", '{"files": 1}']
)
def test_a_damaged_note_is_none(prepare, tmp_path, damage):
    """Whatever stands in its place, the sources are read then."""
    first, _ = prepare()
    (path,) = (tmp_path / "own").glob("unchanged/*.json")
    path.write_text(damage.replace("FILES", json.loads(path.read_text())["files"]))
    assert prepare() == (first, True)
    assert prepare() == (first, False)


def test_a_cache_that_cannot_be_written_is_used_and_not_complained_of(prepare, monkeypatch):
    """Nothing is written to find data again; what cannot be noted is read the next time."""

    def refuse(*_):
        raise PermissionError(13, "no")

    monkeypatch.setattr(unchanged, "write_whole", refuse)
    assert prepare()[1]
    assert prepare()[1]


def test_a_source_without_files_is_read_every_time(prepare, monkeypatch):
    """Without files there is nothing to look at."""
    honest = run_data.Asked.open_source
    monkeypatch.setattr(run_data.Asked, "open_source", lambda self, spec: list(honest(self, spec)))
    assert prepare()[1]
    assert prepare()[1]


def test_a_reader_is_asked_once(prepare, monkeypatch):
    """However often a source is looked at and read, its reader, which may have to ask over a network, is asked once."""
    honest, asked = run_data.Hooks.open_source, []
    monkeypatch.setattr(run_data.Hooks, "open_source", lambda self, spec: asked.append(spec) or honest(self, spec))
    prepare()
    assert len(asked) == 1


FILES = {
    "a.txt": "a text about rain\n",
    "b.md": "# Rain\n\nIt grows under light.\n",
    "c.jsonl": json.dumps({"text": "rain", "word": "rain", "definition": "water that falls"}) + "\n",
    "d.log": "<one> it rains\n<two> at last\n",
    "e.dict": "water that falls\n",
    "e.index": "rain\tA\tQ\n",
}
READERS = {
    "source.text": {"path": "."},
    "source.markdown": {"path": "."},
    "source.jsonl": {"path": "."},
    "source.gutenberg": {"path": "."},
    "source.chat": {"path": "d.log"},
    "source.dictionary": {"path": "."},
    "source.docstrings": {"packages": ["json"], "topics": True},
    "source.licences": {"distributions": ["attrs"]},
}


# Reads every source twice, and prints of the second time which files Python opened, and which the reader names.
SCRIPT = """
import json, os, sys
from andrea.registry import find
from andrea.types import SourceSpec

opened = set()
sys.addaudithook(lambda event, arguments: opened.add(arguments[0]) if event == "open" else None)
for reader, options in json.loads(sys.argv[1]).items():
    documents = find(reader).load().open_source(SourceSpec("one", reader, options))
    assert list(documents)
    opened.clear()
    assert list(documents)
    seen = {os.path.realpath(path) for path in opened if isinstance(path, (str, os.PathLike))}
    print(json.dumps([sorted(seen), sorted(os.path.realpath(path) for path, _ in documents.files())]))
"""


def test_readers_name_every_file_that_they_open(tmp_path):
    """What a reader of ours opens to read its documents is what it names, no more and no less."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-c", SCRIPT, json.dumps(READERS)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    for reader, line in zip(READERS, done.stdout.splitlines(), strict=True):
        opened, named = json.loads(line)
        assert [path for path in opened if not path.endswith((".pyc", ".zip", "RECORD"))] == named, reader
