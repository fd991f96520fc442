"""Data is found again without reading, exactly as long as nothing that decides it has changed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from andrea import run_data, unchanged
from andrea.registry import find
from andrea.sources import Documents
from andrea.types import Document, SourceSpec


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


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"held_out_share": 0.2}},
        {"plugins": {"tokenizer.byte": {}, "filter.length": {"min_characters": 30}}},
        {"sampling": {"max_tokens": 7}},
    ],
    ids=["split", "filter", "window"],
)
def test_what_else_decides_the_data_is_heeded(prepare, changes):
    """Other settings that decide the data are another preparation."""
    prepare()
    assert prepare(**changes)[1]
    assert not prepare(**changes)[1]


def test_other_code_reads_again(prepare, monkeypatch):
    """When a reader, a filter or the preparation itself was changed, its sources are read again."""
    prepare()
    digest = run_data.source_digest
    monkeypatch.setattr(run_data, "source_digest", lambda target: digest(target)[::-1])
    assert prepare()[1]


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


def test_a_cache_that_cannot_be_written_is_used_and_not_complained_of(prepare, monkeypatch):
    """Nothing is written to find data again; what cannot be noted is read the next time."""

    def refuse(*_):
        raise PermissionError(13, "no")

    monkeypatch.setattr(unchanged, "write_whole", refuse)
    assert prepare()[1]
    assert prepare()[1]


def test_a_reader_that_names_no_files_is_asked_every_time():
    """Without files there is nothing to look at; one such source is enough."""

    def open_source(spec):
        documents = [Document("a text", "name", "group")]
        return Documents(lambda: iter(documents), None if spec.reader == "source.other" else lambda: [])

    known, other = SourceSpec("one", "source.known"), SourceSpec("two", "source.other")
    assert unchanged.look([known], open_source) is not None
    assert unchanged.look([known, other], open_source) is None
    assert unchanged.look([known], lambda spec: [Document("a text", "name", "group")]) is None


OPENED: list[str] | None = None  # while a list stands here, every file that Python opens is noted in it


def note(event, arguments):
    if event == "open" and OPENED is not None and isinstance(arguments[0], str | os.PathLike):
        OPENED.append(os.fspath(arguments[0]))


sys.addaudithook(note)  # for good: there is no taking it back

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


@pytest.mark.parametrize(("reader", "options"), READERS.items(), ids=READERS)
def test_readers_name_every_file_that_they_open(reader, options, tmp_path, monkeypatch):
    """What a reader of ours opens to read its documents is what it names, no more and no less."""
    global OPENED
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    documents = find(reader).load().open_source(SourceSpec("one", reader, options))
    named = {str(Path(path).resolve()) for path, _ in documents.files()}
    assert list(documents)  # once before, so that what is imported on the way is imported
    try:
        OPENED = []
        assert list(documents)
        opened = {str(Path(path).resolve()) for path in OPENED}
    finally:
        OPENED = None
    assert {path for path in opened if not path.endswith((".pyc", ".zip", "RECORD"))} == named
