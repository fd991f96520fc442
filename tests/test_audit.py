"""`andrea audit`: what is drawn and hidden, that grades come back to where they belong, and what they come to."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import os
import re
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
import typer

from andrea.audit import Audit, Drawn, Judged, Questions, draw, make_sheet, read_questions
from andrea.audit_grades import Grade, GradeFile, parse_grade, read_all, read_grades
from andrea.audit_report import krippendorff_alpha, notes, summarise, table, write_report
from andrea.audit_sheet import FORMULA, to_csv, to_html, visible
from andrea.cli_audit import audit
from andrea.engine import open_engine
from andrea.errors import AndreaError
from andrea.folder_lock import FolderLock
from andrea.rng import Draws
from andrea.student_t import t_quantile

DOMAINS = {"biology": ("Plants", "Cells", "Birds"), "history": ("Kings", "Wars", "Towns")}
FIRST, SECOND = Judged("runs/secret-one", 10, "a"), Judged("runs/secret-two", 20, "b")
AUDIT = Audit((FIRST, SECOND), Questions(DOMAINS), draws=2)


def drawn(audit=AUDIT, text="a text of {0}, {1}, {2}"):
    """Return a text for every place of an audit."""
    places = [
        (checkpoint, prompt, number)
        for checkpoint in range(len(audit.checkpoints))
        for prompt in range(len(audit.prompts))
        for number in range(audit.draws)
    ]
    return [Drawn(*place, text.format(*place)) for place in places]


SHEET = make_sheet(AUDIT, drawn())


def given(grader, value_of, sheet=SHEET):
    """Return a grader's grades by item; `value_of` tells the grade of a drawn text."""
    return {grader: {number: Grade(grader, number, value_of(item)) for number, item in enumerate(sheet.items, start=1)}}


# -- the sheet ---------------------------------------------------------------------------------------------------------


def test_the_order_is_blind_and_fixed():
    """A permutation that depends on the seed and on nothing of the texts; another seed gives another."""
    plain = sorted(drawn(), key=lambda one: (one.checkpoint, one.prompt, one.draw))
    assert set(SHEET.items) == set(plain)
    assert list(SHEET.items) != plain
    assert make_sheet(AUDIT, list(reversed(drawn()))).items == SHEET.items
    other_texts = make_sheet(AUDIT, drawn(text="else {0}{1}{2}"))
    places = [(one.checkpoint, one.prompt, one.draw) for one in SHEET.items]
    assert [(one.checkpoint, one.prompt, one.draw) for one in other_texts.items] == places
    assert make_sheet(attrs.evolve(AUDIT, seed=1), drawn()).items != SHEET.items
    first_half = [one.checkpoint for one in SHEET.items[: len(SHEET.items) // 2]]
    assert 0 < sum(first_half) < len(first_half)  # the second one does not stand in one block


def test_neither_sheet_says_whose_a_text_is():
    """No folder, step, domain or draw; every prompt and text once for each checkpoint."""
    for written in (to_html(SHEET), to_csv(SHEET)):
        for secret in ("secret", "step 10", "biology", "history", "checkpoint"):
            assert secret not in written
        for item in SHEET.items:
            assert written.count(item.text) == 1
    assert SHEET.name != make_sheet(attrs.evolve(AUDIT, seed=1), drawn()).name


def test_texts_stay_texts():
    """Tags, quotes, template marks, formulas and characters that turn or hide text are shown, not obeyed."""
    texts = [
        "</pre><script>alert(1)</script>",
        "\" onfocus='x' {{script}} &amp; {{",
        "\x1b[31m \u202eabc\x00",
        '=HYPERLINK("x")',
        "@cmd",
        "a\r\nb",
    ]
    audit = Audit((FIRST,), Questions({"d": tuple(texts)}))
    sheet = make_sheet(audit, [Drawn(0, number, 0, text) for number, text in enumerate(texts)])
    page = to_html(sheet)
    assert page.count("<script>") == page.count("</script>") == 1
    bodies = re.findall(r'<pre lang="" dir="auto">\n<b>(.*?)</b>(.*?)</pre>', page, re.S)
    assert [tuple(map(html.unescape, pair)) for pair in bodies] == [(visible(i.text),) * 2 for i in sheet.items]
    assert r"\x1b[31m \u202eabc\x00" in page
    assert page.isprintable() or set(page) - {c for c in page if c.isprintable()} == {"\n"}
    rows = list(csv.DictReader(io.StringIO(to_csv(sheet))))
    assert [row["text"].removeprefix("'") for row in rows] == [visible(item.text) for item in sheet.items]
    assert not any(row[column].startswith(FORMULA) for row in rows for column in ("prompt", "text"))


def test_the_page_asks_nobody():
    """No address but its own parts; the policy names the digests of its style and its script."""
    page = to_html(SHEET)
    assert re.findall(r"(?:https?:)?//(?![^\n]*\n)|\b(?:src|href)=|@import|fetch\(|XMLHttp|url\(", page) == []
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1])
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


