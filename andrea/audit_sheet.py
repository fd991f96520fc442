"""The blind sheet of an audit: one page that needs nothing else, and a CSV file with the same texts."""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import io
from pathlib import Path

from andrea.audit import HIGHEST, LOWEST, Sheet
from andrea.tokenfile import write_whole

COLUMNS = ("sheet", "item", "prompt", "text", "grade", "note", "grader")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a cell that begins so is run by table programs
PAGE = Path(__file__).with_name("audit_page")


def write_sheets(folder: Path, sheet: Sheet) -> None:
    """Write ``sheet.html`` and ``sheet.csv``; neither says whose a text is."""
    write_whole(folder / "sheet.html", to_html(sheet).encode())
    write_whole(folder / "sheet.csv", to_csv(sheet).encode("utf-8-sig"))  # with the mark by which Excel knows UTF-8
    (folder / "grades").mkdir(exist_ok=True)


def to_csv(sheet: Sheet) -> str:
    """Return the sheet as CSV: a person fills in the columns grade and note."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for number, item in enumerate(sheet.items, start=1):
        prompt, text = (_as_text(visible(part)) for part in sheet.shown(item))
        writer.writerow([sheet.name, number, prompt, text, "", "", ""])
    return out.getvalue()


def to_html(sheet: Sheet) -> str:
    """Return the page: texts are escaped, and its policy lets no script run but its own, and no request go out."""
    style, script = (PAGE.with_suffix(suffix).read_text(encoding="utf-8") for suffix in (".css", ".js"))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    values = {
        "policy": policy,
        "style": style,
        "script": script,
        "name": html.escape(sheet.name),
        "rubric": html.escape(visible(sheet.audit.questions.rubric)),
        "count": str(len(sheet.items)),
        "items": "\n".join(_item(sheet, number) for number in range(1, len(sheet.items) + 1)),
    }
    page = PAGE.with_suffix(".html").read_text(encoding="utf-8")
    head, *parts = page.split("{{")  # not one replacement after the other: a text may hold the name of another
    return head + "".join(values[part.partition("}}")[0]] + part.partition("}}")[2] for part in parts)


def visible(text: str) -> str:
    """Return a text whose control characters, and those that turn the direction of writing, can be seen."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def _item(sheet: Sheet, number: int) -> str:
    prompt, text = (html.escape(visible(part)) for part in sheet.shown(sheet.items[number - 1]))
    grades = "".join(
        f'<label><input type="radio" name="grade-{number}" value="{grade}"><span>{grade}</span></label>'
        for grade in range(LOWEST, HIGHEST + 1)
    )
    return (
        f'<article id="item-{number}" data-item="{number}" tabindex="-1" aria-labelledby="title-{number}">\n'
        f'<h2 id="title-{number}">{number} of {len(sheet.items)}</h2>\n'
        # The first line break behind <pre> is dropped by browsers.
        f'<pre lang="" dir="auto">\n<b>{prompt}</b>{text}</pre>\n'
        f'<fieldset><legend>Grade of text {number}</legend><div class="grades">{grades}</div></fieldset>\n'
        f'<label class="note">Note <input type="text" name="note-{number}" maxlength="1000"></label>\n'
        "</article>"
    )


def _as_text(cell: str) -> str:
    """Return a cell that no table program takes for a formula."""
    return f"'{cell}" if cell.startswith(FORMULA) else cell


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
