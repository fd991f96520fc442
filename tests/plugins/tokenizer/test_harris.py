"""tokenizer.harris finds morphemes, spends few tokens, and loses no byte."""

import itertools
import json
import re
import time

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from andrea import AndreaError, Tokenizer, TokenizerRequest
from andrea.plugins.tokenizer.harris import Harris, Memory, build_automaton, fewest_ids, remember_pieces
from andrea.plugins.tokenizer.harris_file import checksum, escape, unescape
from andrea.plugins.tokenizer.harris_lattice import Lattice, build_trie
from andrea.plugins.tokenizer.harris_pieces import split
from andrea.plugins.tokenizer.harris_variety import (
    RULES,
    count_letters,
    letter_entropy,
    predecessors,
    successors,
)

STEMS = ["walk", "talk", "paint", "want", "help", "jump", "look", "work", "play", "call"]
STEMS += ["turn", "open", "clean", "fill", "fix", "pass", "count", "point", "start", "hunt"]
SUFFIXES = ["", "ing", "ed", "s", "er", "ers"]
WORDS = [stem + suffix for stem in STEMS for suffix in SUFFIXES]
# Every ending follows every stem, as in a language whose grammar has no exceptions.
TEXT = b"\n".join(" ".join(WORDS[i:] + WORDS[:i]).encode() + b", it's 1955.\r\n\t" for i in range(0, len(WORDS), 7))


def sample(limit):
    return iter([TEXT[:limit]])


def nothing(limit):
    raise AssertionError("a saved tokenizer must not read the sample")


def train(**options):
    return Harris(**{"segments": 40, **options}).make_tokenizer(TokenizerRequest(sample))


TOKENIZER = train()
MIXED = st.one_of(
    st.binary(),
    st.text().map(str.encode),
    st.binary(max_size=20).map(lambda raw: TEXT[:60] + raw + TEXT[-60:]),
    st.lists(st.sampled_from([b" ", b"\n", b"'", b"\xe2\x80\x99", b"walk", b"7", b"\xff", b"-"])).map(b"".join),
)


# -- no byte is lost -------------------------------------------------------------------------------------------------


@given(MIXED)
@example(b"")
@example(b"\x00\r\n\xff\xfe \xed\xa0\x80 \xf0\x9f\x98")
@example("a\u0301 \U0001f600 don\u2019t".encode())
def test_any_bytes_come_back(data):
    """Decoding the ids of any bytes gives the same bytes, and the id that begins a document is not among them."""
    ids = TOKENIZER.encode(data)
    assert ids.dtype == np.int32
    assert TOKENIZER.decode(ids) == data
    assert TOKENIZER.bos not in ids


@given(st.lists(st.integers(0, TOKENIZER.size - 1)))
def test_any_ids_decode(ids):
    """Any ids decode to the bytes of each, one after the other."""
    assert TOKENIZER.decode(ids) == b"".join(TOKENIZER.decode([number]) for number in ids)