# -- grades ------------------------------------------------------------------------------------------------------------


def fill(sheet, value_of, grader=""):
    """Return the CSV sheet with its columns filled in, its rows turned around, as a table program may write it."""
    rows = list(csv.DictReader(io.StringIO(to_csv(sheet))))
    for row, item in zip(rows, sheet.items, strict=True):
        row |= {"grade": value_of(item), "grader": grader, "note": "n;o,te"}
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), delimiter=";")
    writer.writeheader()
    writer.writerows(reversed(rows))
    return out.getvalue()


def test_grades_shuffled_and_read_back_give_the_known_answer(tmp_path):
    """Grades that are a function of a text's origin come back to it, whatever the order of sheet and file."""
    known = {(0, "biology"): 4.0, (0, "history"): 6.0, (1, "biology"): 7.5, (1, "history"): 6.0}

    def value_of(item):
        return str(known[item.checkpoint, AUDIT.prompts[item.prompt][0]]).replace(".", ",")

    (tmp_path / "ann.csv").write_bytes(fill(SHEET, value_of).encode("utf-8-sig"))
    (tmp_path / "x.csv").write_text(fill(SHEET, value_of, "ben"), encoding="utf-8")
    grades = read_all([tmp_path / "ann.csv", tmp_path / "x.csv"], SHEET)
    report = summarise(SHEET, grades)
    found = {(row.checkpoint, row.domain): (row.texts, row.mean, row.half) for row in report.rows}
    for (number, domain), value in known.items():
        assert found[AUDIT.checkpoints[number].label, domain] == (6, value, 0.0)
    assert found[FIRST.label, "all"][:2] == (12, 5.0)
    assert found[SECOND.label, "all"][:2] == (12, 6.75)
    assert report.graders == {"ann": (24, 5.875), "ben": (24, 5.875)}
    assert report.alpha == 1.0


def test_intervals_are_those_of_prompts_and_differences_are_paired():
    """Texts of one prompt are averaged first; the t interval is over prompts, worked by hand."""
    grades = given("ann", lambda item: item.prompt % 3 + item.draw + 3.0 * item.checkpoint)
    rows = {(row.checkpoint, row.domain): row for row in summarise(SHEET, grades).rows}
    # Means of the prompts in each domain: 0.5, 1.5, 2.5, spread 1; the tables' 4.302653 for two degrees of freedom.
    half = t_quantile(0.95, 2) / math.sqrt(3)
    assert half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    first, second = rows[FIRST.label, "history"], rows[SECOND.label, "history"]
    assert (first.mean, second.mean, first.half) == (1.5, 4.5, half)
    assert math.isnan(first.difference)
    assert (second.difference, second.difference_half) == (3.0, 0.0)
    assert table(summarise(SHEET, grades))[-1] == ["all", SECOND.label, "12", "4.50 +- 0.94", "+3.00 +- 0.00 *"]


def test_the_written_report_is_a_table_whatever_a_domain_is_called(tmp_path):
    """A stroke in a name does not become a column."""
    audit = attrs.evolve(AUDIT, questions=Questions({"a|b": ("x", "y")}), draws=1)
    sheet = make_sheet(audit, drawn(audit))
    write_report(tmp_path, summarise(sheet, given("ann", lambda item: 5.0, sheet)))
    rows = [line for line in (tmp_path / "report.md").read_text().splitlines() if line.startswith("| ")]
    assert len(rows) == 5
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {7}


