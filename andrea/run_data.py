"""The data of a run: its sources taken to token files by its plugins, surveyed, or found again."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import platformdirs

from andrea import tokens
from andrea.config import RunConfig
from andrea.errors import AndreaError
from andrea.filters import Report
from andrea.interrupts import Interrupts
from andrea.loop import Hooks
from andrea.planning import Plan
from andrea.registry import Chosen, create, find, path_options, register, source_digest
from andrea.sources import expand, find_files, refuse_twice
from andrea.strict_json import to_json
from andrea.tokens import Prepared, StoppedError, prepare, reopen, survey
from andrea.types import Document, NeedsTextError, SourceSpec, Tokenizer, TokenizerRequest
from andrea.unchanged import Looks, Memo, look
from andrea.workers import count_processes, refuse_in_a_script_without_guard

Progress = Callable[[str, int, int], None]


def cache_folder() -> Path:
    """Return the folder of prepared data: ``ANDREA_CACHE``, else the user's cache."""
    return expand(os.environ.get("ANDREA_CACHE", "").strip() or platformdirs.user_cache_dir("andrea"))


class Asked:
    """The hooks that data is prepared with, which another process can make again from the plugins' names and options.

    Parameters
    ----------
    chosen
        Plugins of a run; those of other kinds are left out.
    hooks
        Of this process, when it has them already.
    saved
        Folder of a tokenizer that is taken instead of training one; empty when one is trained.
    """

    def __init__(self, chosen: Sequence[Chosen], hooks: Hooks | None = None, saved: str = "") -> None:
        kinds = ("source", "filter", "tokenizer")
        self._plugins = [(one.name, dict(one.options)) for one in chosen if one.entry.kind in kinds]
        self._hooks, self.saved = hooks, saved
        self._opened: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_plugins": self._plugins, "_hooks": None, "saved": self.saved, "_opened": {}}

    @property
    def hooks(self) -> Hooks:
        """The hooks, made when they are first needed."""
        if self._hooks is None:
            chosen = [Chosen(find(name), options) for name, options in self._plugins]
            self._hooks = Hooks(register(create(chosen)))
        return self._hooks

    def open_source(self, spec: SourceSpec) -> Any:
        """Ask the reader of a source, once: some ask over the network, and documents can be read again."""
        key = json.dumps(to_json(spec), sort_keys=True)
        if key not in self._opened:
            self._opened[key] = self.hooks.open_source(spec)
        return self._opened[key]

    def files(self, sources: Sequence[SourceSpec]) -> list[tuple[Path, str]] | None:
        """Return all files that the sources are read from, and those that filters are told of; None when not known."""
        found: list[tuple[Path, str]] = []
        for part in (part for spec in sources for part in spec.parts):
            files = getattr(self.open_source(part), "files", None)
            if files is None:
                return None
            found += files()
        for name, options in self._plugins:
            if name.startswith("filter."):
                given = (options[key] for key in path_options(name) if options.get(key))
                found += (file for path in given for file in find_files(path))
        return found

    def keep_document(self, document: Document, source: str) -> str | None:
        """Ask the filters."""
        return self.hooks.keep_document(document, source)

    def identify_document(self, document: Document, source: str) -> list[int]:
        """Ask the filters for the keys of a document."""
        return self.hooks.identify_document(document, source)

    def make_tokenizer(self, request: TokenizerRequest) -> Tokenizer:
        """Ask the tokenizer plugin."""
        if self.saved and request.saved is None:
            request = TokenizerRequest(request.sample, Path(self.saved))
        return self.hooks.make_tokenizer(request)


def open_data(plan: Plan, hooks: Hooks, progress: Progress, interrupts: Interrupts) -> Prepared:
    """Open the data: for a run that goes on exactly what it had, prepared again when it is gone.

    Either way every token file has been written just now, or has been read and compared with its digest: a flipped bit
    on the disk would train a wrong model.
    """
    if plan.snapshot is None:
        return prepare_data(plan.config, plan.chosen, hooks, progress, interrupts)
    wanted = str(plan.snapshot.record["data_sha256"])
    found = _reopened(wanted, plan.config, hooks.make_tokenizer, progress, interrupts)
    if isinstance(found, Prepared):
        return found
    prepared = prepare_data(plan.config, plan.chosen, hooks, progress, interrupts, new=False)
    if prepared.sha256 != wanted:
        raise AndreaError(
            f"{found}, and the sources give other data now than the run was trained on",
            "restore the sources, or begin a new run",
        )
    return prepared


