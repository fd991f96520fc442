"""The plots of a trial: curves, differences, shares over time, and the walk of every arm on the simplex of mixes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea.trial import Trial
from andrea.trial_results import Result, Summary, Table

Floats = npt.NDArray[np.float64]


def write_plots(folder: Path, trial: Trial, table: Table, summaries: Sequence[Summary]) -> list[Path]:
    """Write the plots as PNG into a folder and return their paths; none when matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, Callable[[Any], None]] = {
        "curves": partial(_curves, table=table),
        "differences": partial(_differences, trial=trial, summaries=summaries),
        "walk": partial(_walk, table=table),
        **{f"shares-{arm}": partial(_shares, results=list(found.values())) for arm, found in table.items()},
    }
    paths = []
    for name, draw in drawn.items():
        figure = Figure(figsize=(9, 6), layout="constrained")
        draw(figure.add_subplot())
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=120)
    return paths


def _curves(axes: Any, table: Table) -> None:
    """Draw the mean bits per byte over the tokens, mean over the seeds, with the range of the seeds as a band."""
    for arm, found in table.items():
        length = min(len(one.curve) for one in found.values())
        values = np.array([[value for _, value in one.curve[:length]] for one in found.values()])
        tokens = [tokens for tokens, _ in next(iter(found.values())).curve[:length]]
        (line,) = axes.plot(tokens, values.mean(axis=0), label=arm)
        axes.fill_between(tokens, values.min(axis=0), values.max(axis=0), color=line.get_color(), alpha=0.15)
    axes.set(xlabel="tokens", ylabel="held-out bits per byte, mean over the sources", yscale="log")
    axes.legend()


def _differences(axes: Any, trial: Trial, summaries: Sequence[Summary]) -> None:
    """Draw every arm's paired differences with their intervals around zero."""
    ordered = sorted(summaries, key=lambda summary: -summary.mean)
    for number, other in enumerate(trial.compared):
        points = [(y, *one.differences[other]) for y, one in enumerate(ordered) if other in one.differences]
        halves = [half if math.isfinite(half) else 0.0 for _, _, half in points]
        places = [y + 0.15 * number for y, _, _ in points]
        axes.errorbar([mean for _, mean, _ in points], places, xerr=halves, fmt="o", capsize=3, label=f"minus {other}")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set(xlabel="difference of the mean bits per byte, 95% interval (left is better)")
    axes.set_yticks(range(len(ordered)), [one.arm for one in ordered])
    axes.legend()


def _shares(axes: Any, results: Sequence[Result]) -> None:
    """Draw the share of every source over the run, mean over the seeds."""
    shares = _mean_shares(results)
    axes.stackplot(np.linspace(0, 1, len(shares)), shares.T, labels=list(results[0].sizes))
    axes.set(xlabel="part of the run", ylabel="share of the pulls", xlim=(0, 1), ylim=(0, 1), title=results[0].arm)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")


def _walk(axes: Any, table: Table) -> None:
    """Draw the mixes so far as walks on the simplex of all mixes, seen along the two directions of most movement.

    A point is the share that every source has had up to there; it starts at the open end and comes to rest at the dot.
    """
    walks = {arm: _walked(_mean_shares(list(found.values()))) for arm, found in table.items()}
    for arm, points in project(walks).items():
        (line,) = axes.plot(points[:, 0], points[:, 1], label=arm, linewidth=1)
        axes.plot(*points[-1], "o", color=line.get_color())
    axes.set(xlabel="first direction", ylabel="second direction", title="mix so far, on the simplex")
    axes.set_aspect("equal", adjustable="datalim")  # distances are those between mixes
    axes.legend(fontsize="small")


def _mean_shares(results: Sequence[Result]) -> Floats:
    length = min(len(one.shares) for one in results)
    return np.asarray(np.mean([one.shares[:length] for one in results], axis=0), dtype=np.float64)


def _walked(shares: Floats) -> Floats:
    """Return the mean share up to every window, float64 (W, S)."""
    return np.asarray(np.cumsum(shares, axis=0) / np.arange(1, len(shares) + 1)[:, None], dtype=np.float64)


def project(walks: dict[str, Floats]) -> dict[str, Floats]:
    """Return walks (W, S) as (W, 2): coordinates along the two main directions of all their points, uniform at 0."""
    points = np.concatenate(list(walks.values()))
    away = points - 1 / points.shape[1]
    directions = np.linalg.svd(away, full_matrices=False)[2][:2]
    signs = np.sign(directions[np.arange(len(directions)), np.abs(directions).argmax(axis=1)])
    directions = directions * signs[:, None]  # a direction and its opposite are one: the largest entry decides
    flat = {arm: (walk - 1 / walk.shape[1]) @ directions.T for arm, walk in walks.items()}
    return {arm: np.pad(walk, ((0, 0), (0, 2 - walk.shape[1]))) for arm, walk in flat.items()}
