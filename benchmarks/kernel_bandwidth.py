"""Bytes per second of every element-wise kernel at the shapes of ANDREA-120M, 64 rows: `python kernel_bandwidth.py`.

The layer norm's backward also runs at the shapes of the other sizes; that of 12M fits the L2 cache.

Prints a table; with a path as argument, writes the numbers there as JSON too. Bytes are counted once per input read and
per output written; the ceiling is a copy between two buffers of the card, counted the same way.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from andrea.engine import launcher
from andrea.engine.compiler import architecture_of, compile_kernels
from andrea.engine.elementwise import FILES, Elementwise, Tensor, chunk_table, initial_state, sorted_positions

B, T, C, V, STRIDE, P = 64, 1024, 768, 8449, 8576, 92_248_320
N, F = B * T, 4 * C
NORMS = ((N, C), (32_768, 1_536), (8_192, 384))  # 120M:64, 480M:32, 12M:8
MACROS = {"ANDREA_STORAGE": "bf16", "ANDREA_MULTIPLY": "bf16"}


class Timer:
    """Median time of a launch by the device's own events."""

    def __init__(self) -> None:
        self.cuda = launcher.driver()
        self.events = [launcher.check(self.cuda.cuEventCreate(0)) for _ in range(2)]

    def milliseconds(self, launch: Callable[[], None], repeats: int = 15, in_a_row: int = 1) -> float:
        """Return the median of some times, each the mean of launches in a row."""
        for _ in range(3):
            launch()
        times = []
        for _ in range(repeats):
            launcher.check(self.cuda.cuEventRecord(self.events[0], 0))
            for _ in range(in_a_row):
                launch()
            launcher.check(self.cuda.cuEventRecord(self.events[1], 0))
            launcher.check(self.cuda.cuEventSynchronize(self.events[1]))
            times.append(launcher.check(self.cuda.cuEventElapsedTime(*self.events)) / in_a_row)
        return float(np.median(times))


def random_storage(random: np.random.Generator, count: int, scale: float = 1.0) -> int:
    """Return the address of `count` random bfloat16: one block of a million repeated, enough to defeat any cache."""
    values = (random.standard_normal(1 << 20) * scale).astype(np.float32)
    return filled((values.view(np.uint32) >> 16).astype(np.uint16), count)


def random_floats(random: np.random.Generator, count: int, scale: float = 1.0) -> int:
    """Return the address of `count` random float32."""
    return filled((random.standard_normal(1 << 20) * scale).astype(np.float32), count)


def filled(block: np.ndarray, count: int) -> int:
    """Return the address of `count` elements, a block repeated."""
    address = launcher.allocate(count * block.itemsize)
    for start in range(0, count, block.size):
        launcher.upload(address + start * block.itemsize, block[: min(block.size, count - start)])
    return address


