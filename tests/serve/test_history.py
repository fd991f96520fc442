"""The columns of a journal: those that stand in it, however it was read, damaged or cut back."""

from __future__ import annotations

import json
import math

import pytest

from andrea.coherence import score_texts
from andrea.serve import history as module
from andrea.serve import tail
from andrea.serve.history import History


def columns(history):
    """Return everything that a history holds."""
    tables = {**history.rows, **history.pulls, **{f"dice {name}": column for name, column in history.dice.items()}}
    evaluations = [(row, line.step, dict(line.bits_per_byte)) for row, line in history.evaluations]
    held = {name: column.tolist() for name, column in tables.items()}
    # NaN is not equal to itself, and a number as text is.
    return json.dumps([held, evaluations, history.coherence, history.sampled, history.sources, history.damaged])


def read(path, **options):
    history = History(path, **options)
    assert history.update()
    return history


def test_columns_are_those_of_the_lines(journal_of, lines):
    """Losses exactly, the others as float32; rewards are the sum of their terms."""
    path = journal_of(lines.run(30))
    history = read(path)
    steps = [json.loads(line) for line in path.read_text().splitlines() if '"step","step"' in line]
    assert history.rows["step"].tolist() == list(range(30))
    assert history.rows["loss"].tolist() == [step["loss"] for step in steps]
    # A float32 has 24 bits: half of the last one is 2^-24 of the number.
    assert history.rows["grad_norm"].tolist() == pytest.approx([step["grad_norm"] for step in steps], rel=2**-24)
    assert history.pulls["row"].tolist() == list(range(30))
    assert [history.sources[index] for index in history.pulls["source"]] == [s["pulls"][0]["source"] for s in steps]
    assert history.tokens == 30 * 1024
    assert history.skipped == 3
    assert [(row, line.step) for row, line in history.evaluations] == [(10, 10), (20, 20), (30, 30)]
    assert history.sampled == [10, 20, 30]
    assert history.arms[1] == steps[-1]["pulls"][0]["weights"]


def test_the_smoothed_average_is_that_of_the_console(journal_of, lines):
    """N is 100, or the number of steps while that is smaller; a loss that is not finite is left out."""
    losses = [5.0, "nan", 3.0, 4.0, "inf", 2.0, *[1.0] * 200]
    history = read(journal_of(lines.step(step, loss=loss) for step, loss in enumerate(losses)))
    average, count, expected = math.nan, 0, []
    for loss in losses:
        if isinstance(loss, float):
            count = min(count + 1, 100)
            average = loss if count == 1 else average + (loss - average) / count
        expected.append(average)
    assert history.rows["smma"].tolist() == pytest.approx(expected, rel=2**-23)  # kept as float32
    assert math.isnan(history.rows["loss"][1])


def test_a_step_of_several_pulls_has_a_row_for_each(journal_of, lines):
    """They name their step."""
    history = read(journal_of([lines.step(0, pulls=2), lines.step(1, pulls=3)]))
    assert history.pulls["row"].tolist() == [0, 0, 1, 1, 1]
    assert history.pulls["source"].tolist() == [0, 1, 1, 2, 0]


def test_phases_of_the_dice_begin_where_their_start_changes(journal_of, lines):
    """Sources are bits; another sampler has no phases; a source beyond the 64th is left out."""
    history = read(journal_of(lines.run(30)), sources=lines.sources)
    assert history.dice["start"].tolist() == [0, 14, 28]
    assert history.dice["row"].tolist() == [0, 14, 28]
    assert history.dice["focus"].tolist() == [0b001, 0b100, 0b010]
    assert history.dice["joined"].tolist() == [0b010, 0b001, 0b100]
    many = {"start": 0, "length": 7, "focus": [63, 64, 200], "joined": [-1, 0, 0]}
    history = read(journal_of([lines.step(0, detail={"share": 0.5}), lines.step(1, detail=many)], "many.jsonl"))
    assert history.dice["focus"].tolist() == [1 << 63]
    assert history.dice["joined"].tolist() == [1]


def test_sources_are_in_the_order_of_the_run_and_others_behind(journal_of, lines):
    """A polish may bring another source than the configuration names."""
    assert read(journal_of([lines.step(0)]), sources=("chat", "code")).sources == ["chat", "code", "prose"]


