"""The journal as columns: every number at its place, tables that can be read."""

from __future__ import annotations

import math

import numpy as np
import pytest

from andrea.columns import Columns, evaluations_of, pulls_of, samples_of, smooth, steps_of


def pull(source, loss, rewards):
    """Return a pull as a journal has it."""
    return {
        "source": source,
        "documents": [1],
        "loss": loss,
        "rewards": rewards,
        "scores": ["inf", 0.5],
        "weights": [1.0, 0.25],
    }


LINES = [
    {"kind": "step", "step": 0, "loss": 5.5, "grad_norm": 1.25, "learning_rate": 1e-4, "skipped": False, "tokens": 64,
     "pulls": [pull("a", 5.0, {"drop": 0.0}), pull("b", 6.0, {"drop": 0.1, "more": -0.2})]},
    {"kind": "sample", "step": 1, "loss": 5.5, "texts": ["one", "<b>two</b>"]},
    {"kind": "evaluation", "step": 1, "loss": {"a": 5.1, "b": "nan"}, "bits_per_byte": {"a": 2.5, "b": "nan"}},
    {"kind": "polish", "step": 1},
    {"kind": "step", "step": 1, "loss": "nan", "grad_norm": "inf", "learning_rate": 2e-4, "skipped": True, "tokens": 64,
     "pulls": [pull("b", "nan", {}), pull("b", 6.25, {"drop": 0.3})]},
    {"kind": "stop", "step": 2, "reasons": {"stop.max_steps": "2 steps are done"}},
]  # fmt: skip


def test_steps():
    """One row a step; texts for what is not finite are numbers again."""
    steps = steps_of(LINES)
    assert list(steps) == ["step", "loss", "grad_norm", "learning_rate", "skipped", "tokens"]
    assert steps["step"].tolist() == [0, 1]
    assert steps["loss"][0] == 5.5
    assert math.isnan(steps["loss"][1])
    assert steps["grad_norm"].tolist() == [1.25, math.inf]
    assert steps["skipped"].tolist() == [False, True]
    assert {name: column.dtype.kind for name, column in steps.items()} == {
        "step": "i", "loss": "f", "grad_norm": "f", "learning_rate": "f", "skipped": "b", "tokens": "i",
    }  # fmt: skip


def test_pulls():
    """One row a pull, with the score and weight that its own source had; a term that it lacks is no number."""
    pulls = pulls_of(LINES, ("a", "b"))
    assert pulls["step"].tolist() == [0, 0, 1, 1]
    assert pulls["pull"].tolist() == [0, 1, 0, 1]
    assert pulls["source"].tolist() == ["a", "b", "b", "b"]
    assert pulls["score"].tolist() == [math.inf, 0.5, 0.5, 0.5]
    assert pulls["weight"].tolist() == [1.0, 0.25, 0.25, 0.25]
    assert pulls["reward"].tolist() == [0.0, -0.1, 0.0, 0.3]
    np.testing.assert_array_equal(pulls["reward.drop"], [0.0, 0.1, np.nan, 0.3])
    np.testing.assert_array_equal(pulls["reward.more"], [np.nan, -0.2, np.nan, np.nan])
    assert pulls.where(source="b", step=1)["pull"].tolist() == [0, 1]
    assert pulls.where(source="c").rows == 0


def test_evaluations_and_samples():
    """Long tables: a row for each source, and for each text."""
    evaluations = evaluations_of(LINES)
    assert evaluations["source"].tolist() == ["a", "b"]
    assert evaluations["bits_per_byte"][0] == 2.5
    assert math.isnan(evaluations["loss"][1])
    samples = samples_of(LINES)
    assert samples["text"].tolist() == ["one", "<b>two</b>"]
    assert samples["step"].tolist() == [1, 1]


def test_nothing_has_happened_yet():
    """Columns of no rows, which have their types and can be shown."""
    for table in (steps_of([]), pulls_of([], ()), evaluations_of([]), samples_of([])):
        assert table.rows == 0
        assert all(len(column) == 0 for column in table.values())
        assert "[0 rows]" in repr(table)
        assert "0 rows" in table._repr_html_()


def test_tables_are_shown_short_and_harmless():
    """The first and last five rows; what looks like a tag is text in a notebook."""
    table = Columns({"step": np.arange(1000), "loss": np.arange(1000) / 3})
    assert repr(table).splitlines() == [
        "step    loss", "   0       0", "   1  0.3333", "   2  0.6667", "   3       1", "   4   1.333", " ...     ...",
        " 995   331.7", " 996     332", " 997   332.3", " 998   332.7", " 999     333", "[1,000 rows]",
    ]  # fmt: skip
    html = samples_of(LINES)._repr_html_()
    assert "<td>&lt;b&gt;two&lt;/b&gt;</td>" in html
    assert "<b>" not in html
    long = Columns({"text": np.array(["x" * 100], dtype=object)})
    assert "x" * 57 + "..." in repr(long)
    assert "x" * 58 not in repr(long)


def test_columns_are_a_mapping():
    """What takes a mapping of arrays, as data frames do, takes them."""
    steps = steps_of(LINES)
    assert len(steps) == 6
    assert "loss" in steps
    assert dict(steps).keys() == steps.keys()
    with pytest.raises(KeyError):
        steps["los"]


def test_smoothing():
    """A plain mean until there are n values, then a moving one; what is not finite is left out."""
    assert smooth([1, 2, 3, 6], n=2).tolist() == [1.0, 1.5, 2.25, 4.125]
    np.testing.assert_array_equal(smooth([math.nan, 4, math.inf, 2]), [np.nan, 4.0, 4.0, 3.0])
    assert smooth([]).size == 0