def test_what_is_not_graded_does_not_count():
    """Half of the texts graded: means of these, differences over common prompts, a single prompt without interval."""
    full = given("ann", lambda item: 5.0 + item.checkpoint)["ann"]
    part = {
        n: grade for n, grade in full.items() if SHEET.items[n - 1].prompt == 0 or not SHEET.items[n - 1].checkpoint
    }
    report = summarise(SHEET, {"ann": part, "ben": {}})
    rows = {(row.checkpoint, row.domain): row for row in report.rows}
    assert (SECOND.label, "history") not in rows
    one = rows[SECOND.label, "biology"]
    assert (one.texts, one.mean, one.half, one.difference) == (2, 6.0, math.inf, 1.0)
    assert report.graders == {"ann": (14, pytest.approx((12 * 5 + 2 * 6) / 14))}  # a quotient, rounded elsewhere
    assert "it takes two graders" in " ".join(notes(report))


def test_alpha_is_that_of_the_published_example():
    """Krippendorff (2011), section C: four observers, twelve units, missing values; 0.849 for interval data."""
    observers = ["1233214 12...".replace(" ", ""), "12332241 25.3".replace(" ", ""), ".33323422 51.".replace(" ", "")]
    observers += ["12332441251."]
    units = [[float(o[unit]) for o in observers if o[unit] != "."] for unit in range(12)]
    assert round(krippendorff_alpha(units), 3) == 0.849


def test_alpha_at_its_ends():
    """Perfect agreement is 1; systematic contradiction of two is below 0; undefined without pairs or differences."""
    assert krippendorff_alpha([[1, 1], [5, 5, 5], [9]]) == 1
    # Worked by hand: observed 2 x 1 / 1 in each of two units = 4; expected 4 values, 8 ordered pairs of 1, over 3.
    assert krippendorff_alpha([[0, 1], [1, 0]]) == 1 - 4 / (8 / 3)
    for units in ([], [[1], [2]], [[3, 3], [3, 3]]):
        assert math.isnan(krippendorff_alpha(units))


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7.0), ("7.5", 7.5), (" 7,25 ", 7.25), ("10", 10.0), ("0", 0.0), ("10.1", None), ("-1", None), ("1e1", None)]
    + [(text, None) for text in ("", "nan", "seven", "7/10", "\u0667")],
)
def test_grades_are_numbers_from_0_to_10(text, value):
    """With a point or a comma, and nothing else."""
    assert parse_grade(text) == value


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "has no column sheet, item, grade"),
        ("sheet,item,note\n", "has no column grade"),
        (
            "sheet,item,grade\n{name},0,5\n{name},25,5\n{name},x,5\n{name},3,11\nsheet-0,4,5\n",
            "line 2: there is no text '0'",
        ),
        ("sheet,item,grade\n{name},3,11\n", "line 2: '11' is no grade from 0 to 10"),
        ("sheet,item,grade\nsheet-0,3,1\n", "line 2: grades sheet-0, not {name}"),
        ('sheet,item,grade\n{name},3,"1\x00', "no grade"),
    ],
)
def test_files_that_cannot_be_read_are_refused_whole(tmp_path, content, words):
    """Every line that is wrong is named; nothing of the file is taken."""
    path = tmp_path / "g.csv"
    path.write_text(content.replace("{name}", SHEET.name))
    with pytest.raises(AndreaError) as caught:
        read_grades(path, SHEET)
    assert words.replace("{name}", SHEET.name) in caught.value.message
    assert str(path) in caught.value.message


