"""Conversations from lists of messages, ShareGPT files and IRC logs, as `> ` and `< ` turns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from andrea import AndreaError, Document, SourceSpec, hookimpl, option, plugin
from andrea.conversations import PROMPT, REPLY, Turn, check_roles, render_pieces, turns_of
from andrea.rows import ROW_SUFFIXES, read_rows, where
from andrea.sources import FILES, LONGEST_LINE, Documents, find_files, naming, read_options, read_text, text_lines

# [12:34:56] <name> text; also with a date in front, a bare time, or none.
_LINE = re.compile(
    r"(?:\[?(?:\d{4}-\d\d-\d\d[T ])?(?P<hour>\d\d):(?P<minute>\d\d)(?::\d\d)?[^\]\s]{0,6}\]?\s+)?"
    r"<[ @+%&~]?(?P<name>[^>\s]+)>\s?(?P<text>.*)"
)


@plugin
class Options:
    """What ``options`` of a source may say."""

    path: str | list[str] = option(help=FILES, path=True)
    messages: str | None = option(None, help="the column of messages; messages or conversations if null")
    group: str | None = option(None, help="the column that names a conversation; each row is its own if null")
    where: dict[str, Any] = option(factory=dict, help="columns and the value, or the list of values, that rows have")
    roles: dict[str, str] = option(factory=dict, help="what further roles are: prompt, reply, opening or skip")
    system: bool = option(True, help="keep a system prompt as an opening block without a mark")
    gap: int = option(60, help="minutes of silence after which a log goes on with another conversation")
    encoding: str | None = option(None, help="of logs, as latin-1; null: UTF-8, or as a byte order mark says")
    chunk: int = option(6000, help="characters of a piece, about; 0 keeps conversations whole")
    suffixes: list[str] = option(
        factory=lambda: [*ROW_SUFFIXES, ".log", ".txt", ".irc"],
        help="which files of a folder are read: rows of messages, and logs",
    )
    longest_line: int = option(LONGEST_LINE, help="bytes of a line, or of a row; a longer one is an error")


@hookimpl
def open_source(spec: SourceSpec) -> Documents:
    """Read conversations in pieces that begin with a prompt; the group is the conversation."""
    options = read_options(spec, Options)
    with naming(spec.name):
        check_roles(options.roles)
        if not options.gap >= 0:
            raise AndreaError(f"gap is {options.gap}", "give minutes from 0 up; a day, 1440, never ends a conversation")
    return Documents(partial(_read, options), partial(find_files, options.path, options.suffixes))


def _read(options: Options) -> Iterator[Document]:
    for path, name in find_files(options.path, options.suffixes):
        is_rows = path.name.lower().endswith(ROW_SUFFIXES)
        found = _rows(path, name, options) if is_rows else _log(path, name, options)
        for place, group, turns in found:
            for number, piece in enumerate(render_pieces(turns, options.chunk), start=1):
                yield Document(text=piece, name=f"{place} piece {number}", group=group)


def _rows(path: Path, name: str, options: Options) -> Iterator[tuple[str, str, list[Turn]]]:
    for row in where(read_rows(path, options.longest_line), options.where):
        place = f"{name} {row.place}"
        yield place, row.group(options.group, place), turns_of(row, options.messages, options.roles, options.system)


def _log(path: Path, name: str, options: Options) -> Iterator[tuple[str, str, list[Turn]]]:
    """Yield the conversations of a log: who speaks first gives prompts, all others give replies.

    Lines that nobody says, such as who came and went, are passed over. A log without times is one conversation.
    """
    said: list[tuple[str, str]] = []
    count, last = 0, None
    for line in text_lines(path, read_text(path, options.encoding), options.longest_line):
        match = _LINE.fullmatch(line.removesuffix("\n").rstrip("\r"))
        if match is None:
            continue
        time = int(match["hour"]) * 60 + int(match["minute"]) if match["hour"] else None
        if said and time is not None and last is not None and (time - last) % 1440 > options.gap:
            count += 1
            yield f"{name} conversation {count}", f"{name} conversation {count}", _sides(said)
            said = []
        last = time
        said.append((match["name"], match["text"]))
    if said:
        yield f"{name} conversation {count + 1}", f"{name} conversation {count + 1}", _sides(said)


def _sides(said: list[tuple[str, str]]) -> list[Turn]:
    turns: list[Turn] = []
    first, before = said[0][0], ""
    for name, text in said:
        if name == before:
            turns[-1] = Turn(turns[-1].mark, f"{turns[-1].text}\n{text}")
        else:
            turns.append(Turn(PROMPT if name == first else REPLY, text))
        before = name
    return turns
