"""``andrea evaluate``: the table, the document, and what does not go together."""

from __future__ import annotations

import json
import math
import sys

import pytest

CPU = ("--device", "cpu")


@pytest.fixture
def trained(andrea, experiment, current_folder):
    """Return the folder of a tiny run of 20 steps."""
    ended = andrea("run", experiment, "--out", "run", "--steps", 20, *CPU)
    assert ended.code == 0, ended.err
    return current_folder / "run"


def test_perplexity_beside_bits_per_byte(andrea, trained):
    """Perplexity is exp of the loss, of every source, in the table and in the document."""
    document = json.loads(andrea("evaluate", trained, "--json", *CPU).out)
    assert set(document) == {"step", "loss", "perplexity", "bits_per_byte"}
    for name, loss in document["loss"].items():
        assert document["perplexity"][name] == math.exp(loss)
    printed = andrea("evaluate", trained, *CPU).out
    for name, perplexity in document["perplexity"].items():
        row = next(line for line in printed.splitlines() if line.strip().startswith(name))
        assert f"{perplexity:.1f}" in row
        assert f"{document['bits_per_byte'][name]:.3f}" in row


def test_a_text_of_bytes_has_the_perplexity_of_its_bits(andrea, trained):
    """With a byte a token perplexity and bits per byte say the same, but for the ends of documents."""
    document = json.loads(andrea("evaluate", trained, "--json", *CPU).out)
    for name, bits in document["bits_per_byte"].items():
        assert document["perplexity"][name] == pytest.approx(2**bits, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--limit", 3], "--limit belongs to tasks"),
        (["--shots", 0], "--shots belongs to tasks"),
        (["--cache", "x"], "--cache belongs to tasks"),
        (["--tasks", "piqa", "--bigram"], "--tasks measures tasks"),
        (["--tasks", "piqa", "--rows", 3], "--tasks measures tasks"),
        (["--tasks", ", ,"], "names no task"),
        (["--tasks", "piqa", "--task-folder", "gone"], "there is no folder gone"),
    ],
)
def test_what_does_not_go_together_is_refused(andrea, trained, arguments, said):
    """Options of tasks without tasks, and tasks with options of held-out text."""
    ended = andrea("evaluate", trained, *arguments, *CPU)
    assert ended.code == 2
    assert said in ended.err
    assert ended.out == ""


def test_the_harness_is_named_when_it_is_not_there(andrea, trained, monkeypatch):
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "andrea.harness", raising=False)
    ended = andrea("evaluate", trained, "--tasks", "piqa", *CPU)
    assert ended.code == 2
    assert "pip install 'andrea[lm-eval]'" in ended.err
