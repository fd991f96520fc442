"""The phases of learning, at their thresholds and over a history."""

from __future__ import annotations

import math

import pytest

from andrea.serve.history import History
from andrea.serve.phases import phase_of, phases


@pytest.mark.parametrize(
    ("smma", "bits", "coherence", "expected"),
    [
        (math.nan, None, None, "random"),
        (9.0, None, None, "random"),
        (8.99, None, None, "frequency"),
        (9.0, 1.0, 100.0, "random"),
        (5.0, 2.85, 100.0, "frequency"),
        (5.0, math.nan, 100.0, "frequency"),
        (5.0, 2.84, None, "structure"),
        (5.0, 1.9, 100.0, "structure"),
        (5.0, 1.89, None, "coherence"),
        (5.0, 1.89, 30.0, "structure"),
        (5.0, 1.89, 30.1, "coherence"),
        (5.0, 1.1, 100.0, "coherence"),
        (5.0, 1.09, 100.0, "knowledge"),
        (5.0, 1.09, 10.0, "structure"),
    ],
)
def test_thresholds(smma, bits, coherence, expected):
    """With a loss of guessing of 10: 0.9 of it, 2.85, 1.9 and 1.1 bits per byte, and 30 points of coherence."""
    assert phase_of(smma, 10.0, bits, coherence) == expected


def test_without_a_known_chance_nothing_is_called_random_but_no_loss_at_all():
    """A tokenizer whose plugin is gone leaves the other phases."""
    assert phase_of(9.0, math.nan, None, None) == "frequency"
    assert phase_of(9.0, math.nan, 1.5, None) == "coherence"
    assert phase_of(math.nan, math.nan, None, None) == "random"


def test_a_history_passes_through_its_phases(journal_of, lines):
    """A phase begins at the step after which its condition is met; a worse model falls back."""
    found = [lines.step(step, loss=8.0 if step < 20 else 4.0) for step in range(40)]
    found += [lines.evaluation(40, 3.0), *(lines.step(step, loss=3.0) for step in range(40, 60))]
    found += [lines.evaluation(60, 2.0), *(lines.step(step, loss=3.0) for step in range(60, 80))]
    found += [lines.evaluation(80, 1.2), lines.step(80, loss=3.0), lines.sample(81, "a b " * 50), lines.step(81)]
    history = History(journal_of(found))
    history.update()
    crossed = next(step for step, smma in zip(history.rows["step"], history.rows["smma"], strict=True) if smma < 7.2)
    assert phases(history, 8.0) == [
        (0, "random"),
        (crossed, "frequency"),
        (59, "structure"),
        (79, "coherence"),
        (80, "structure"),
    ]


def test_an_empty_history_has_no_phases(journal_of):
    """Nothing is said of a run that has not begun."""
    assert phases(History(journal_of([])), 8.0) == []
