"""The dashboard in a browser: a run that trains, a long history, keys, themes, a phone.

Runs where Playwright and a Chromium are; ``.ci/browser`` installs both.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

SCRIPT = "<script>document.title = 'taken over'</script><img src=x onerror=\"document.title = 'taken over'\">"
FIRST_PAINT, UPDATE = 1000, 50  # milliseconds
MOST_MEMORY = 200 * 2**20  # of the process of the page


class Page:
    """A page that tells what went wrong in it, and whom it asked."""

    def __init__(self, browser, url, width=1280, **options):
        self.context = browser.new_context(viewport={"width": width, "height": 900 if width > 600 else 844}, **options)
        self.page = self.context.new_page()
        self.errors, self.asked = [], []
        self.page.on("console", lambda message: self.errors.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)

    def text(self, selector):
        return self.page.locator(selector).inner_text()

    def ask(self, script, *arguments):
        return self.page.evaluate(script, *arguments)

    def wait(self, question, seconds=30.0):
        """Wait until a function without arguments says something true, and return that."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := question():
                return found
            self.page.wait_for_timeout(50)
        raise AssertionError(f"nothing came in {seconds:.0f} s; the page said {self.errors}")

    def mark(self, name):
        """Return when the page first noted that something was drawn, in milliseconds from its beginning."""
        script = "name => performance.getEntriesByName(name)[0]?.startTime"
        return self.wait(lambda: self.ask(script, name))

    def scroll_through(self):
        """Bring every section into view once, so that it is drawn."""
        for section in self.page.locator("main > section").all():
            section.scroll_into_view_if_needed()
            self.page.wait_for_timeout(50)
        self.ask("window.scrollTo(0, 0)")
        self.page.wait_for_timeout(200)

    def fits(self):
        """Say whether nothing is wider than the window."""
        return self.ask("document.documentElement.scrollWidth <= innerWidth")


@pytest.fixture
def open_page(chromium):
    """Return a function that opens a page; in the end none may have said or asked anything wrong."""
    opened = []

    def begin(url, **options):
        opened.append((url, Page(chromium, url, **options)))
        return opened[-1][1]

    yield begin
    for url, page in opened:
        page.context.close()
        assert page.errors == []
        assert [asked for asked in page.asked if not asked.startswith(url.partition("#")[0])] == []


