"""The figures of a trial as one table: for the terminal, as Markdown, as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cattrs

from andrea.journal import plain
from andrea.tokenfile import write_whole
from andrea.trial import Trial
from andrea.trial_results import Summary, Table

Rows = list[list[str]]


def write_report(folder: Path, trial: Trial, table: Table, summaries: Sequence[Summary]) -> str:
    """Write report.md and report.json into the trial's folder; return the table as text."""
    arms, sources = arm_rows(trial, summaries), source_rows(table)
    parts = ["# Trial", _intro(trial, table), _markdown(arms), _legend(trial), "## Bits per byte of every source"]
    text = "\n\n".join([*parts, _markdown(sources), *_early(table)]) + "\n"
    write_whole(folder / "report.md", text.encode())
    write_whole(folder / "report.json", json.dumps(to_json(table, summaries), indent=1).encode() + b"\n")
    return _aligned(arms)


def to_json(table: Table, summaries: Sequence[Summary]) -> dict[str, Any]:
    """Return every figure of the report, and of every run what it is made of."""
    runs = [
        {
            "arm": one.arm,
            "seed": one.seed,
            "steps": one.steps,
            "tokens": one.tokens,
            "stopped": one.stopped,
            "mean": one.mean,
            "worst": one.worst,
            "weighted": one.weighted,
            "bits_per_byte": dict(one.bits_per_byte),
            "test": dict(one.test),
            "gap": dict(one.gap),
            "epochs": dict(one.epochs),
            "curve": [list(point) for point in one.curve],
            "shares": dict(zip(one.sizes, one.shares.mean(axis=0).tolist(), strict=True)),
            "seconds": one.seconds,
            "curriculum": one.curriculum,
        }
        for results in table.values()
        for one in results.values()
    ]
    value: dict[str, Any] = plain({"arms": [cattrs.unstructure(summary) for summary in summaries], "runs": runs})
    return value


def arm_rows(trial: Trial, summaries: Sequence[Summary]) -> Rows:
    """Return the head and one row for each arm, the best mean first."""
    tested = any(summary.test_differences or not math.isnan(summary.test) for summary in summaries)
    head = ["arm", "seeds", "mean", *(f"minus {other}" for other in trial.compared), "worst", "weighted", "worse"]
    head += ["tokens to reach", "largest gap", "most epochs", "seconds", "curriculum"]
    head += ["test", *(f"test minus {other}" for other in trial.compared)] if tested else []
    return [head, *(_row(trial, one, tested) for one in sorted(summaries, key=lambda summary: summary.mean))]


def _row(trial: Trial, one: Summary, tested: bool) -> list[str]:
    early = f", {one.stopped} early" if one.stopped else ""
    spread = "" if math.isnan(one.spread) else f" ({one.spread:.4f})"
    reach = "not reached" if one.tokens_to_reach is None else f"{one.tokens_to_reach:.0%}"
    row = [one.arm, f"{len(one.seeds)}{early}", f"{one.mean:.4f}{spread}"]
    row += [_difference(one.differences, other) for other in trial.compared]
    row += [f"{one.worst:.4f}", f"{one.weighted:.4f}", "" if one.worse is None else str(one.worse), reach]
    row += [f"{one.gap[1]:+.3f} {one.gap[0]}", f"{one.epochs[1]:.1f} {one.epochs[0]}"]
    row += [f"{one.seconds:.0f}", "" if math.isnan(one.curriculum) else f"{one.curriculum:.2%}"]
    if tested:
        row += [f"{one.test:.4f}", *(_difference(one.test_differences, other) for other in trial.compared)]
    return row


def _difference(differences: Mapping[str, tuple[float, float]], other: str) -> str:
    """Return a paired difference with its interval; a star marks one that is clear of zero."""
    if other not in differences:
        return ""
    mean, half = differences[other]
    if math.isinf(half):
        return f"{mean:+.4f}"
    return f"{mean:+.4f} +- {half:.4f}{' *' if abs(mean) > half else ''}"


def source_rows(table: Table) -> Rows:
    """Return the head and one row for each source: bits per byte under every arm, means over the seeds."""
    first = next(iter(next(iter(table.values())).values()))
    rows = [["source", "tokens", *table]]
    for source, size in first.sizes.items():
        means = [sum(one.bits_per_byte[source] for one in found.values()) / len(found) for found in table.values()]
        best = min(means)
        rows.append([source, f"{size:,}", *(f"**{m:.4f}**" if m == best else f"{m:.4f}" for m in means)])
    return rows


def _intro(trial: Trial, table: Table) -> str:
    results = [one for found in table.values() for one in found.values()]
    return (
        f"{len(results)} runs of {trial.steps:,} steps ({max(one.tokens for one in results):,} tokens), "
        f"seeds {', '.join(map(str, trial.seeds))}."
    )


def _legend(trial: Trial) -> str:
    return (
        "Held-out bits per byte after the last step, means over the seeds (standard deviation); lower is better. "
        "Differences are paired by seed, with the 95% t interval; a star marks an interval clear of zero. "
        f"Worse: sources worse than under {trial.baseline} by more than its spread over the seeds. "
        f"Tokens to reach: part of {trial.baseline}'s tokens after which its final mean is reached. Gap: held-out loss "
        "minus that of a source's last pulls, nats per token. Curriculum: part of the time that its plugins took."
    )


def _early(table: Table) -> list[str]:
    stopped = [one for found in table.values() for one in found.values() if one.stopped]
    if not stopped:
        return []
    lines = [f"- {one.arm}, seed {one.seed}, after {one.steps:,} steps: {one.stopped}" for one in stopped]
    return ["## Runs that ended early", "\n".join(lines)]


def _markdown(rows: Rows) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _aligned(rows: Rows) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)
