"""The sheet of an audit in a browser: graded by keys, by touch and from a file; saved as CSV; nobody is asked anything.

Runs where Playwright and a Chromium are; ``.ci/browser`` installs both.
"""

from __future__ import annotations

import pytest

from andrea.audit import Audit, Drawn, Judged, Questions, make_sheet
from andrea.audit_grades import read_grades
from andrea.audit_sheet import write_sheets

HARM = "</pre><script>document.title = 'taken over'</script><img src=x onerror=\"document.title = 'taken over'\">"
PROMPTS = ("Plants take in light and", "def read(path):\n    ", HARM)
AUDIT = Audit((Judged("one", 1, "a"), Judged("two", 2, "b")), Questions({"d": PROMPTS}))
TEXTS = [Drawn(c, p, 0, f"text {c} {p}, {HARM}\n" + "word " * 80) for c in (0, 1) for p in range(3)]
SHEET = make_sheet(AUDIT, TEXTS)


@pytest.fixture
def address(tmp_path):
    """Return the address of a sheet, opened as a file, as people open it."""
    write_sheets(tmp_path, SHEET)
    return (tmp_path / "sheet.html").as_uri()


@pytest.fixture
def open_page(chromium, address):
    """Return a function that opens the sheet; in the end none may have said or asked anything wrong."""
    contexts, errors, asked = [], [], []

    def begin(width=1280, height=900, context=None, **options):
        if context is None:
            context = chromium.new_context(viewport={"width": width, "height": height}, **options)
            contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        return page

    yield begin
    for context in contexts:
        context.close()
    assert errors == []
    assert {url for url in asked if not url.startswith("blob:")} == {address}


def save(page, folder):
    """Press the button, and return the grades that our reader finds in the file."""
    with page.expect_download() as waited:
        page.get_by_role("button", name="Save grades as CSV").click()
    path = folder / waited.value.suggested_filename
    waited.value.save_as(path)
    return path, read_grades(path, SHEET)


def test_graded_by_keyboard_and_saved(open_page, tmp_path):
    """Digits and t grade, Enter goes on, k goes back, c writes a note; the file is one that the report reads."""
    page = open_page()
    page.keyboard.type("7")
    page.keyboard.press("Enter")
    page.keyboard.type("t")
    page.keyboard.press("Enter")
    page.keyboard.type("0")
    page.keyboard.press("k")
    page.keyboard.press("c")
    page.keyboard.type('=1+1, "so" 5; \u00fc')  # digits in a note are no grades
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.type("3")
    assert page.locator("#progress").inner_text() == "4 of 6"
    page.get_by_label("Your name").fill("Ann / Bo")
    path, grades = save(page, tmp_path)
    assert path.name == f"{SHEET.name}-Ann-Bo.csv"
    assert [(one.item, one.grade, one.grader) for one in grades] == [
        (1, 7.0, "Ann / Bo"),
        (2, 10.0, "Ann / Bo"),
        (3, 0.0, "Ann / Bo"),
        (4, 3.0, "Ann / Bo"),
    ]
    assert [one.note for one in grades] == ["", '\'=1+1, "so" 5; \u00fc', "", ""]  # no formula in a table program


def test_form_keys_work_as_everywhere(open_page):
    """Tab reaches the grades of a text, arrows move among them: what a screen reader announces as a group of radios."""
    page = open_page()
    group = page.get_by_role("group", name="Grade of text 1")
    group.get_by_role("radio", name="4", exact=True).focus()
    page.keyboard.press("Space")
    page.keyboard.press("ArrowRight")
    assert group.get_by_role("radio", name="5", exact=True).is_checked()
    assert page.locator("#progress").inner_text() == "1 of 6"


def test_texts_stay_texts(open_page):
    """Tags of prompts and texts are shown and run nothing; no text is lost."""
    page = open_page()
    assert page.title() == SHEET.name
    shown = [pre.text_content() for pre in page.locator("pre").all()]
    assert shown == [prompt + text for prompt, text in map(SHEET.shown, SHEET.items)]
    assert page.locator("pre script, pre img").count() == 0


def test_grades_outlast_the_page(open_page):
    """Closed and opened again, they are there, with the name and the notes."""
    page = open_page()
    page.keyboard.type("6")
    page.get_by_label("Note").nth(4).fill("kept")
    page.get_by_label("Your name").fill("Ann")
    context = page.context
    page.close()
    page = open_page(context=context)
    assert page.locator("#progress").inner_text() == "1 of 6"
    assert page.locator("input[name=grade-1]:checked").get_attribute("value") == "6"
    assert page.get_by_label("Note").nth(4).input_value() == "kept"
    assert page.get_by_label("Your name").input_value() == "Ann"


def test_a_file_needs_a_name(open_page):
    """Without one nothing is saved, and the field is where one types next."""
    page = open_page()
    page.get_by_role("button", name="Save grades as CSV").click()
    assert page.evaluate("document.activeElement.id") == "grader"


def test_on_a_phone(open_page, tmp_path):
    """Nothing is wider than the screen, grades are large enough for a finger, and a touch grades."""
    page = open_page(390, 844, has_touch=True, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    sizes = [box.bounding_box() for box in page.locator("#item-2 .grades span").all()]
    assert min(min(size["width"], size["height"]) for size in sizes) >= 44
    page.locator("#item-2 .grades label").nth(8).tap()
    page.get_by_label("Your name").fill("Ann")
    _, grades = save(page, tmp_path)
    assert [(one.item, one.grade) for one in grades] == [(2, 8.0)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_stands_in_the_way_of_a_screen_reader(open_page, scheme):
    """No rule of axe is broken: names, roles, contrast, in both themes."""
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(color_scheme=scheme)
    page.keyboard.type("7")
    found = Axe().run(page).response["violations"]
    assert [(rule["id"], [node["html"][:200] for node in rule["nodes"]]) for rule in found] == []
