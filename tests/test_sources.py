"""Reading sources: checks, options, files and text, and errors that help."""

from __future__ import annotations

import gzip
import os
import pathlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from andrea import AndreaError, Document, SourceSpec, option, plugin
from andrea.sources import Documents, cut_text, find_files, read_options, read_source, read_text, refuse_twice
from andrea.types import SourceInput

SPEC = SourceSpec("poems", "source.test", {"path": "x"})


def test_documents_pass_through():
    """What a reader gives comes out, as often as it is read."""
    given_ = [Document("one", "a", "g"), Document("two", "b", "g")]
    documents = Documents(lambda: iter(given_))
    assert list(documents) == list(documents) == list(read_source(SPEC, lambda spec: documents)) == given_


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "gave no answer"),
        ([], "found no document"),
        (["text"], "gave a str, not a Document"),
        ([Document(b"bytes", "a", "g")], "the text of document 'a' is a bytes"),
        ([Document("t", "a", 3)], "the group of document 'a' is a int"),
        ([Document("t", "", "g")], "needs a name and a group"),
        ([Document("t", "a", "")], "needs a name and a group"),
    ],
)
def test_what_is_no_document_is_refused(answer, said):
    """Everything that is not a whole document is refused with the source's and the reader's name."""
    with pytest.raises(AndreaError, match=f"source poems: .*{said}|{said}") as caught:
        list(read_source(SPEC, lambda spec: answer))
    assert "poems" in caught.value.message


def test_a_readers_failure_to_read_is_the_users_error():
    """An operating system error inside a reader becomes an error that names the file."""

    def read():
        yield Document("t", "a", "g")
        pathlib.Path("/nowhere/at/all").read_bytes()

    with pytest.raises(AndreaError, match="cannot read /nowhere/at/all: No such file"):
        list(read_source(SPEC, lambda spec: Documents(read)))


# -- options -----------------------------------------------------------------------------------------------------------


@plugin
class Wanted:
    """Options of the reader under test."""

    path: str | list[str] = option(help="where", path=True)
    chunk: int = option(5, help="how much")
    whole: bool = option(False, help="or all")
    group: str | None = option(None, help="which")


def test_options_are_read():
    """Given options are set, the others have their defaults."""
    options = read_options(SourceSpec("s", "source.test", {"path": ["a", "b"], "whole": True}), Wanted)
    assert (options.path, options.chunk, options.whole, options.group) == (["a", "b"], 5, True, None)


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"path": "x", "chonk": 3}, "no option 'chonk'"),
        ({}, "needs the option 'path'"),
        ({"path": 3}, "path is 3, not text or list of text"),
        ({"path": ["a", 3]}, "not text or list of text"),
        ({"path": "x", "chunk": "many"}, "chunk is 'many', not integer"),
        ({"path": "x", "chunk": True}, "chunk is True, not integer"),
        ({"path": "x", "group": 1}, "not text or null"),
    ],
)
def test_wrong_options_list_the_right_ones(given_, said):
    """An unknown, missing or ill-typed option is named, and all that exist are listed."""
    with pytest.raises(AndreaError, match=said) as caught:
        read_options(SourceSpec("s", "source.test", given_), Wanted)
    assert "source s" in caught.value.message
    for name in ("path (text or list of text, needed)", "chunk (integer)", "whole (true/false)", "group"):
        assert name in caught.value.hint
    if "chonk" in given_:
        assert "did you mean chunk?" in caught.value.hint


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    for name in ["b.txt", "a/z.txt", "a/y.TXT", "a/deep/x.txt", "a/note.md", ".hidden.txt", ".git/config.txt"]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name, encoding="utf-8")
    return tmp_path


def names(paths, suffixes=(".txt",)):
    return [name for _, name in find_files(paths, suffixes)]