def prepare_data(
    config: RunConfig,
    chosen: Sequence[Chosen],
    hooks: Hooks,
    progress: Progress,
    interrupts: Interrupts,
    new: bool = True,
) -> Prepared:
    """Take the sources of a run to token files, or find them in the cache: unread, where no file has changed.

    Without `new` it is data that a run has been trained on, of which nothing is refused that was accepted then.
    """
    refuse_in_a_script_without_guard()
    asked = Asked(chosen, hooks, config.data.tokenizer)
    tokenizer_key = _tokenizer_key(next(one for one in chosen if one.entry.kind == "tokenizer"), config, asked)
    memo = Memo(cache_folder(), _decides(config, chosen, tokenizer_key), partial(_looks, config, asked))
    if known := memo.recall():
        found = _reopened(known, config, asked.make_tokenizer, progress, interrupts)
        if isinstance(found, Prepared):
            return found
    if new:
        check_sources(config, chosen, asked)
    prepared = prepare(
        config.sources,
        open_source=asked.open_source,
        keep_document=asked.keep_document,
        identify_document=asked.identify_document,
        make_tokenizer=asked.make_tokenizer,
        tokenizer_key=tokenizer_key,
        cache=cache_folder(),
        held_out_share=config.data.held_out_share,
        mix=config.data.mix,
        window=config.sampling.max_tokens,
        progress=progress,
        stopped=interrupts.stop_asked,
        processes=count_processes(),
    )
    memo.note(prepared.sha256)
    return prepared


def _reopened(
    sha256: str,
    config: RunConfig,
    make_tokenizer: Callable[[TokenizerRequest], Tokenizer],
    progress: Progress,
    interrupts: Interrupts,
) -> Prepared | str:
    """Return data that was prepared before; where a part of it is gone or damaged, a text that says which."""
    window = config.sampling.max_tokens
    try:
        return reopen(cache_folder(), sha256, make_tokenizer, progress, interrupts.stop_asked, window)
    except StoppedError:
        raise
    except AndreaError as gone:
        return gone.message


def _looks(config: RunConfig, asked: Asked) -> Looks | None:
    with suppress(AndreaError, OSError):  # who reads it says what is wrong
        files = asked.files(config.sources)
        return None if files is None else look(files)
    return None


def check_sources(config: RunConfig, chosen: Sequence[Chosen], asked: Asked) -> None:
    """Refuse a file that is given twice, as `refuse_twice`, unless a filter knows what was there before.

    Raises
    ------
    AndreaError
        Naming the file.
    """
    filters = [one.entry.load() for one in chosen if one.entry.kind == "filter"]
    if not any(hasattr(one, "identify_document") for one in filters):
        refuse_twice(config.sources, asked.open_source, path_options)


def _decides(config: RunConfig, chosen: Sequence[Chosen], tokenizer_key: str) -> list[Any]:
    """Return what decides the data beside the text: what is asked for, and the code that answers."""
    code = [
        [one.name, one.entry.version, source_digest(one.entry.load()), dict(one.options)]
        for one in chosen
        if one.entry.kind in ("source", "filter")
    ]
    asked = to_json([config.sources, config.data, config.sampling.max_tokens])
    return [asked, tokenizer_key, code, source_digest(tokens), sys.version]


def _tokenizer_key(tokenizer: Chosen, config: RunConfig, asked: Asked) -> str:
    """Return what decides a tokenizer beside the text that it is trained on.

    That is the plugin, its own text included, and its options. One that needs no text, because it is saved or a file
    says all of it, is known by what it is: the file may be another one tomorrow.
    """
    entry, given = tokenizer.entry, given_tokenizer(asked)
    known_by = given.fingerprint if given else dict(tokenizer.options)
    return json.dumps([entry.name, entry.version, source_digest(entry.load()), known_by], sort_keys=True)


def given_tokenizer(asked: Asked) -> Tokenizer | None:
    """Return the tokenizer where it needs no text, so that a wrong one is told at once; None where one is trained.

    Raises
    ------
    AndreaError
        When it cannot be had, or be trained as asked.
    """
    if Path(asked.saved).is_file():
        raise AndreaError(f"data.tokenizer: {asked.saved} is a file", "name a folder that andrea tokenizer train wrote")
    with suppress(NeedsTextError):
        return asked.make_tokenizer(TokenizerRequest())
    return None


def survey_data(
    config: RunConfig, chosen: Sequence[Chosen], hooks: Hooks, progress: Progress, interrupts: Interrupts
) -> dict[str, Report]:
    """Read and filter the sources of a run, write nothing, and say what would become of each."""
    asked = Asked(chosen, hooks, config.data.tokenizer)
    given_tokenizer(asked)
    check_sources(config, chosen, asked)
    return survey(
        config.sources,
        open_source=asked.open_source,
        keep_document=asked.keep_document,
        identify_document=asked.identify_document,
        held_out_share=config.data.held_out_share,
        progress=progress,
        stopped=interrupts.stop_asked,
        processes=count_processes(),
    )
