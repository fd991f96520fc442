"""The file of an experiment: found by its name or path, read, and its own paths made absolute."""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from andrea.config import DataConfig
from andrea.errors import AndreaError, did_you_mean
from andrea.plugin import path_options as own_path_options
from andrea.resources import experiments_folder
from andrea.strict_json import read_json


def experiment_names() -> list[str]:
    """Return the names of the bundled experiments."""
    return sorted(path.stem for path in experiments_folder().glob("*.json"))


def read_experiment(name: str) -> tuple[dict[str, Any], str]:
    """Return the JSON object of a bundled experiment or a file, and where it was found.

    Raises
    ------
    AndreaError
        When there is no such file or experiment: the nearest names are shown.
    """
    bundled = experiments_folder() / f"{name}.json"
    path = bundled if "/" not in name and _is_file(bundled) else Path(name)
    if name and _is_folder(path):
        raise AndreaError(
            f"{name} is a folder",
            f"it holds a run, which goes on with: andrea run --resume --out {name}"
            if (path / "config.json").is_file()
            else f"give a JSON file in it, or a bundled experiment: {', '.join(experiment_names())}",
        )
    if not _is_file(path):
        known = experiment_names()
        raise AndreaError(
            f"there is no experiment or file {name!r}",
            (did_you_mean(name, known) + " " if did_you_mean(name, known) else "")
            + f"bundled experiments: {', '.join(known)}; or give the path of a JSON file",
        )
    value = read_json(path)
    if not isinstance(value, dict):
        raise AndreaError(f"{path}: an experiment is a JSON object, not {json.dumps(value)[:40]}")
    return value, str(name)


def _is_file(path: Path) -> bool:
    """Say whether there is a file, or something that only reading it can tell."""
    try:
        return path.is_file()
    except PermissionError:
        return True
    except OSError:  # a name that cannot be a file's
        return False


def _is_folder(path: Path) -> bool:
    """Say whether there is a folder that can be seen."""
    try:
        return path.is_dir()
    except OSError:
        return False


def absolute_paths(value: Any, path_options: Callable[[str], Mapping[str, Any]]) -> None:
    """Make options that name files do so whatever folder a program is started in, in the JSON of an experiment.

    Parameters
    ----------
    value
        The experiment, which may be malformed; changed in place.
    path_options
        Which options of a plugin are paths, as `andrea.registry.path_options`.
    """
    sources = _objects(value.get("sources"))
    parts = [*sources, *(part for source in sources for part in _objects(source.get("inputs")))]
    plugins = value.get("plugins")
    named = [(part.get("reader"), part.get("options")) for part in parts]
    named += list(plugins.items()) if isinstance(plugins, dict) else []
    for name, options in named:
        if isinstance(name, str) and isinstance(options, dict):
            _make_absolute(options, path_options(name))
    for data in _objects([value.get("data")]):
        _make_absolute(data, own_path_options(DataConfig))


def _make_absolute(options: dict[str, Any], paths: Mapping[str, Any]) -> None:
    for key in options.keys() & paths.keys():
        found = options[key] if isinstance(options[key], list) else [options[key]]
        full = [_absolute(text, paths[key] == "folder") if isinstance(text, str) else text for text in found]
        options[key] = full if isinstance(options[key], list) else full[0]


def _objects(values: Any) -> list[dict[str, Any]]:
    return [one for one in values if isinstance(one, dict)] if isinstance(values, list) else []


def _absolute(text: str, only_folder: bool) -> str:
    try:
        path, here = Path(text).expanduser(), Path.cwd()
    except RuntimeError:  # ~NAME of nobody: who reads it says so
        return text
    # A pattern stays as it is in a folder whose own name looks like one.
    foreign = not text or "://" in text or (glob.has_magic(text) and glob.has_magic(str(here)))
    return text if foreign or (only_folder and not path.is_dir()) else str(here / path)