@pytest.fixture
def screenshots(tmp_path):
    """Return the folder of pictures: ANDREA_SCREENSHOTS where that is set."""
    folder = Path(os.environ.get("ANDREA_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def training(experiment, tiny, write_experiment):
    """Yield the folder of a run that trains on the CPU meanwhile, and writes a script into its samples."""
    tiny["sampling"] |= {"prompts": [SCRIPT, ""], "sample_every": 20}
    name = write_experiment(tiny | {"schedule": {**tiny["schedule"], "steps": 100_000}})
    command = [sys.executable, "-m", "andrea", "run", name, "--out", "runs/tiny-001", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 120
        while not Path("runs/tiny-001/journal.jsonl").exists():
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.1)
        yield Path("runs/tiny-001"), process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)


def last_step(page):
    """Return the last step in the table of the loss chart."""
    return int(page.text("#loss tbody tr:last-child th").replace(",", ""))


def test_a_run_is_watched_while_it_trains(training, serve, open_page, screenshots):
    """Its curve grows, a sample appears and stays text, its end is told; by itself, without a reload."""
    folder, process = training
    page = open_page(serve(folder.parent).url)
    page.mark("first-curve")
    assert "running" in page.text("#run-state")
    page.page.locator("#loss summary").click()
    first = page.wait(lambda: page.page.locator("#loss tbody tr").count() and last_step(page))
    page.wait(lambda: last_step(page) > first + 20)
    sample = page.page.locator("#texts pre").first
    page.page.locator("#samples").scroll_into_view_if_needed()
    page.wait(lambda: sample.count())
    assert sample.inner_text().startswith(SCRIPT)
    assert page.ask("document.querySelectorAll('#texts script, #texts img').length") == 0
    assert page.page.title() == "tiny-001 \u2013 ANDREA"
    shown = page.text("#sample-label")
    page.wait(lambda: page.text("#sample-label") != shown)  # the next one comes by itself
    page.wait(lambda: "tokens/s" in page.text("#speed"))
    page.scroll_through()
    page.page.screenshot(path=screenshots / "running-1280.png", full_page=True)
    process.send_signal(signal.SIGTERM)
    page.wait(lambda: "interrupted" in page.text("#run-state"))
    assert "signal: SIGTERM" in page.text("#run-state")
    page.wait(lambda: page.page.locator("#checkpoints tbody tr").count())


@pytest.fixture
def runs(tmp_path, write_run, lines):
    """Return a folder with two runs that have ended, one that has no step yet and one that is damaged."""
    write_run(tmp_path / "a-001", [*lines.run(400), lines.stop(400)], checkpoints=(200, 400))
    write_run(tmp_path / "a-002", [*lines.run(600), lines.stop(600, {"stop.coherence": "loops"})])
    write_run(tmp_path / "b-empty")
    damaged = write_run(tmp_path / "c-damaged", [*lines.run(50), "garbage"])
    (damaged / "config.json").write_text("{")
    return tmp_path


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_section_has_its_place(runs, serve, open_page, screenshots, width, scheme):
    """On a desk and on a phone, light and dark; nothing is wider than the window."""
    page = open_page(f"{serve(runs).url}/#a-002&a-001", width=width, color_scheme=scheme)
    page.mark("whole-curve")
    page.scroll_through()
    assert page.fits()
    assert page.ask("[...document.querySelectorAll('section.without')].map(section => section.id)") == [
        "speed",
        "checkpoints",
    ]
    assert (
        page.ask(
            "[...document.querySelectorAll('canvas')].filter(canvas => !drawn(canvas)).length".replace(
                "drawn(canvas)",
                "new Set(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data).size > 8",
            )
        )
        == 0
    )
    background = page.ask("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 200) == (scheme == "dark")
    page.page.screenshot(path=screenshots / f"two-runs-{width}-{scheme}.png", full_page=True)


def test_runs_are_chosen_laid_over_and_remembered_in_the_address(runs, serve, open_page):
    """The one that is looked at has its name in the title; the address brings the same view again."""
    url = serve(runs).url
    page = open_page(f"{url}/#a-001")
    page.mark("whole-curve")
    assert page.text("#run-title") == "a-001"
    assert "finished \u2013 stop.max_steps: 400 steps are done" in page.text("#run-state")
    page.page.get_by_label("Lay a-002 over").check()
    page.wait(lambda: "a-002 EMA" in page.text("#loss .legend"))
    assert page.ask("location.hash") == "#a-001&a-002"
    page.page.get_by_role("button", name="b-empty").click()
    page.wait(lambda: "has not made a step yet" in page.text("#run-state"))
    page.page.get_by_role("button", name="c-damaged").click()
    page.wait(lambda: "1 lines of its journal could not be read" in page.text("#problem"))
    assert "config.json cannot be read" in page.text("#problem")
    page.page.get_by_label("Filter").fill("B-")
    assert page.ask("[...document.querySelectorAll('#runs li')].map(item => item.dataset.model)") == ["b-empty"]
    again = open_page(f"{url}/#a-002&a-001&gone")
    again.mark("whole-curve")
    assert again.text("#run-title") == "a-002"
    assert "a-001 EMA" in again.text("#loss .legend")


def rows_of(page, section):
    """Open the table of a chart and return its rows, numbers as numbers."""
    page.page.locator(f"#{section}").scroll_into_view_if_needed()
    page.page.locator(f"#{section} summary").click()
    page.wait(lambda: page.page.locator(f"#{section} tbody tr").count())
    script = (
        "name => [...document.querySelectorAll(`#${name} tbody tr`)].map(row => [...row.cells].map(c => c.textContent))"
    )
    return [[float(cell.replace(",", "")) for cell in row] for row in page.ask(script, section)]


def test_what_is_drawn_is_what_the_journal_says(runs, serve, open_page):
    """Loss, EMA, SMMA, shares and rewards, worked out here again."""
    steps = [
        json.loads(line) for line in (runs / "a-001" / "journal.jsonl").read_text().splitlines() if "pulls" in line
    ]
    page = open_page(f"{serve(runs).url}/#a-001")
    page.mark("whole-curve")
    ema = smma = 0.0
    averages = []
    for number, step in enumerate(steps, start=1):
        ema += max(2 / 65, 1 / number) * (step["loss"] - ema)  # the slider stands at 64 steps
        smma += (step["loss"] - smma) / min(number, 100)
        averages.append((ema, smma))
    for step, loss, *found in rows_of(page, "loss"):
        # Four digits are shown.
        assert loss == pytest.approx(steps[int(step)]["loss"], rel=1e-3)
        assert found[:2] == pytest.approx(averages[int(step)], rel=1e-3)
        assert found[2:] == []  # nobody saved the tokenizer of this run, so guessing is not drawn
    shares = {row[0]: row[1:] for row in rows_of(page, "shares")}
    rewards = {row[0]: row[1:] for row in rows_of(page, "rewards")}
    assert len(shares) == len(rewards) == 20
    for first in shares:
        pulls = [pull for step in steps[int(first) : int(first) + 10] for pull in step["pulls"]]
        counts = [sum(pull["source"] == name for pull in pulls) for name in ("prose", "code", "chat")]
        sums = [
            sum(p["rewards"]["ema_drop"] for p in pulls if p["source"] == name) for name in ("prose", "code", "chat")
        ]
        assert shares[first][::-1] == pytest.approx([count / 10 for count in counts], rel=1e-3)
        assert rewards[first] == pytest.approx(
            [total / count for total, count in zip(sums, counts, strict=True)], rel=1e-3
        )


def test_a_mix_of_sources_stands_where_its_shares_say(runs, serve, open_page):
    """All of one source at its corner, equal shares in the middle, half of two between them."""
    page = open_page(serve(runs).url)
    where = "shares => mixedAt(shares.map(share => [share]), 0)"
    for source in range(5):
        corner = page.ask("([source, sources]) => cornerOf(source, sources)", [source, 5])
        assert page.ask(where, [float(other == source) for other in range(5)]) == pytest.approx(corner, abs=1e-12)
    assert page.ask(where, [0.2] * 5) == pytest.approx([0, 0], abs=1e-12)  # sums of a few numbers near 1
    assert page.ask(where, [0.5, 0, 0.5, 0]) == pytest.approx([0, 0], abs=1e-12)
    assert page.ask("[1, 3, 10, 24, 99].map(niceWidth)") == [1, 5, 10, 50, 100]
    assert page.ask("gridOf({min: 7, max: 52}, 9, false)") == [5, 10, 15, 20, 25, 30, 35, 40, 45, 50]


def test_everything_can_be_done_with_keys(runs, serve, open_page):
    """Walk along a curve and hear it, zoom and come back, switch lines off, open a table; all by the keyboard."""
    page = open_page(f"{serve(runs).url}/#a-001")
    page.mark("whole-curve")
    keys = page.page.keyboard
    chart = page.page.locator("#loss .canvas")
    assert "latest: loss" in chart.get_attribute("aria-label")
    chart.focus()
    keys.press("ArrowLeft")
    assert page.text("#loss .at").startswith("Loss, step 399: loss 1.9") or page.text("#loss .at").startswith(
        "Loss, step 39"
    )
    keys.press("+")
    page.wait(lambda: page.text("#span") == "steps 99 to 300")
    keys.press("PageDown")
    page.wait(lambda: page.text("#span") == "steps 199 to 399")
    keys.press("0")
    page.wait(lambda: page.text("#span") == "steps 0 to 399")
    line = page.page.locator("#loss .legend button").first
    line.focus()
    keys.press("Space")
    assert line.get_attribute("aria-pressed") == "false"
    assert "loss" not in chart.get_attribute("aria-label").partition("latest: ")[2].replace("guessing", "")
    page.page.locator("#bits summary").focus()
    keys.press("Enter")
    page.wait(lambda: page.page.locator("#bits tbody tr").count())
    assert page.ask("[...document.querySelectorAll('#bits thead th')].map(cell => cell.textContent)") == [
        "step",
        "mean",
        "prose",
        "code",
        "chat",
    ]
    page.page.locator("#sample-step").focus()
    keys.press("Home")
    page.wait(lambda: page.text("#sample-label").startswith("after step 10,"))
    page.page.get_by_label("Theme").select_option("dark")
    assert page.ask("getComputedStyle(document.body).backgroundColor") == "rgb(18, 21, 28)"
    page.page.reload()
    page.mark("whole-curve")
    assert page.ask("document.documentElement.dataset.theme") == "dark"


def test_a_drag_zooms_all_charts_and_a_double_click_shows_all(runs, serve, open_page):
    """As in every chart."""
    page = open_page(f"{serve(runs).url}/#a-001")
    page.mark("whole-curve")
    box = page.page.locator("#loss .u-over").bounding_box()
    mouse = page.page.mouse
    mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 50)
    mouse.down()
    mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60, steps=5)
    mouse.up()
    first, last = page.wait(lambda: page.text("#span") != "steps 0 to 399" and page.text("#span").split()[1::2])
    assert abs(int(first) - 100) <= 2  # a pixel is half a step
    assert abs(int(last) - 200) <= 2
    mouse.dblclick(box["x"] + 100, box["y"] + 50)
    page.wait(lambda: page.text("#span") == "steps 0 to 399")


