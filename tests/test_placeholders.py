"""Braces in an experiment: {data} is the folder that the command line names."""

from __future__ import annotations

import json

import pytest

from andrea.errors import AndreaError
from andrea.placeholders import fill_data, mapped, texts


def test_every_text_is_reached_and_nothing_else():
    """Lists, objects and texts; keys, numbers and nothing stay as they are."""
    value = {"{data}": ["{data}/a", {"x": "{data}"}], "n": [1, None, True], "t": "plain"}
    assert list(texts(value)) == ["{data}/a", "{data}", "plain"]
    assert mapped(value, str.upper) == {"{data}": ["{DATA}/A", {"x": "{DATA}"}], "n": [1, None, True], "t": "PLAIN"}


def test_a_folder_takes_the_place_of_the_braces(tmp_path):
    """Wherever they stand in a text; a value without them needs no folder."""
    assert fill_data({"path": "{data}/one.jsonl"}, tmp_path, "x.json") == {"path": f"{tmp_path}/one.jsonl"}
    assert fill_data({"path": "one.jsonl"}, None, "x.json") == {"path": "one.jsonl"}


def test_what_is_missing_is_said(tmp_path):
    """No folder, or one that does not exist."""
    with pytest.raises(AndreaError, match=r"x\.json speaks of \{data\}") as caught:
        fill_data(["{data}"], None, "x.json")
    assert caught.value.hint == "name it with --data FOLDER"
    with pytest.raises(AndreaError, match="nowhere is no folder"):
        fill_data(["{data}"], tmp_path / "nowhere", "x.json")


def test_a_run_a_preparation_and_a_look_take_the_folder(andrea, tmp_path):
    """`andrea prepare`, `doctor`, `tokenizer train` and `run` with --data, and what they say without it."""
    (tmp_path / "text").mkdir()
    lines = [json.dumps({"text": f"Document {i} is about the number {i * 7} and little else."}) for i in range(60)]
    (tmp_path / "text" / "one.jsonl").write_text("\n".join(lines))
    value = {
        "name": "braces",
        "model": {"n_layer": 1, "n_head": 1, "d_model": 8, "context": 16},
        "batch": {"batch_size": 2},
        "schedule": {"steps": 3, "warmup_steps": 1},
        "sources": [{"name": "one", "reader": "source.jsonl", "options": {"path": "{data}/one.jsonl"}}],
        "plugins": {"tokenizer.byte": {}},
    }
    file = tmp_path / "braces.json"
    file.write_text(json.dumps(value))
    named = ["--data", str(tmp_path / "text")]
    for command in (["prepare"], ["run", "--device", "cpu", "--out", str(tmp_path / "run")], ["tokenizer", "train"]):
        refused = andrea(*command, str(file))
        assert (refused.code, "name it with --data FOLDER" in refused.err) == (2, True)
    assert andrea("prepare", str(file), *named).code == 0
    assert andrea("doctor", str(file), *named).code == 0
    assert andrea("tokenizer", "train", str(file), *named, "--out", str(tmp_path / "tokenizer")).code == 0
    assert andrea("run", str(file), *named, "--device", "cpu", "--out", str(tmp_path / "run")).code == 0
    kept = json.loads((tmp_path / "run" / "config.json").read_text())
    assert kept["sources"][0]["options"]["path"] == str(tmp_path / "text" / "one.jsonl")
    assert andrea("run", "--resume", "--out", str(tmp_path / "run"), "--steps", "4").code == 0
