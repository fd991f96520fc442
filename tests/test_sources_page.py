"""docs/sources.md says what is: its examples are read, its tables are the options of the readers."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from pathlib import Path

import attrs
import pytest

from andrea import SourceSpec
from andrea.conversations import parse_turns
from andrea.loop import Hooks
from andrea.registry import Chosen, available, create, find, register
from andrea.sources import read_source
from andrea.strict_json import structure

PAGE = (Path(__file__).parents[1] / "docs" / "sources.md").read_text(encoding="utf-8")
EXAMPLES = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.S)]
SOURCES = [example for example in EXAMPLES if "name" in example]
READERS = [name for name in available() if name.startswith("source.")]


def hooks_of(plugins):
    return Hooks(register(create([Chosen(find(name), options) for name, options in plugins.items()])))


@pytest.fixture
def workbench(tmp_path, monkeypatch):
    """Make a folder with all that the examples name the current one."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    talk = {"messages": [{"role": "user", "content": "Hi"}, {"role": "narrator", "content": "He waves."}]}
    talk["messages"][1:1] = [{"role": "system", "content": "Late."}, {"role": "assistant", "content": "Hello"}]
    plain = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}
    files = {
        "poems/a.txt": "A seed in rain.\n\n".encode("latin-1") * 40,
        "more/b.txt": "caf\xe9".encode("latin-1"),
        "articles.jsonl.gz": gzip.compress(json.dumps({"body": "An article.", "id": 7}).encode()),
        "docs/readme.md": b"# Title\n\nText.",
        "talks.jsonl": json.dumps(plain).encode(),
        "log/today.log": b"[12:00] <ann> hello\n[12:01] <bob> hi\n[12:40] <bob> still here?\n",
        "dataset/data/test-00000.jsonl": json.dumps(plain).encode(),
        "words/train.csv": b"Word,Meaning\nroot,a part of a plant\n",
        "books/b.txt": b"Title\n*** START OF THE BOOK ***\nThe work.\n*** END OF THE BOOK ***\nLicence\n",
        "dictionary.jsonl": json.dumps({"word": "leaf", "meaning": ["one", "two"]}).encode(),
    }
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    parquet.write_table(pyarrow.Table.from_pylist([{"body": "A page.", "lang": "en"}]), tmp_path / "pages.parquet")
    git = ["git", "-C", str(tmp_path / "repository"), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    (tmp_path / "repository").mkdir()
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "A message"], check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def documents_of(example):
    spec = structure(example, SourceSpec, "docs/sources.md")
    hooks = hooks_of({part.reader: {} for part in spec.parts})
    return list(read_source(spec, hooks.open_source))


@pytest.mark.parametrize("example", SOURCES, ids=[f"{e['name']}-{n}" for n, e in enumerate(SOURCES)])
def test_every_example_of_a_source_is_read(example, workbench):
    """It gives documents, and of what it is about."""
    documents = documents_of(example)
    assert documents
    wanted = {
        "articles": "An article.",
        "pages": "A page.",
        "commits": "A message",
        "talks": "> Hi\n< Hello",
        "irc": "> hello\n< hi",
        "talk": "> Hi\n< Hello",
        "words": "> define root\n< a part of a plant",
        "books": "The work.\n",
        "dictionary": "> define leaf\n< one\n  two",
        "chat": "> Hi\n< Hello",
    }
    if example["name"] in wanted:
        assert documents[0].text == wanted[example["name"]]
    if example["name"] == "irc":
        assert [document.text for document in documents[1:]] == ["> still here?"]


def test_every_reader_has_an_example():
    """None is left out."""
    shown = {part["reader"] for example in SOURCES for part in example.get("inputs", [example])}
    assert shown == set(READERS)


@pytest.mark.parametrize("name", READERS)
def test_every_option_of_a_reader_is_described(name):
    """The table has the options of the reader, each of them, in any order."""
    section = re.search(rf"^## {re.escape(name)}\n(.*?)(?=^## )", PAGE, re.M | re.S)[1]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    described = {option for row in rows for option in re.findall(r"`(\w+)`", row)}
    assert described == {field.name for field in attrs.fields(find(name).load().Options)}


def test_the_example_of_filters_makes_them():
    """Names and options exist."""
    (filters,) = [example for example in EXAMPLES if "name" not in example]
    pytest.importorskip("rensa")
    assert hooks_of(filters)


def test_the_conversation_is_one():
    """The block of text has the turns that are spoken of."""
    (block,) = re.findall(r"```\n(Be brief\..*?)```", PAGE, re.S)
    assert [turn.mark for turn in parse_turns(block.rstrip("\n"))] == ["", "> ", "< "]
    assert parse_turns(block.rstrip("\n"))[-1].text == "A part of a plant:\nit drinks."


def test_links_within_the_page_lead_somewhere():
    """Every anchor is that of a heading."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", PAGE, flags=re.S), re.M)
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= anchors


def test_the_whole_experiment_of_the_page_is_one():
    """What a newcomer copies is taken as it stands."""
    from andrea.config import from_json

    block = re.search(r"\n```\n(\{\n \"name\": \"mine\".*?)```", PAGE, re.S)
    assert block is not None
    config = from_json(json.loads(block[1]), "the page")
    assert [source.name for source in config.sources] == ["poems", "articles"]