def test_a_resume_that_cuts_the_journal_is_followed(runs, serve, open_page, lines):
    """What was cut off is gone from the curve, and what comes instead is drawn, without a reload."""
    page = open_page(f"{serve(runs).url}/#a-001")
    page.mark("whole-curve")
    page.page.locator("#loss summary").click()
    page.wait(lambda: last_step(page) == 399)
    journal = runs / "a-001" / "journal.jsonl"
    journal.write_text("".join(f"{line}\n" for line in lines.run(150)))
    page.wait(lambda: last_step(page) == 149)
    with journal.open("a") as file:
        file.writelines(f"{lines.step(step, loss=0.5)}\n" for step in range(150, 180))
    page.wait(lambda: last_step(page) == 179)
    assert page.text("#loss tbody tr:last-child td:nth-child(2)") == "0.5000"
    page.page.locator("#samples").scroll_into_view_if_needed()
    page.wait(lambda: page.text("#sample-label").startswith("after step 150,"))
    assert page.page.locator("#texts pre").count() == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_that_a_checker_of_accessibility_knows_is_wrong(runs, serve, open_page, scheme):
    """Names, roles, headings, contrasts: the rules of axe."""
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(f"{serve(runs).url}/#a-002&a-001", color_scheme=scheme)
    page.mark("whole-curve")
    page.scroll_through()
    found = Axe().run(page.page).response["violations"]
    assert [(rule["id"], [node["html"][:200] for node in rule["nodes"]]) for rule in found] == []