def test_other_unreadable_files(tmp_path):
    """Not UTF-8, absent; a grader who contradicts himself in two files."""
    (tmp_path / "l.csv").write_bytes("sheet,item,grade,n\xf6te\n".encode("latin-1"))
    with pytest.raises(AndreaError, match="not UTF-8"):
        read_grades(tmp_path / "l.csv", SHEET)
    with pytest.raises(AndreaError, match="cannot read"):
        read_grades(tmp_path / "absent.csv", SHEET)
    for name, grade in (("a", 3), ("b", 3), ("c", 4)):
        (tmp_path / f"{name}.csv").write_text(f"sheet,item,grade,grader\n{SHEET.name},3,{grade},ann\n\n,,,\n")
    assert read_all([tmp_path / "a.csv", tmp_path / "b.csv"], SHEET) == {"ann": {3: Grade("ann", 3, 3.0)}}
    with pytest.raises(AndreaError, match="ann grades text 3 with 3 and with 4"):
        read_all([tmp_path / "a.csv", tmp_path / "c.csv"], SHEET)


def test_a_grade_file_that_was_cut_goes_on(tmp_path):
    """A torn last line is taken away, whole ones stay; notes become one line."""
    path = tmp_path / "grades" / "g.csv"
    with GradeFile(path, SHEET, "ann") as file:
        file.add(2, 7.5, 'good\nwith "words", = and more')
    whole = path.read_bytes()
    path.write_bytes(whole + f"{SHEET.name},3,9".encode())
    with GradeFile(path, SHEET, "ann") as file:
        file.add(4, 1.0, "")
    assert path.read_bytes().startswith(whole)
    assert [(one.item, one.grade) for one in read_grades(path, SHEET)] == [(2, 7.5), (4, 1.0)]
    assert read_grades(path, SHEET)[0].note == 'good with "words", = and more'


# -- drawing -----------------------------------------------------------------------------------------------------------


class Pretender:
    """A model whose texts tell what it was asked; it fails after some calls."""

    def __init__(self, name, calls, most):
        self.name, self.calls, self.most, self.tokenizer = name, calls, most, SimpleNamespace(bos=256)
        self.engine = SimpleNamespace(close=lambda: calls.append(f"close {name}"))

    def generate(self, prompts, options):
        if self.calls.count("generate") == self.most:
            raise KeyboardInterrupt
        self.calls.append("generate")
        return [f"{self.name} {prompt} {options.seed}:{options.first + row}" for row, prompt in enumerate(prompts)]


def test_drawing_that_is_interrupted_goes_on_to_the_same_texts(tmp_path):
    """Every round is kept; random numbers are the same for every checkpoint; a cut line is drawn again."""

    def texts(folder, calls, most=9):
        return draw(AUDIT, folder, lambda one: Pretender(one.folder, calls, most), lambda *what: None)

    calls = []
    with pytest.raises(KeyboardInterrupt):
        texts(tmp_path / "cut", calls, most=3)
    assert calls == ["generate", "generate", "close runs/secret-one", "generate", "close runs/secret-two"]
    samples = tmp_path / "cut" / "samples.jsonl"
    samples.write_bytes(samples.read_bytes()[:-5])
    calls.clear()
    found = texts(tmp_path / "cut", calls)
    assert calls == ["generate", "generate", "close runs/secret-two"]
    whole = texts(tmp_path / "whole", [])
    assert sorted(map(attrs.astuple, found)) == sorted(map(attrs.astuple, whole))
    assert make_sheet(AUDIT, found) == make_sheet(AUDIT, whole)
    assert {one.text.split()[-1] for one in whole} == {f"0:{row}" for row in range(12)}
    assert all(one.text.endswith(f" 0:{6 * one.draw + one.prompt}") for one in whole)


def test_texts_do_not_depend_on_how_many_are_drawn_at_once(tmp_path, monkeypatch):
    """A real generator of random numbers in place of the model: rounds of 1, of 4 and of 8 draw the same."""

    class Dice(Pretender):
        def generate(self, prompts, options):
            rows = (Draws(options.seed, "generate", options.first + row) for row in range(len(prompts)))
            return [str(row.integer(2**31)) for row in rows]

    found = []
    for rows in (1, 4, 8):
        monkeypatch.setattr("andrea.audit.ROWS", rows)
        folder = tmp_path / str(rows)
        found.append(draw(AUDIT, folder, lambda one: Dice(one.folder, [], 9), lambda *what: None))
    by_place = [sorted(map(attrs.astuple, texts)) for texts in found]
    assert by_place[0] == by_place[1] == by_place[2]
    assert len({one.text for one in found[0]}) == 12  # six prompts, two draws; the same for both checkpoints