def test_files_of_a_folder(tree, monkeypatch):
    """Everything below a folder by its suffix, sorted, by relative name, nothing hidden, in any order of the disk."""
    expected = ["a/deep/x.txt", "a/y.TXT", "a/z.txt", "b.txt"]
    assert names(str(tree)) == expected
    assert [path.relative_to(tree).as_posix() for path, _ in find_files(str(tree), [".txt"])] == expected
    real = os.scandir

    class Reversed:
        """A folder's entries in reverse order; like the real thing an iterator and a context manager."""

        def __init__(self, path):
            self.entries = sorted(real(path), key=lambda entry: entry.name)

        def __iter__(self):
            return self

        def __next__(self):
            if not self.entries:
                raise StopIteration
            return self.entries.pop()

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.entries = []

    monkeypatch.setattr(os, "scandir", Reversed)
    assert names(str(tree)) == expected
    assert names(str(tree), ()) == sorted([*expected, "a/note.md"])


def test_files_by_name_pattern_and_list(tree, monkeypatch):
    """A file, a pattern, a list, a path relative to the present folder or to the home folder."""
    assert names(str(tree / "a/note.md")) == ["note.md"]
    assert names(str(tree / "a/*.txt")) == ["z.txt"]
    assert names(str(tree / "**/x.txt")) == ["a/deep/x.txt"]
    assert names(str(tree / "a/**/[xz].txt")) == ["deep/x.txt", "z.txt"]
    assert names(str(tree / "*/*/x.*")) == ["a/deep/x.txt"]
    (tree / ".x.txt").write_text("hidden", encoding="utf-8")
    assert names(str(tree / "*.txt")) == ["b.txt"]
    (tree / "a/deep/up").symlink_to(tree / "a")  # ** does not follow it round and round
    assert names(str(tree / "a/**/x.txt")) == ["deep/x.txt"]
    assert names([str(tree / "b.txt"), str(tree / "a/deep")]) == ["b.txt", "x.txt"]
    monkeypatch.chdir(tree)
    assert names("a/*.md") == ["note.md"]
    monkeypatch.setenv("HOME", str(tree))
    assert names("~/a/deep") == ["x.txt"]
    (tree / "od[d].txt").write_text("a name that looks like a pattern", encoding="utf-8")
    assert names(str(tree / "od[d].txt")) == ["od[d].txt"]


@pytest.mark.parametrize("second", ["b.txt", "a/../b.txt", "*.txt", ".", "link.txt"])
def test_a_file_that_is_given_twice_is_refused(tree, second):
    """Its text would count double; it does not matter by which of its names."""
    (tree / "link.txt").symlink_to(tree / "b.txt")
    with pytest.raises(AndreaError, match="is given twice") as caught:
        find_files([str(tree / "b.txt"), str(tree / second)], [".txt"])
    assert (f"by '{tree / 'b.txt'}' and by '{tree / second}'" in caught.value.message) == (second != "b.txt")
    assert names([str(tree / "b.txt"), str(tree / "a")]) == ["b.txt", "deep/x.txt", "y.TXT", "z.txt"]


def test_links_in_a_circle_are_an_error_where_they_are_opened(tree):
    """Such a file is found like others; whoever opens it is told which it is."""
    (tree / "circle.txt").symlink_to(tree / "circle.txt")
    (found,) = [path for path, name in find_files(str(tree), [".txt"]) if name == "circle.txt"]
    with pytest.raises(AndreaError, match=r"cannot read .*circle\.txt"):
        list(read_text(found))


@pytest.fixture
def refuse(tree):
    """Return a function that gives sources of two sets of options to a reader which needs a file of its own, too."""

    def open_source(spec):
        return Documents(lambda: iter(()), lambda: [(tree / "b.txt", "own"), *find_files(spec.options["path"])])

    def call(*options, paths=("path",), answer=open_source):
        sources = [SourceSpec(name, "source.test", one) for name, one in zip("st", options, strict=True)]
        refuse_twice(sources, answer, lambda reader: paths)

    return call


