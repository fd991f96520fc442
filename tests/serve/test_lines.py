"""What is read of a journal's line, and that a bad one is None."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from andrea.journal import Journal
from andrea.serve import lines as kinds
from andrea.serve.lines import read_arms, read_line, read_phase


def test_every_kind_that_a_journal_writes_is_read(tmp_path, lines):
    """Whatever `Journal` writes has a kind here."""
    written = [lines.step(3), lines.sample(4), lines.evaluation(4), lines.polish(4), lines.stop(5)]
    found = [type(read_line(line.encode())).__name__ for line in written]
    assert found == ["Step", "Sample", "Evaluation", "Polish", "Stop"]
    journal = Journal(tmp_path, "model", ("one",))
    journal.stop(9, {"signal": "SIGINT"})
    journal.polish(9)
    journal.close()
    stop, polish = (tmp_path / "journal.jsonl").read_bytes().splitlines()
    assert read_line(stop) == kinds.Stop(9, {"signal": "SIGINT"})
    assert read_line(polish) == kinds.Polish(9)


def test_numbers_that_are_not_finite_are_texts(lines):
    """As the journal writes them."""
    found = read_line(lines.step(1, loss="nan", reward="-inf").encode())
    assert found.loss == "nan"
    assert found.pulls[0].rewards == {"ema_drop": "-inf"}


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"null", b"[]", b"\x00" * 50, b'{"kind":"other"}', b'{"kind":"step"}', b'{"kind":"step","step":"1"}'],
)
def test_what_is_no_line_is_none(line):
    """Cut, empty, of another kind, without what it must have, of another type."""
    assert read_line(line) is None


def test_bytes_that_are_no_text_are_none(lines):
    """A damaged disk does not write UTF-8."""
    assert read_line(lines.sample(1, "text").encode().replace(b"text", b"\xff\xfe")) is None


def test_the_phase_of_a_sampler_with_another_detail_is_none():
    """Only sampler.dice speaks of phases in that way."""
    whole = {"start": 4, "length": 7, "focus": [1], "joined": [0], "share": 0.5}
    assert read_phase(Raw(json.dumps(whole).encode())) == kinds.Phase(4, 7, [1], [0])
    assert read_phase(Raw(b'{"focus": "left"}')) is None


def test_arms_are_those_of_the_first_pull(lines):
    """Scores of untried sources are infinite; a line without them has none."""
    scores, weights = read_arms(lines.step(0).encode())
    assert scores == [float("inf")] * 3
    assert len(weights) == 3
    assert read_arms(b"{") == ([], [])
    assert read_arms(b'{"pulls":[]}') == ([], [])
