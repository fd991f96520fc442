"""source.hub reads datasets in the hub's own layout; the hub itself is stood in for by a folder."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from andrea import AndreaError, SourceSpec
from andrea.plugins.source import hub

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")
pytest.importorskip("huggingface_hub")

README = """---
license: apache-2.0
configs:
- config_name: all
  default: true
  data_files:
  - split: train
    path: data/all/train-*
  - split: test
    path: [data/all/test-*]
- config_name: extra
  data_files: extra.jsonl
---
# A dataset
"""


def read(**options):
    documents = hub.open_source(SourceSpec("s", "source.hub", options))
    first = list(documents)
    assert first == list(documents), "reading twice must give the same"
    return first


def texts(**options):
    return [document.text for document in read(**options)]


def parquet(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def talk(prompt, reply):
    return {"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": reply}], "source": "x"}


@pytest.fixture
def dataset(tmp_path):
    """Return a folder that is laid out as the hub lays out a dataset."""
    (tmp_path / "README.md").write_text(README, encoding="utf-8")
    for number in range(3):
        parquet(tmp_path / f"data/all/train-0000{number}-of-00003.parquet", [talk(f"q{number}", f"a{number}")])
    parquet(tmp_path / "data/all/test-00000-of-00001.parquet", [talk("test", "a")])
    parquet(tmp_path / "data/other/train-00000-of-00001.parquet", [talk("other", "a")])
    lines(tmp_path / "extra.jsonl", [{"text": "extra " * 40}])
    return tmp_path


def test_splits_and_configurations_are_those_of_the_readme(dataset):
    """The default configuration's training split, another split, another configuration, or files by pattern."""
    assert texts(dataset=str(dataset)) == [f"> q{number}\n< a{number}" for number in range(3)]
    assert texts(dataset=str(dataset), split="test") == ["> test\n< a"]
    assert texts(dataset=str(dataset), config="extra") == ["extra " * 40]
    assert texts(dataset=str(dataset), files="data/*/train-*") == [*texts(dataset=str(dataset)), "> other\n< a"]
    assert texts(dataset=str(dataset), files=["**/test-*.parquet"]) == ["> test\n< a"]
    assert len(texts(dataset=str(dataset), config="extra", chunk=60)) > 2
    with pytest.raises(AndreaError, match="no configuration 'al'") as caught:
        read(dataset=str(dataset), config="al")
    assert "all, extra" in caught.value.hint
    with pytest.raises(AndreaError, match="no split 'dev'") as caught:
        read(dataset=str(dataset), split="dev")
    assert "train, test" in caught.value.hint


def test_without_a_readme_names_say_the_split(tmp_path):
    """A word of a file's path says its split, a folder the configuration; without any word all is training text."""
    for name in ("en/train.jsonl", "en/validation.jsonl", "de/train.jsonl"):
        lines(tmp_path / name, [{"text": name}])
    assert texts(dataset=str(tmp_path)) == ["de/train.jsonl", "en/train.jsonl"]
    assert texts(dataset=str(tmp_path), config="en", split="validation") == ["en/validation.jsonl"]
    lines(tmp_path / "plain/a.jsonl", [{"text": "plain"}])
    assert texts(dataset=str(tmp_path / "plain")) == ["plain"]
    with pytest.raises(AndreaError, match="no data file for the split 'test'"):
        read(dataset=str(tmp_path / "plain"), split="test")


def test_sharegpt_lists(tmp_path):
    """A JSON list of conversations, as Hermes 3 is published; documents are chosen by what they begin with."""
    rows = [
        {
            "conversations": [
                {"from": "system", "value": system},
                {"from": "human", "value": "q"},
                {"from": "gpt", "value": "a"},
            ]
        }
        for system in ("You play a pirate.", "Answer shortly.")
    ]
    (tmp_path / "data.json").write_text(json.dumps(rows), encoding="utf-8")
    assert texts(dataset=str(tmp_path), matching="(?i)\\bpirate\\b") == ["You play a pirate.\n> q\n< a"]
    assert texts(dataset=str(tmp_path), not_matching="pirate", system=False) == ["> q\n< a", "> q\n< a"]
    assert texts(dataset=str(tmp_path), not_matching="pirate") == ["Answer shortly.\n> q\n< a"]


def test_columns_make_a_prompt_and_a_reply(tmp_path):
    """A template names columns in braces; the group may be one of them."""
    (tmp_path / "train.csv").write_text('Word,Definition\nroot,"a part\nof a plant"\n', encoding="utf-8")
    options = {"prompt": "define {Word}", "reply": "{Definition}", "group": "Word"}
    (document,) = read(dataset=str(tmp_path), **options)
    assert (document.text, document.group) == ("> define root\n< a part\n  of a plant", "root")
    with pytest.raises(AndreaError, match="has no field 'Wort'"):
        read(dataset=str(tmp_path), **{**options, "prompt": "{Wort}"})