@pytest.mark.parametrize("size", [100, 1000, 10**6])
def test_a_history_read_in_pieces_is_the_same(journal_of, lines, monkeypatch, size):
    """Whatever was there when it was read, and however little time each reading had."""
    found = lines.run(60)
    path = journal_of(found)
    whole = columns(read(path))
    monkeypatch.setattr(tail, "CHUNK", size)
    history = History(path)
    pieces = 1
    while not history.update(-1.0):
        pieces += 1
    assert pieces > 6  # each of 6 samples is scored in a reading of its own
    assert columns(history) == whole
    grown = History(journal_of([], "grown.jsonl"))
    for line in found:
        journal_of([line], "grown.jsonl", "a")
        grown.update()
    assert columns(grown) == whole


def test_damaged_lines_are_counted_and_all_others_read(journal_of, lines):
    """Also numbers that fit no column, texts that are no numbers, and steps that do not ascend."""
    bad = [
        "garbage",
        lines.step(2**40),
        lines.step(5, loss="large"),
        lines.step(5, reward="much"),
        lines.step(1),
        lines.step(4).replace('"documents"', '"documents'),
        "",
    ]
    history = read(journal_of([*lines.run(5), *bad, *lines.run(15, first=5)]))
    clean = read(journal_of(lines.run(15), "clean.jsonl"))
    assert history.damaged == len(bad)
    assert history.rows["step"].tolist() == list(range(15))
    assert history.pulls == clean.pulls
    assert history.dice == clean.dice
    assert {len(column) for column in history.rows.values()} == {15}


def test_a_resume_that_cuts_the_journal_begins_another_generation(journal_of, lines):
    """What was read before is void, and what is there now is what a new reader sees."""
    path = journal_of([*lines.run(25), lines.stop(25)])
    history = read(path)
    begun = history.generation
    assert len(history) == 25
    journal_of([*lines.run(20), *(lines.step(step, loss=1.0) for step in range(20, 40))])
    assert history.update()
    assert (history.generation, len(history)) == (begun + 1, 40)
    assert columns(history) == columns(read(path))
    path.unlink()
    assert history.update()
    assert (history.generation, len(history)) == (begun + 2, 0)


def test_samples_are_read_from_the_file_again(journal_of, lines):
    """By the updates before them, or the latest few; a file that changed meanwhile gives none that are wrong."""
    path = journal_of(lines.run(50))
    history = read(path)
    assert [sample.step for sample in history.samples()] == [10, 20, 30, 40, 50]
    assert [sample.step for sample in history.samples(15, 40)] == [20, 30, 40]
    assert [sample.step for sample in history.samples(most=2)] == [40, 50]
    assert next(history.samples()).texts == ["> rain on the leaf", "> "]
    path.write_text("\n".join(["x" * 400] * 50))
    assert list(history.samples()) == []
    path.unlink()
    assert list(history.samples()) == []


def test_a_polish_begins_the_samples_anew(journal_of, lines):
    """As the file of samples does; curves go on."""
    history = read(journal_of([*lines.run(20), lines.polish(20), *lines.run(30, first=20)]))
    assert history.sampled == [30]
    assert len(history) == 30
    assert [step for step, _ in history.coherence] == [30]


def test_coherence_is_that_of_the_texts_without_their_prompts(journal_of, lines):
    """Prompts are taken in turn; which words are known is not, so the other parts are stretched."""
    text = "the rain falls on the leaf and the root drinks what the leaf lets fall"
    history = read(journal_of([lines.sample(5, f"> a{text}", f"> b{text}", f"> a{text}")]), prompts=("> a", "> b"))
    assert history.coherence == [(5, score_texts([text] * 3, frozenset()).total)]


def test_of_many_samples_some_are_scored_the_last_one_too(journal_of, lines, monkeypatch):
    """So that a long history opens soon; later samples are scored as they come, and points stay few."""
    monkeypatch.setattr(module, "MOST_SCORED", 8)
    path = journal_of(lines.sample(step) for step in range(1, 101))
    history = read(path)
    scored = [step for step, _ in history.coherence]
    assert len(scored) == 8
    assert scored[-1] == 100
    for step in range(101, 120):
        journal_of([lines.sample(step)], mode="a")
        history.update()
    scored = [step for step, _ in history.coherence]
    assert scored[-1] == 119
    assert len(scored) <= 16
    assert scored == sorted(scored)
