"""The tokenizer.json of another model: its ids, every text back, and no other kind."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from andrea.errors import AndreaError
from andrea.plugins.tokenizer.library import Library
from andrea.testing import check_plugin
from andrea.types import Tokenizer, TokenizerRequest

SAMPLE = ["The sea and the shore, the sand and the wind.", "def shore(sand):\n    return wind(sea, sand)\n"] * 5
END = "<|endoftext|>"


def nothing(limit):
    """Refuse to give training text."""
    raise AssertionError("nothing is trained")


def make_library(vocabulary=280):
    """Return a byte-level BPE as GPT-2's is made: the special token has the last id."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        SAMPLE, trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    )
    library.add_special_tokens([END])
    return library


def write(folder, library=None, config=True, change=None):
    """Write the folder of a tokenizer and return it as text."""
    content = json.loads((library or make_library()).to_str())
    if change:
        change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": END} if config is True else config))
    return str(folder)


def take(folder):
    """Return the tokenizer of a folder."""
    return Library(path=folder).make_tokenizer(TokenizerRequest(nothing))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a tokenizer."""
    return write(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="module")
def tokenizer(folder):
    """Return its tokenizer."""
    return take(folder)


def test_the_ids_are_the_librarys(tokenizer):
    """On text they are those that the library gives, so a model goes on with what it has learned."""
    library = make_library()
    assert isinstance(tokenizer, Tokenizer)
    assert (tokenizer.size, tokenizer.bos) == (281, 280)
    for text in [*SAMPLE, "", "na\u00efve \u2014 \U0001f600", "  \n\n x"]:
        assert tokenizer.encode(text.encode()).tolist() == library.encode(text).ids
    assert len(tokenizer.encode(SAMPLE[0].encode())) < len(SAMPLE[0])  # pairs are merged


@given(st.binary() | st.text().map(str.encode) | st.sampled_from(SAMPLE).map(str.encode))
def test_every_text_comes_back(data):
    """Any bytes, those that are no UTF-8 too; and no text has the id that begins a document."""
    tokenizer = any_tokenizer()
    ids = tokenizer.encode(data)
    assert ids.dtype == np.int32
    assert tokenizer.decode(ids) == data
    assert tokenizer.bos not in ids


@cache
def any_tokenizer():
    """Return a tokenizer for tests that take no fixture of this module."""
    with tempfile.TemporaryDirectory() as folder:
        return take(write(Path(folder)))


def test_text_that_spells_a_special_token_is_text(tokenizer):
    """The library alone would make the begin of a document of it."""
    assert make_library().encode(END).ids == [280]
    ids = tokenizer.encode(END.encode())
    assert 280 not in ids
    assert tokenizer.decode(ids) == END.encode()
    assert tokenizer.decode([280, *ids, 280]) == END.encode()


def test_save_and_load(tokenizer, tmp_path):
    """What was saved loads to the same ids and the same fingerprint, and a changed file does not load."""
    tokenizer.save(tmp_path)
    loaded = Library().make_tokenizer(TokenizerRequest(nothing, tmp_path))
    assert loaded.fingerprint == tokenizer.fingerprint
    text = SAMPLE[1].encode()
    assert loaded.encode(text).tolist() == tokenizer.encode(text).tolist()
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["model"]["merges"].pop()
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(AndreaError, match="is not what was saved"):
        Library().make_tokenizer(TokenizerRequest(nothing, tmp_path))
    (tmp_path / "library.json").write_text("{}")
    with pytest.raises(AndreaError, match=r"library\.json is not of the format"):
        Library().make_tokenizer(TokenizerRequest(nothing, tmp_path))
    (tmp_path / "library.json").write_text(json.dumps({"format": "andrea-library", "version": 1}))
    with pytest.raises(AndreaError, match="is damaged"):
        Library().make_tokenizer(TokenizerRequest(nothing, tmp_path))


@pytest.mark.parametrize(
    ("config", "bos"),
    [
        ({"bos_token": "the"}, None),
        ({"eos_token": END}, 280),
        ({"bos_token": {"content": END}}, 280),
        ({"bos_token": None, "eos_token": "gone"}, 280),
        (False, 280),
    ],
)
def test_what_begins_a_document(tmp_path, config, bos):
    """What the configuration calls so, or the end, or the only special token that there is."""
    found = take(write(tmp_path, config=config)).bos
    assert found == (bos or make_library().token_to_id("the"))


def test_nothing_begins_a_document(tmp_path):
    """Two special tokens and no word on them: the file to write it in is named."""
    library = make_library()
    library.add_special_tokens(["<|pad|>"])
    with pytest.raises(AndreaError, match="does not say which token begins a document") as refused:
        take(write(tmp_path, library, config=False))
    assert "tokenizer_config.json" in refused.value.hint


def prefix_space(content):
    content["pre_tokenizer"]["add_prefix_space"] = True


def lower_case(content):
    content["normalizer"] = json.loads(normalizers.Lowercase().__getstate__())


def lose_bytes(content):
    del content["model"]["vocab"]["A"]


def other_model(content):
    content["model"] = {"type": "Unigram", "vocab": [["a", 0.0]]}


def no_library(content):
    content["model"]["type"] = "no such model"


def no_vocabulary(content):
    content["model"]["vocab"] = 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (prefix_space, "comes back as another one"),
        (lower_case, "it normalises text"),
        (lose_bytes, "1 of the 256 bytes"),
        (other_model, "no vocabulary from token to id"),
        (no_vocabulary, "no vocabulary from token to id"),
        (no_library, "is no tokenizer of the library"),
    ],
)
def test_a_tokenizer_that_loses_text_is_refused(tmp_path, change, said):
    """With the reason."""
    with pytest.raises(AndreaError, match=said):
        take(write(tmp_path, change=change))


@pytest.mark.parametrize("content", [None, "{", "[]", "\xff"])
def test_damaged_files_are_refused(tmp_path, content):
    """Missing, cut, foreign."""
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(AndreaError, match=r"tokenizer\.json"):
        take(str(tmp_path))


def test_no_path_is_said():
    """The option that is missing is named."""
    with pytest.raises(AndreaError, match=r"tokenizer\.library has no path"):
        Library().make_tokenizer(TokenizerRequest(nothing))


def test_foreign_ids_are_refused(tokenizer):
    """Ids outside the vocabulary are the user's error."""
    with pytest.raises(AndreaError, match="0 to 280"):
        tokenizer.decode([281])


def test_the_plugin_keeps_its_contracts(folder):
    """As every tokenizer does."""
    check_plugin("tokenizer.library", path=folder)


def test_another_file_in_the_same_place_is_another_tokenizer(andrea, tmp_path):
    """Prepared text is found again by what the tokenizer is, not by where its file lies."""
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "one.txt").write_text("The sea and the shore, the sand and the wind.\n" * 40)
    source = {"name": "one", "reader": "source.text", "options": {"path": str(tmp_path / "one.txt"), "chunk": 60}}
    experiment = {
        "name": "x",
        "model": {"n_layer": 1, "n_head": 1, "d_model": 8, "context": 16},
        "sources": [source],
        "plugins": {"tokenizer.library": {"path": str(tmp_path / "gpt2")}},
    }
    (tmp_path / "x.json").write_text(json.dumps(experiment))
    seen = []
    for vocabulary in (280, 300, 280):
        write(tmp_path / "gpt2", make_library(vocabulary))
        done = andrea("prepare", tmp_path / "x.json", "--json")
        assert done.code == 0, done.err
        seen.append(json.loads(done.out)["sha256"])
    assert seen[0] == seen[2] != seen[1]