def test_a_history_of_200_000_steps(long_run, tmp_path, lines, open_page):
    """Its curve is there within a second, an update takes less than 50 ms, the page less than 200 MB.

    The server is new, so nothing has been read before. Updates are those of a run that goes on: what can be seen is
    drawn, wherever the page is scrolled to.
    """
    folder = tmp_path / "runs" / "long"
    folder.mkdir(parents=True)
    for name in ("config.json", "journal.jsonl"):
        shutil.copy(long_run / name, folder)
    (folder / "lock").write_text(str(os.getpid()))
    command = [sys.executable, "-m", "andrea", "serve", str(folder.parent), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = process.stderr.readline().split(": ")[1].split()[0].rstrip("/")
            page = open_page(url)
            first, whole = page.mark("first-curve"), page.mark("whole-curve")
            assert page.text("#span") == "steps 0 to 199,999"
            page.scroll_through()
            updates = measured(page, folder, lines)
            memory = max(
                child.memory_full_info().uss
                for child in psutil.Process().children(recursive=True)
                if "--type=renderer" in child.cmdline()
            )
        finally:
            process.terminate()
    middle = statistics.median(updates)
    print(
        f"first curve {first:.0f} ms, whole {whole:.0f} ms, updates {middle:.1f} ms (most {max(updates):.1f} ms)",
        end=", ",
    )
    print(f"page {memory / 2**20:.0f} MiB")
    assert first < FIRST_PAINT
    assert middle < UPDATE
    assert memory < MOST_MEMORY


def measured(page, folder, lines):
    """Return what updates took in milliseconds, at several places of the page, while the run goes on."""
    stop = threading.Event()

    def grow():
        step = 200_000
        with (folder / "journal.jsonl").open("a") as file:
            while not stop.wait(0.2):
                file.write(lines.step(step, detail={"share": 0.5}) + "\n")
                file.flush()
                step += 1

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        page.wait(lambda: page.text("#span") != "steps 0 to 199,999")
        found = []
        for section in ("overview", "bits", "rewards", "dice", "samples", "norm"):
            page.page.locator(f"#{section}").scroll_into_view_if_needed()
            page.ask("performance.clearMeasures()")
            page.page.wait_for_timeout(3500)
            found += page.ask("performance.getEntriesByName('update').map(entry => entry.duration)")
    finally:
        stop.set()
        writer.join()
    assert len(found) >= 12
    return found
