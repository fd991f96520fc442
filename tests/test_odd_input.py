"""Input that nobody means to give, and what is said of it: never a traceback, and exit code 2."""

from __future__ import annotations

import json
import os
import sys

import pytest

from andrea.errors import AndreaError
from andrea.rows import read_rows

WHOLE = {"name": "odd", "model": {"n_layer": 1, "n_head": 1, "d_model": 8, "context": 16}}


@pytest.fixture
def prepare(andrea, current_folder):
    """Return a function that prepares one source and returns what was said when it was refused."""
    (current_folder / "text.txt").write_text("Enough of a text to be cut into pieces.\n\n" * 60)
    (current_folder / "digits.jsonl").write_text('{"text": "a", "id": ' + "9" * 6000 + "}\n")

    def call(reader="source.text", plugins=None, **options):
        source = {"name": "s", "reader": reader, "options": options}
        value = {**WHOLE, "sources": [source], "plugins": plugins or {"tokenizer.byte": {}}}
        (current_folder / "odd.json").write_text(json.dumps(value))
        ended = andrea("prepare", "odd.json")
        assert ended.code == 2, ended.err
        return ended.err

    return call


@pytest.mark.parametrize(
    ("reader", "options", "said"),
    [
        ("source.jsonl", {"path": "digits.jsonl"}, "digits.jsonl line 1 is not JSON: Exceeds the limit"),
        ("source.text", {"path": "~nobody-of-that-name/x"}, "no user whose home ~nobody-of-that-name is"),
        ("source.commits", {"path": "~nobody-of-that-name/x"}, "no user whose home ~nobody-of-that-name is"),
        ("source.text", {"path": "text.txt", "encoding": "hex"}, "there is no encoding of text 'hex'"),
        ("source.text", {"path": "text.txt", "encoding": "base64"}, "there is no encoding of text 'base64'"),
        ("source.gutenberg", {"path": "text.txt", "encoding": "rot13"}, "there is no encoding of text 'rot13'"),
        ("source.licences", {"distributions": [""]}, "no distribution '' is installed here"),
    ],
)
def test_odd_sources_are_refused(prepare, reader, options, said):
    """Numbers of thousands of digits, homes of nobody, codecs that are no text, names without a letter."""
    assert said in prepare(reader, **options)


def test_a_list_with_an_odd_number_is_refused(tmp_path):
    """In a JSON list as in a line."""
    (tmp_path / "digits.json").write_text('[{"text": "a", "id": ' + "9" * 6000 + "}]")
    with pytest.raises(AndreaError, match=r"digits\.json row 1 is not JSON: Exceeds the limit"):
        list(read_rows(tmp_path / "digits.json"))


@pytest.mark.parametrize("name", ["harris", "bpe"])
@pytest.mark.parametrize("segments", [-1, 1_000_001, 10**10])
def test_odd_vocabularies_are_refused(prepare, name, segments):
    """Before memory is asked for."""
    said = prepare(path="text.txt", plugins={f"tokenizer.{name}": {"segments": segments}})
    assert str(segments) in said
    assert "1000000" in said


@pytest.mark.skipif(sys.platform == "win32", reason="pipes with names are of POSIX")
def test_a_pipe_is_refused(prepare, current_folder):
    """Text is read more than once; a pipe that nobody writes to would be waited for without an end."""
    os.mkfifo(current_folder / "pipe.jsonl")
    assert "pipe.jsonl is neither a file nor a folder" in prepare("source.jsonl", path="pipe.jsonl")


def test_odd_sizes_of_a_sweep_are_refused(andrea, current_folder):
    """Before anything is prepared."""
    ended = andrea("tokenizer", "diet", "--sizes", "512,99999999999")
    assert (ended.code, "--sizes 512,99999999999 is not a list of sizes from 1 to 1000000" in ended.err) == (2, True)


EMPTY = [
    (("inspect", ""), "inspect"),
    (("run", ""), "run"),
    (("sample", "--checkpoint", ""), "--checkpoint"),
    (("run", "--from", "", "--out", "new"), "--from"),
    (("trial", "some", "--out="), "--out"),
    (("plugins", "--kind", ""), "--kind"),
]


@pytest.mark.parametrize(("arguments", "behind"), EMPTY)
def test_an_empty_argument_is_refused(andrea, arguments, behind):
    """A variable of the shell that is not set must not begin a run or mean the current folder."""
    ended = andrea(*arguments)
    assert ended.code == 2
    assert ended.err.startswith(f"error: the argument behind {behind} is empty\n")


TEXTS = [
    (("sample", "--prompt", ""), "there is no run in runs/"),
    (("sample", "--prompt="), "there is no run in runs/"),
    (("sample", "--stop", ""), "a stop string is empty"),
    (("chat", "--opening", ""), "there is no run in runs/"),
    (("evaluate", "--tasks", ""), "there is no run in runs/"),
    (("tokenizer", "inspect", "none", "--text", ""), "no tokenizer plugin can load none"),
    (("tokenizer", "diet", "none", "--sizes", ""), "there is no experiment or file 'none'"),
]


@pytest.mark.parametrize(("arguments", "said"), TEXTS)
def test_a_text_may_be_empty(andrea, current_folder, arguments, said):
    """Where that means something: what is refused then is another thing."""
    assert said in andrea(*arguments).err


def test_a_folder_is_no_checkpoint(andrea, current_folder):
    """Also the current one, whose path has no name."""
    assert "error: there is no checkpoint ." in andrea("run", "--from", ".", "--out", "new").err
    assert "error: there is no run in runs/" in andrea("sample", "--checkpoint", ".").err
