"""Many texts at once get the ids that each gets by itself, whatever the bytes."""

import itertools
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from andrea import TokenizerRequest
from andrea.plugins.tokenizer import harris_bulk
from andrea.plugins.tokenizer.harris import Harris, build_automaton, fewest_ids
from andrea.plugins.tokenizer.harris_automaton import Automaton
from andrea.plugins.tokenizer.harris_bulk import Bulk, cut_long, find_equal, read_keys
from andrea.plugins.tokenizer.harris_pieces import split
from andrea.plugins.tokenizer.harris_stretches import END, SHORT, cut
from andrea.rng import Draws

STEMS = ["walk", "talk", "paint", "don't", "na\u00efve"]
WORDS = [stem + ending for stem in STEMS for ending in ("", "ing", "ed", "s")]
TEXT = b"\n".join(" ".join(WORDS[i:] + WORDS[:i]).encode() + b", it\xe2\x80\x99s 1955.\r\n\t" for i in range(20)) * 2
TOKENIZER = Harris(segments=60).make_tokenizer(TokenizerRequest(lambda limit: iter([TEXT])))
SEGMENTS = [segment for segment, _ in TOKENIZER.segments]

SHREDS = [b" ", b"  ", b"\n", b"\t ", b"'", b"\xe2\x80\x99", b"\xe2\x80", b"\xe2", b"\x80", b"\xc2\xa0", b"\x99"]
SHREDS += [b"a", b"walk", b" talked", b"1", b"12345", b"-", b"...", b"\0", b"\xff", b"\x1c", b"\x85", b"a" * 14]
SHREDS += [b"b" * 16, b"a" * 63, b"- " * 20, b"\xe2\x94\x80" * 40, b" " * 66, b"7" * 30, b"rock'n'roll", b"#" * 64]
SHREDS += ["\U0001f600".encode()]
TEXTS = st.lists(st.one_of(st.binary(), st.lists(st.sampled_from(SHREDS)).map(b"".join)), max_size=6)


def one(text):
    """Encode by the definition: piece after piece, each by its automaton."""
    return TOKENIZER._encode_pieces(text)


def agree(texts, bulk):
    ids, counts = bulk.encode(texts)
    each = [one(text) for text in texts]
    assert counts.tolist() == [ids.size for ids in each]
    assert ids.dtype == np.int32
    assert ids.tolist() == list(itertools.chain.from_iterable(each))


BULK = Bulk(SEGMENTS, one)


@given(TEXTS)
@example([])
@example([b"", b"", b" "])
@example([b"a'b'c'd", b"'a", b"a'", b"a\xe2\x80\x99\x80'b", b"\xe2\x80", b"\x99s", b"a ", b" b"])
def test_many_texts_are_encoded_as_each(texts):
    """The ids of texts together are those of each by the definition, one after the other."""
    agree(texts, BULK)


def test_every_short_text():
    """All texts of up to five of the bytes that the rule treats differently."""
    letters = [b"a", b"1", b"-", b"'", b" ", b"\n", b"\xe2", b"\x80", b"\x99"]
    for length in range(6):
        agree([b"".join(text) for text in itertools.product(letters, repeat=length)], BULK)


@pytest.mark.parametrize("unit", [b"a", b"1", b"-", b" ", b"\n", b"\xe2\x80\x94", b"\xe2", b"\x80", b"a'", b" 1"])
@pytest.mark.parametrize("behind", [b"", b" x", b"x", b"'s", b"\xe2\x80\x99s", b" ", b"\n"])
def test_every_length(unit, behind):
    """Lengths around every limit of the rule: 4 digits, 15 bytes of a short stretch, 16 after an apostrophe, 64."""
    agree([b"x" + unit * count + behind for count in range(140)], BULK)


def test_text_of_the_world(corpus_of_bytes):
    """Real text, and bytes drawn at random, in blocks and across their ends."""
    agree(corpus_of_bytes, BULK)


@pytest.fixture
def corpus_of_bytes():
    code = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    return [*code, Draws(0, "test.bulk").words(40_000).astype("<u8").tobytes(), TEXT * 5]


# -- blocks ------------------------------------------------------------------------------------------------------------