@pytest.mark.parametrize("second", ["a/z.txt", "a/*.txt", "a", "**/[xz].txt"])
def test_a_file_that_two_sources_read_in_the_same_way_is_refused(tree, refuse, second):
    """However the path of either leads to it, if all else that the reader is told is the same."""
    ways = [{"path": [str(tree / path)], "chunk": 9} for path in ("a/z.txt", second)]
    with pytest.raises(AndreaError, match=r"a/z\.txt is given twice, by source s and by source t"):
        refuse(*ways)
    with pytest.raises(AndreaError, match=r"is given twice, by source s and by source t"):
        refuse(*ways[:1] * 2, paths=("path", "words"))


def test_sources_that_may_read_other_text_are_not_refused(tree, refuse):
    """A stranger's reader says what its options mean; files that it needs besides are no text of either source."""
    first, second = str(tree / "a/z.txt"), str(tree / "a/deep")
    refuse({"path": first}, {"path": second})
    refuse({"path": first, "chunk": 1}, {"path": first, "chunk": 2})
    refuse({"path": first, "suffixes": [".a"]}, {"path": first})
    refuse({"path": first, "words": "one"}, {"path": first, "words": "two"}, paths=("path", "words"))


def test_who_names_no_files_is_asked_once(refuse):
    """To open a source may take long; sources that nothing else is like are not opened at all."""
    opened = []
    refuse({"path": "a"}, {"path": "b"}, answer=opened.append)
    assert [spec.name for spec in opened] == ["s"]
    refuse({"path": "a"}, {"path": "b", "chunk": 1}, answer=opened.append)
    assert len(opened) == 1


@pytest.mark.parametrize("path", ["a/zz.txt", "a/nothing/*.txt", "none"])
def test_a_missing_path_names_its_neighbours(tree, path):
    """A path that does not exist is named with what its folder holds."""
    with pytest.raises(AndreaError, match="does not exist") as caught:
        find_files(str(tree / path))
    assert "holds: " in caught.value.hint or caught.value.hint.startswith("did you mean z.txt, in ")
    if path == "a/zz.txt":
        assert "z.txt" in caught.value.hint


@pytest.mark.parametrize("path", ["a/*.jpg", "a/deep"])
def test_a_path_without_files_is_refused(tree, path):
    """A folder or pattern that gives no file is an error, not an empty source."""
    with pytest.raises(AndreaError, match="holds no file"):
        find_files(str(tree / path), [".md"])


def test_a_folder_without_permission(tree, monkeypatch):
    """A folder below the given one that may not be read is an error that names it, never passed over."""
    real = os.scandir

    def refuse(path):
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    patterns = (tree / "a/deep/*.txt", tree / "a/*/*.txt", tree / "*/d*/x.txt", tree / "**/x.txt")
    for path in (tree, tree / "a", tree / "a/deep", *patterns):
        with pytest.raises(AndreaError, match=r"cannot read .*deep: Permission denied") as caught:
            find_files(str(path), [".txt"])
        assert "ls -ld" in caught.value.hint


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may read everything")
def test_a_folder_really_without_permission(tree):
    """The same with the file system's own refusal."""
    (tree / "a/deep").chmod(0)
    try:
        with pytest.raises(AndreaError, match=r"cannot read .*deep: Permission denied"):
            find_files(str(tree))
    finally:
        (tree / "a/deep").chmod(0o755)


def test_a_file_without_permission(tree, monkeypatch):
    """A file that may not be read is an error that names it."""

    def refuse(self, *arguments, **options):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(pathlib.Path, "open", refuse)
    with pytest.raises(AndreaError, match=r"cannot read .*b\.txt: Permission denied"):
        list(read_text(tree / "b.txt"))


# -- text --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_a_mark_tells_the_encoding(tmp_path, monkeypatch, encoding):
    """UTF-16 and UTF-32 are known by their byte order mark, either way round; the mark is no part of the text."""
    text = "é λ 😀\n" * 3
    swapped = {"utf-16": "\ufeff".encode("utf-16-be") + text.encode("utf-16-be")}
    for number, data in enumerate((text.encode(encoding), swapped.get(encoding, text.encode(encoding)))):
        path = tmp_path / f"{number}.txt"
        path.write_bytes(data)
        for block in (1, 3, 1 << 20):
            monkeypatch.setattr("andrea.sources._BLOCK", block)
            assert "".join(read_text(path)) == text


