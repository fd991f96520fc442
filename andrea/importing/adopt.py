"""A run whose weights come from elsewhere: the sources, the schedule and the plugins are those of an experiment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
from attrs import frozen

from andrea.assembly import open_run
from andrea.errors import AndreaError
from andrea.importing.foreign import Foreign
from andrea.importing.hf import read_hf
from andrea.importing.published import read_published
from andrea.interrupts import Interrupts
from andrea.loop import Hooks
from andrea.planning import Plan, Request, plan
from andrea.registry import create, register
from andrea.types import Tokenizer, TokenizerRequest
from andrea.vocabulary import open_tokenizer

Say = Callable[[str], None]
LIBRARY = "tokenizer.library"
FIXED = ("tokenizer.byte", LIBRARY)  # whose ids no text decides


@frozen
class Wanted:
    """What the user asked for: the model's path, its tokenizer's folder if it is elsewhere, and the run's request."""

    path: Path
    tokenizer: Path | None
    request: Request


def adopt(wanted: Wanted, say: Say, progress: Callable[[str, int, int], None], interrupts: Interrupts) -> Plan:
    """Make a run of a model, with one checkpoint, and return where and what it is.

    Raises
    ------
    AndreaError
        When the model, its tokenizer or the experiment do not fit; then nothing has been written.
    """
    foreign = None if wanted.path.is_file() else _read_folder(wanted.path)
    place = wanted.tokenizer or (foreign.tokenizer if foreign else None)
    request = _with_tokenizer(wanted.request, place)
    if foreign:
        _refuse_shapes(request)
        shape = json.dumps(attrs.asdict(foreign.model))
        request = attrs.evolve(request, settings=[*request.settings, f"model={shape}"])
    planned = plan(request, say)
    tokenizer = _tokenizer(planned)
    if foreign is None:
        foreign = read_published(wanted.path, planned.config.model, tokenizer.size)
    if foreign.vocabulary > tokenizer.size:
        say(f"left out: {foreign.vocabulary - tokenizer.size} rows of the embedding that no id of the tokenizer means")
    foreign = foreign.with_vocabulary(tokenizer.size)
    found = planned.folder.exists()
    loop = open_run(planned, say, progress, interrupts)
    assert loop.folder is not None
    try:
        loop.adopt(foreign.state, foreign.step)
    except BaseException:
        if not found or loop.folder != planned.folder:  # who made it; another number may have been free by then
            shutil.rmtree(loop.folder, ignore_errors=True)
        raise
    finally:
        loop.engine.close()
    return attrs.evolve(planned, folder=loop.folder)


def _read_folder(path: Path) -> Foreign:
    if not path.is_dir():
        raise AndreaError(
            f"there is no {path}", "give a folder of transformers, or a .bin file in the published layout"
        )
    if (path / "checkpoints").is_dir():
        raise AndreaError(
            f"{path} is a run already",
            f"go on with it: andrea run --resume --out {path}; or fork one of its checkpoints",
        )
    return read_hf(path)


def _refuse_shapes(request: Request) -> None:
    """Refuse settings of the model, which brings its own."""
    if wrong := [one for one in request.settings if one.startswith(("model.", "model="))]:
        raise AndreaError(f"--set {wrong[0]}: the model brings its own shape", "leave it out")


def _with_tokenizer(request: Request, place: Path | None) -> Request:
    """Return the request with the plugin that loads the tokenizer of a folder, and the folder, as settings."""
    if place is None:
        return request
    place = place / "tokenizer" if (place / "tokenizer").is_dir() else place  # that of a run
    settings = list(request.settings)
    try:
        name, _ = open_tokenizer(place)
        settings.append(f"data.tokenizer={json.dumps(str(place.resolve()))}")
    except AndreaError:
        if not (place / "tokenizer.json").exists():
            raise
        name = LIBRARY
        settings.append(f"{LIBRARY}.path={json.dumps(str(place.resolve()))}")
    named = [one for one in request.plugins if one.startswith("tokenizer.") and one != name]
    if named:
        raise AndreaError(f"{place} holds a {name}, not a {named[0]}", "leave --plugin out for it")
    return attrs.evolve(request, settings=settings, plugins=[*request.plugins, name])


def _tokenizer(planned: Plan) -> Tokenizer:
    """Return the tokenizer of the planned run, which must be a given one.

    Raises
    ------
    AndreaError
        When it would be trained: its ids would not mean what they mean to the model.
    """
    chosen = next(one for one in planned.chosen if one.entry.kind == "tokenizer")
    folder = planned.config.data.tokenizer
    if not folder and chosen.name not in FIXED:
        raise AndreaError(
            f"a model is of use only with the tokenizer that it was trained with; {chosen.name} would train another",
            "name its folder: --tokenizer FOLDER; bytes alone are --plugin tokenizer.byte",
        )
    hooks = Hooks(register(create([chosen])))
    return hooks.make_tokenizer(TokenizerRequest(saved=Path(folder) if folder else None))