@pytest.mark.parametrize("separators", [(",", ":"), (" , ", " : ")])
def test_lines_that_another_program_wrote_stay_as_they_are(tmp_path, separators):
    """The same JSON in fewer bytes, or in more: of what was there only the line that was cut goes."""
    calls = []

    def texts(folder, most):
        return draw(AUDIT, folder, lambda one: Pretender(one.folder, calls, most), lambda *what: None)

    whole = texts(tmp_path / "whole", 9)
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        texts(tmp_path / "cut", 1)
    samples = tmp_path / "cut" / "samples.jsonl"
    lines = [json.dumps(json.loads(line), separators=separators) for line in samples.read_text().splitlines()]
    kept = "".join(f"{line}\n" for line in lines[:-1]).encode()
    samples.write_bytes(kept + lines[-1][:-3].encode())
    assert sorted(map(attrs.astuple, texts(tmp_path / "cut", 9))) == sorted(map(attrs.astuple, whole))
    assert samples.read_bytes().startswith(kept)
    assert sorted(map(json.loads, samples.read_text().splitlines()), key=str) == sorted(
        map(attrs.asdict, whole), key=str
    )


def test_one_process_draws_at_a_time(tmp_path):
    """Another one is told which process is at it, before it opens a model; the lock goes with the end."""
    (tmp_path / "a").mkdir()
    lock = FolderLock(tmp_path / "a")
    opened = []
    with pytest.raises(AndreaError, match=f"in use by process {os.getpid()}"):
        draw(AUDIT, tmp_path / "a", opened.append, lambda *what: None)
    assert opened == []
    lock.release()
    assert len(draw(AUDIT, tmp_path / "a", lambda one: Pretender(one.folder, [], 9), lambda *what: None)) == 24
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["audit.json", "samples.jsonl"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"domains": {}}, "there is no domain"),
        ({"domains": {"a": []}}, "the domain 'a' has 0 prompts"),
        ({"domains": {"all": ["x"]}}, "which stands for all domains"),
        ({"domains": {"a": ["x", "y", "x"]}}, "the prompt 'x' twice"),
        ({"domains": {"a": "x"}}, '"x" is not a list'),
        ({"domains": {"a": ["x"]}, "rubrik": "y"}, "rubrik"),
        ({"domains": {"a": ["x"]}, "rubric": " "}, "the rubric is empty"),
        ([], "not an object"),
    ],
)
def test_questions_that_cannot_be_asked_are_refused(tmp_path, value, words):
    """With the file and what is wrong in it."""
    (tmp_path / "p.json").write_text(json.dumps(value))
    with pytest.raises(AndreaError) as caught:
        read_questions(tmp_path / "p.json")
    assert words in str(caught.value)
    assert "p.json" in str(caught.value)


def test_the_prompts_of_the_package_can_be_asked():
    """Several of each domain, so that every domain has an interval."""
    assert min(map(len, read_questions(None).domains.values())) >= 4


def test_the_page_of_documentation_says_what_is(tmp_path):
    """Its example can be read, its options are those of the command."""
    page = (Path(__file__).parents[1] / "docs" / "audit.md").read_text(encoding="utf-8")
    (tmp_path / "p.json").write_text(re.search(r"```json\n(.*?)```", page, re.S)[1])
    assert len(read_questions(tmp_path / "p.json").domains) == 2
    command = typer.main.get_command(audit).commands["draw"]
    options = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    assert options - set(re.findall(r"--[a-z-]+", page)) == {"--device", "--help"} & options
    defaults = {parameter.name: parameter.default for parameter in command.params}
    assert [defaults[name] for name in ("draws", "tokens", "temperature", "top_p", "seed")] == [1, 160, 0.7, 0.95, 0]


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.fixture
def run(andrea, experiment):
    """Return the name of a folder with a run of 20 steps and two checkpoints."""
    done = andrea("run", experiment, "--steps", "20", "--out", "run", "--device", "cpu")
    assert done.code == 0, done
    return "run"


