"""Datasets of the Hugging Face hub by name, or a folder laid out like one: a text, messages, a prompt and a reply."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import groupby
from string import Formatter
from typing import Any

from andrea import AndreaError, Document, SourceSpec, hookimpl, option, plugin
from andrea.conversations import (
    COLUMNS,
    PROMPT,
    REPLY,
    Turn,
    best_threads,
    check_roles,
    render,
    render_pieces,
    turns_of,
)
from andrea.plugins.source.hub_files import Repository, open_repository
from andrea.rows import Row, read_rows, where
from andrea.sources import LONGEST_LINE, Documents, cut_text, naming, read_options

_OPENING_CHARACTERS = 2000


@plugin
class Options:
    """What ``options`` of a source may say."""

    dataset: str = option(help="name on the hub, as owner/name, or a folder laid out like a dataset", path="folder")
    config: str | None = option(None, help="which configuration; the default one, or the only one, if null")
    split: str = option("train", help="which split")
    revision: str | None = option(None, help="branch, tag or commit; the newest if null")
    files: str | list[str] | None = option(None, help="patterns of files, in place of what the dataset says")
    text: str | None = option(None, help="the column that holds a text, which is cut as `chunk` says")
    messages: str | None = option(None, help="the column that holds a list of messages")
    prompt: str | None = option(None, help='what is asked, columns in braces, as in "define {word}"; with `reply`')
    reply: str | None = option(None, help="what is answered, columns in braces")
    tree: bool = option(False, help="rows are messages of trees, as in oasst1: message_id, parent_id, role, text")
    threads: str = option("best", help="of a tree: best follows the best ranked replies, all takes every leaf")
    group: str | None = option(None, help="the column that says which work a row belongs to; each is its own if null")
    where: dict[str, Any] = option(factory=dict, help="columns and the value, or the list of values, that rows have")
    matching: str | None = option(None, help="keep documents in whose first 2,000 characters this expression is found")
    not_matching: str | None = option(None, help="drop documents in whose first 2,000 characters it is found")
    roles: dict[str, str] = option(factory=dict, help="what further roles are: prompt, reply, opening or skip")
    system: bool = option(True, help="keep a system prompt as an opening block without a mark")
    chunk: int = option(6000, help="characters of a piece, about; 0 keeps texts and conversations whole")
    longest_line: int = option(LONGEST_LINE, help="bytes of a line, or of a row; a longer one is an error")


@hookimpl
def open_source(spec: SourceSpec) -> Documents:
    """Read documents from the rows of a split; without columns named, `messages`, `conversations` or `text`."""
    options = read_options(spec, Options)
    _check(spec, options)
    repository = cache(partial(open_repository, spec.name, options.dataset, options.revision))  # not before it is read
    return Documents(partial(_read, repository, options))


def _check(spec: SourceSpec, options: Options) -> None:
    ways = {"text": options.text, "messages": options.messages, "prompt": options.prompt, "tree": options.tree}
    chosen = [name for name, value in ways.items() if value]
    if len(chosen) > 1:
        raise AndreaError(f"source {spec.name}: {' and '.join(chosen)} exclude each other", "a row is read in one way")
    if (options.prompt is None) != (options.reply is None):
        raise AndreaError(f"source {spec.name}: prompt and reply belong together", 'as in "reply": "{answer}"')
    with naming(spec.name):
        check_roles(options.roles)
    if options.threads not in ("best", "all"):
        raise AndreaError(f"source {spec.name}: threads is {options.threads!r}", "give best or all")
    for name in ("matching", "not_matching"):
        try:
            re.compile(getattr(options, name) or "")
        except re.error as error:
            raise AndreaError(f"source {spec.name}: {name} is no regular expression: {error}") from error


def _read(opened: Callable[[], Repository], options: Options) -> Iterator[Document]:
    repository = opened()
    files = repository.files(options.config, options.split, options.files)
    rows = (
        (f"{name} {row.place}", row)
        for name in files
        for row in where(read_rows(repository.fetch(name), options.longest_line), options.where)
    )
    for place, group, pieces in _trees(rows, options) if options.tree else _works(rows, options):
        first = next(pieces, "")
        if first and _wanted(first[:_OPENING_CHARACTERS], options):
            for number, piece in enumerate((first, *pieces), start=1):
                yield Document(text=piece, name=f"{place} piece {number}", group=group)


def _wanted(opening: str, options: Options) -> bool:
    if options.matching is not None and not re.search(options.matching, opening):
        return False
    return options.not_matching is None or not re.search(options.not_matching, opening)


def _works(rows: Iterator[tuple[str, Row]], options: Options) -> Iterator[tuple[str, str, Iterator[str]]]:
    for place, row in rows:
        yield place, row.group(options.group, place), _pieces(row, options)


def _pieces(row: Row, options: Options) -> Iterator[str]:
    if options.prompt is not None and options.reply is not None:
        turns = [Turn(PROMPT, _fill(options.prompt, row, "prompt")), Turn(REPLY, _fill(options.reply, row, "reply"))]
        return iter([render(turns)] if all(turn.text.strip() for turn in turns) else [])
    column = options.text or options.messages or next((c for c in (*COLUMNS, "text") if c in row.values), None)
    if column is None:
        raise row.error("has no column of messages or text", f"{row.columns()}; name one with `text` or `messages`")
    if column == options.text or (options.messages is None and column == "text"):
        return cut_text([row.text(column, "text")], options.chunk)
    return render_pieces(turns_of(row, column, options.roles, options.system), options.chunk)


def _fill(template: str, row: Row, option_name: str) -> str:
    """Put columns in the place of their names in braces."""
    parts = []
    for literal, column, _, _ in Formatter().parse(template):
        parts.append(literal)
        if column:
            parts.append(row.text(column, option_name))
    return "".join(parts)


def _trees(rows: Iterator[tuple[str, Row]], options: Options) -> Iterator[tuple[str, str, Iterator[str]]]:
    """Yield threads of trees of messages, whose rows stand together; the group is the tree."""
    for tree, members in groupby(rows, key=lambda pair: pair[1].text("message_tree_id", "tree")):
        yield from _threads(tree, list(members), options)


def _threads(
    tree: str, members: Sequence[tuple[str, Row]], options: Options
) -> Iterator[tuple[str, str, Iterator[str]]]:
    place, first = members[0]
    for number, thread in enumerate(best_threads([row.values for _, row in members], options.threads == "all"), 1):
        messages = [{"role": one.get("role"), "content": one.get("text")} for one in thread]
        row = Row(first.path, first.place, {"messages": messages})
        turns = turns_of(row, "messages", options.roles, options.system)
        yield f"{place} thread {number}", f"tree {tree}", render_pieces(turns, options.chunk)
