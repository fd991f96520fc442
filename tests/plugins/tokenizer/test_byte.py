"""tokenizer.byte gives bytes and nothing but bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from andrea import AndreaError, Tokenizer, TokenizerRequest
from andrea.plugins.tokenizer.byte import Byte


def nothing(limit):
    raise AssertionError("a byte tokenizer must not read the sample")


@pytest.fixture(scope="module")
def tokenizer():
    return Byte().make_tokenizer(TokenizerRequest(nothing))


@given(st.binary())
def test_any_bytes_come_back(data):
    """Encoding and decoding any bytes gives the same bytes, and no id is the one that begins a document."""
    tokenizer = Byte().make_tokenizer(TokenizerRequest(nothing))
    ids = tokenizer.encode(data)
    assert ids.dtype == np.int32
    assert ids.tolist() == list(data)
    assert tokenizer.decode(ids) == data


@given(st.lists(st.integers(0, 256)))
def test_any_ids_decode(ids):
    """Any ids decode; the one that begins a document gives no bytes."""
    tokenizer = Byte().make_tokenizer(TokenizerRequest(nothing))
    assert tokenizer.decode(ids) == bytes(value for value in ids if value < 256)


def test_the_shape_of_the_vocabulary(tokenizer):
    """There are 257 ids, the last begins a document, and the class is a `Tokenizer`."""
    assert (tokenizer.size, tokenizer.bos) == (257, 256)
    assert isinstance(tokenizer, Tokenizer)


@pytest.mark.parametrize("wrong", [[-1], [257], [0, 1000]])
def test_foreign_ids_are_refused(tokenizer, wrong):
    """Ids outside the vocabulary are the user's error."""
    with pytest.raises(AndreaError, match="0 to 256"):
        tokenizer.decode(wrong)


def test_save_and_load(tokenizer, tmp_path):
    """What was saved loads and has the same fingerprint."""
    tokenizer.save(tmp_path)
    loaded = Byte().make_tokenizer(TokenizerRequest(nothing, tmp_path))
    assert loaded.fingerprint == tokenizer.fingerprint


def test_other_programs_get_the_same_ids(tokenizer, tmp_path):
    """`tokenizer.json` gives the library `tokenizers` our ids for any text, and text cannot reach the begin."""
    tokenizer.save(tmp_path)
    library = Library.from_file(str(tmp_path / "tokenizer.json"))
    text = "na\u00efve \u2014 \U0001f600\x00\n <begin of document>"
    assert library.encode(text).ids == list(text.encode())
    assert library.get_vocab_size() == 257
    assert library.decode([256, *text.encode(), 256]) == text


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff\xfe", b"[]", b'{"format": "andrea-harris"}'])
def test_damaged_or_foreign_files_are_refused(tmp_path, content):
    """A missing, damaged or foreign file is an error that names the file."""
    if content is not None:
        (tmp_path / "byte_tokenizer.json").write_bytes(content)
    with pytest.raises(AndreaError, match=r"byte_tokenizer\.json"):
        Byte().make_tokenizer(TokenizerRequest(nothing, tmp_path))