@pytest.mark.parametrize("wrong", [-1, 297, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("kind", [list, np.int32, np.int64, np.float64])
def test_foreign_ids_are_refused(wrong, kind):
    """Ids outside the vocabulary are the user's error, whatever kind of array they come in."""
    given = [97] * 10_000 + [wrong]
    with pytest.raises(AndreaError, match=rf"{wrong}\b.* 0 to 296"):
        TOKENIZER.decode(given if kind is list else np.array(given, dtype=kind))


@pytest.mark.parametrize("kind", [np.uint16, np.uint32, np.int32, np.int64, np.uint64])
def test_ids_of_any_kind_decode(kind):
    """The ids of a token file, of the encoder, of the engine."""
    ids = TOKENIZER.encode(TEXT)
    assert TOKENIZER.decode(ids.astype(kind)) == TEXT
    assert TOKENIZER.decode(ids.astype(kind)[::2]) == TOKENIZER.decode(ids[::2].tolist())
    assert TOKENIZER.decode(kind(97)) == b"a"
    assert TOKENIZER.decode([]) == b""


@given(MIXED, st.integers(512, 600))
def test_pieces_are_the_text_wherever_blocks_end(data, block):
    """Pieces joined are the data, none is longer than 257 bytes, and blocks change nothing."""
    data = data * 20
    pieces = list(itertools.chain.from_iterable(split(data)))
    assert b"".join(pieces) == data
    # 64 symbols of up to 4 bytes each, and a space
    assert max(map(len, pieces), default=0) <= 257
    assert list(itertools.chain.from_iterable(split(data, block))) == pieces


def test_pieces_of_ordinary_text():
    """Words keep their leading space and their apostrophe; indents, numbers and symbols stand alone."""
    text = 'He said, "don\u2019t it\'s 12345"\n\n    return  x_y \u2014na\u00efve'.encode()
    pieces = [piece.decode() for piece in itertools.chain(*split(text))]
    assert pieces == [
        *("He", " said", ",", ' "', "don\u2019t", " it's", " 1234", "5", '"', "\n\n   ", " return", " ", " x", "_"),
        *("y", " \u2014", "na\u00efve"),
    ]


# -- what is learned -------------------------------------------------------------------------------------------------


def test_suffixes_are_found():
    """In words made of stems and endings, the endings become segments, and stems with their leading space."""
    segments = {text for text, _ in TOKENIZER.segments}
    assert {b"ing", b"ed", b"er"} <= segments
    assert sum(b" " + stem.encode() in segments for stem in STEMS) >= 18
    pieces = [TOKENIZER.decode([number]) for number in TOKENIZER.encode(b" walking")]
    assert pieces == [b" walk", b"ing"]


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_learns(rule):
    """Every rule finds a vocabulary that at least halves the sample."""
    assert len(train(rule=rule).encode(TEXT)) < len(TEXT) / 2


def test_the_plan_of_the_ids():
    """Bytes come first, then the begin of a document, then segments of two bytes or more."""
    assert TOKENIZER.size == 256 + 40 + 1
    assert isinstance(TOKENIZER, Tokenizer)
    assert [TOKENIZER.decode([value]) for value in range(256)] == [bytes([value]) for value in range(256)]
    assert TOKENIZER.decode([256]) == b""
    assert all(len(TOKENIZER.decode([number])) >= 2 for number in range(257, 297))


def test_every_segment_is_used():
    """Each segment stands in the encoded sample as often as its count says, at least once."""
    # Twice, because pieces seen only once take no part in training.
    tokenizer = Harris(segments=40).make_tokenizer(TokenizerRequest(lambda limit: iter([TEXT, TEXT])))
    used = np.bincount(tokenizer.encode(TEXT), minlength=tokenizer.size)[257:]
    assert (2 * used).tolist() == [count for _, count in tokenizer.segments]
    assert used.min() >= 1


@pytest.mark.parametrize("text", [b"", b"x", TEXT])
def test_too_little_text_leaves_ids_unused(tmp_path, text):
    """A sample that cannot supply the segments leaves ids that decode to nothing; the file says how many it had."""
    tokenizer = Harris(segments=5000).make_tokenizer(TokenizerRequest(lambda limit: iter([text])))
    assert tokenizer.size == 5257
    assert tokenizer.decode([5256]) == b""
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    tokenizer.save(tmp_path)
    content = json.loads((tmp_path / "harris_segments.json").read_text())
    assert content["supplied"] == len(content["segments"]) < content["wanted"] == 5000
    assert content["read_bytes"] == len(text)


def test_training_is_deterministic(tmp_path):
    """Training twice writes the same file; the order of documents does not matter."""
    files = []
    for documents in ([TEXT], [TEXT], TEXT.splitlines(keepends=True), TEXT.splitlines(keepends=True)[::-1]):
        request = TokenizerRequest(lambda limit, documents=documents: iter(documents))
        Harris(segments=40).make_tokenizer(request).save(tmp_path)
        files.append((tmp_path / "harris_segments.json").read_bytes())
    assert files[0] == files[1]
    assert files[2] == files[3]


# -- letter variety --------------------------------------------------------------------------------------------------


def brute_successors(words, length_of):
    """For every word and k, the letters (or the end) after its first k bytes, each with its words."""
    return [
        [length_of([word[k : k + 1] for word in words if word[:k] == given[:k]]) for k in range(len(given) + 1)]
        for given in words
    ]


def entropy(letters):
    shares = np.array([letters.count(letter) for letter in set(letters)]) / len(letters)
    return float(-(shares * np.log2(shares)).sum())


@given(st.sets(st.binary(min_size=1, max_size=5).map(lambda raw: bytes(value % 3 for value in raw)), min_size=1))
def test_varieties_are_what_they_say(words):
    """Counts and entropies, forward and backward, are those of a count by hand."""
    words = sorted(words)
    for measure, by_hand in ((count_letters, lambda letters: len(set(letters))), (letter_entropy, entropy)):
        forward, backward = successors(words, measure), predecessors(words, measure)
        expected_back = brute_successors([word[::-1] for word in words], by_hand)
        for row, expected in enumerate(brute_successors(words, by_hand)):
            # Entropies are rounded to 1/1024 bit.
            assert forward[row, : len(expected)] == pytest.approx(expected, abs=0.0005)
            assert backward[row, : len(expected)] == pytest.approx(expected_back[row][::-1], abs=0.0005)


# -- fewest tokens ---------------------------------------------------------------------------------------------------

SMALL = st.binary(min_size=1, max_size=9).map(lambda raw: bytes(97 + value % 3 for value in raw))
SMALL_SEGMENTS = st.sets(SMALL.filter(lambda text: len(text) > 1), max_size=12).map(sorted)


def every_way(piece, segments):
    if not piece:
        yield ()
    for end in range(1, len(piece) + 1):
        if end == 1 or piece[:end] in segments:
            for rest in every_way(piece[end:], segments):
                yield (piece[:end], *rest)


@given(SMALL, SMALL_SEGMENTS)
def test_fewest_tokens_of_all_ways(piece, segments):
    """The automaton finds the fewest tokens of all ways to cut; of these, the longest last segment, and so on back."""
    numbers = {bytes([value]): value for value in range(256)}
    numbers |= {segment: 257 + number for number, segment in enumerate(segments)}
    best = min(every_way(piece, set(segments)), key=lambda way: (len(way), [-len(part) for part in reversed(way)]))
    assert fewest_ids(piece, build_automaton(numbers)) == [numbers[part] for part in best]


@given(st.lists(SMALL, min_size=1, max_size=8), SMALL_SEGMENTS, st.randoms())
def test_the_lattice_agrees_with_the_encoder(words, segments, random):
    """Training counts the tokens and uses that encoding gives, and its gains are what a segment would save."""
    alive = np.array([random.random() < 0.6 for _ in segments], dtype=bool)
    chosen = [segment for segment, lives in zip(segments, alive, strict=True) if lives]
    counts = np.arange(1, len(words) + 1)
    encoded = encode_all(words, chosen)
    lattice = Lattice(words, build_trie(segments))
    cost, choice = lattice.shortest(alive)
    assert lattice.totals(cost).tolist() == [len(ids) for ids in encoded]
    uses = lattice.uses(choice, counts, len(segments))
    by_hand = [
        sum(int(n) * ids.count(257 + i) for n, ids in zip(counts, encoded, strict=True)) for i in range(len(chosen))
    ]
    assert uses[alive].tolist() == by_hand
    assert uses[~alive].sum() == 0
    gains = lattice.gains(cost, alive, counts)
    for i in np.flatnonzero(~alive):
        more = encode_all(words, [*chosen, segments[i]])
        saved = sum(int(n) * (len(a) - len(b)) for n, a, b in zip(counts, encoded, more, strict=True))
        # The gain counts every place in a word by itself, so a segment that fits a word twice is only bounded.
        if all(len(re.findall(b"(?=" + re.escape(segments[i]) + b")", word)) < 2 for word in words):
            assert gains[i] == saved
        assert (gains[i] > 0) == (saved > 0)


def encode_all(words, segments):
    numbers = {bytes([value]): value for value in range(256)}
    numbers |= {segment: 257 + number for number, segment in enumerate(segments)}
    first = build_automaton(numbers)
    return [fewest_ids(word, first) for word in words]


def test_a_segment_without_itself():
    """The lattice of proper parts says what a segment costs when it does not exist."""
    segments = [b"ab", b"abc", b"abcd"]
    lattice = Lattice(segments, build_trie(segments), proper=True)
    cost, _ = lattice.shortest(np.array([True, True, True]))
    assert lattice.totals(cost).tolist() == [2, 2, 2]
    cost, _ = lattice.shortest(np.array([False, False, True]))
    assert lattice.totals(cost).tolist() == [2, 3, 4]


def test_forgetting_changes_nothing():
    """A memory that begins anew all the time encodes the same and stays small."""
    segments = [text for text, _ in TOKENIZER.segments]
    small = remember_pieces(segments, most=3)
    encoded = b"".join(small[piece] for pieces in split(TEXT) for piece in pieces)
    assert np.frombuffer(encoded, dtype=np.int32).tolist() == TOKENIZER.encode(TEXT).tolist()
    assert len(small) <= 3
    assert len(small.older) <= 3


def test_what_is_needed_again_is_not_made_again():
    """A key that is asked for before its memory is two generations old is made once."""
    made = []
    memory = Memory(lambda key: made.append(key) or key, most=2)
    for key in (b"a", b"b", b"a", b"c", b"a", b"d", b"a", b"e"):
        assert memory[key] == key
    assert made == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize("unit", [b"a", b" ", b"'", b"\xe2\x80\x99", b" a", b"\n ", bytes(range(256)), b"ab'"])
def test_time_is_linear(unit):
    """Twice as much hostile text takes about twice as long."""
    seconds = []
    for size in (1_000_000, 2_000_000):
        data = unit * (size // len(unit))
        start = time.process_time()
        ids = train_once_encode(data)
        seconds.append(time.process_time() - start)
        assert TOKENIZER.decode(ids) == data
    # Quadratic time would give 4; 20 ms are allowed for the noise of a busy machine in very short runs.
    assert seconds[1] < 4 * seconds[0] + 0.02


def train_once_encode(data):
    TOKENIZER._ids.clear()
    TOKENIZER._ids.older.clear()
    return TOKENIZER.encode(data)


# -- the file --------------------------------------------------------------------------------------------------------


@given(st.binary())
def test_segments_are_written_readably(segment):
    """Any bytes have a text, and that text has these bytes."""
    assert unescape(escape(segment)) == segment


@pytest.mark.parametrize("text", ["\\", "\\x4", "\\x41", "a\\b", "\\xFF"])
def test_only_one_way_to_write_a_segment(text):
    """What `escape` does not write is refused."""
    with pytest.raises(ValueError, match="not how a segment is written"):
        unescape(text)


def test_save_and_load(tmp_path):
    """A loaded tokenizer reads no sample and gives the same ids, fingerprint and file."""
    TOKENIZER.save(tmp_path)
    loaded = Harris(segments=7).make_tokenizer(TokenizerRequest(nothing, tmp_path))
    assert loaded.fingerprint == TOKENIZER.fingerprint
    assert (loaded.size, loaded.bos) == (TOKENIZER.size, TOKENIZER.bos)
    assert loaded.encode(TEXT + b"\xff").tolist() == TOKENIZER.encode(TEXT + b"\xff").tolist()
    written = (tmp_path / "harris_segments.json").read_bytes()
    loaded.save(tmp_path)
    assert (tmp_path / "harris_segments.json").read_bytes() == written


def test_the_fingerprint_is_about_encoding():
    """Other segments, another order or another size give another fingerprint; counts do not."""
    segments, training = TOKENIZER.segments, TOKENIZER.training
    make = type(TOKENIZER)
    other_counts = [(text, count + 1) for text, count in segments]
    assert make(other_counts, training).fingerprint == TOKENIZER.fingerprint
    assert make(segments[::-1], training).fingerprint != TOKENIZER.fingerprint
    assert make(segments[:-1], training).fingerprint != TOKENIZER.fingerprint
    assert train(segments=41).fingerprint != TOKENIZER.fingerprint


def change(content):
    content["segments"][0][0] = "other"


def foreign(content):
    content["format"] = "andrea-bpe"


def other_rule(content):
    content["pieces"] = "0"


def other_version(content):
    content["version"] = 2


def twice(content):
    content["segments"][1] = content["segments"][0]
    content["sha256"] = checksum(content)


def badly_escaped(content):
    content["segments"][0][0] = "\\x41"
    content["sha256"] = checksum(content)


def no_segments(content):
    del content["segments"]
    content["sha256"] = checksum(content)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (change, "checksum"),
        (foreign, "not a file of Harris segments"),
        (other_rule, "another version"),
        (other_version, "another version"),
        (twice, "must differ"),
        (badly_escaped, "not how a segment is written"),
        (no_segments, "segments"),
    ],
)
def test_damaged_or_foreign_content_is_refused(tmp_path, damage, problem):
    """A file that says something else is an error that names the file and the problem."""
    TOKENIZER.save(tmp_path)
    path = tmp_path / "harris_segments.json"
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(AndreaError, match=problem) as caught:
        Harris().make_tokenizer(TokenizerRequest(nothing, tmp_path))
    assert str(path) in caught.value.message


@pytest.mark.parametrize("raw", [None, b"", b"\xff", b"[]", b'{"format"'])
def test_unreadable_files_are_refused(tmp_path, raw):
    """A missing or broken file is an error that names it."""
    if raw is not None:
        (tmp_path / "harris_segments.json").write_bytes(raw)
    with pytest.raises(AndreaError, match=r"harris_segments\.json"):
        Harris().make_tokenizer(TokenizerRequest(nothing, tmp_path))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"rule": "peek"}, "entropy"),
        ({"segments": -1}, "segments is -1"),
        ({"sample_bytes": 0}, "sample_bytes is 0"),
        ({"longest": 1}, "longest is 1"),
    ],
)
def test_senseless_options_are_refused(options, named):
    """Options that cannot be meant are the user's error, which names what can be."""
    with pytest.raises(AndreaError, match=named):
        train(**options)
