"""Rows of data files, whatever they are written in."""

from __future__ import annotations

import gzip
import json
import sys
import tracemalloc

import pytest

from andrea import AndreaError
from andrea.rows import read_rows, where

ROWS = [{"text": "öne", "n": 1}, {"text": 'two\n"2", \u2028x', "n": 2}, {"text": "", "n": 3}]


def write(path, rows=ROWS):
    """Write rows as the path's ending says."""
    name = path.name
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if name.startswith("list"):
        data = json.dumps(rows, indent=1).encode()
    if ".csv" in name:
        lines = ["text,n", *('"{}",{}'.format(row["text"].replace('"', '""'), row["n"]) for row in rows)]
        data = "\n".join(lines).encode() + b"\n"
    if name.endswith(".gz"):
        data = gzip.compress(data)
    if name.endswith(".zst"):
        data = pytest.importorskip("zstandard").compress(data)
    if name.endswith(".parquet"):
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
        return path
    path.write_bytes(data)
    return path


FILES = ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.ndjson", "a.json", "list.json", "list.json.zst", "a.parquet"]
FILES += ["a.csv", "a.csv.gz"]


@pytest.mark.parametrize("name", FILES)
def test_rows_come_back(tmp_path, monkeypatch, name):
    """The same rows from every format, whatever the size of a block."""
    write(tmp_path / name)
    for block in (1, 7, 1 << 20):
        monkeypatch.setattr("andrea.sources._BLOCK", block)
        found = [dict(row.values) for row in read_rows(tmp_path / name)]
        assert [{**row, "n": int(row["n"])} for row in found] == ROWS


@pytest.mark.parametrize("rows", [2, 3, 300])
def test_lists_of_categories_come_back_across_groups(tmp_path, monkeypatch, rows):
    """Messages whose roles are categories, as tables of messages are often written, in groups of any size."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    role = pyarrow.dictionary(pyarrow.int8(), pyarrow.string())
    message = pyarrow.struct([("role", role), ("content", pyarrow.large_string())])
    values = [[{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": None}] for i in range(500)]
    table = pyarrow.table({"messages": pyarrow.array(values, type=pyarrow.list_(message))})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=rows)
    found = list(read_rows(tmp_path / "a.parquet"))
    assert [row.values["messages"] for row in found] == values
    assert [row.place for row in found] == [f"row {number}" for number in range(1, 501)]

    def refuse(*arguments, **options):
        raise pyarrow.ArrowNotImplementedError("not for such lists")

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", refuse)
    with pytest.raises(AndreaError, match="cannot read: not for such lists"):
        list(read_rows(tmp_path / "a.parquet"))


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("list.json", b'[{"a": 1}, {"a": ', "list.json row 2 is not JSON"),
        ("list.json", b'[{"a": 1}', "list.json is cut short"),
        ("list.json", b'[{"a": 1}, 3]', "list.json row 2 is a int"),
        ("a.csv", b"a,b\n1,2\n3\n", "a.csv line 3 has not 2 fields"),
        ("a.csv", b'a,b\n1,"2\n', "a.csv line 1 is not CSV"),
        ("a.parquet", b"PAR1 nothing", "a.parquet is not a whole Parquet file"),
        ("a.xml", b"<a/>", "is no file of rows that is known"),
        ("a.jsonl.zst", b"no frame at all", "a.jsonl.zst is damaged or cut short"),
    ],
)
def test_a_bad_file_is_named(tmp_path, name, data, said):
    """What is not what its name says is an error with the file and the place."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(AndreaError) as caught:
        list(read_rows(tmp_path / name))
    assert said in caught.value.message


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.parquet"])
def test_a_cut_file_is_named(tmp_path, name):
    """A file that ends early is an error, never fewer rows."""
    data = write(tmp_path / name, ROWS * 500).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(AndreaError, match=name):
        list(read_rows(tmp_path / name))