def cases(launch: Elementwise, random: np.random.Generator) -> Iterator[tuple[str, Callable[[], None], int]]:
    """Yield (name, launch, bytes) of every kernel."""
    x, y, z, w = (random_storage(random, N * C) for _ in range(4))
    wide, wide_out, logits = (
        random_storage(random, N * F),
        random_storage(random, N * F),
        random_storage(random, N * STRIDE),
    )
    gamma, beta, parameters = (random_floats(random, size) for size in (2 * C, C, 2 * C))
    places = filled(np.array([0, C], dtype=np.int64), 2)
    mean, rstd, losses = (random_floats(random, N) for _ in range(3))
    norm_shares = max(launch.norm_partials(*shape) for shape in NORMS)
    partials = launcher.allocate(4 * max(norm_shares, launch.embed_partials(N, C), launch.norm_sums(P)))
    ids_N = np.minimum(random.geometric(0.002, N) - 1, V - 1).astype(np.int32)
    ids, order = filled(ids_N, N), filled(sorted_positions(ids_N), N)
    targets = filled(random.integers(0, V, N).astype(np.int32), N)
    weights, gradients, first, second = (random_floats(random, P, 0.01) for _ in range(4))
    launcher.check(launcher.driver().cuMemsetD32(second, 0x3A000000, P))
    copies = launcher.allocate(2 * P)
    table = chunk_table([Tensor(0, 0, P, True, copy=0)])
    chunks = filled(table.view(np.uint8), table.nbytes)
    state = filled(initial_state().view(np.uint8), initial_state().nbytes)
    rate = filled(np.array([1e-4], dtype=np.float32), 1)
    dembed, dposition = random_floats(random, V * C), random_floats(random, T * C)
    row = N * C * 2
    adam = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.1}
    copy = launcher.driver().cuMemcpyDtoDAsync
    yield "copy (ceiling)", lambda: launcher.check(copy(wide_out, wide, N * F * 2, 0)), 2 * N * F * 2
    yield "embed_fwd", lambda: launch.embed_fwd(ids, y, z, x, N, T, C), row + V * C * 2
    yield (
        "embed_bwd (3 kernels)",
        lambda: launch.embed_bwd(x, ids, order, dembed, dposition, partials, B, T, C),
        2 * row + 8 * (V + T) * C,
    )
    yield "layernorm_fwd", lambda: launch.layernorm_fwd(x, gamma, beta, y, mean, rstd, N, C), 2 * row
    yield (
        "residual_layernorm_fwd",
        lambda: launch.residual_layernorm_fwd(x, y, gamma, beta, z, w, mean, rstd, N, C),
        4 * row,
    )
    for rows, width in NORMS:
        yield (
            f"layernorm_bwd {rows} x {width}",
            partial(launch.layernorm_bwd, x, y, mean, rstd, gamma, z, w, partials, rows, width),
            4 * rows * width * 2,
        )
    yield (
        "layernorm_bwd_final (one norm)",
        lambda: launch.layernorm_bwd_final(partials, parameters, places, 1, N, C),
        4 * launch.norm_partials(N, C),
    )
    yield "residual_add", lambda: launch.residual_add(x, y, z, N * C), 3 * row
    yield "gelu_fwd", lambda: launch.gelu_fwd(wide, wide_out, N * F), 2 * N * F * 2
    yield "gelu_bwd", lambda: launch.gelu_bwd(wide, wide_out, wide, N * F), 3 * N * F * 2
    yield "loss_fwd", lambda: launch.loss_fwd(logits, targets, losses, N, V, STRIDE), N * STRIDE * 2
    yield (
        "loss_bwd",
        lambda: launch.loss_bwd(logits, targets, losses, state + 20, 1 / N, N, V, STRIDE),
        2 * N * STRIDE * 2,
    )
    yield "grad_norm (2 kernels)", lambda: launch.grad_norm(gradients, partials, state, P, 1.0, 0.9, 0.999), 4 * P
    yield (
        "adamw",
        lambda: launch.adamw(chunks, len(table), weights, gradients, first, second, copies, state, rate, **adam),
        30 * P,
    )
    yield "zero", lambda: launch.zero(gradients, 4 * P), 4 * P


def main() -> None:
    """Time every case on device 0."""
    with launcher.context() as capability:
        kernels = launcher.Kernels(compile_kernels(FILES, MACROS, architecture_of(capability)))
        launch, timer, results = Elementwise(kernels, "bfloat16"), Timer(), {}
        for name, run, size in cases(launch, np.random.Generator(np.random.PCG64(5))):
            milliseconds = timer.milliseconds(run)
            results[name] = {"ms": milliseconds, "TB/s": size / milliseconds / 1e9}
            share = results[name]["TB/s"] / results["copy (ceiling)"]["TB/s"]
            print(f"{name:36s} {milliseconds:8.4f} ms {results[name]['TB/s']:6.2f} TB/s {share:5.0%}", flush=True)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
