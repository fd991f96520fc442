"""What the engine promises of its numbers, shown on the 12M model and real text: precisions agree, bits repeat.

The text is the source of Python's standard library, as bytes; every run sees the same fixed list of batches. Prints one
line a claim, writes one JSON, and exits with 1 when a claim fails.

python benchmarks/proofs.py [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from attrs import evolve

from andrea.engine import Engine, EngineConfig, open_engine
from andrea.engine.benchmark import FAMILY
from andrea.engine.device import find_device
from andrea.engine.fp8 import PRODUCTS
from andrea.engine.reference import ReferenceEngine
from andrea.engine.schedule import ScheduleConfig
from andrea.rng import Draws
from andrea.types import Precision

PRECISIONS = (
    Precision("fp32"),
    Precision("tf32", multiply="tf32"),
    Precision("fp16", "float16", "float16", loss_scale=65536.0),
    Precision("bf16", "bfloat16", "bfloat16"),
    Precision("fp8", "bfloat16", "bfloat16", fp8={0: PRODUCTS}),
)
MODEL, VOCABULARY = FAMILY["12M"]
CONFIG = EngineConfig(MODEL, VOCABULARY, schedule=ScheduleConfig(steps=20_000, warmup_steps=50), batch_size=8)
STEPS, LAST, FIRST = 400, 50, 20  # steps of a run; losses compared at its end, and with the twin at its begin
BROKEN = ("first_moments", "second_moments", "applied_updates")
EXACT = {one.name: one for one in PRECISIONS if one.name in ("bf16", "fp8")}

Batches = Callable[[int], tuple[np.ndarray, np.ndarray]]


def text_batches(rows: int, context: int) -> Batches:
    """Return batch number -> (inputs, targets), rows drawn from the standard library's text."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    data = np.frombuffer(b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py"))), dtype=np.uint8)

    def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
        starts = Draws(0, "proofs", number).words(rows) % np.uint64(len(data) - context - 1)
        tokens = np.stack([data[int(s) : int(s) + context + 1] for s in starts]).astype(np.int32)
        return tokens[:, :-1].copy(), tokens[:, 1:].copy()

    return batch


def run(engine: Engine, batches: Batches, first: int, last: int) -> list[float]:
    """Train from step `first` to `last`; returns the mean loss of each step."""
    return [
        float(engine.train_step(step, *batches(step)).row_losses.mean(dtype=np.float64)) for step in range(first, last)
    ]


def precisions() -> dict[str, object]:
    """Train 400 steps in every precision, and the twin's first 20 in numpy."""
    device, batches = find_device("cuda"), text_batches(CONFIG.rows, MODEL.context)
    losses: dict[str, list[float]] = {}
    for precision in PRECISIONS:
        engine = open_engine(CONFIG, device, precision)
        losses[precision.name] = run(engine, batches, 0, STEPS)
        engine.close()
    twin = ReferenceEngine(CONFIG, PRECISIONS[0])
    reference = run(twin, batches, 0, FIRST)
    twin.close()
    ends = {name: float(np.mean(values[-LAST:])) for name, values in losses.items()}
    distances = {name: abs(end / ends["fp32"] - 1) for name, end in ends.items()}
    worst = float(np.max(np.abs(np.array(losses["fp32"][:FIRST]) / reference - 1)))
    claims = {f"{name} ends within 0.5% of fp32": distances[name] < 5e-3 for name in ("tf32", "fp16", "bf16")}
    claims["fp8 ends within 1% of fp32"] = distances["fp8"] < 1e-2
    claims["fp32 is within 0.1% of the twin for 20 steps"] = worst < 1e-3
    return {"claims": claims, "last_50": ends, "distance": distances, "twin_distance": worst, "losses": losses}


def exactness(batch_size: int, precision: Precision) -> dict[str, object]:
    """Compare bytes of losses and state: two runs, a cut run, broken resumes, the graph and single launches."""
    device = find_device("cuda")
    config = evolve(CONFIG, batch_size=batch_size)
    batches = text_batches(config.rows, MODEL.context)

    def state(engine: Engine) -> dict[str, bytes]:
        return {name: value.tobytes() for name, value in engine.export_state().items()}

    whole, second = open_engine(config, device, precision), open_engine(evolve(config, seed=1), device, precision)
    fresh = whole.export_state()
    losses = run(whole, batches, 0, 100)
    middle = whole.export_state()
    losses += run(whole, batches, 100, 200)
    end = state(whole)
    second.import_state(fresh)
    claims = {"two runs of 200 steps are equal": run(second, batches, 0, 200) == losses and state(second) == end}
    second.import_state(middle)
    claims["a run cut at 100 is equal"] = run(second, batches, 100, 200) == losses[100:] and state(second) == end
    for name in (*BROKEN, *(["fp8_history"] if precision.fp8 else [])):
        second.import_state(middle | {name: np.zeros_like(middle[name])})
        claims[f"a resume without {name} differs"] = run(second, batches, 100, 110) != losses[100:110]
    second.close()
    plain = open_engine(evolve(config, options={"graph": False}), device, precision)
    plain.import_state(fresh)
    claims["single launches equal the graph"] = run(plain, batches, 0, 200) == losses and state(plain) == end
    plain.close()
    whole.close()
    return {"claims": claims, "batch_size": batch_size}


def main() -> int:
    """Show everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    document: dict[str, dict[str, object]] = {}
    failed = False
    bf16, fp8 = EXACT["bf16"], EXACT["fp8"]
    parts = {
        "precisions": precisions,
        "exact at 4": lambda: exactness(4, bf16),
        "exact at 64": lambda: exactness(64, bf16),
        "exact in fp8": lambda: exactness(8, fp8),
    }
    for name, show in parts.items():
        begin = time.perf_counter()
        document[name] = show()
        claims = document[name]["claims"]
        assert isinstance(claims, dict)
        failed |= not all(claims.values())
        for claim, holds in claims.items():
            print(f"{name:12s} {'holds' if holds else 'FAILS'}  {claim}", flush=True)
        print(
            f"{name:12s} {time.perf_counter() - begin:.0f} s",
            {k: document[name].get(k) for k in ("last_50", "twin_distance")},
        )
        if options.out:
            options.out.write_text(json.dumps(document) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
