"""Loss curves of 1,000 steps on the same batches: whether 16 and 8 bits follow float32.

A run is trained to the end of its schedule of as many steps. Text and batches are those of `proofs.py`; precisions are
what their plugins give by default. Curves are compared as means of 50 steps, since the loss of a single batch moves by
more than what is asked: the distance of two curves is the largest relative difference of such a mean over all places
where 50 steps fit. Two runs part even where no bit of precision is lost: ``fp32 own`` is float32 with products that add
in another order, and how far it comes from float32 says how little a distance can mean. Prints one line a curve, writes
one JSON and exits with 1 when a curve strays.

python benchmarks/curves.py [--only 12M:8 120M:4] [--steps N] [--device cuda] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from proofs import run, text_batches

from andrea.cli_benchmark import choose_precision
from andrea.engine import EngineConfig, open_engine
from andrea.engine.benchmark import FAMILY
from andrea.engine.device import find_device
from andrea.engine.schedule import ScheduleConfig
from andrea.types import Device

#: How far a curve may be from float32's, where that is asked. A name is a precision, and perhaps whose products it has.
#: float32 is first, since the others are compared with it.
POINTS: dict[str, dict[str, float | None]] = {
    "12M:8": {"fp32": None, "fp32 own": None, "bf16": 5e-3},
    "120M:4": {"fp32": None, "fp32 own": None, "bf16": 5e-3, "fp8": 1e-2},
}
WINDOW = 50  # steps of a mean


def curve(point: str, how: str, device: Device, steps: int) -> list[float]:
    """Train a model of the family on the fixed batches; returns the mean loss of each step."""
    name, rows = point.split(":")
    precision, _, products = how.partition(" ")
    model, vocabulary = FAMILY[name]
    schedule = ScheduleConfig(steps=steps, warmup_steps=min(50, steps - 1))
    options = {"gemm": products} if products else {}
    config = EngineConfig(model, vocabulary, schedule=schedule, batch_size=int(rows), options=options)
    engine = open_engine(config, device, choose_precision(precision, {}, device))
    try:
        return run(engine, text_batches(config.rows, model.context), 0, steps)
    finally:
        engine.close()


def smooth(losses: list[float]) -> np.ndarray:
    """Return the mean of every `WINDOW` steps in a row; of all of them when there are fewer."""
    window = min(WINDOW, len(losses))
    return np.convolve(losses, np.full(window, 1 / window), mode="valid")


def main() -> int:
    """Draw every curve; the exit code is 1 when one strays."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(POINTS), default=list(POINTS))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = find_device(options.device)
    document: dict[str, Any] = {}
    for point in options.only:
        found = document[point] = {"claims": {}, "distance": {}, "every_50": {}}
        reference = np.empty(0)
        for how, allowed in POINTS[point].items():
            begin = time.perf_counter()
            means = smooth(curve(point, how, device, options.steps))
            if how == "fp32":
                reference = means
            distance = float(np.max(np.abs(means / reference - 1)))
            found["every_50"][how] = [round(float(mean), 5) for mean in means[::WINDOW]]
            found["distance"][how] = distance
            if allowed:
                found["claims"][f"{how} is within {allowed:.1%} of fp32 for {options.steps} steps"] = (
                    distance <= allowed  # also false when it is not a number
                )
            print(
                f"{point:7s} {how:8s} ends at {means[-1]:.4f}, at most {distance:.3%} from fp32 "
                f"({time.perf_counter() - begin:.0f} s)",
                flush=True,
            )
            if options.out:
                options.out.write_text(json.dumps(document, indent=1) + "\n")
    return int(not all(holds for point in document.values() for holds in point["claims"].values()))


if __name__ == "__main__":
    sys.exit(main())
