"""tokenizer.bpe learns merges through the library and loses no byte."""

import json
import time

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from andrea import AndreaError, Tokenizer, TokenizerRequest
from andrea.plugins.tokenizer.bpe import BytePairs, Words

TEXT = "\n".join(
    f"the {adjective} {noun}s were {verb}ing and {verb}ed in the {noun}"
    for adjective in ("old", "new", "small", "réel")
    for noun in ("house", "garden", "river", "train")
    for verb in ("walk", "talk", "paint", "wait")
).encode()


def sample(limit):
    return iter([TEXT[:limit]])


def nothing(limit):
    raise AssertionError("a saved tokenizer must not read the sample")


def train(segments=60):
    return BytePairs(segments=segments).make_tokenizer(TokenizerRequest(sample))


TOKENIZER = train()


@given(st.one_of(st.binary(), st.text().map(str.encode), st.binary().map(lambda raw: TEXT[:40] + raw + TEXT[:40])))
@example(b"")
@example(b"\x00\r\n\xff\xfe \xed\xa0\x80 \xf0\x9f\x98")
@example("a\u0301 \U0001f600 <begin of document><unused 300>".encode())
def test_any_bytes_come_back(data):
    """Decoding the ids of any bytes gives the same bytes, and the id that begins a document is not among them."""
    ids = TOKENIZER.encode(data)
    assert ids.dtype == np.int32
    assert TOKENIZER.decode(ids) == data
    assert TOKENIZER.bos not in ids


SHREDS = [
    " ",
    "  ",
    "\n",
    "\t",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\x1c",
    "\x85",
    "a",
    "the",
    " old",
    "'s",
    "'",
    "7",
    "12",
    "-",
]
SHREDS += ["...", "r\u00e9el", "\u00e9", "\u4e2d\u6587", "\U0001f600", "\u0301", "\x7f", "\0", "w" * 40, " house" * 3]


@given(st.one_of(st.text(), st.lists(st.sampled_from(SHREDS)).map("".join)))
@example("a \u00a0 b\u00a0 c \n d\u2003 \u00e9 \u00e9")
def test_words_one_by_one_are_the_text(text):
    """Text that is cut at spaces has the ids that the library gives for the whole, whatever white space is in it."""
    assert TOKENIZER.encode(text.encode()).tolist() == TOKENIZER._library.encode(text).ids


def test_words_are_remembered_and_forgotten():
    """A word is asked for once while there is room; a long one is never kept."""
    words = Words(TOKENIZER._library, most=2, longest=5)
    given = {word: words[word] for word in ("old", "new", "small", "train", "wait", "painting")}
    assert len(words) <= 2
    assert "painting" not in words
    assert [words[word] for word in given] == list(given.values())
    assert np.frombuffer(given["painting"], np.int32).tolist() == TOKENIZER._library.encode(" painting").ids


@given(st.lists(st.integers(0, TOKENIZER.size - 1)))
def test_any_ids_decode(ids):
    """Any ids decode to the bytes of each, one after the other."""
    assert TOKENIZER.decode(ids) == b"".join(TOKENIZER.decode([number]) for number in ids)


def test_the_plan_of_the_ids():
    """Bytes come first, then the begin of a document, then merges: longer than a byte and used by text."""
    assert TOKENIZER.size == 256 + 60 + 1
    assert isinstance(TOKENIZER, Tokenizer)
    assert [TOKENIZER.decode([value]) for value in range(256)] == [bytes([value]) for value in range(256)]
    assert TOKENIZER.decode([256]) == b""
    assert all(len(TOKENIZER.decode([number])) >= 2 for number in range(257, 317))
    ids = TOKENIZER.encode(TEXT)
    assert ids.max() > 256
    assert len(ids) < len(TEXT) / 2


def test_too_little_text_leaves_ids_unused():
    """A sample that cannot supply the segments leaves ids that decode to nothing; the size stays as asked."""
    tokenizer = train(segments=5000)
    assert tokenizer.size == 5257
    assert tokenizer.decode([5256]) == b""
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_training_is_deterministic(tmp_path):
    """Training twice writes the same files."""
    files = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        train().save(tmp_path / name)
        files.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert files[0] == files[1]
    assert sorted(files[0]) == ["bpe.json", "tokenizer.json"]


def test_save_and_load(tmp_path):
    """A loaded tokenizer reads no sample and gives the same ids and fingerprint."""
    TOKENIZER.save(tmp_path)
    loaded = BytePairs(segments=7).make_tokenizer(TokenizerRequest(nothing, tmp_path))
    assert loaded.fingerprint == TOKENIZER.fingerprint
    assert loaded.size == TOKENIZER.size
    assert loaded.encode(TEXT + b"\xff").tolist() == TOKENIZER.encode(TEXT + b"\xff").tolist()


def test_the_library_reads_the_file(tmp_path):
    """`tokenizer.json` alone gives the same ids in the library."""
    TOKENIZER.save(tmp_path)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert library.encode(TEXT.decode()).ids == TOKENIZER.encode(TEXT).tolist()
    assert library.decode(TOKENIZER.encode(TEXT).tolist()) == TEXT.decode()


def damage_merges(folder):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["merges"].reverse()
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda folder: (folder / "bpe.json").unlink(), "bpe.json"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").write_bytes(b'{"model"'), "tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").write_bytes(b"{}"), "tokenizer.json"),
        (lambda folder: (folder / "bpe.json").write_bytes(b"\xff"), "bpe.json"),
        (lambda folder: (folder / "bpe.json").write_text('{"format": "andrea-harris", "version": 1}'), "bpe.json"),
        (damage_merges, "tokenizer.json"),
    ],
)
def test_damaged_files_are_refused(tmp_path, damage, named):
    """A missing, damaged or foreign file is an error that names it."""
    TOKENIZER.save(tmp_path)
    damage(tmp_path)
    with pytest.raises(AndreaError, match=named):
        BytePairs().make_tokenizer(TokenizerRequest(nothing, tmp_path))


@pytest.mark.parametrize("options", [{"segments": -1}, {"sample_bytes": 0}])
def test_senseless_options_are_refused(options):
    """Options that cannot be meant are the user's error."""
    with pytest.raises(AndreaError, match=r"tokenizer\.bpe"):
        BytePairs(**options).make_tokenizer(TokenizerRequest(sample))


@pytest.mark.parametrize("wrong", [[-1], [317]])
def test_foreign_ids_are_refused(wrong):
    """Ids outside the vocabulary are the user's error."""
    with pytest.raises(AndreaError, match="0 to 316"):
        TOKENIZER.decode(wrong)


@pytest.mark.parametrize("unit", [b"a", b"\xff", b"house "])
def test_time_is_linear(unit):
    """Twice as much hostile text takes about twice as long."""
    seconds = []
    for size in (250_000, 500_000):
        start = time.process_time()
        ids = TOKENIZER.encode(unit * (size // len(unit)))
        seconds.append(time.process_time() - start)
        assert len(ids) >= size / 40
    # Quadratic time would give 4; 50 ms are allowed for the noise of a busy machine in very short runs.
    assert seconds[1] < 4 * seconds[0] + 0.05