def test_from_checkpoints_to_a_report(andrea, run, current_folder):
    """Drawn, graded by hand in the CSV sheet, reported; drawing again changes nothing, another audit is refused."""
    command = ("audit", "draw", run, f"{run}/checkpoints/step_000010", "--tokens", "4", "--out", "a", "--device", "cpu")
    drawn_ = andrea(*command)
    assert drawn_.code == 0, drawn_
    before = {path: path.read_bytes() for path in (current_folder / "a").iterdir() if path.is_file()}
    assert andrea(*command).code == 0
    assert {path: path.read_bytes() for path in before} == before
    samples = [json.loads(line) for line in (current_folder / "a" / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 48
    assert len({one["text"] for one in samples}) > 24  # two models, so two texts for a prompt

    none = andrea("audit", "report", "a")
    assert (none.code, "has no grades yet" in none.err) == (2, True)
    text = (current_folder / "a" / "sheet.csv").read_text(encoding="utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text)))
    with (current_folder / "mine.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(row | {"grade": "6"} for row in rows[:40])
    done = andrea("audit", "report", "a", "mine.csv", "--json")
    assert done.code == 0, done
    value = json.loads(done.out)
    assert value["graders"] == {"mine": [40, 6.0]}
    assert {row["mean"] for row in value["rows"]} == {6.0}
    assert {row["checkpoint"] for row in value["rows"]} == {"run step 20", "run step 10"}
    assert json.loads((current_folder / "a" / "report.json").read_text()) == value
    assert "| biology | run step 20 |" in (current_folder / "a" / "report.md").read_text()
    shown = andrea("audit", "report", "a", "mine.csv")
    assert "mine: 40 of 48 texts, mean 6.00" in shown.out

    other = andrea("audit", "draw", run, "--tokens", "5", "--out", "a", "--device", "cpu")
    assert (other.code, "a holds another audit" in other.err) == (2, True)


def test_held_out_beginnings_are_prompts(andrea, run, current_folder, monkeypatch):
    """A domain for each source, prompts from held-out text alone; the folder is called by what was asked.

    An engine is opened to draw, and none to read the prompts.
    """
    opened = []
    monkeypatch.setattr("andrea.trained.open_engine", lambda *what: opened.append(what) or open_engine(*what))
    done = andrea("audit", "draw", run, "--held-out", "2", "--tokens", "3", "--device", "cpu")
    assert done.code == 0, done
    (folder,) = (current_folder / "audits").iterdir()
    asked = json.loads((folder / "audit.json").read_text())
    assert set(asked["questions"]["domains"]) == {"one", "two"}
    assert all(0 < len(prompts) <= 2 for prompts in asked["questions"]["domains"].values())
    assert len(opened) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("draw", "nowhere"), "there is no run or checkpoint nowhere"),
        (("draw", "run/checkpoints/step_000011"), "those of run are step_000010, step_000020"),
        (("draw", "run", "run"), "each named once"),
        (("draw", "run", "--held-out", "2", "--prompts", "p.json"), "exclude each other"),
        (("draw", "run", "--prompts", "p.json"), "cannot read p.json"),
        (("draw", "run", "--out", "run"), "run is not empty and holds no audit"),
        (("report", "run"), "run holds no audit"),
        (("grade", "run", "--url", "http://localhost:1", "--model", "m"), "run holds no audit"),
    ],
)
def test_what_cannot_be_is_said(andrea, run, arguments, words):
    """Exit code 2 and what to do."""
    done = andrea("audit", *arguments)
    assert done.code == 2
    assert words in done.err


def test_half_a_sheet_is_no_sheet(andrea, run, current_folder):
    """Texts that are missing are named by their number, and how to get them."""
    assert andrea("audit", "draw", run, "--tokens", "2", "--out", "a", "--device", "cpu").code == 0
    samples = current_folder / "a" / "samples.jsonl"
    lines = samples.read_bytes().splitlines(keepends=True)
    samples.write_bytes(b"".join(lines[:5]))
    done = andrea("audit", "report", "a")
    assert (done.code, "a has 5 of the 24 texts" in done.err) == (2, True)
    samples.write_bytes(b"{nonsense\n")
    done = andrea("audit", "report", "a")
    assert (done.code, "line 1 is not JSON" in done.err) == (2, True)
