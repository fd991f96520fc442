"""What a file or a machine is, as plain values for ``andrea inspect`` and ``andrea doctor``."""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from andrea.checkpoint import complete_steps, newest_checkpoint, read_checkpoint
from andrea.config import from_json
from andrea.errors import AndreaError, cure
from andrea.loop import Hooks
from andrea.registry import create, register
from andrea.sources import missing, read_source
from andrea.strict_json import read_json
from andrea.tokenfile import TokenFile
from andrea.tokens import is_read_only
from andrea.types import SourceSpec


def inspect_path(path: Path) -> dict[str, Any]:
    """Return what a run's folder, a checkpoint, a token file or a tokenizer's folder holds.

    Raises
    ------
    AndreaError
        When it is none of these, or damaged.
    """
    if (path / "config.json").is_file():
        return _run(path)
    if path.suffix == ".btok":
        return _tokens(path)
    if path.name.startswith("step_"):
        return _checkpoint(path)
    if path.is_dir() and (found := _tokenizer(path)):
        return found
    known = "give a run's folder, RUN/checkpoints/step_NNNNNN.json, a .btok file, or the folder of a tokenizer"
    if not path.exists():
        raise AndreaError(f"{path} does not exist", f"{missing(path).hint}\n{known}")
    raise AndreaError(f"{path} is no run, checkpoint, token file or tokenizer", known)


def _run(folder: Path) -> dict[str, Any]:
    config = from_json(read_json(folder / "config.json"), str(folder / "config.json"))
    steps = complete_steps(folder / "checkpoints")
    damaged: list[str] = []
    newest = newest_checkpoint(folder / "checkpoints", damaged.append) if steps else None
    return {
        "run": str(folder),
        "name": config.name,
        "model": attrs.asdict(config.model),
        "sources": [source.name for source in config.sources],
        "plugins": list(config.plugins),
        "checkpoints": steps,
        "damaged": damaged,
        "step": newest.step if newest else 0,
        "parameters": int(newest.engine["weights"].size) if newest else None,
        "reasons": newest.record["reasons"] if newest else {},
    }


def _tokenizer(folder: Path) -> dict[str, Any] | None:
    """Return what the tokenizer saved in a folder is; None when no tokenizer plugin can load it."""
    from andrea.vocabulary import open_tokenizer

    try:
        name, tokenizer = open_tokenizer(folder)
    except AndreaError:
        return None
    return {
        "tokenizer": str(folder),
        "plugin": name,
        "ids": tokenizer.size,
        "bos": tokenizer.bos,
        "fingerprint": tokenizer.fingerprint,
        "files": sorted(path.name for path in folder.iterdir()),
    }


def _checkpoint(path: Path) -> dict[str, Any]:
    snapshot = read_checkpoint(path)
    return {
        "checkpoint": str(path),
        "step": snapshot.step,
        "parameters": int(snapshot.engine["weights"].size),
        "engine": {key: list(value.shape) for key, value in snapshot.engine.items()},
        "plugins": {name: sorted(state) for name, state in snapshot.plugins.items() if state},
        "reasons": snapshot.record["reasons"],
        "fingerprint": snapshot.record["fingerprint"],
    }


def _tokens(path: Path) -> dict[str, Any]:
    file = TokenFile.open(path)
    file.verify()
    return {
        "tokens": str(path),
        "documents": file.documents,
        "ids": int(file.tokens.size),
        "bytes": file.bytes,
        "vocabulary": file.vocabulary,
        "tokenizer": file.fingerprint,
        "sha256": file.sha256,
    }


def _unread(sources: Sequence[SourceSpec], hooks: Hooks) -> list[str]:
    """Return what is wrong with sources of which not even a first document can be read, input by input."""
    problems = []
    for part in (part for spec in sources for part in spec.parts):
        try:
            next(read_source(part, hooks.open_source))
        except AndreaError as error:
            problems.append(str(error))
    return problems


def _try_cache(cache: Path) -> tuple[str, list[str]]:
    """Return what is to be said of the cache, and what keeps data from being written there: a trial tells."""
    try:
        place = next(p for p in (cache, *cache.parents) if p.exists())
        free = shutil.disk_usage(place).free
        with tempfile.TemporaryFile(dir=place):
            return f"{cache}, {free / 2**30:.0f} GiB free", []
    except OSError as error:
        if is_read_only(cache, error):
            return f"{cache}, which can only be read: what was prepared there is found, and nothing is added", []
        said = f"the cache {cache} cannot be written: {error.strerror or error}"
        return str(cache), [str(AndreaError(said, f"{cure(error)}, or name another folder: ANDREA_CACHE=FOLDER"))]


def examine(experiment: str | None, data: Path | None = None) -> dict[str, Any]:
    """Return what this machine can do, and every problem that would keep an experiment from starting.

    Of each source the first document is read, the tokenizer is loaded if it is one that is given, and whether the cache
    can be written is tried.
    """
    from andrea import __version__
    from andrea.engine.device import find_cards, missing_compiler
    from andrea.planning import Request, plan
    from andrea.run_data import Asked, cache_folder, check_sources, given_tokenizer

    cards, reason = find_cards()
    problems: list[str] = []
    try:
        planned = plan(Request(experiment=experiment, data=data), lambda line: None)
        hooks = Hooks(register(create(planned.chosen, planned.config.source_names)))
        problems += _unread(planned.config.sources, hooks)
        asked = Asked(planned.chosen, hooks, planned.config.data.tokenizer)
        given_tokenizer(asked)
        if not problems:
            check_sources(planned.config, planned.chosen, asked)
    except AndreaError as error:
        problems.append(str(error))
    cache, unwritable = _try_cache(cache_folder())
    return {
        "andrea": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cards": [f"{card.name}, capability {card.capability[0]}.{card.capability[1]}" for card in cards],
        "cuda": reason or missing_compiler() or "ready",
        "cache": cache,
        "experiment": experiment or "quickstart",
        "problems": problems + unwritable,
    }
