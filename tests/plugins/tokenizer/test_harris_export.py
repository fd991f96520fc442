"""The exported tokenizer.json gives the `tokenizers` library the ids that tokenizer.harris gives."""

import json
import sysconfig
from pathlib import Path

import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from andrea import TokenizerRequest
from andrea.byte_level import BEGIN_NAME, CHARACTERS
from andrea.plugins.tokenizer.harris import Harris
from andrea.plugins.tokenizer.harris_export import build_library, write_library_files

# Prose and code that every Python brings along.
TEXTS = [path.read_text() for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-f]*.py"))]
SAMPLE = [text.encode() for text in TEXTS[::2]]
TOKENIZER = Harris(segments=600).make_tokenizer(TokenizerRequest(lambda limit: iter(SAMPLE)))
SEGMENTS = [text for text, _ in TOKENIZER.segments]
LIBRARY = build_library(SEGMENTS, TOKENIZER.size)

SHREDS = ["return", " self", "  ", " ", "\n", "\r\n", "\t", "\x0b", "\x1c", "\x85", "\u2028", "'", "\u2019", "\u00e9"]
SHREDS += ["na\u00efve", "\u2014", "\U0001f600", "\x00", "123456", "...", "#" * 70, "a" * 70, "A", "\u0130", "\u017f"]
SHREDS += [BEGIN_NAME, "<unused 700>", "<s>", "\u0120", "\u010a", "\ufeff", "\uffff"]
TEXT = st.one_of(
    st.text(),
    st.lists(st.one_of(st.sampled_from(SHREDS), st.sampled_from(TEXTS[1].split(" ")), st.text())).map("".join),
)


@given(TEXT)
@example("")
@example(f"{BEGIN_NAME} don\u2019t  it's\n\n    x")
def test_the_library_gives_the_same_ids(text):
    """Any valid UTF-8 has the same ids in the library, and comes back from them."""
    ids = TOKENIZER.encode(text.encode()).tolist()
    assert LIBRARY.encode(text).ids == ids
    assert LIBRARY.decode(ids) == text


@given(st.sets(st.binary(min_size=2, max_size=4).map(lambda raw: bytes(97 + value % 2 for value in raw)), max_size=9))
def test_the_library_breaks_ties_alike(segments):
    """With many ways to be as short, the library takes the one that we take."""
    segments = sorted(segments)
    ours = type(TOKENIZER)([(text, 1) for text in segments], TOKENIZER.training)
    library = build_library(segments, ours.size)
    for text in ("abababbaabba", "aaaaaaab", "babbabbb abaabab", "a" * 130):
        assert library.encode(text).ids == ours.encode(text.encode()).tolist()


def test_real_text_from_the_file(tmp_path):
    """The files beside the segments, loaded by the library, give the same ids on text that training did not see."""
    TOKENIZER.save(tmp_path)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = TEXTS[1::2]
    assert sum(map(len, texts)) > 300_000
    for text, encoded in zip(texts, library.encode_batch(texts), strict=True):
        assert encoded.ids == TOKENIZER.encode(text.encode()).tolist()


def test_the_begin_of_a_document(tmp_path):
    """Id 256 has a name, which `transformers` reads as that of a special token; text cannot reach it."""
    write_library_files(tmp_path, SEGMENTS, TOKENIZER.size)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert LIBRARY.token_to_id(config["bos_token"]) == TOKENIZER.bos
    assert config["split_special_tokens"] is True
    assert 256 not in LIBRARY.encode(config["bos_token"]).ids
    assert LIBRARY.decode([256, 97, 256, 98], skip_special_tokens=False) == "ab"


def test_ids_without_a_segment():
    """Ids that the sample had no segment for exist in the library, and decode to nothing."""
    library = build_library([b"ab"], 300)
    assert library.get_vocab_size() == 300
    assert library.decode([257, 258, 299]) == "ab"


def test_the_ids_of_bytes():
    """Bytes come first and in order, each as the character that the library writes for it."""
    assert [LIBRARY.token_to_id(character) for character in CHARACTERS] == list(range(256))
