"""source.gutenberg removes header and licence, and nothing else."""

from __future__ import annotations

import pytest

from andrea import AndreaError, SourceSpec
from andrea.plugins.source import gutenberg

WORK = "CHAPTER I\n\nIt began. *** Not an end ***\n\n" + "A line of the work that goes on.\n\n" * 50 + "THE END\n"


def read(**options):
    documents = gutenberg.open_source(SourceSpec("s", "source.gutenberg", options))
    first = list(documents)
    assert first == list(documents), "reading twice must give the same"
    return first


HEADERS = {
    "new": "The eBook of A Work\n\nTitle: A Work\n\n*** START OF THE PROJECT GUTENBERG EBOOK A WORK ***\n\n",
    "credit": "Title\n\n*** START OF THIS PROJECT GUTENBERG EBOOK ***\n\n\nProduced by Somebody and\nothers\n\n\n",
    "old": "**Etext**\n\n***START**THE SMALL PRINT!**START***\nWhy\n\n*END*THE SMALL PRINT! *END*\n\n",
}
FOOTERS = {
    "new": "\n*** END OF THE PROJECT GUTENBERG EBOOK A WORK ***\n\nSection 1. Licence\n" + "Licence text. " * 2000,
    "old": "\nEnd of the Project Gutenberg Etext of A Work\n",
    "none": "",
}


@pytest.mark.parametrize("block", [7, 100, 1 << 20])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("footer", FOOTERS)
@pytest.mark.parametrize("header", HEADERS)
def test_only_the_work_is_left(tmp_path, monkeypatch, header, footer, ends, block):
    """Whatever the age of the file, its line ends and the size of a block."""
    monkeypatch.setattr("andrea.sources._BLOCK", block)
    text = (HEADERS[header] + WORK + FOOTERS[footer]).replace("\n", ends)
    (tmp_path / "a.txt").write_bytes(text.encode())
    documents = read(path=str(tmp_path), chunk=300)
    assert "".join(d.text for d in documents) == WORK
    assert {d.group for d in documents} == {"a.txt"}
    assert len(documents) > 3


def test_a_long_work_is_streamed(tmp_path, monkeypatch):
    """What is longer than what is held back comes out whole too."""
    monkeypatch.setattr(gutenberg, "_TAIL", 500)
    monkeypatch.setattr("andrea.sources._BLOCK", 1000)
    work = "".join(f"Line number {number} of a long work.\n" for number in range(9000))
    (tmp_path / "a.txt").write_text(HEADERS["new"] + work + FOOTERS["new"], encoding="utf-8")
    assert "".join(d.text for d in read(path=str(tmp_path))) == work


def test_a_file_without_marks_comes_out_whole(tmp_path):
    """Nothing is guessed where no line says it."""
    (tmp_path / "a.txt").write_text(WORK, encoding="utf-8")
    assert "".join(d.text for d in read(path=str(tmp_path))) == WORK


def test_the_header_names_the_encoding(tmp_path):
    """It is read as the header says; without that a wrong byte is refused with its offset."""
    marked = "Character set encoding: ISO-8859-1\n\n*** START OF THE EBOOK ***\n\nCafé\n"
    (tmp_path / "a.txt").write_bytes(marked.encode("latin-1"))
    assert [d.text for d in read(path=str(tmp_path))] == ["Café\n"]
    (tmp_path / "a.txt").write_bytes("Café".encode("latin-1"))
    with pytest.raises(AndreaError, match=r"a\.txt is not UTF-8: byte 3 is 0xe9"):
        read(path=str(tmp_path))
    assert [d.text for d in read(path=str(tmp_path), encoding="latin-1")] == ["Café\n"]
    with pytest.raises(AndreaError, match="there is no encoding of text 'latin-x'"):
        read(path=str(tmp_path), encoding="latin-x")