@settings(deadline=None)  # a block of a few bytes is slow, and the machine may be busy
@given(st.lists(st.sampled_from(SHREDS), max_size=60).map(b"".join), st.integers(8, 80))
def test_long_texts_are_cut_where_pieces_end(text, block):
    """Wherever blocks end, no piece is cut in two: the pieces of the parts are those of the text."""
    before, harris_bulk.BLOCK = harris_bulk.BLOCK, block
    try:
        parts = list(cut_long(text))
        assert [p for part in parts for ps in split(part) for p in ps] == [p for ps in split(text) for p in ps]
        agree([text, text[::-1], b"", text], BULK)
    finally:
        harris_bulk.BLOCK = before


@pytest.mark.parametrize("unit", [b"a", b"a1", b"- ", b"'\n", b"1234567890"])
def test_memory_is_bounded(monkeypatch, unit):
    """Beyond text and ids, four times as much of it takes no more memory."""
    monkeypatch.setattr(harris_bulk, "BLOCK", 1 << 16)
    beyond = []
    for size in (1 << 19, 1 << 21):
        text = unit * (size // len(unit))
        tracemalloc.start()
        ids, _ = BULK.encode([text])
        # The ids stand there in parts, joined, and as the array that is returned.
        beyond.append(tracemalloc.get_traced_memory()[1] - 3 * ids.nbytes)
        tracemalloc.stop()
        assert ids.size >= size // 64
    assert beyond[0] < 40 * 2**20  # of the blocks of `split`, 256 KiB, as pieces of one byte
    assert beyond[1] < 1.1 * beyond[0] + 2**20


# -- equal stretches ---------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=SHORT)), st.booleans())
def test_equal_stretches_are_found(texts, crowded):
    """Two stretches are of one kind if and only if their bytes are the same, also when all fall on one place."""
    before = harris_bulk._MULTIPLIERS
    harris_bulk._MULTIPLIERS = before * np.uint64(0) if crowded else before
    try:
        data = b"".join(texts) + END
        length = np.array([len(text) for text in texts], dtype=np.int64)
        heads, kinds = find_equal(*read_keys(data, np.cumsum(length) - length, length))
    finally:
        harris_bulk._MULTIPLIERS = before
    assert [texts[heads[kind]] for kind in kinds] == texts
    assert len(heads) == len(set(texts))


@given(st.lists(st.sampled_from(SHREDS)).map(b"".join))
def test_stretches_are_made_of_pieces(text):
    """A stretch ends only where a piece ends, and a short one that is not marked is a piece."""
    found = cut(text + END, np.array([len(text)]))
    pieces = [piece for part in split(text) for piece in part]
    ends = set(np.cumsum([len(piece) for piece in pieces]).tolist())
    assert found.first.tolist()[-1] == len(text)
    assert set(found.first[1:].tolist()) <= ends | {len(text)}
    for first, length, several in zip(found.first[:-1], found.length, found.several, strict=False):
        if length <= SHORT and not several:
            assert text[first : first + length] in pieces


# -- fewest ids --------------------------------------------------------------------------------------------------------

SMALL = st.binary(max_size=SHORT).map(lambda raw: bytes(97 + value % 3 for value in raw))


@given(st.lists(SMALL), st.sets(SMALL.filter(lambda text: len(text) > 1), max_size=12).map(sorted))
def test_the_arrays_agree_with_the_automaton(words, segments):
    """Words together get the ids that each gets by itself."""
    numbers = {bytes([value]): value for value in range(256)}
    numbers |= {segment: 257 + number for number, segment in enumerate(segments)}
    text = np.zeros((len(words), SHORT), dtype=np.uint8)
    for row, word in enumerate(words):
        text[row, : len(word)] = list(word)
    ids, counts = Automaton(segments).fewest(text, np.array([len(word) for word in words], dtype=np.int64))
    first = build_automaton(numbers)
    each = [fewest_ids(word, first) for word in words]
    assert counts.tolist() == [len(ids) for ids in each]
    assert ids.tolist() == list(itertools.chain.from_iterable(each))


@pytest.mark.parametrize("unit", [b"a", b"a1", b"' ", b"\xe2\x80\x99", b"a'a", b"12345678 ", b"\n \xff"])
def test_time_is_linear(unit):
    """Twice as much hostile text takes about twice as long."""
    seconds = []
    for size in (2_000_000, 4_000_000):
        text = unit * (size // len(unit))
        start = time.process_time()
        BULK.encode([text])
        seconds.append(time.process_time() - start)
    # Quadratic time would give 4; 50 ms are allowed for the noise of a busy machine.
    assert seconds[1] < 3.5 * seconds[0] + 0.05
