"""The family's speed on this card, and with --peers the PyTorch twin's in the same run, as one table and one JSON.

In bf16 the points of `EIGHT_BIT` are measured in fp8 too, right after, where the card can. The JSON has the
launches of a step by kind.

python benchmarks/bench.py [--peers] [--only 120M:64 12M:8 ...] [--tune] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from andrea.engine import EngineConfig
from andrea.engine.benchmark import FAMILY, measure, measure_peer
from andrea.engine.compiler import SUPPORT
from andrea.engine.device import find_device
from andrea.engine.gemm import TABLE, write_table
from andrea.errors import AndreaError
from andrea.plugins.precision.fp8 import Float8
from andrea.types import Device, Precision

POINTS = ("120M:64", "120M:8", "12M:64", "12M:8", "480M:32", "GPT-2:64")
PRECISIONS = {
    "bf16": Precision("bf16", "bfloat16", "bfloat16"),
    "fp16": Precision("fp16", "float16", "float16", loss_scale=65536.0),
    "fp8": Float8().choose_precision(Device("cuda", "card", (9, 0))),
    "tf32": Precision("tf32", multiply="tf32"),
    "fp32": Precision("fp32"),
}
#: The rates that must be reached on an H200 in bf16, tokens a second, and how many times as fast fp8 must be.
WANTED = {"120M:64": 760e3, "120M:8": 650e3, "12M:64": 3.2e6, "12M:8": 2.2e6, "480M:32": 190e3, "GPT-2:64": 560e3}
EIGHT_BIT = {"120M:64": 1.05, "480M:32": 1.10}


def peer(config: EngineConfig) -> dict[str, object]:
    """Measure PyTorch, or say why not."""
    try:
        return measure_peer(config)
    except AndreaError as error:
        return {"failed": error.message}


def main() -> int:
    """Measure every point; the exit code is 1 when a rate that must be reached was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=list(POINTS))
    parser.add_argument("--precision", choices=sorted(PRECISIONS), default="bf16")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--tune", action="store_true", help="time every algorithm first and write the table")
    parser.add_argument("--table", type=Path, default=TABLE, help="where --tune writes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = find_device("cuda")
    document: dict[str, object] = {"card": device.name, "points": {}}
    points: dict[str, dict[str, object]] = {}
    document["points"] = points
    missed = False
    for point in options.only:
        name, batch = point.split(":")
        model, vocabulary = FAMILY[name]
        config = EngineConfig(model, vocabulary, batch_size=int(batch))
        ours = measure(config, device, PRECISIONS[options.precision], options.steps, tune=options.tune, kernels=True)
        if options.tune:
            write_table(options.table, ours.pop("gemm_table"))
        points[point] = {"andrea": ours}
        if options.precision == "bf16" and point in EIGHT_BIT and device.capability >= SUPPORT["fp8"]:
            fp8 = points[point]["fp8"] = measure(config, device, PRECISIONS["fp8"], options.steps)
            points[point]["fp8_ratio"] = fp8["tokens_per_second"] / ours["tokens_per_second"]
            missed |= points[point]["fp8_ratio"] < EIGHT_BIT[point]
        if options.peers:
            theirs = peer(config)
            points[point]["torch"] = theirs
            if "tokens_per_second" in theirs:
                points[point]["ratio"] = ours["tokens_per_second"] / float(str(theirs["tokens_per_second"]))
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(document, indent=1))
        missed |= options.precision == "bf16" and ours["tokens_per_second"] < WANTED.get(point, 0)
        print(line(point, points[point]), flush=True)
    return int(missed)


def line(point: str, found: dict[str, object]) -> str:
    """Return one row of the table."""
    ours, theirs = found["andrea"], found.get("torch", {})
    assert isinstance(ours, dict)
    assert isinstance(theirs, dict)
    memory, measured = ours["memory_planned"] / 2**30, ours.get("memory_measured", 0) / 2**30
    text = (
        f"{point:8s} {ours['median_ms']:8.2f} ms p95 {ours['p95_ms']:8.2f} "
        f"{ours['tokens_per_second'] / 1e3:7.0f} K tok/s {ours['model_tflops']:4.0f} TFLOP/s  "
        f"card {ours.get('device_ms', 0):8.2f} "
        f"idle {ours.get('idle_ms', 0):6.3f} host {ours.get('host_ms', 0):5.2f} ms  "
        f"{ours.get('graph_nodes', 0):4d} nodes  "
        f"{memory:6.2f} GiB (driver {measured:6.2f})"
    )
    if "fp8_ratio" in found:
        text += f"  fp8 {found['fp8_ratio']:.2f}x"
    if "tokens_per_second" in theirs:
        return f"{text}  torch {float(theirs['tokens_per_second']) / 1e3:8.0f} K  ratio {found['ratio']:.2f}"
    return text + (f"  torch failed: {theirs['failed']}" if theirs else "")


if __name__ == "__main__":
    sys.exit(main())