def test_several_frames_are_one_file(tmp_path):
    """Frames of Zstandard end to end, as parallel packers write them, are read to the last."""
    zstandard = pytest.importorskip("zstandard")
    lines = [json.dumps({"n": number}).encode() + b"\n" for number in range(5)]
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(map(zstandard.compress, lines)))
    assert [row.values["n"] for row in read_rows(tmp_path / "a.jsonl.zst")] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("name", "library"), [("a.jsonl.zst", "zstandard"), ("a.parquet", "pyarrow.parquet")])
def test_a_missing_library_names_the_extra(tmp_path, monkeypatch, name, library):
    """Without the library the error says which extra brings it."""
    write(tmp_path / name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(AndreaError, match=f"needs {library.partition('.')[0]}") as caught:
        list(read_rows(tmp_path / name))
    assert "pip install 'andrea[hub]'" in caught.value.hint


def test_rows_are_chosen(tmp_path):
    """By the value of a column, or one of several; a column that is not there is named."""
    path = write(tmp_path / "a.jsonl")
    assert [row.values["n"] for row in where(read_rows(path), {"n": [1, 3]})] == [1, 3]
    assert [row.values["n"] for row in where(read_rows(path), {"n": 2, "text": ROWS[1]["text"]})] == [2]
    with pytest.raises(AndreaError, match="line 1 has no field 'lang'"):
        list(where(read_rows(path), {"lang": "en"}))


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.jsonl.gz", "a.ndjson", "a.json", "list.json", "list.json.gz", "a.csv", "a.csv.gz"]
)
def test_a_longer_line_is_refused_before_it_is_in_memory(tmp_path, monkeypatch, name):
    """The error has the file, the place and the option; rows up to that length are read whatever the block."""
    write(tmp_path / name, [{"text": "x" * 30, "n": 1}, {"text": "y" * 300, "n": 2}])
    place = {"list": "row 2", "a.cs": "line 3"}.get(name[:4], "line 2")
    for block in (7, 1 << 20):
        monkeypatch.setattr("andrea.sources._BLOCK", block)
        rows = read_rows(tmp_path / name, 100)
        assert next(rows).values["text"] == "x" * 30
        if not (name.startswith("list") and block > 1000):  # what is in memory already is taken
            with pytest.raises(AndreaError, match=f"{name} {place} is longer than 100 bytes") as refused:
                list(rows)
            assert "longest_line" in refused.value.hint
        assert len(list(read_rows(tmp_path / name, 400))) == 2


def test_a_long_field_of_a_table_is_a_text_like_any_other(tmp_path):
    """A field may be as long as a line, also over many lines; an open quote does not take the whole file."""
    for text in ("x" * 300_000, "line\n" * 60_000):
        write(tmp_path / "a.csv", [{"text": text, "n": 1}])
        assert [row.values["text"] for row in read_rows(tmp_path / "a.csv")] == [text]
    (tmp_path / "a.csv").write_text('text,n\n"' + "line\n" * 60_000)
    with pytest.raises(AndreaError, match="is not CSV"):
        list(read_rows(tmp_path / "a.csv"))


def test_a_line_of_exactly_the_length_is_taken(tmp_path):
    """With or without a newline at its end, which does not count."""
    line = json.dumps({"text": "x" * 30}).encode()
    for data in (line, line + b"\n"):
        (tmp_path / "a.jsonl").write_bytes(data)
        assert len(list(read_rows(tmp_path / "a.jsonl", len(line)))) == 1
        with pytest.raises(AndreaError, match="line 1 is longer"):
            list(read_rows(tmp_path / "a.jsonl", len(line) - 1))


def test_endless_input_does_not_fill_the_memory(tmp_path):
    """A packed file of a thousand times its size, one line, costs no more than the longest line."""
    with gzip.open(tmp_path / "a.jsonl.gz", "wb") as file:
        for _ in range(256):
            file.write(b" " * (1 << 20))
    tracemalloc.start()
    with pytest.raises(AndreaError, match="line 1 is longer than 1,000,000 bytes"):
        list(read_rows(tmp_path / "a.jsonl.gz", 1_000_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8_000_000  # the line, a copy while it grows, and the unpacker's buffers