def test_an_encoding_can_be_named(tmp_path):
    """Text of another encoding is read as it is told; a wrong byte is located in it too."""
    path = tmp_path / "a.txt"
    path.write_bytes("café".encode("cp1252"))
    assert "".join(read_text(path, "cp1252")) == "café"
    with pytest.raises(AndreaError, match=r"a\.txt is not UTF-8: byte 3 is 0xe9"):
        list(read_text(path))
    with pytest.raises(AndreaError, match=r"a\.txt is not ASCII: byte 3 is 0xe9"):
        list(read_text(path, "ascii"))
    path.write_bytes("ab".encode("utf-16") + b"c")
    with pytest.raises(AndreaError, match=r"a\.txt is not UTF-16: byte 6 is 0x63"):
        list(read_text(path))


@pytest.mark.parametrize("cut", [0, 5, -3])
def test_zstandard(tmp_path, monkeypatch, cut):
    """A file packed with Zstandard is unpacked while it is read; one that is cut short is an error."""
    zstandard = pytest.importorskip("zstandard")
    text = "".join(f"line {number} é\n" for number in range(5000))
    data = zstandard.compress(text.encode())
    (tmp_path / "a.txt.zst").write_bytes(data[: cut or None])
    for block in (100, 1 << 20):
        monkeypatch.setattr("andrea.sources._BLOCK", block)
        if not cut:
            assert "".join(read_text(tmp_path / "a.txt.zst")) == text
            continue
        with pytest.raises(AndreaError, match=r"a\.txt\.zst is damaged or cut short"):
            list(read_text(tmp_path / "a.txt.zst"))


def test_inputs_are_read_one_after_another():
    """A source of several inputs asks the reader of each, with the options of each and the name of the source."""
    inputs = (SourceInput("source.a", {"n": 1}), SourceInput("source.b", {"n": 2}))
    asked = []

    def open_source(spec):
        asked.append((spec.name, spec.reader, dict(spec.options), spec.inputs))
        return [Document(spec.reader, "name", "group")]

    documents = list(read_source(SourceSpec("chat", inputs=inputs), open_source))
    assert [document.text for document in documents] == ["source.a", "source.b"]
    assert asked == [("chat", "source.a", {"n": 1}, ()), ("chat", "source.b", {"n": 2}, ())]
    with pytest.raises(AndreaError, match=r"source chat: source\.b found no document"):
        list(read_source(SourceSpec("chat", inputs=inputs), lambda s: documents if s.reader == "source.a" else []))


def test_text_in_blocks(tmp_path, monkeypatch):
    """Text comes back whole whatever the size of a block, without a byte order mark, packed or not."""
    text = "\ufeffé λ 😀\r\nx\0y\ufeff" * 3
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    for block in (1, 2, 3, 5, 1 << 20):
        monkeypatch.setattr("andrea.sources._BLOCK", block)
        for name in ("a.txt", "a.txt.gz"):
            assert "".join(read_text(tmp_path / name)) == text[1:]


@pytest.mark.parametrize("before", [0, 1, 7, 100])
@pytest.mark.parametrize("wrong", [b"\xff", b"\x80", b"\xc3(", b"\xed\xa0\x80", b"\xf0\x9f\x98"])
def test_a_wrong_byte_is_located(tmp_path, monkeypatch, before, wrong):
    """What is not UTF-8 is refused with the file and the offset of the byte, whatever the size of a block."""
    (tmp_path / "bad.txt").write_bytes(b"\xc3\xa9" * before + wrong)
    for block in (1, 3, 1 << 20):
        monkeypatch.setattr("andrea.sources._BLOCK", block)
        with pytest.raises(
            AndreaError, match=rf"bad\.txt is not UTF-8: byte {2 * before} is 0x{wrong[0]:02x}"
        ) as caught:
            list(read_text(tmp_path / "bad.txt"))
        assert "iconv" in caught.value.hint


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: b"no gzip", lambda data: data[:20] + b"\xff" * 9]
)
def test_a_damaged_gzip_file_is_named(tmp_path, damage):
    """A packed file that is cut short or damaged is refused by name."""
    data = gzip.compress(random.Random(1).randbytes(3000).hex().encode())
    (tmp_path / "a.txt.gz").write_bytes(damage(data))
    with pytest.raises(AndreaError, match=r"a\.txt\.gz"):
        list(read_text(tmp_path / "a.txt.gz"))


