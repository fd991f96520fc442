"""Grades of an audit: read strictly from CSV files, and added to one as they come."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from attrs import frozen

from andrea.audit import HIGHEST, LOWEST, Sheet
from andrea.errors import AndreaError

COLUMNS = ("sheet", "item", "grade", "note", "grader")
GRADE = re.compile(r"[0-9]{1,3}(?:[.,][0-9]{1,6})?")


@frozen
class Grade:
    """What a grader thinks of one text: the number of the item, counted from 1, and a number from 0 to 10."""

    grader: str
    item: int
    grade: float
    note: str = ""


def parse_grade(text: str) -> float | None:
    """Return a grade written with a point or a comma, or None when it is none."""
    if not GRADE.fullmatch(text.strip()):
        return None
    value = float(text.strip().replace(",", "."))
    return value if LOWEST <= value <= HIGHEST else None


def read_grades(path: Path, sheet: Sheet) -> list[Grade]:
    """Read a file of grades; texts without a grade are left out, a grader without a name is called like the file.

    Raises
    ------
    AndreaError
        With every line that cannot be: another sheet, no such text, no grade from 0 to 10.
    """
    rows = _rows(path)
    grades, faults = [], []
    for line, row in rows:
        if not any(row.values()):
            continue
        item = int(row["item"]) if row["item"].isascii() and row["item"].isdecimal() else 0
        grade = parse_grade(row["grade"])
        if row["sheet"] != sheet.name:
            faults.append(f"line {line}: grades {row['sheet'] or 'no sheet'}, not {sheet.name}")
        elif not 1 <= item <= len(sheet.items):
            faults.append(f"line {line}: there is no text {row['item']!r} among {len(sheet.items)}")
        elif row["grade"] and grade is None:
            faults.append(f"line {line}: {row['grade']!r} is no grade from {LOWEST} to {HIGHEST}")
        elif grade is not None:
            grades.append(Grade(row.get("grader") or path.stem, item, grade, row.get("note", "")))
    if faults:
        more = [f"and {len(faults) - 20} lines more"] if len(faults) > 20 else []
        raise AndreaError(
            f"{path} cannot be read:\n" + "\n".join(faults[:20] + more), "mend these lines; nothing was read"
        )
    return grades


def read_all(paths: Sequence[Path], sheet: Sheet) -> dict[str, dict[int, Grade]]:
    """Return the grades of several files by grader and item.

    Raises
    ------
    AndreaError
        When a file cannot be read, or a grader gives one text two grades.
    """
    found: dict[str, dict[int, Grade]] = {}
    for path in paths:
        for grade in read_grades(path, sheet):
            before = found.setdefault(grade.grader, {}).setdefault(grade.item, grade)
            if before.grade != grade.grade:
                raise AndreaError(
                    f"{grade.grader} grades text {grade.item} with {before.grade:g} and with {grade.grade:g}, "
                    f"the latter in {path}",
                    "leave one of the files out, or give two graders two names in the column grader",
                )
    return dict(sorted(found.items()))


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Return (line, cells by column) of a CSV file as table programs write it: commas, semicolons or tabs."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise AndreaError(f"{path} is not UTF-8 text", "save it as CSV in UTF-8") from None
    except OSError as error:
        raise AndreaError(f"cannot read {path}: {error.strerror}") from None
    head = text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=head.count))
    try:
        columns = [name.strip().lower() for name in next(reader, [])]
        if missing := [name for name in COLUMNS[:3] if name not in columns]:
            raise AndreaError(
                f"{path} has no column {', '.join(missing)}",
                f"it begins with {head[:80]!r}; wanted: {', '.join(COLUMNS)}",
            )
        return [
            (
                reader.line_num,
                {name: cell.strip() for name, cell in zip(columns, [*row, *[""] * len(columns)], strict=False)},
            )
            for row in reader
        ]
    except csv.Error as error:
        raise AndreaError(f"{path} is not CSV: {error} in line {reader.line_num}", "save it as CSV") from None


class GradeFile:
    """A file of one grader's grades, to which each is added at once, so that an end in the middle loses none.

    Parameters
    ----------
    path
        Of the file; a last line that was cut in the middle is taken away.
    sheet, grader
        Whose.
    """

    def __init__(self, path: Path, sheet: Sheet, grader: str) -> None:
        self._sheet, self._grader = sheet, grader
        path.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        self._file = path.open("r+b" if path.exists() else "xb")
        self._file.truncate(len(whole))
        self._file.seek(0, os.SEEK_END)
        if not whole:
            self._write(COLUMNS)

    def add(self, item: int, grade: float, note: str) -> None:
        """Write a grade so that it is safe on disk; the note becomes one line."""
        self._write([self._sheet.name, item, f"{grade:g}", " ".join(note.split()), self._grader])

    def _write(self, row: Sequence[object]) -> None:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerow(row)
        self._file.write(out.getvalue().encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> GradeFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
