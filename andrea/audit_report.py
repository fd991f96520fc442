"""What the grades of an audit come to: means with intervals, differences between checkpoints, agreement of graders."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cattrs
from attrs import frozen

from andrea.audit import ALL, Sheet
from andrea.audit_grades import Grade
from andrea.journal import plain
from andrea.student_t import interval
from andrea.tokenfile import write_whole

Grades = Mapping[str, Mapping[int, Grade]]


@frozen
class Row:
    """One checkpoint in one domain, or in all of them.

    Attributes
    ----------
    checkpoint, domain
        Which.
    texts
        Graded ones.
    mean, half
        Mean grade and half of its 95% t interval. What counts as one value is a prompt: the mean over its texts and
        their graders, because texts from one prompt are alike. Infinite for one prompt.
    difference, difference_half
        To the first checkpoint, paired by prompt; NaN for the first itself.
    """

    checkpoint: str
    domain: str
    texts: int
    mean: float
    half: float
    difference: float
    difference_half: float


@frozen
class Report:
    """All figures: rows; by grader the number of grades and their mean; Krippendorff's alpha, NaN where undefined."""

    sheet: str
    rows: tuple[Row, ...]
    graders: Mapping[str, tuple[int, float]]
    texts: int
    alpha: float


def summarise(sheet: Sheet, grades: Grades) -> Report:
    """Return the figures of an audit."""
    by_item: dict[int, list[float]] = defaultdict(list)
    for given in grades.values():
        for item, grade in given.items():
            by_item[item].append(grade.grade)
    return Report(
        sheet=sheet.name,
        rows=tuple(_rows(sheet, by_item)),
        graders={name: (len(given), _mean(g.grade for g in given.values())) for name, given in grades.items() if given},
        texts=len(sheet.items),
        alpha=krippendorff_alpha(list(by_item.values())),
    )


def _rows(sheet: Sheet, by_item: Mapping[int, Sequence[float]]) -> Iterable[Row]:
    values: dict[tuple[int, int], list[float]] = defaultdict(list)  # (checkpoint, prompt): means over graders
    for number, item in enumerate(sheet.items, start=1):
        if by_item.get(number):
            values[item.checkpoint, item.prompt].append(_mean(by_item[number]))
    prompts = sheet.audit.prompts
    for domain in [*sheet.audit.questions.domains, ALL]:
        inside = [index for index, (name, _) in enumerate(prompts) if domain in (name, ALL)]
        for number, checkpoint in enumerate(sheet.audit.checkpoints):
            means = {index: _mean(values[number, index]) for index in inside if values.get((number, index))}
            first = {index: _mean(values[0, index]) for index in means if values.get((0, index))}
            if means:
                mean, half = interval(list(means.values()))
                paired = [means[index] - before for index, before in first.items()] if number else []
                difference, difference_half = interval(paired) if paired else (math.nan, math.nan)
                texts = sum(len(values[number, index]) for index in means)
                yield Row(checkpoint.label, domain, texts, mean, half, difference, difference_half)


def krippendorff_alpha(units: Sequence[Sequence[float]]) -> float:
    """Return the agreement of graders on numbers: 1 - observed / expected mean squared difference.

    1 is perfect agreement, 0 what chance would give. Texts with fewer than two grades do not count; not every grader
    has to grade every text.

    Parameters
    ----------
    units
        The grades of each text.

    Returns
    -------
    float
        NaN when no text has two grades, or all grades are equal.

    References
    ----------
    Krippendorff (2011), "Computing Krippendorff's alpha-reliability", for the interval metric.
    """
    units = [unit for unit in units if len(unit) > 1]
    values = [value for unit in units for value in unit]
    expected = _squares(values) / (len(values) - 1) if units else 0.0
    if not expected:
        return math.nan
    return 1 - math.fsum(_squares(unit) / (len(unit) - 1) for unit in units) / expected


def _squares(values: Sequence[float]) -> float:
    """Return the sum of squared differences over all ordered pairs."""
    return math.fsum((a - b) ** 2 for a in values for b in values)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found)


# -- to read -----------------------------------------------------------------------------------------------------------


def write_report(folder: Path, report: Report) -> None:
    """Write report.md and report.json into the audit's folder."""
    head, *rows = table(report)
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in (head, *rows)]
    text = "\n".join([f"# {report.sheet}", "", lines[0], "|" + "---|" * len(head), *lines[1:], "", *notes(report)])
    write_whole(folder / "report.md", text.encode() + b"\n")
    write_whole(folder / "report.json", json.dumps(to_json(report), indent=1).encode() + b"\n")


def to_json(report: Report) -> dict[str, Any]:
    """Return every figure."""
    value: dict[str, Any] = plain(cattrs.unstructure(report))
    return value


def table(report: Report) -> list[list[str]]:
    """Return the head and a row for each domain and checkpoint."""
    first = report.rows[0].checkpoint
    compared = any(not math.isnan(row.difference) for row in report.rows)
    rows = [["domain", "checkpoint", "texts", "grade", *([f"minus {first}"] if compared else [])]]
    for row in report.rows:
        grade = f"{row.mean:.2f}{_half(row.half)}"
        difference = "" if math.isnan(row.difference) else f"{row.difference:+.2f}{_half(row.difference_half)}"
        if abs(row.difference) > row.difference_half:
            difference += " *"
        rows.append([row.domain, row.checkpoint, str(row.texts), grade, *([difference] if compared else [])])
    return rows


def notes(report: Report) -> list[str]:
    """Return lines on the graders and on how the figures are meant."""
    graders = [
        f"{name}: {count} of {report.texts} texts, mean {mean:.2f}" for name, (count, mean) in report.graders.items()
    ]
    alpha = (
        "Agreement: it takes two graders who do not all give one grade."
        if math.isnan(report.alpha)
        else f"Agreement: Krippendorff's alpha {report.alpha:.3f} (1 is perfect, 0 is chance)."
    )
    return [
        *graders,
        alpha,
        "Grades from 0 to 10 with the 95% t interval over the prompts; a star marks a difference clear of zero.",
    ]


def _half(half: float) -> str:
    return f" +- {half:.2f}" if math.isfinite(half) else ""
