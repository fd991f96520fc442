"""``andrea audit``: draw texts for a blind judgement, have them graded, and report the grades."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from andrea.cli_answers import print_json, print_table
from andrea.cli_options import AsJson, DeviceName, Temperature, TopP
from andrea.errors import AndreaError

audit = typer.Typer(no_args_is_help=True, help="Judge what models write, blind: draw a sheet, grade it, report.")

Folder = Annotated[Path, typer.Argument(metavar="AUDIT", help="folder of an audit")]


@audit.command()
def draw(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN|CHECKPOINT...", help="whose texts are compared")],
    prompts: Annotated[Path | None, typer.Option(help="JSON file: domains and their prompts, and a rubric")] = None,
    held_out: Annotated[
        int,
        typer.Option("--held-out", min=0, help="in place of --prompts: so many held-out beginnings of every source"),
    ] = 0,
    draws: Annotated[int, typer.Option(min=1, help="texts for each prompt and checkpoint")] = 1,
    tokens: Annotated[int, typer.Option(min=1, help="tokens of a text")] = 160,
    temperature: Temperature = 0.7,
    top_p: TopP = 0.95,
    seed: Annotated[int, typer.Option(help="of the draws and of the order")] = 0,
    device: DeviceName = "auto",
    out: Annotated[Path | None, typer.Option(help="folder of the audit; audits/ and a digest when left out")] = None,
) -> None:
    """Draw texts from checkpoints with the same prompts and seeds, and write a sheet that hides whose they are."""
    from andrea.audit import Audit, Judged, find_checkpoint, held_out_questions, make_sheet, read_questions
    from andrea.audit import draw as draw_texts
    from andrea.audit_sheet import write_sheets
    from andrea.progress import Preparing, print_line
    from andrea.trained import Model, find_model, open_model

    def open_(checkpoint: Judged) -> Model:
        return open_model(None, checkpoint.path, device, lambda line: None)

    if held_out and prompts:
        raise AndreaError("--prompts and --held-out exclude each other", "leave one of them out")
    checkpoints = tuple(find_checkpoint(path) for path in runs)
    if held_out:
        questions = held_out_questions(find_model(None, checkpoints[0].path, lambda line: None), held_out)
    else:
        questions = read_questions(prompts)
    asked = Audit(checkpoints, questions, draws, tokens, temperature, top_p, seed)
    folder = out or Path("audits") / asked.digest[:8]
    with Preparing() as preparing:
        drawn = draw_texts(asked, folder, open_, preparing)
    sheet = make_sheet(asked, drawn)
    write_sheets(folder, sheet)
    print_line(f"{len(sheet.items)} texts of {len(checkpoints)} checkpoints: {folder / 'sheet.html'}, sheet.csv")
    print_line(
        "  grade them in a browser or a table program, without a look at samples.jsonl, which tells whose they are"
    )
    print_line(f"  put graded files into {folder / 'grades'}, then: andrea audit report {folder}")


@audit.command()
def grade(
    folder: Folder,
    url: Annotated[str, typer.Option(help="of an endpoint like OpenAI's, for instance http://localhost:8000/v1")],
    model: Annotated[str, typer.Option(help="as the endpoint calls it")],
    name: Annotated[str | None, typer.Option(help="of the grader in the report; the model's when left out")] = None,
    key_variable: Annotated[
        str | None, typer.Option(metavar="NAME", help="environment variable with a key to send; none when left out")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="of the request, null leaves one out; repeatable")
    ] = None,
) -> None:
    """Let a language model grade the texts; grades are kept as they come, and the same command goes on."""
    from andrea.audit import read_sheet
    from andrea.audit_grader import Endpoint, grade_sheet
    from andrea.audit_grades import GradeFile, read_grades
    from andrea.folder_lock import FolderLock
    from andrea.progress import Preparing, print_line
    from andrea.settings import parse_setting

    sheet = read_sheet(folder)
    grader = name or model
    fields = dict(parse_setting(one, "--option", "max_tokens=200") for one in option or ())
    endpoint = Endpoint(url, model, _key(key_variable), fields)
    path = folder / "grades" / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', grader).strip('.-') or 'grader'}.csv"
    path.parent.mkdir(exist_ok=True)
    lock = FolderLock(path.parent)
    try:
        with GradeFile(path, sheet, grader) as file, Preparing() as preparing:
            known = {one.item for one in read_grades(path, sheet) if one.grader == grader}
            passed = grade_sheet(sheet, known, endpoint, file, preparing)
    finally:
        lock.release()
    print_line(f"{len(sheet.items) - len(passed)} of {len(sheet.items)} texts are graded: {path}")
    if passed:
        print_line(f"{grader} gave no grade to {', '.join(map(str, passed))}; the same command asks again")
        raise typer.Exit(1)


def _key(variable: str | None) -> str:
    """Return the key that a variable holds; none unless one is named, for the URL may be anybody's."""
    if variable is None:
        return ""
    if not (key := os.environ.get(variable, "").strip()):
        raise AndreaError(
            f"--key-variable names {variable}, which is not set", f"export {variable}=..., or leave it out"
        )
    return key


@audit.command()
def report(
    folder: Folder,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="GRADES...", help="graded CSV files beside those in AUDIT/grades")
    ] = None,
    json_: AsJson = False,
) -> None:
    """Read the grades back, and say what they come to for every domain and checkpoint."""
    from andrea.audit import read_sheet
    from andrea.audit_grades import read_all
    from andrea.audit_report import notes, summarise, table, to_json, write_report
    from andrea.progress import print_line

    sheet = read_sheet(folder)
    paths = {path.resolve(): path for path in [*sorted((folder / "grades").glob("*.csv")), *(files or [])]}
    grades = read_all(list(paths.values()), sheet)
    if not any(grades.values()):
        raise AndreaError(
            f"{folder} has no grades yet",
            f"grade {folder / 'sheet.html'}, or let a model: andrea audit grade {folder} --url URL --model NAME",
        )
    figures = summarise(sheet, grades)
    write_report(folder, figures)
    if json_:
        print_json(to_json(figures))
    else:
        head, *rows = table(figures)
        print_table(head, rows)
        print("\n".join(notes(figures)))
    print_line(f"report: {folder / 'report.md'}, report.json")
