"""One JSON object a line, plain or gzip; a field holds the text, another may name the work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from andrea import AndreaError, Document, SourceSpec, hookimpl, option, plugin
from andrea.sources import Documents, find_files, open_file, read_options


@plugin
class Options:
    """What ``options`` of a source may say."""

    path: str | list[str] = option(help="a file, a folder (everything below it), a pattern, or a list of these")
    text: str = option("text", help="the field that holds the text")
    group: str | None = option(None, help="the field that says which work a line belongs to; each is its own if null")
    suffixes: list[str] = option(
        factory=lambda: [".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz"], help="which files of a folder are read"
    )


@hookimpl
def open_source(spec: SourceSpec) -> Documents:
    """Read a document from every line that is not blank."""
    return Documents(partial(_read, read_options(spec, Options)))


def _read(options: Options) -> Iterator[Document]:
    for path, name in find_files(options.path, options.suffixes):
        with open_file(path) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    record = _parse(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, path, number)
                    text = _text(record, options.text, path, number)
                    place = f"{name} line {number}"
                    group = place if options.group is None else _group(record, options.group, path, number)
                    yield Document(text=text, name=place, group=group)


def _parse(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise AndreaError(
            f"{path} line {number} is not UTF-8: byte {error.start} of the line is 0x{line[error.start]:02x}",
            f"find out its encoding and convert it, for instance: iconv -f ISO-8859-1 -t UTF-8 {path}",
        ) from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise AndreaError(
            f"{path} line {number} is not JSON: {error}", 'every line is one JSON object, such as: {"text": "..."}'
        ) from error
    if not isinstance(record, dict):
        raise AndreaError(f"{path} line {number} is a {type(record).__name__}, not a JSON object", "write {...} lines")
    return record


def _text(record: dict[str, Any], field: str, path: Path, number: int) -> str:
    text = _value(record, field, "text", path, number)
    if not isinstance(text, str):
        raise AndreaError(f"{path} line {number}: field {field!r} is a {type(text).__name__}, not a text", _say(record))
    return text


def _group(record: dict[str, Any], field: str, path: Path, number: int) -> str:
    group = _value(record, field, "group", path, number)
    if isinstance(group, bool) or not isinstance(group, (str, int)) or group == "":
        raise AndreaError(f"{path} line {number}: field {field!r} does not name a work: {group!r}", _say(record))
    return str(group)


def _value(record: dict[str, Any], field: str, option_name: str, path: Path, number: int) -> Any:
    if field not in record:
        raise AndreaError(
            f"{path} line {number} has no field {field!r}", f"{_say(record)}; name one with the option {option_name!r}"
        )
    return record[field]


def _say(record: dict[str, Any]) -> str:
    return f"fields of that line: {', '.join(record) or 'none'}"