@given(text=st.text(st.sampled_from("ab \n"), max_size=400), chunk=st.integers(1, 60), block=st.integers(1, 90))
def test_pieces_are_the_text(text, chunk, block):
    """Pieces joined are the text, none is shorter than half a chunk or as long as two, blocks do not matter."""
    pieces = list(cut_text([text[i : i + block] for i in range(0, len(text), block)], chunk))
    assert "".join(pieces) == text
    assert pieces == list(cut_text([text], chunk))
    if len(text) >= 2 * chunk:
        assert all(chunk // 2 <= len(piece) < 2 * chunk for piece in pieces)
    else:
        assert pieces == ([text] if text else [])


def test_pieces_end_at_paragraphs():
    """A piece ends at the paragraph's end nearest to the chunk, else at a line's end, else at a space."""
    assert list(cut_text(["aaaa aaaa\n\nbbbb bbbb\n\ncccc"], 10)) == ["aaaa aaaa\n\n", "bbbb bbbb\n\ncccc"]
    assert list(cut_text(["aaaa aaaa\nbbbb bbbb\ncccc"], 10)) == ["aaaa aaaa\n", "bbbb bbbb\ncccc"]
    assert list(cut_text(["aaaa aaaa aaaa aaaa aaaa"], 10)) == ["aaaa aaaa aaaa ", "aaaa aaaa"]
    assert list(cut_text(["a" * 25], 10)) == ["a" * 10, "a" * 15]
    assert list(cut_text(["a" * 25], 0)) == ["a" * 25]
    with pytest.raises(AndreaError, match="chunk is -1"):
        list(cut_text(["a"], -1))


@pytest.mark.parametrize("path", ["", ["a", ""]])
def test_an_empty_path_is_not_this_folder(path):
    """Nothing is read in place of a path that was left empty, by options or by files."""
    with pytest.raises(AndreaError, match=r"source s: source\.test\.path is empty") as caught:
        read_options(SourceSpec("s", "source.test", {"path": path}), Wanted)
    assert '"."' in caught.value.hint
    with pytest.raises(AndreaError, match="a path is empty"):
        find_files("")


def test_an_error_within_a_reader_names_its_source(tmp_path):
    """What the building blocks of a reader say comes with the name of the source, once."""

    def read():
        yield from (Document(piece, "a", "g") for piece in cut_text(["text"], -5))

    with pytest.raises(AndreaError) as caught:
        list(read_source(SPEC, lambda spec: Documents(read)))
    assert caught.value.message == "source poems: chunk is -5"
    with pytest.raises(AndreaError) as caught:
        list(read_source(SPEC, lambda spec: None))
    assert caught.value.message.count("source poems") == 1


def test_a_missing_path_shows_what_is_there(tmp_path):
    """Near names, else a few of all with dots behind if there are more."""
    for name in ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot"):
        (tmp_path / name).mkdir()
    with pytest.raises(AndreaError) as caught:
        find_files(str(tmp_path / "delt"))
    assert caught.value.hint == f"did you mean delta, in {tmp_path.resolve()}?"
    with pytest.raises(AndreaError) as caught:
        find_files(str(tmp_path / "zulu"))
    assert caught.value.hint == f"{tmp_path.resolve()} holds: alpha, bravo, charlie, delta, echo, ..."
