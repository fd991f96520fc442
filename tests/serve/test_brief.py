"""What is known of a run at a glance: its state, its last step, its speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from andrea.serve import brief as module
from andrea.serve.brief import Brief


def look(folder):
    found = Brief("tiny", folder)
    found.refresh()
    return found


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that stands still until it is set."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def dead():
    """Return the number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize(
    ("ending", "state"),
    [
        (None, "interrupted"),
        ({"stop.max_steps": "20 steps are done"}, "finished"),
        ({"stop.coherence": "loops"}, "stopped"),
        ({"stop.coherence": "loops", "stop.max_steps": "done"}, "finished"),
        ({"signal": "SIGTERM"}, "interrupted"),
    ],
)
def test_the_state_of_a_run_that_has_ended(tmp_path, write_run, lines, ending, state):
    """By its journal's last line; one that was killed has none."""
    found = lines.run(20) + ([lines.stop(20, ending)] if ending else [])
    brief = look(write_run(tmp_path / "run", found))
    assert brief.state == state
    assert brief.reasons == (ending or {})
    assert (brief.line.step, brief.evaluation.step, brief.sample) == (19, 20, 20)


def test_a_run_without_a_journal_is_empty(tmp_path, write_run):
    """It has its configuration and nothing else."""
    brief = look(write_run(tmp_path / "run"))
    assert brief.state == "empty"
    value = brief.to_json()
    assert (value["step"], value["loss"], value["steps"], value["sources"]) == (
        None,
        None,
        40,
        ["prose", "code", "chat"],
    )


def test_a_run_whose_process_lives_is_running(tmp_path, write_run, lines, dead):
    """It holds the lock; a lock that a killed run left behind says nothing."""
    folder = write_run(tmp_path / "run", lines.run(20))
    (folder / "lock").write_text(str(os.getpid()))
    brief = look(folder)
    assert brief.state == "running"
    (folder / "lock").write_text(str(dead))
    brief.refresh()
    assert brief.state == "interrupted"
    (folder / "lock").write_text("")
    brief.refresh()
    assert brief.state == "interrupted"


def test_a_run_on_another_machine_runs_while_its_journal_grows(tmp_path, write_run, lines, clock, dead):
    """Its process cannot be seen from here."""
    folder = write_run(tmp_path / "run", lines.run(20))
    (folder / "lock").write_text(str(dead))
    brief = look(folder)
    with (folder / "journal.jsonl").open("a") as file:
        file.write(lines.step(20) + "\n")
    brief.refresh()
    assert brief.state == "running"
    clock[0] += 31
    brief.refresh()
    assert brief.state == "interrupted"


def test_the_speed_is_that_of_the_last_half_minute(tmp_path, write_run, lines, clock):
    """Measured by the server's clock, for a journal has none; nothing is said when no step came for long."""
    folder = write_run(tmp_path / "run", lines.run(10))
    (folder / "lock").write_text(str(os.getpid()))
    brief = look(folder)
    assert brief.tokens_per_second is None
    step = 10
    for seconds, steps in ((1, 1), (1, 2), (1, 2), (40, 2), (10, 20)):
        clock[0] += seconds
        with (folder / "journal.jsonl").open("a") as file:
            for _ in range(steps):
                file.write(lines.step(step) + "\n")
                step += 1
        brief.refresh()
    assert [at for at, _ in brief.speeds] == [13, 15, 17, 37]
    assert brief.speeds[1][1] == 4 * 1024 / 2
    assert brief.tokens_per_second == 22 * 1024 / 50  # since the last step that is half a minute old
    clock[0] += 121
    brief.refresh()
    assert brief.tokens_per_second is None


def test_points_of_the_speed_stay_few(tmp_path, write_run, lines, clock, monkeypatch):
    """A server that watches for weeks does not grow."""
    monkeypatch.setattr(module, "MOST_SPEEDS", 10)
    folder = write_run(tmp_path / "run", lines.run(1))
    brief = look(folder)
    for step in range(1, 60):
        clock[0] += 1
        with (folder / "journal.jsonl").open("a") as file:
            file.write(lines.step(step) + "\n")
        brief.refresh()
    assert 5 <= len(brief.speeds) <= 10
    assert brief.speeds[-1][0] == 60


def test_a_resume_is_seen(tmp_path, write_run, lines):
    """The journal is cut, and the reason of the stop with it."""
    folder = write_run(tmp_path / "run", [*lines.run(20), lines.stop(20)])
    brief = look(folder)
    (folder / "journal.jsonl").write_text("".join(f"{line}\n" for line in lines.run(15)))
    brief.refresh()
    assert (brief.state, brief.line.step, brief.reasons) == ("interrupted", 14, {})
    with (folder / "journal.jsonl").open("a") as file:
        file.write(lines.stop(15) + "\n")
    brief.refresh()
    assert brief.state == "finished"


def test_the_last_evaluation_is_found_far_from_the_end(tmp_path, write_run, lines):
    """Evaluations are rare; it is looked for in some megabytes, not in the whole."""
    found = [lines.evaluation(1), *(lines.step(step) for step in range(1500))]
    folder = write_run(tmp_path / "run", found)
    assert (folder / "journal.jsonl").stat().st_size > 5 * module.FIRST_LOOK
    assert look(folder).evaluation.step == 1


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "",
        "\xff",
        '{"name": "\\ud800"}',
        "[" * 10**5,
        '{"sources": 3, "sampling": [], "schedule": null, "name": 5}',
    ],
)
def test_a_damaged_configuration_is_said_and_the_rest_shown(tmp_path, write_run, lines, text):
    """The journal speaks for itself."""
    folder = write_run(tmp_path / "run", lines.run(5))
    (folder / "config.json").write_text(text, encoding="latin-1")
    brief = look(folder)
    value = json.loads(json.dumps(brief.to_json()))
    assert (value["step"], value["sources"], value["steps"], brief.prompts) == (5, [], None, [])
    assert value["problem"].startswith("config.json cannot be read: ") or text.startswith('{"sources')
    (folder / "config.json").write_text('{"name": "mended"}')
    brief.refresh()
    assert (brief.title, brief.problem) == ("mended", "")


def test_damaged_lines_at_the_end_are_passed_over(tmp_path, write_run, lines):
    """The last whole step is what counts."""
    folder = write_run(tmp_path / "run", [*lines.run(12), "garbage", "\0" * 30])
    assert look(folder).line.step == 11


def test_complete_checkpoints_have_the_size_of_their_three_files(tmp_path, write_run, lines):
    """One without its .json is not complete."""
    folder = write_run(tmp_path / "run", lines.run(5), checkpoints=(10, 20))
    (folder / "checkpoints" / "step_000030.bin").write_bytes(b"x")
    brief = look(folder)
    assert brief.checkpoints() == [{"model": "tiny", "step": step, "size_bytes": 123} for step in (10, 20)]
    assert brief.checkpoint == 20
    (folder / "checkpoints" / "step_000030.json").write_bytes(b"x")
    brief.refresh()
    assert brief.checkpoint == 30
