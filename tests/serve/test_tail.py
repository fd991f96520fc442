"""The lines that a growing file has gained, however it grows, and that a cut is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from andrea.serve import tail
from andrea.serve.tail import Tail


def all_of(reader):
    """Return everything that there is to read."""
    found = []
    while (chunk := reader.chunk()) is not None:
        found += chunk
    return found


@given(st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"")), max_size=30), st.integers(1, 200))
def test_lines_are_those_of_the_file_however_it_is_cut_into_chunks(tmp_path_factory, texts, size):
    """Each with the offset where it begins."""
    path = tmp_path_factory.mktemp("tail") / "file"
    path.write_bytes(b"".join(text + b"\n" for text in texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tail, "CHUNK", size)
        found = all_of(Tail(path))
    data = path.read_bytes()
    assert [line for _, line in found] == texts
    assert all(data[at : at + len(line) + 1] == line + b"\n" for at, line in found)


def test_half_a_line_waits_until_it_is_whole(tmp_path):
    """A reader sees what a writer has written so far, which may end anywhere."""
    path = tmp_path / "file"
    path.write_bytes(b"one\ntw")
    reader = Tail(path)
    assert all_of(reader) == [(0, b"one")]
    assert not reader.rewritten()
    assert all_of(reader) == []
    with path.open("ab") as file:
        file.write(b"o\nthree\n")
    assert not reader.rewritten()
    assert all_of(reader) == [(4, b"two"), (8, b"three")]


def test_a_file_that_is_not_there_yet_is_empty(tmp_path):
    """It is no cut when it comes."""
    reader = Tail(tmp_path / "file")
    assert not reader.rewritten()
    assert all_of(reader) == []
    (tmp_path / "file").write_bytes(b"one\n")
    assert not reader.rewritten()
    assert all_of(reader) == [(0, b"one")]


@pytest.mark.parametrize(
    "content",
    [b"one\n", b"one\ntwo\n", b"one\ntwo\nFOUR!\nfive\n", b"", b"one\ntwo\nother than before, and longer\n"],
    ids=["shorter", "a line shorter", "longer, with other lines", "empty", "longer, with one other line"],
)
def test_a_file_that_was_cut_is_noticed_also_when_it_has_grown_again(tmp_path, content):
    """A resume cuts the journal where its checkpoint is and goes on, perhaps between two looks."""
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\nthree\n")
    reader = Tail(path)
    all_of(reader)
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(content)
    assert reader.rewritten()


def test_the_same_bytes_again_are_no_cut(tmp_path):
    """A resume that repeats what was there has changed nothing."""
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\n")
    reader = Tail(path)
    all_of(reader)
    with path.open("r+b") as file:
        file.truncate(4)
        file.seek(4)
        file.write(b"two\nthree\n")
    assert not reader.rewritten()
    assert all_of(reader) == [(8, b"three")]


def test_another_file_of_the_name_and_a_removed_one_are_noticed(tmp_path):
    """Even when it begins with the same bytes."""
    path = tmp_path / "file"
    path.write_bytes(b"one\n")
    reader = Tail(path)
    assert not reader.rewritten()
    all_of(reader)
    (tmp_path / "new").write_bytes(b"one\ntwo\n")
    (tmp_path / "new").replace(path)
    assert reader.rewritten()
    reader = Tail(path)
    all_of(reader)
    path.unlink()
    assert reader.rewritten()


def test_a_tail_that_begins_within_a_line_leaves_its_rest_out(tmp_path):
    """So that the end of a long file can be read without what is before it."""
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\nthree\n")
    assert all_of(Tail(path, 5)) == [(8, b"three")]


def test_what_is_too_long_to_be_a_line_is_passed_over(tmp_path, monkeypatch):
    """A disk that failed may leave a gap of zero bytes; it takes no memory, and the lines behind it are read."""
    monkeypatch.setattr(tail, "CHUNK", 16)
    monkeypatch.setattr(tail, "MOST_LINE", 64)
    path = tmp_path / "file"
    path.write_bytes(b"one\n" + b"\0" * 1000 + b"\ntwo\n")
    assert all_of(Tail(path)) == [(0, b"one"), (4, b""), (1005, b"two")]
