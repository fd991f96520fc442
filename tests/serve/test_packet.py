"""The binary answer: read as docs/dashboard.md describes it, it is the history."""

from __future__ import annotations

import json
import struct
from array import array

import pytest

from andrea.serve import packet as module
from andrea.serve.history import History
from andrea.serve.packet import packet

CODES = {"int32": "i", "float64": "d", "float32": "f", "uint16": "H", "uint64": "Q"}


def unpacked(data):
    """Return header and columns."""
    length, version = struct.unpack_from("<II", data)
    assert version == 1
    assert length % 8 == 0
    header, at, columns = json.loads(data[8 : 8 + length]), 8 + length, {}
    for column in header["columns"]:
        code = CODES[column["type"]]
        values = array(code, data[at : at + column["length"] * array(code).itemsize])
        columns[column["name"]] = values.tolist()
        at += -(-len(values) * values.itemsize // 8) * 8
    assert at == len(data)
    return header, columns


@pytest.fixture
def history(journal_of, lines):
    found = History(journal_of(lines.run(45)), lines.sources)
    found.update()
    return found


def test_it_holds_what_the_history_holds(history):
    """All columns, and what is not a column in the header."""
    header, columns = unpacked(packet(history, True, 5.5, [(10, 99.6)]))
    expected = {**history.rows, **{f"pull_{k}": v for k, v in history.pulls.items()}}
    expected |= {f"dice_{k}": v for k, v in history.dice.items()}
    assert columns == {name: column.tolist() for name, column in expected.items()}
    assert (header["generation"], header["complete"], header["first"]) == (history.generation, True, 0)
    assert header["sources"] == ["prose", "code", "chat"]
    assert [line["step"] for line in header["evaluations"]] == [10, 20, 30, 40]
    assert header["sampled"] == [10, 20, 30, 40]
    assert header["speeds"] == [[10, 100]]
    assert header["chance"] == 5.5
    assert header["phases"][0] == [0, "random"]
    assert (header["tokens"], header["skipped"], header["damaged"]) == (45 * 1024, 4, 0)


def test_who_has_the_beginning_gets_the_rest(history):
    """What was there before and what comes is the whole, wherever it was cut."""
    _, whole = unpacked(packet(history, True, 5.5))
    for first in (1, 14, 29, 44, 45):
        header, rest = unpacked(packet(history, True, 5.5, generation=history.generation, first=first))
        assert header["first"] == first
        assert rest["step"] == whole["step"][first:]
        assert rest["pull_row"] == whole["pull_row"][first:]
        assert rest["dice_row"] == [row for row in whole["dice_row"] if row >= first]
        assert [line["step"] for line in header["evaluations"]] == [step for step in (10, 20, 30, 40) if step >= first]


def test_who_has_another_generation_gets_all(history):
    """Also who claims more than there is."""
    now = history.generation
    for generation, first in ((now + 1, 10), (now - 1, 10), (0, 10), (now, 46)):
        header, columns = unpacked(packet(history, True, 5.5, generation=generation, first=first))
        assert (header["first"], len(columns["step"])) == (0, 45)


def test_who_has_rows_from_before_a_restart_gets_all(journal_of, lines, monkeypatch):
    """A resume cut the journal while no server ran: the new reader, though it too reads for the first time, is another.

    Where a reader begins to count is drawn, with one chance in 2^30 that two agree; here the draws are 7 and 8.
    """
    numbers = iter((7, 8))
    monkeypatch.setattr("secrets.randbelow", lambda most: next(numbers))
    before = History(journal_of(lines.run(45)), lines.sources)
    before.update()
    had, _ = unpacked(packet(before, True, 5.5))
    after = History(
        journal_of([*lines.run(20), *(lines.step(step, loss=1.0) for step in range(20, 60))]), lines.sources
    )
    after.update()
    header, columns = unpacked(packet(after, True, 5.5, generation=had["generation"], first=45))
    assert (header["first"], len(columns["step"])) == (0, 60)
    assert 0 < had["generation"] != header["generation"] > 0


def test_a_long_history_comes_in_several_answers(history, monkeypatch):
    """Together they are the whole, and only the last one is complete."""
    _, whole = unpacked(packet(history, True, 5.5))
    monkeypatch.setattr(module, "MOST_ROWS", 10)
    joined, first, complete = {name: [] for name in whole}, 0, []
    evaluated = []
    while not complete or not complete[-1]:
        header, columns = unpacked(packet(history, True, 5.5, generation=history.generation, first=first))
        for name, values in columns.items():
            joined[name] += values
        first += len(columns["step"])
        complete.append(header["complete"])
        evaluated += [line["step"] for line in header["evaluations"]]
    assert joined == whole
    assert complete == [False] * 4 + [True]
    assert sorted(set(evaluated)) == [10, 20, 30, 40]


def test_numbers_that_are_not_finite(journal_of, lines):
    """NaN in columns; null in the header, which is JSON."""
    history = History(
        journal_of([lines.step(0, loss="nan"), lines.evaluation(1, float("inf")).replace("Infinity", '"inf"')])
    )
    history.update()
    header, columns = unpacked(packet(history, True, float("nan")))
    assert columns["loss"][0] != columns["loss"][0]
    assert header["chance"] is None
    assert header["scores"] == [None] * 3
    assert header["evaluations"][0]["bits_per_byte"]["prose"] == "inf"


def test_an_empty_history(tmp_path):
    """Has all columns, of no length."""
    history = History(tmp_path / "none")
    history.update()
    header, columns = unpacked(packet(history, True, float("nan")))
    assert header["complete"]
    assert not any(columns.values())
