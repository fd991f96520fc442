"""source.jsonl reads one document a line."""

from __future__ import annotations

import gzip
import json

import pytest

from andrea import AndreaError, SourceSpec
from andrea.plugins.source import jsonl


def read(**options):
    documents = jsonl.open_source(SourceSpec("s", "source.jsonl", options))
    first = list(documents)
    assert first == list(documents), "reading twice must give the same"
    return first


def test_lines_become_documents(tmp_path):
    """Every line that is not blank is a document, plain or packed; without a group field each is a work of its own."""
    lines = "\n".join([json.dumps({"text": "öne"}), "", json.dumps({"text": "two\n", "extra": [1]})])
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    documents = read(path=str(tmp_path))
    assert [d.text for d in documents] == ["öne", "two\n"] * 2
    assert [d.name for d in documents] == ["a.jsonl line 1", "a.jsonl line 3", "b.jsonl.gz line 1", "b.jsonl.gz line 3"]
    assert len({d.group for d in documents}) == 4


def test_fields_have_names(tmp_path):
    """The text's field and the work's field are options; a work may be a number."""
    rows = [{"body": "a", "book": 7}, {"body": "b", "book": 7}, {"body": "c", "book": "x"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    documents = read(path=str(tmp_path / "a.jsonl"), text="body", group="book")
    assert [(d.text, d.group) for d in documents] == [("a", "7"), ("b", "7"), ("c", "x")]


def test_lines_in_a_row_may_be_one_work(tmp_path):
    """So many documents of a file at a time, whatever blank lines stand between them; a file's last work is shorter."""
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("\n\n".join(json.dumps({"text": str(i)}) for i in range(5)), encoding="utf-8")
    documents = read(path=str(tmp_path), together=2)
    works = {}
    for document in documents:
        works.setdefault(document.group, []).append(document.text)
    assert list(works.values()) == [["0", "1"], ["2", "3"], ["4"]] * 2
    assert len({d.name for d in documents}) == 10


@pytest.mark.parametrize(
    ("options", "said"),
    [({"together": 0}, "together is 0"), ({"together": 2, "group": "id"}, "both say what a work is")],
)
def test_a_work_is_said_in_one_way(tmp_path, options, said):
    """By a field or by number, and a number is at least 1."""
    (tmp_path / "a.jsonl").write_text('{"text": "a", "id": 1}', encoding="utf-8")
    with pytest.raises(AndreaError, match=said):
        read(path=str(tmp_path), **options)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"text": "a"', "line 2 is not JSON"),
        (b"[1]", "line 2 is a list, not a JSON object"),
        (b'{"body": "a"}', "line 2 has no field 'text'"),
        (b'{"text": 3}', "line 2: field 'text' is a int, not a text"),
        (b'{"text": "\xff"}', "line 2 is not UTF-8: byte 10 of the line is 0xff"),
        (b"[" * 100000, "line 2 is not JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, said):
    """A line that gives no document is an error with the file and the line, never passed over."""
    (tmp_path / "bad.jsonl").write_bytes(b'{"text": "good"}\n' + line + b"\n")
    with pytest.raises(AndreaError, match=rf"bad\.jsonl {said}"):
        read(path=str(tmp_path))


@pytest.mark.parametrize("group", [None, True, [1], ""])
def test_a_bad_group_is_named(tmp_path, group):
    """A work's name must be a text or a number, and be there."""
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a", "book": group}), encoding="utf-8")
    with pytest.raises(AndreaError, match="field 'book' does not name a work"):
        read(path=str(tmp_path), group="book")
    with pytest.raises(AndreaError, match="has no field 'volume'") as caught:
        read(path=str(tmp_path), group="volume")
    assert "text, book" in caught.value.hint


def test_a_cut_packed_file_is_named(tmp_path):
    """A packed file that ends early is an error, not a shorter source."""
    data = gzip.compress(b'{"text": "a"}\n' * 1000)
    (tmp_path / "a.jsonl.gz").write_bytes(data[:-5])
    with pytest.raises(AndreaError, match=r"a\.jsonl\.gz is damaged or cut short"):
        read(path=str(tmp_path))
