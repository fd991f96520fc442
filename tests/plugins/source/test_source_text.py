"""source.text reads files in pieces."""

from __future__ import annotations

import pytest

from andrea import AndreaError, SourceSpec
from andrea.plugins.source import text


def read(**options):
    documents = text.open_source(SourceSpec("s", "source.text", options))
    first = list(documents)
    assert first == list(documents), "reading twice must give the same"
    return first


def test_files_become_works(tmp_path):
    """A file is a work in pieces; its group is its path below the given folder, whatever that folder is called."""
    for folder in ("one", "two"):
        (tmp_path / folder / "sub").mkdir(parents=True)
        (tmp_path / folder / "sub/long.txt").write_text("word word\n\n" * 40, encoding="utf-8")
        (tmp_path / folder / "short.txt").write_bytes(b"\xef\xbb\xbfshort")
        (tmp_path / folder / "other.md").write_text("no", encoding="utf-8")
    documents = read(path=str(tmp_path / "one"), chunk=100)
    assert documents == read(path=str(tmp_path / "two"), chunk=100)
    assert {d.group for d in documents} == {"sub/long.txt", "short.txt"}
    assert "".join(d.text for d in documents if d.group == "sub/long.txt") == "word word\n\n" * 40
    assert [d.text for d in documents if d.group == "short.txt"] == ["short"]
    assert len({d.name for d in documents}) == len(documents) > 3
    assert len(read(path=str(tmp_path / "one"), chunk=0)) == 2
    assert [d.text for d in read(path=str(tmp_path / "one"), suffixes=[".md"])] == ["no"]
    assert len(read(path=[str(tmp_path / "one/short.txt"), str(tmp_path / "two/*.md")])) == 2


def test_errors_name_what_is_wrong(tmp_path):
    """A missing path, a wrong byte and an unknown option are errors of the user's."""
    (tmp_path / "bad.txt").write_bytes(b"ab\xff")
    with pytest.raises(AndreaError, match=r"bad\.txt is not UTF-8: byte 2 is 0xff"):
        read(path=str(tmp_path))
    with pytest.raises(AndreaError, match="does not exist"):
        read(path=str(tmp_path / "none"))
    with pytest.raises(AndreaError, match="no option 'paths'") as caught:
        read(paths="x")
    assert "did you mean path?" in caught.value.hint
