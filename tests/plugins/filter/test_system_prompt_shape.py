"""filter.system_prompt_shape finds instructions by their shape, and lets other texts pass."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from andrea import AndreaError, Document, SourceSpec
from andrea.plugins.filter.system_prompt_shape import SystemPromptShape, shape_of
from andrea.plugins.source import docstrings

_SPEC = importlib.util.spec_from_file_location("made_up_texts", Path(__file__).with_name("made_up_texts.py"))
made_up_texts = sys.modules.setdefault("made_up_texts", importlib.util.module_from_spec(_SPEC))
_SPEC.loader.exec_module(made_up_texts)


def dropped(text, **options):
    return SystemPromptShape(**options).keep_document(document=Document(text, "a", "a")) is not None


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_precision_and_recall_on_a_labelled_set(seed):
    """Of 400 instructions and 900 other texts of many shapes, at least 95% are told right, either way."""
    maker = made_up_texts.Maker(seed)
    hits = sum(dropped(maker.instructions()) for _ in range(400))
    false = sum(dropped(maker.other()) for _ in range(900))
    assert hits / 400 >= 0.95
    assert hits / (hits + false) >= 0.95


@pytest.mark.parametrize("kind", ["story", "article", "commit", "recipe", "entry", "letter", "conversation"])
def test_no_kind_of_other_text_suffers(kind):
    """Of every single kind at most one in two hundred is dropped."""
    maker = made_up_texts.Maker(4)
    assert sum(dropped(getattr(maker, kind)()) for _ in range(200)) <= 1


@pytest.mark.parametrize("kind", ["paragraph", "sections"])
def test_every_kind_of_instructions_is_found(kind):
    """A paragraph and a list under headings are found alike."""
    maker = made_up_texts.Maker(5)
    texts = [text for text in (getattr(maker, kind)() for _ in range(200)) if len(text) > 300]
    assert sum(map(dropped, texts)) / len(texts) >= 0.95


def test_real_docstrings_pass():
    """Of the docstrings of the standard library at most 0.5% are dropped, though many are imperatives."""
    documents = list(
        docstrings.open_source(SourceSpec("s", "source.docstrings", {"packages": ["email", "json", "asyncio"]}))
    )
    assert len(documents) > 400
    assert sum(dropped(document.text) for document in documents) <= 0.005 * len(documents)


def test_turns_behind_the_block_excuse_it():
    """The same opening is dropped alone and kept before a long conversation."""
    maker = made_up_texts.Maker(6)
    opening = next(text for text in (maker.paragraph() for _ in range(99)) if 300 < len(text) < 600 and dropped(text))
    turns = "\n".join(maker.exchange(6) for _ in range(12))
    assert dropped(f"{opening}\n{maker.exchange(1)[:200]}")
    assert not dropped(f"{opening}\n{turns}")
    assert dropped(f"{opening}\n{turns}", min_share=0.0)


def test_the_shape_is_measured():
    """Length, sentences, second persons, imperatives, items and headings are counted as a person would."""
    text = "You are kind.\n\nRules:\n- Keep the door shut.\n- The door is green.\n1. He likes it.\n> Hello\n< Hi"
    shape = shape_of(text, 10)
    assert shape.characters == text.index("> Hello")
    assert shape.sentences == 4
    assert (shape.second, shape.directed, shape.others) == (1 / 4, 2 / 4, 1 / 4)
    assert shape.structure == 4 / 5
    assert shape_of(text, 100) is None


def test_words_do_not_matter():
    """Every noun and adjective replaced by a word that means nothing leaves the answer: no phrase is looked for."""
    maker = made_up_texts.Maker(7)
    words = {w for group in ("ROLES", "FIELDS", "THINGS", "ADJECTIVES") for w in getattr(made_up_texts, group)}
    for _ in range(100):
        text = maker.sections()
        other = " ".join("blorg" if word in words else word for word in text.split(" "))
        assert dropped(text) == dropped(other)


def test_options_are_checked():
    """A share is from 0 to 1."""
    with pytest.raises(AndreaError, match=r"min_share is 2"):
        SystemPromptShape(min_share=2.0)
