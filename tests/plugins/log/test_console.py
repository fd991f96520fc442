"""log.console: what is printed where, and that nothing printed can harm."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import pytest

import andrea.plugins.log.console as module
from andrea import AndreaError, Evaluation, Sample
from andrea.plugin import get_state
from andrea.plugins.log.console import Console


@pytest.fixture
def started(make_run, monkeypatch):
    """Return a function that starts a console log which believes that it writes to a pipe or to a terminal."""

    def start(terminal=False, **options):
        for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
            monkeypatch.delenv(name, raising=False)
        if terminal:
            monkeypatch.setenv("TTY_COMPATIBLE", "1")
            monkeypatch.setenv("TERM", "xterm")
        console = Console(**options)
        console.on_start(run=make_run(stop_step=600))
        return console

    return start


def play(console, run, make_record, make_pull, steps):
    for step in steps:
        console.on_step(record=make_record(step, make_pull(step % 4), loss=4.0 - step / 100), run=run)


def test_plain_lines_for_the_first_step_and_every_tenth(started, make_run, make_record, make_pull, capsys):
    """A pipe gets one line for the first step of the process, also after a resume, and for each multiple of ten."""
    console = started()
    play(console, make_run(stop_step=600), make_record, make_pull, range(13, 35))
    console.on_finish(record=make_record(34), reasons=["enough", "late"], ending="done", run=make_run(stop_step=600))
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[:2] == ["test: seed 1, 4 x 16 tokens a step, a schedule of 1000 steps", "4 sources: a, b, c, d"]
    assert [line.split("  ")[0] for line in lines[2:-1]] == ["step 14/600", "step 20/600", "step 30/600"]
    assert lines[2].startswith("step 14/600  loss 3.8700  smma 3.8700  perplexity 47.94  lr 3.00e-04  ")
    assert lines[2].endswith(" tok/s  b")
    assert lines[-1] == "finished after step 35, loss 3.0000: enough; late"


def test_average_follows_the_loss_and_survives_what_is_not_finite(started, make_run, make_record, make_pull, capsys):
    """Loss 4, nan, 3 gives the averages 4, 4, 3.5, and the skipped update is named; without a count there is no end."""
    console = started(every=1)
    for step, loss in enumerate([4.0, math.nan, 3.0]):
        record = make_record(step, make_pull(0), make_pull(2), loss=loss, skipped=math.isnan(loss))
        console.on_step(record=record, run=make_run())
    lines = capsys.readouterr().err.splitlines()[2:]
    assert [line.split("  ")[2] for line in lines] == ["smma 4.0000", "smma 4.0000", "smma 3.5000"]
    assert lines[0].startswith("step 1  loss")
    assert lines[1].endswith("a, c  update skipped")
    assert lines[2].endswith("a, c")


def test_terminal_gets_a_bar(started, make_run, make_record, make_pull, capsys):
    """On a terminal the bar shows the newest step, without colour; the end takes it down."""
    console = started(terminal=True)
    play(console, make_run(stop_step=600), make_record, make_pull, range(3))
    console.on_finish(record=make_record(2), reasons=["enough"], ending="done", run=make_run(stop_step=600))
    out, err = capsys.readouterr()
    assert out == ""
    assert "step 3/600" in err
    assert "\x1b[?25h" in err  # the cursor is shown again
    assert "\x1b[3" not in err  # no colour
    assert err.rstrip().endswith("finished after step 3, loss 3.0000: enough")


@pytest.mark.parametrize(
    ("seconds", "steps", "drawn"),
    [
        (1 / 256, 100, [1, 27, 53, 79, 100]),  # of quick steps every 26th, and the last one when the run ends
        (1 / 256, 105, [1, 27, 53, 79, 105]),  # which is not drawn anew
        (1 / 4, 5, [1, 2, 3, 4, 5]),  # slow ones all
    ],
)
def test_a_bar_is_drawn_at_most_ten_times_a_second(
    started, make_run, make_record, make_pull, capsys, monkeypatch, seconds, steps, drawn
):
    """By a clock that goes on with every step; speeds are of the time since the last drawing, 64 tokens a step."""
    clock = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    console, run = started(terminal=True), make_run(stop_step=600)
    console._terminal.width = 200
    seen = []
    for step in range(steps):
        clock[0] += seconds
        console.on_step(record=make_record(step, make_pull(0)), run=run)
        seen += re.findall(r"step (\d+)/600 .* ([\d,]+) tok/s", capsys.readouterr().err)
    console.on_finish(record=make_record(steps - 1), reasons=["enough"], ending="done", run=run)
    seen += re.findall(r"step (\d+)/600 .* ([\d,]+) tok/s", capsys.readouterr().err)

    assert list(dict.fromkeys(int(step) for step, _ in seen)) == drawn
    assert len(seen) <= len(drawn) + 1  # the bar that stays behind may be the one that was there
    assert {speed for _, speed in seen} == {f"{64 / seconds:,.0f}"}


def test_samples_are_shortened_and_escaped(started, capsys):
    """Control characters, line breaks and markup of generated text reach no terminal as such."""
    console = started(width=12)
    console.on_sample(sample=Sample(5, 2.0, ("> hi", "x"), ("\x1b[31m[bold]\n" + "z" * 50, "short\x07 \u00fc")))
    lines = capsys.readouterr().err.splitlines()[2:]
    assert lines == [
        r"sample after step 5: '> hi' -> '\x1b[31m[bold]\n'...",
        "sample after step 5: 'x' -> 'short\\x07 \u00fc'",
    ]


def test_evaluation_is_a_table_with_its_mean(started, capsys):
    """Every source has a row; names in brackets stay as they are."""
    started().on_evaluation(evaluation=Evaluation(7, {"a": 3.0, "[b]": 2.0}, {"a": 1.5, "[b]": 1.0}))
    rows = [line.split() for line in capsys.readouterr().err.splitlines()[2:]]
    assert ["held", "out", "after", "step", "7"] in rows
    assert ["a", "3.0000", "1.5000"] in rows
    assert ["[b]", "2.0000", "1.0000"] in rows
    assert ["mean", "1.2500"] in rows


def test_a_run_without_a_step_says_so(started, make_run, capsys):
    """An interruption before the first step still ends with a line."""
    started().on_finish(record=None, reasons=["KeyError: 7"], ending="failed", run=make_run())
    assert capsys.readouterr().err.splitlines()[-1] == "failed before the first step: KeyError: 7"
    started().on_finish(record=None, reasons=[], ending="done", run=make_run())
    assert capsys.readouterr().err.splitlines()[-1] == "finished before the first step: no reason given"


def test_nothing_is_saved(started):
    """A log leaves no trace in checkpoints."""
    assert get_state(started()) == {}


@pytest.mark.parametrize("options", [{"every": 0}, {"width": 0}])
def test_impossible_options_are_refused(options):
    """Both options count something."""
    with pytest.raises(AndreaError, match=r"log\.console"):
        Console(**options)


def test_the_average_is_the_smoothed_one_of_a_hundred(started, make_run, make_record, make_pull, capsys):
    """After a hundred losses a new one counts a hundredth; before that, all count the same."""
    console = started(every=1)
    losses = [3.0 + (step % 7) / 10 for step in range(150)]
    for step, loss in enumerate(losses):
        console.on_step(record=make_record(step, make_pull(0), loss=loss), run=make_run())
    expected = sum(losses[:100]) / 100
    for loss in losses[100:]:
        expected = (expected * 99 + loss) / 100

    assert f"  smma {expected:.4f}  perplexity {math.exp(expected):.4g}  " in capsys.readouterr().err.splitlines()[-1]


def test_chance_is_said_and_a_loss_beyond_all_numbers_is_shown(make_run, make_record, make_pull, capsys):
    """The loss of a guess is ln V; a perplexity that no float holds is no error."""
    console = Console()
    console.on_start(run=make_run(vocabulary=257))
    console.on_step(record=make_record(0, make_pull(0), loss=1e4), run=make_run())

    err = capsys.readouterr().err
    assert f"257 tokens to choose from: guessing has a loss of {math.log(257):.4f}" in err
    assert "smma 10000.0000" in err
