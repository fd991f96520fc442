"""source.parquet reads a document from a row."""

from __future__ import annotations

import sys

import pytest

from andrea import AndreaError, SourceSpec
from andrea.plugins.source import parquet

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")


def read(**options):
    documents = parquet.open_source(SourceSpec("s", "source.parquet", options))
    first = list(documents)
    assert first == list(documents), "reading twice must give the same"
    return first


def write(path, rows, **options):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, **options)


def test_rows_become_documents(tmp_path):
    """Every row that is asked for is a document, in order, over files and row groups, its work named by a column."""
    rows = [{"body": f"text {n}", "book": n // 3, "lang": "en" if n % 2 else "de"} for n in range(1000)]
    write(tmp_path / "a.parquet", rows[:600], row_group_size=7, compression="zstd")
    write(tmp_path / "b.parquet", rows[600:])
    documents = read(path=str(tmp_path), text="body", group="book", where={"lang": ["en"]})
    assert [(d.text, d.group) for d in documents] == [(r["body"], str(r["book"])) for r in rows if r["lang"] == "en"]
    assert documents[0].name == "a.parquet row 2"
    assert len({d.group for d in read(path=str(tmp_path), text="body")}) == 1000


def test_errors_name_what_is_wrong(tmp_path, monkeypatch):
    """A column that is not there or no text, and a missing library, are named."""
    write(tmp_path / "a.parquet", [{"text": None, "number": 3}])
    with pytest.raises(AndreaError, match="row 1 has no field 'txt'") as caught:
        read(path=str(tmp_path), text="txt")
    assert "did you mean text?" in caught.value.hint
    assert "text, number" in caught.value.hint
    with pytest.raises(AndreaError, match="field 'text' is a NoneType, not a text"):
        read(path=str(tmp_path))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(AndreaError, match="source s reads Parquet files, which needs pyarrow"):
        read(path=str(tmp_path))
