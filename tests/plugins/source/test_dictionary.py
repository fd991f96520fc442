"""source.dictionary renders entries as a prompt and a reply."""

from __future__ import annotations

import base64
import gzip
import json

import pytest

from andrea import AndreaError, SourceSpec
from andrea.plugins.source import dictionary


def read(**options):
    documents = dictionary.open_source(SourceSpec("s", "source.dictionary", options))
    first = list(documents)
    assert first == list(documents), "reading twice must give the same"
    return first


def test_rows_of_words_and_definitions(tmp_path):
    """A definition is a text or a list of texts; a word's entries share a group whatever their case; empty ones go."""
    rows = [{"word": "Root", "definition": "a part\nof a plant"}, {"word": "root", "definition": ["one ", "", "two"]}]
    rows.append({"word": "none", "definition": " "})
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    documents = read(path=str(tmp_path))
    assert [d.text for d in documents] == ["> define Root\n< a part\n  of a plant", "> define root\n< one\n  two"]
    assert len({d.group for d in documents}) == 1
    assert read(path=str(tmp_path), prompt="what is {word}?")[0].text.startswith("> what is Root?\n")


def number(value):
    """Return a number as a dict index writes it: digits of base 64, the highest first."""
    digits = base64.b64encode(value.to_bytes(6, "big")).decode()
    return digits.lstrip("A") or "A"


def database(folder, entries, packed):
    text, lines = b"", []
    for words, definition in entries:
        place = f"{number(len(text))}\t{number(len(definition.encode()))}"
        lines += [f"{word}\t{place}" for word in words]
        text += definition.encode()
    (folder / "d.index").write_text("\n".join(sorted(lines)) + "\n", encoding="utf-8")
    (folder / ("d.dict.dz" if packed else "d.dict")).write_bytes(gzip.compress(text) if packed else text)


ENTRIES = [
    (["00-database-info"], "about it"),
    (["leaf", "leaves"], "leaf\n  n. part of a plant\n"),
    (["été"], "été: summer"),
]


@pytest.mark.parametrize("packed", [False, True])
def test_a_dict_database(tmp_path, packed):
    """An index and its texts, packed or not: an entry once, in the order of the texts, without what is about itself."""
    database(tmp_path, ENTRIES * 50, packed)
    documents = read(path=str(tmp_path))
    assert [d.text for d in documents[:2]] == [
        "> define leaf\n< leaf\n    n. part of a plant",
        "> define été\n< été: summer",
    ]
    assert len(documents) == 100


def test_errors_name_what_is_wrong(tmp_path):
    """A missing column, an empty word, a broken index, a missing or cut text are named."""
    (tmp_path / "a.jsonl").write_text('{"word": "x", "meaning": 3}', encoding="utf-8")
    with pytest.raises(AndreaError, match="has no field 'definition'"):
        read(path=str(tmp_path))
    with pytest.raises(AndreaError, match="field 'meaning' is a int"):
        read(path=str(tmp_path), definition="meaning")
    with pytest.raises(AndreaError, match=r"has no \{word\}"):
        read(path=str(tmp_path), prompt="define")
    (tmp_path / "a.jsonl").write_text('{"word": " ", "definition": "d"}', encoding="utf-8")
    with pytest.raises(AndreaError, match="field 'word' is empty"):
        read(path=str(tmp_path))
    (tmp_path / "a.jsonl").unlink()
    database(tmp_path, ENTRIES, False)
    (tmp_path / "d.dict").write_bytes(b"short")
    with pytest.raises(AndreaError, match=r"d\.dict is cut short"):
        read(path=str(tmp_path))
    (tmp_path / "d.dict").unlink()
    with pytest.raises(AndreaError, match="beside it"):
        read(path=str(tmp_path))
    (tmp_path / "d.index").write_text("word only\n", encoding="utf-8")
    with pytest.raises(AndreaError, match=r"d\.index line 1 is no entry"):
        read(path=str(tmp_path))
