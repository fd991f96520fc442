"""A run's journal as columns of numbers, for plots: each table a mapping from name to array, as data frames take it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]
SHOWN = 5  # rows at either end of a table


class Columns(Mapping[str, Column]):
    """Columns of one length, by name.

    Parameters
    ----------
    columns
        Arrays of one length.
    """

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = dict(columns)

    def __getitem__(self, name: str) -> Column:
        """Return a column."""
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def rows(self) -> int:
        """Length of the columns."""
        return len(next(iter(self._columns.values()), ()))

    def where(self, **wanted: Any) -> Columns:
        """Return the rows whose columns equal what is given, for instance ``where(source="chat")``."""
        keep = np.ones(self.rows, dtype=bool)
        for name, value in wanted.items():
            keep &= self[name] == value
        return Columns({name: column[keep] for name, column in self.items()})

    def _lines(self) -> list[list[str]]:
        """Return the cells of the first and the last rows."""
        some = range(self.rows)
        shown = [*some] if self.rows <= 2 * SHOWN else [*some[:SHOWN], -1, *some[-SHOWN:]]
        return [["..." if row < 0 else _cell(column[row]) for column in self.values()] for row in shown]

    def __repr__(self) -> str:
        table = [[*self], *self._lines()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)) for line in table]
        return "\n".join([*lines, f"[{self.rows:,} rows]"])

    def _repr_html_(self) -> str:
        def row(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(row(line, "td") for line in self._lines())
        return f"<table><thead>{row([*self], 'th')}</thead><tbody>{body}</tbody></table><p>{self.rows:,} rows</p>"


def _cell(value: Any) -> str:
    if isinstance(value, (float, np.floating)):
        return f"{value:.4g}"
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def steps_of(lines: Sequence[Mapping[str, Any]]) -> Columns:
    """Return a row for each step: step, loss, grad_norm, learning_rate, skipped, tokens.

    ``step`` counts from 0, as the journal does: it is the number of updates that made the model whose loss this is.
    """
    steps = [line for line in lines if line["kind"] == "step"]
    columns = {name: _numbers([line[name] for line in steps]) for name in ("loss", "grad_norm", "learning_rate")}
    return Columns(
        {
            "step": np.array([line["step"] for line in steps], dtype=np.int64),
            **columns,
            "skipped": np.array([line["skipped"] for line in steps], dtype=np.bool_),
            "tokens": np.array([line["tokens"] for line in steps], dtype=np.int64),
        }
    )


def pulls_of(lines: Sequence[Mapping[str, Any]], sources: Sequence[str]) -> Columns:
    """Return a row for each pull: step, pull, source, loss, reward and its terms, score and weight of the source."""
    steps = [line for line in lines if line["kind"] == "step"]
    pulls = [pull for line in steps for pull in line["pulls"]]
    place = {name: index for index, name in enumerate(sources)}
    terms = dict.fromkeys(term for pull in pulls for term in pull["rewards"])
    rewards = {term: _numbers([pull["rewards"].get(term, "nan") for pull in pulls]) for term in terms}
    return Columns(
        {
            "step": np.array([line["step"] for line in steps for _ in line["pulls"]], dtype=np.int64),
            "pull": np.array([n for line in steps for n, _ in enumerate(line["pulls"])], dtype=np.int64),
            "source": np.array([pull["source"] for pull in pulls], dtype=object),
            "loss": _numbers([pull["loss"] for pull in pulls]),
            "reward": _numbers([math.fsum(map(float, pull["rewards"].values())) for pull in pulls]),
            **{f"reward.{term}": column for term, column in rewards.items()},
            "score": _numbers([pull["scores"][place[pull["source"]]] for pull in pulls]),
            "weight": _numbers([pull["weights"][place[pull["source"]]] for pull in pulls]),
        }
    )


def evaluations_of(lines: Sequence[Mapping[str, Any]]) -> Columns:
    """Return a row for each source of each evaluation: step, source, loss, bits_per_byte."""
    found = [(line, source) for line in lines if line["kind"] == "evaluation" for source in line["loss"]]
    return Columns(
        {
            "step": np.array([line["step"] for line, _ in found], dtype=np.int64),
            "source": np.array([source for _, source in found], dtype=object),
            "loss": _numbers([line["loss"][source] for line, source in found]),
            "bits_per_byte": _numbers([line["bits_per_byte"][source] for line, source in found]),
        }
    )


def samples_of(lines: Sequence[Mapping[str, Any]]) -> Columns:
    """Return a row for each text: step, loss, text."""
    found = [(line, text) for line in lines if line["kind"] == "sample" for text in line["texts"]]
    return Columns(
        {
            "step": np.array([line["step"] for line, _ in found], dtype=np.int64),
            "loss": _numbers([line["loss"] for line, _ in found]),
            "text": np.array([text for _, text in found], dtype=object),
        }
    )


def _numbers(values: Sequence[Any]) -> Column:
    """Return numbers of a journal, which writes those that are not finite as texts."""
    return np.array([float(value) for value in values], dtype=np.float64)


def smooth(values: npt.ArrayLike, n: int = 100) -> npt.NDArray[np.float64]:
    """Return the smoothed moving average of values, in which what is not finite is left out.

    SMMA_t = SMMA_{t-1} + (value_t - SMMA_{t-1}) / n, with the number of values so far in the place of n while that is
    smaller: the average that ``andrea run`` shows.
    """
    given = np.asarray(values, dtype=np.float64)
    averages = np.empty_like(given)
    average, count = np.nan, 0
    for place, value in enumerate(given.tolist()):
        if np.isfinite(value):
            count = min(count + 1, n)
            average = value if count == 1 else average + (value - average) / count
        averages[place] = average
    return averages
