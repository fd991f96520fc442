"""Writes the measured speed into README.md, between two markers, from the record of the GPU check.

python benchmarks/render.py [--check]
"""

from __future__ import annotations

import json
import statistics
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORD, README = ROOT / "benchmarks" / "results" / "h200.json", ROOT / "README.md"
BEGIN, END = "<!-- speed: benchmarks/render.py writes this -->", "<!-- end of speed -->"


def table(record: dict[str, Any]) -> str:
    """Return the table of a record's comparison with PyTorch, as Markdown."""
    part = record["peers"]
    points = part["details"]["points"]
    versions = sorted({found["torch"]["version"] for found in points.values() if "version" in found["torch"]})
    lines = [
        f"Measured on an {part['details']['card']}, beside the same model in PyTorch {', '.join(versions)}",
        "(`torch.compile`, its fastest attention, fused AdamW), both in bf16, context 1,024:",
        "",
        "| model | rows a step | ms a step | tokens/s | share of dense peak | memory | PyTorch, tokens/s | ratio |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for point, found in points.items():
        name, batch = point.split(":")
        ours, theirs = found["andrea"], found["torch"]
        lines.append(
            f"| {name} | {batch} | {ours['median_ms']:.1f} | {ours['tokens_per_second']:,.0f} "
            f"| {ours['share_of_peak']:.0%} | {ours['memory_planned'] / 2**30:.1f} GiB "
            f"| {theirs['tokens_per_second']:,.0f} | {found['ratio']:.2f} |"
        )
    command = "`benchmarks/gpu_check.sh peers` makes this table's numbers (commit " + part["commit"][:7] + ");\n"
    lines += ["", f"{command}`andrea benchmark 120M --batch 64 --peer` measures one on your card.", ""]
    return "\n".join([*lines, *eight_bit(points), *whole_runs(record["run"]), "", *starts(record["start"])])


def eight_bit(points: dict[str, Any]) -> list[str]:
    """Return what fp8 gains over our own bf16 in the same run, as Markdown; nothing where it was not measured."""
    gains = [
        f"{found['fp8']['tokens_per_second']:,.0f} tokens/s for {point.replace(':', ' with ')} rows, "
        f"{found['fp8_ratio']:.2f} times as fast"
        for point, found in points.items()
        if "fp8_ratio" in found
    ]
    return (
        [textwrap.fill(f"In the same run `--plugin precision.fp8` makes {'; '.join(gains)}.", 115), ""] if gains else []
    )


def starts(part: dict[str, Any]) -> list[str]:
    """Return how long a run takes to its first step, as Markdown."""
    point, found = next(iter(part["details"].items()))
    text = (
        f"From the command to the first step, of prepared text: {found['cold_seconds']:.1f} s where nothing is "
        f"compiled yet, {statistics.median(found['warm_seconds']):.1f} s from then on "
        f"({point.replace(':', ' with ')} rows; `benchmarks/gpu_check.sh start`, commit {part['commit'][:7]})."
    )
    return [textwrap.fill(text, 115)]


def whole_runs(part: dict[str, Any]) -> list[str]:
    """Return what `andrea run` keeps of the bare engine's speed, as lines of Markdown."""
    lines = [
        "The same engine in `andrea run`: the default plugins of that commit, real text, journal, samples, evaluation, "
        "checkpoints.",
        "",
        "| model | rows a step | tokens/s | of the bare engine's | between looks | waits for a choice "
        "| a look at the model | checkpoints |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for point, found in part["details"].items():
        name, batch = point.split(":")
        lines.append(
            f"| {name} | {batch} | {found['tokens_per_second']:,.0f} | {found['share']:.1%} "
            f"| {found['median_share']:.1%} | {max(0.0, found['idle_share']):.2%} | {found['look_ms']:.0f} ms "
            f"| {max(0.0, found['checkpoint_share']):.1%} |"
        )
    return [
        *lines,
        "",
        "A look is a sample and an evaluation of all sources; the card waits that share of a step for the choice of",
        "the next; checkpoints cost that share of a minute, one a minute.",
        f"`benchmarks/gpu_check.sh run` makes these (commit {part['commit'][:7]}).",
    ]


def render(text: str, record: dict[str, Any]) -> str:
    """Return a text with what stands between the markers written anew."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the text lacks the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{table(record)}\n\n{END}{after}"


def main() -> int:
    """Write README.md, or with --check say whether it is up to date."""
    old = README.read_text(encoding="utf-8")
    new = render(old, json.loads(RECORD.read_text(encoding="utf-8")))
    if "--check" in sys.argv[1:]:
        print("README.md is up to date" if old == new else "README.md is stale: python benchmarks/render.py")
        return int(old != new)
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
