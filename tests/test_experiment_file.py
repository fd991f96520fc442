"""An experiment is found by its name or path, and its paths are made absolute."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from andrea.errors import AndreaError
from andrea.experiment_file import absolute_paths, experiment_names, read_experiment
from andrea.registry import path_options


def test_a_folder_that_may_not_be_entered_is_an_error_of_the_users(monkeypatch):
    """An experiment in a folder without permission is refused with the reason."""

    def refuse(path, **_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.read_text", refuse)
    monkeypatch.setattr("pathlib.Path.is_file", refuse)
    with pytest.raises(AndreaError, match=r"cannot read secret/x.json: Permission denied"):
        read_experiment("secret/x.json")


@pytest.mark.parametrize("content", [[1, 2], "text", 3, None])
def test_an_experiment_is_an_object(write_experiment, content):
    """JSON that is a list, a text or a number is no experiment."""
    with pytest.raises(AndreaError, match="an experiment is a JSON object"):
        read_experiment(write_experiment(content, "odd.json"))


def test_an_unknown_experiment_is_answered_with_its_neighbours():
    """A misspelt bundled experiment is suggested, and all of them are listed."""
    with pytest.raises(AndreaError) as caught:
        read_experiment("quickstrat")

    assert "did you mean quickstart?" in caught.value.hint
    assert all(name in caught.value.hint for name in experiment_names())


@pytest.mark.parametrize("name", ["x" * 5000, "", "no/such/file.json", "a\0b"])
def test_a_name_that_cannot_be_a_file_is_an_unknown_experiment(name):
    """Names that no file can have are treated as every unknown name."""
    with pytest.raises(AndreaError, match="there is no experiment or file"):
        read_experiment(name)


def test_a_folder_is_no_experiment(tmp_path):
    """A folder is called one, and one that holds a run says how that goes on."""
    with pytest.raises(AndreaError, match="is a folder") as caught:
        read_experiment(str(tmp_path))
    assert "JSON file" in caught.value.hint
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(AndreaError, match="is a folder") as caught:
        read_experiment(str(tmp_path))
    assert f"andrea run --resume --out {tmp_path}" in caught.value.hint


def test_paths_are_made_absolute(tmp_path, monkeypatch):
    """Options that name files do so from any folder afterwards; what is no path, or no longer one, stays."""
    (tmp_path / "sets").mkdir()
    monkeypatch.chdir(tmp_path)
    value = {
        "name": "path",
        "data": {"tokenizer": "sets", "mix": None},
        "sources": [
            {
                "name": "a",
                "reader": "source.text",
                "options": {"path": ["a.txt", "/b", "../c*", "~/d", "", 3, "s3://e"], "encoding": "sets"},
            },
            {"name": "b", "inputs": [{"reader": "source.hub", "options": {"dataset": "sets", "where": {"path": "x"}}}]},
            {"name": "c", "reader": "source.hub", "options": {"dataset": "owner/name"}},
        ],
        "plugins": {"bandit.replay": {"path": "runs/one"}, "tokenizer.harris": {"segments": 9}},
    }
    absolute_paths(value, path_options)
    here, options = str(tmp_path), [source.get("options") for source in value["sources"]]
    home = str(Path("~/d").expanduser())
    assert options[0]["path"] == [f"{here}/a.txt", "/b", f"{here}/../c*", home, "", 3, "s3://e"]
    assert value["sources"][1]["inputs"][0]["options"] == {"dataset": f"{here}/sets", "where": {"path": "x"}}
    assert options[0]["encoding"] == "sets"
    assert options[2]["dataset"] == "owner/name"
    assert value["plugins"] == {"bandit.replay": {"path": f"{here}/runs/one"}, "tokenizer.harris": {"segments": 9}}
    assert value["data"] == {"tokenizer": f"{here}/sets", "mix": None}
    assert value["name"] == "path"
    for wrong in (
        {},
        {"sources": 3, "plugins": [], "data": None},
        {"sources": [3, {"options": 3}, {"reader": "source.text", "options": 3}], "plugins": {"a": 1}},
        {"sources": [{"reader": ["source.text"], "options": {"path": "a"}}], "plugins": {"bandit.replay": 1}},
    ):
        before = copy.deepcopy(wrong)
        absolute_paths(wrong, path_options)
        assert wrong == before


def test_a_pattern_in_a_folder_that_looks_like_one_stays(tmp_path, monkeypatch):
    """An absolute path would make a pattern of the folder's name."""
    (tmp_path / "a[1]").mkdir()
    monkeypatch.chdir(tmp_path / "a[1]")
    value = {"sources": [{"reader": "source.text", "options": {"path": ["*.txt", "b.txt"]}}]}
    absolute_paths(value, path_options)
    assert value["sources"][0]["options"]["path"] == ["*.txt", str(tmp_path / "a[1]" / "b.txt")]
