"""Products with GELU or its gradient on an H100 or H200: ours beside cuBLASLt's, in one run of less than a minute.

    python benchmarks/gemm_hopper.py [--out FILE.json]

cuBLASLt's time is that of the fastest of its proposals, timed here; `plain` is the same product without GELU, the rate
to reach. Ours is timed with blocks in pairs, as the engine has it, and alone. A time is the median of 7, each of 10
launches in a row between events. The difference is that of D in the first and last 256 rows, as a share of its norm:
cuBLASLt rounds in other places.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve
from kernel_bandwidth import Timer, random_storage

from andrea.engine import launcher
from andrea.engine.compiler import architecture_of
from andrea.engine.device import find_cards
from andrea.engine.gemm import WORKSPACE_BYTES, CublasLt, Problem
from andrea.engine.gemm_hopper import HopperGemms, layer_problems
from andrea.types import Precision

BF16 = Precision("bf16", "bfloat16", "bfloat16")
SHAPES = [(768, 65536), (1536, 32768), (384, 65536), (768, 8192), (1536, 8192), (384, 8192)]  # width, rows


def sample(address: int, p: Problem) -> np.ndarray:
    """Return the first and the last rows of D, float64."""
    found = np.empty((2, 256, p.n), dtype=np.uint16)
    for part, row in zip(found, (0, p.m - 256), strict=True):
        launcher.download(address + 2 * row * p.n, part)
    return (found.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def measure(
    library: CublasLt,
    ours: Mapping[str, HopperGemms],
    timer: Timer,
    random: np.random.Generator,
    p: Problem,
) -> dict[str, Any]:
    """Return what a problem takes each of them, and how far D is from cuBLASLt's."""

    def in_a_row(run: Callable[[], None], repeats: int = 1) -> float:
        return timer.milliseconds(run, repeats, in_a_row=10)

    a, b = random_storage(random, p.m * p.k), random_storage(random, p.n * p.k, p.k**-0.5)
    d, aux = (random_storage(random, p.m * p.n) for _ in range(2))
    row: dict[str, Any] = {"problem": p.key}
    theirs = {"plain": library.prepare(evolve(p, epilogue="")), "cublaslt": library.prepare(p)}
    for product in theirs.values():
        product(a, b, d, 0, aux)
    library.tune(in_a_row, 0)
    for name, product in (theirs | {name: gemms.prepare(p) for name, gemms in ours.items()}).items():
        row[name] = in_a_row(lambda to=product: to(a, b, d, 0, aux), repeats=7)
        if name == "cublaslt":
            expected = sample(d, p)
    row["difference"] = float(np.linalg.norm(sample(d, p) - expected) / np.linalg.norm(expected))
    for address in (a, b, d, aux):
        launcher.release(address)
    return row


def main() -> None:
    """Print a line for each product."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the numbers there as JSON too")
    out, rows = parser.parse_args().out, []
    with launcher.context() as capability:
        card, timer, random = find_cards()[0][0], Timer(), np.random.Generator(np.random.PCG64(3))
        ours = {
            name: HopperGemms(card.name, {}, BF16, architecture_of(capability), cluster)
            for name, cluster in {"alone": 1, "pairs": 2}.items()
        }
        workspace = launcher.allocate(WORKSPACE_BYTES)
        print(f"{card.name}: ms and TFLOP/s; saved: cublaslt less pairs")
        for width, count in SHAPES:
            for p in layer_problems(width, count, "bfloat16"):
                library = CublasLt(card.name, {})
                library.workspaces[0] = workspace
                row = measure(library, ours, timer, random, p)
                library.close()
                rows.append(row)
                times = "  ".join(
                    f"{name} {row[name]:.4f} {p.operations / row[name] / 1e9:4.0f}"
                    for name in ("plain", "cublaslt", "pairs", "alone")
                )
                saved = row["cublaslt"] - row["pairs"]
                print(
                    f"{p.m}x{p.n}x{p.k} {p.epilogue:5s}  {times}  saved {saved:+.4f} ({saved / row['cublaslt']:+.1%})  "
                    f"difference {row['difference']:.1e}",
                    flush=True,
                )
        for gemms in ours.values():
            gemms.close()
        launcher.release(workspace)
    if out:
        out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
