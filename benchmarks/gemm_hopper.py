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
from pathlib import Path

import numpy as np
from attrs import evolve

from andrea.engine import launcher
from andrea.engine.compiler import architecture_of
from andrea.engine.device import find_cards
from andrea.engine.gemm import WORKSPACE_BYTES, CublasLt, Problem
from andrea.engine.gemm_hopper import HopperGemms
from andrea.types import Precision

BF16 = Precision("bf16", "bfloat16", "bfloat16")
SHAPES = [(768, 65536), (1536, 32768), (384, 65536), (768, 8192), (1536, 8192), (384, 8192)]  # width, rows
MILLION = 1 << 20


class Clock:
    """The card's own events on its default stream."""

    def __init__(self):
        self.cuda = launcher.driver()
        self.events = [launcher.check(self.cuda.cuEventCreate(0)) for _ in range(2)]

    def milliseconds(self, run, repeats=10):
        """Return the milliseconds of one launch in a row of some, after two to warm up."""
        run(), run()
        launcher.check(self.cuda.cuEventRecord(self.events[0], 0))
        for _ in range(repeats):
            run()
        launcher.check(self.cuda.cuEventRecord(self.events[1], 0))
        launcher.check(self.cuda.cuEventSynchronize(self.events[1]))
        return launcher.check(self.cuda.cuEventElapsedTime(*self.events)) / repeats

    def median(self, run):
        """Return the median of 7."""
        return float(np.median([self.milliseconds(run) for _ in range(7)]))


def bfloat16(random, count, scale=1.0):
    """Return the address of `count` normal numbers, a block of a million repeated."""
    block = ((random.standard_normal(MILLION) * scale).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    address = launcher.allocate(2 * count)
    for start in range(0, count, MILLION):
        launcher.upload(address + 2 * start, block[: min(MILLION, count - start)])
    return address


def problems(width, rows):
    """Yield the product with GELU of a layer's forward, and that with its gradient of the backward."""
    for epilogue, transpose in (("gelu", False), ("dgelu", True)):
        ldb = width if transpose else 4 * width
        leads = (width, ldb, 4 * width)
        yield Problem(rows, 4 * width, width, False, transpose, *leads, "bfloat16", "bfloat16", epilogue=epilogue)


def sample(address, p):
    """Return the first and the last rows of D, float64."""
    found = np.empty((2, 256, p.n), dtype=np.uint16)
    for part, row in zip(found, (0, p.m - 256), strict=True):
        launcher.download(address + 2 * row * p.n, part)
    return (found.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def measure(library, ours, clock, random, p):
    """Return what a problem takes each of them, and how far D is from cuBLASLt's."""
    a, b = bfloat16(random, p.m * p.k), bfloat16(random, p.n * p.k, p.k**-0.5)
    d, aux = (bfloat16(random, p.m * p.n) for _ in range(2))
    row = {"problem": p.key}
    theirs = {"plain": library.prepare(evolve(p, epilogue="")), "cublaslt": library.prepare(p)}
    for product in theirs.values():
        product(a, b, d, 0, aux)
    library.tune(clock.milliseconds, 0)
    for name, product in (theirs | {name: gemms.prepare(p) for name, gemms in ours.items()}).items():
        row[name] = clock.median(lambda to=product: to(a, b, d, 0, aux))
        if name == "cublaslt":
            expected = sample(d, p)
    row["difference"] = float(np.linalg.norm(sample(d, p) - expected) / np.linalg.norm(expected))
    for address in (a, b, d, aux):
        launcher.release(address)
    return row


def main():
    """Print a line for each product."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the numbers there as JSON too")
    out, rows = parser.parse_args().out, []
    with launcher.context() as capability:
        card, clock, random = find_cards()[0][0], Clock(), np.random.Generator(np.random.PCG64(3))
        ours = {
            name: HopperGemms(card.name, {}, BF16, architecture_of(capability), cluster)
            for name, cluster in {"alone": 1, "pairs": 2}.items()
        }
        workspace = launcher.allocate(WORKSPACE_BYTES)
        print(f"{card.name}: ms and TFLOP/s; saved: cublaslt less pairs")
        for width, count in SHAPES:
            for p in problems(width, count):
                library = CublasLt(card.name, {})
                library.workspace = workspace
                row = measure(library, ours, clock, random, p)
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