def test_trees_of_messages(tmp_path):
    """Rows of oasst become threads of one language, the best ranked or all; the group is the tree."""
    rows = []
    for tree in ("t1", "t2"):
        for name, parent, rank in (("a", None, None), ("b", "a", 1), ("c", "a", 0)):
            rows.append(
                {
                    "message_id": tree + name,
                    "parent_id": parent and tree + parent,
                    "message_tree_id": tree,
                    "role": "assistant" if parent else "prompter",
                    "text": f"{tree}{name}",
                    "rank": rank,
                    "lang": "en" if tree == "t1" else "de",
                }
            )
    parquet(tmp_path / "data/train-00000.parquet", rows)
    assert texts(dataset=str(tmp_path), tree=True) == ["> t1a\n< t1c", "> t2a\n< t2c"]
    documents = read(dataset=str(tmp_path), tree=True, threads="all", where={"lang": "en"})
    assert [(d.text, d.group) for d in documents] == [("> t1a\n< t1c", "tree t1"), ("> t1a\n< t1b", "tree t1")]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"text": "a", "messages": "b"}, "text and messages exclude each other"),
        ({"prompt": "{a}"}, "prompt and reply belong together"),
        ({"threads": "some"}, "threads is 'some'"),
        ({"matching": "("}, "matching is no regular expression"),
        ({"dataset": "./nowhere"}, "there is no folder ./nowhere"),
        ({"config": "extra", "text": "body"}, "has no field 'body'"),
    ],
)
def test_wrong_options_are_named(dataset, options, said):
    """Each is the user's error."""
    with pytest.raises(AndreaError) as caught:
        read(**{"dataset": str(dataset), **options})
    assert said in caught.value.message


def test_rows_of_another_kind_list_their_columns(tmp_path):
    """Without a column that is known the error lists those that there are."""
    lines(tmp_path / "a.jsonl", [{"question": "q", "answer": "a"}])
    with pytest.raises(AndreaError, match="has no column of messages or text") as caught:
        read(dataset=str(tmp_path))
    assert "question, answer" in caught.value.hint


class Hub:
    """Stands in for the library: a folder is the hub, and every call is remembered."""

    def __init__(self, folder):
        self.folder, self.calls = folder, []

    def repo_info(self, repo_id, repo_type, revision):
        self.calls.append((repo_id, repo_type, revision))
        files = sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file())
        return SimpleNamespace(sha="c0ffee", siblings=[SimpleNamespace(rfilename=name) for name in files])

    def hf_hub_download(self, repo_id, repo_type, filename, revision):
        self.calls.append((filename, revision))
        return str(self.folder / filename)


def test_a_dataset_by_name(dataset, monkeypatch):
    """Files are listed once, only those of the split are fetched, all of the commit that the name stands for."""
    import huggingface_hub

    stand_in = Hub(dataset)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: stand_in)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", stand_in.hf_hub_download)
    assert texts(dataset="owner/name", revision="v1") == texts(dataset=str(dataset))
    assert stand_in.calls[0] == ("owner/name", "dataset", "v1")
    fetched = {name for name, *rest in stand_in.calls[1:]}
    assert fetched == {"README.md", *(f"data/all/train-0000{number}-of-00003.parquet" for number in range(3))}
    assert {call[-1] for call in stand_in.calls[1:]} == {"c0ffee"}
    stand_in.calls.clear()
    hub.open_source(SourceSpec("s", "source.hub", {"dataset": "owner/name"}))
    assert stand_in.calls == []  # before a document is asked for


def test_a_hub_that_refuses(monkeypatch):
    """What the library says becomes an error of the user's, with what to do; offline the cache is asked."""
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def refuse(**arguments):
        raise LocalEntryNotFoundError("not here")

    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: SimpleNamespace(repo_info=refuse))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(AndreaError, match="dataset owner/name cannot be had from the hub: not here") as caught:
        read(dataset="owner/name")
    assert "connection" in caught.value.hint
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(AndreaError, match="cannot be had"):
        read(dataset="owner/name")


def test_the_cache_is_read_without_a_connection(dataset, monkeypatch):
    """With HF_HUB_OFFLINE what an earlier use brought is enough."""
    import huggingface_hub

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda **arguments: str(dataset))
    assert texts(dataset="owner/name") == texts(dataset=str(dataset))


def test_the_extra_is_named(monkeypatch):
    """Without the library the error says which extra brings it; a folder needs it not."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(AndreaError, match="needs huggingface_hub") as caught:
        read(dataset="owner/name")
    assert "andrea[hub]" in caught.value.hint
