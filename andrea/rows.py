"""Rows of data files, for readers: JSON lines, a JSON list, Parquet, CSV, packed or not, a row at a time.

A row is a dict of plain Python values. What is wrong with a file is an `AndreaError` with the file and the line.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from andrea.errors import AndreaError, did_you_mean
from andrea.extras import import_extra
from andrea.sources import LONGEST_LINE, read_lines, read_text, text_lines, too_long

PACKED = (".gz", ".zst")
_BATCH = 256  # rows that are unpacked together


@frozen
class Row:
    """A row and where it stands.

    Attributes
    ----------
    path
        Of the file.
    place
        ``line 3`` or ``row 3``.
    values
        Values by column.
    """

    path: Path
    place: str
    values: Mapping[str, Any]

    def get(self, column: str, option: str) -> Any:
        """Return a value, or name the columns that there are and the option that chooses one."""
        if column not in self.values:
            known = ", ".join(self.values) or "none"
            hint = f"fields of that {self.place.split()[0]}: {known}; name one with the option {option!r}"
            close = did_you_mean(column, self.values)
            raise self.error(f"has no field {column!r}", f"{close} {hint}".strip(), colon="")
        return self.values[column]

    def text(self, column: str, option: str) -> str:
        """Return a value that must be a text."""
        value = self.get(column, option)
        if not isinstance(value, str):
            raise self.error(f"field {column!r} is a {type(value).__name__}, not a text", self.columns())
        return value

    def group(self, column: str | None, otherwise: str) -> str:
        """Return the name of the work that a column gives; `otherwise` without a column."""
        if column is None:
            return otherwise
        value = self.get(column, "group")
        if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
            raise self.error(f"field {column!r} does not name a work: {value!r}", self.columns())
        return str(value)

    def columns(self) -> str:
        """Say which columns there are."""
        return f"fields of that {self.place.split()[0]}: {', '.join(self.values) or 'none'}"

    def error(self, message: str, hint: str, colon: str = ":") -> AndreaError:
        """Return an error that says where."""
        return AndreaError(f"{self.path} {self.place}{colon} {message}", hint)


def kind_of(path: Path) -> str:
    """Return the ending that says how a file is read, ``.jsonl`` for ``a.jsonl.gz``."""
    return Path(path.stem).suffix.lower() if path.suffix.lower() in PACKED else path.suffix.lower()


def read_rows(path: Path, longest: int = LONGEST_LINE) -> Iterator[Row]:
    """Yield the rows of a file, by what its name ends in.

    Parameters
    ----------
    path
        Of the file.
    longest
        Bytes of a line, or of an item of a JSON list; Parquet files have neither.

    Raises
    ------
    AndreaError
        When the ending is unknown, a library is missing, a line is longer, or the file is not what its name says.
    """
    kind = kind_of(path)
    if kind not in _READERS:
        raise AndreaError(f"{path} is no file of rows that is known", f"known endings: {', '.join(ROW_SUFFIXES)}")
    yield from _READERS[kind](path, longest)


def read_json_lines(path: Path, longest: int = LONGEST_LINE) -> Iterator[Row]:
    """Yield a row for every line that is not blank."""
    for number, line in enumerate(read_lines(path, longest), start=1):
        if line.strip():
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            yield Row(path, f"line {number}", _parse(text, path, number))


def _parse(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise AndreaError(
            f"{path} line {number} is not UTF-8: byte {error.start} of the line is 0x{line[error.start]:02x}",
            f"find out its encoding and convert it, for instance: iconv -f ISO-8859-1 -t UTF-8 {path}",
        ) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError
        raise AndreaError(
            f"{path} line {number} is not JSON: {error}", 'every line is one JSON object, such as: {"text": "..."}'
        ) from error
    if not isinstance(record, dict):
        raise AndreaError(f"{path} line {number} is a {type(record).__name__}, not a JSON object", "write {...} lines")
    return record


def _read_json(path: Path, longest: int) -> Iterator[Row]:
    """Yield the objects of a JSON list, one at a time; a file that does not begin with ``[`` has lines."""
    blocks = read_text(path)
    first = next(blocks, "")
    if not first.lstrip().startswith("["):
        blocks.close()  # type: ignore[attr-defined]
        yield from read_json_lines(path, longest)
        return
    items = _items(path, first.lstrip()[1:], blocks, longest)
    for number, item in enumerate(items, start=1):
        if not isinstance(item, dict):
            raise AndreaError(
                f"{path} row {number} is a {type(item).__name__}, not a JSON object", "write [{...}, ...]"
            )
        yield Row(path, f"row {number}", item)


def _items(path: Path, buffer: str, blocks: Iterator[str], longest: int) -> Iterator[Any]:
    decode = json.JSONDecoder().raw_decode
    for number in itertools.count(1):
        buffer = buffer.lstrip(" \t\r\n,")
        while True:
            try:
                item, end = decode(buffer) if buffer and buffer[0] != "]" else (None, 0)
                if buffer:
                    break
            except ValueError as error:
                failed = error
            if len(buffer) > longest:
                raise too_long(path, f"row {number}", longest)
            block = next(blocks, None)
            if block is None:
                what = f"row {number} is not JSON: {failed}" if buffer else "is cut short: its list does not end"
                raise AndreaError(f"{path} {what}", "get or write the file again")
            buffer = (buffer + block).lstrip(" \t\r\n,")
        if buffer[0] == "]":
            return
        yield item
        buffer = buffer[end:]


def _read_parquet(path: Path, longest: int) -> Iterator[Row]:
    parquet = import_extra("pyarrow.parquet", "hub", f"{path.name} is a Parquet file")
    try:
        # Neither threads nor reading ahead: a row group may be large, and memory is to stay small.
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            # One group after another: the library cannot make a batch of two whose lists hold categories.
            groups = (file.iter_batches(_BATCH, [i], use_threads=False) for i in range(file.num_row_groups))
            rows = (row for batch in itertools.chain.from_iterable(groups) for row in batch.to_pylist())
            for number, values in enumerate(rows, start=1):
                yield Row(path, f"row {number}", values)
    except NotImplementedError as error:
        raise AndreaError(
            f"{path} holds what pyarrow cannot read: {error}", "write it as JSON lines, or get a newer pyarrow"
        ) from error
    except (ValueError, OSError) as error:  # the library's own errors derive from these
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise AndreaError(f"{path} is not a whole Parquet file: {error}", "get the file again") from error


def _read_csv(path: Path, longest: int) -> Iterator[Row]:
    """Yield the rows under the line of names."""
    csv.field_size_limit(max(longest, csv.field_size_limit()))  # the module's own, 128 KiB, is less than a long text
    reader = csv.DictReader(text_lines(path, read_text(path), longest), strict=True, restkey="")
    try:
        for values in reader:
            if "" in values or None in values.values():
                raise AndreaError(
                    f"{path} line {reader.line_num} has not {len(reader.fieldnames or ())} fields", "mend that line"
                )
            yield Row(path, f"line {reader.line_num}", values)
    except csv.Error as error:
        raise AndreaError(f"{path} line {reader.line_num} is not CSV: {error}", "mend that line") from error


_READERS: dict[str, Callable[[Path, int], Iterator[Row]]] = {
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".json": _read_json,
    ".parquet": _read_parquet,
    ".csv": _read_csv,
}
ROW_SUFFIXES = tuple(kind + packed for kind in _READERS for packed in ("", *PACKED) if kind != ".parquet" or not packed)


def where(rows: Iterator[Row], wanted: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows whose columns have the wanted value, or one of a list of them."""
    for row in rows:
        pairs = ((row.get(column, "where"), value) for column, value in wanted.items())
        if all(found in value if isinstance(value, (list, tuple)) else found == value for found, value in pairs):
            yield row
