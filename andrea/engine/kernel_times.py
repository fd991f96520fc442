"""Where the time of a step goes: every launch between two events, grouped by what is launched, beside what it must do.

Kernels count the bytes that they cannot do without (each tensor read or written once), products and attention the
operations of the formula. A launch is timed alone, in the order of the step, so caches are as in a real step; the
card gets work ahead first, so that it never waits for the host and no launch latency is counted.

Axis letters: N = B T positions, C width, F = 4 C, V vocabulary padded, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import define, evolve, frozen

from andrea.engine.branch import Branch
from andrea.engine.buffers import BYTES
from andrea.engine.gemm import Problem
from andrea.engine.launcher import check
from andrea.engine.machine import Machine


@frozen
class LaunchGroup:
    """All launches of a step that do the same.

    Attributes
    ----------
    name
        Kernel, attention pass, or `Problem.key` of a product.
    launches
        In one step.
    milliseconds
        Of all of them, in one step.
    operations, bytes
        Of all of them; 0 where not known.
    """

    name: str
    launches: int
    milliseconds: float
    operations: int = 0
    bytes: int = 0


@define(eq=False)
class Stopwatch:
    """Puts every launch between two events of the driver."""

    driver: Any
    stream: int
    launches: list[tuple[str, int, int, Any, Any]]

    def time(self, name: str, operations: int, size: int, run: Callable[[], None]) -> None:
        """Launch something that needs so many operations or bytes."""
        marks = [check(self.driver.cuEventCreate(0), "cuEventCreate") for _ in range(2)]
        check(self.driver.cuEventRecord(marks[0], self.stream), "cuEventRecord")
        run()
        check(self.driver.cuEventRecord(marks[1], self.stream), "cuEventRecord")
        self.launches.append((name, operations, size, *marks))

    def groups(self) -> list[LaunchGroup]:
        """Return what was timed, the longest first; everything must have run. Gives the events back."""
        found: dict[str, LaunchGroup] = {}
        for name, operations, size, begin, end in self.launches:
            took = float(check(self.driver.cuEventElapsedTime(begin, end), "cuEventElapsedTime"))
            g = found.get(name, LaunchGroup(name, 0, 0.0))
            sums = (g.launches + 1, g.milliseconds + took, g.operations + operations, g.bytes + size)
            found[name] = LaunchGroup(name, *sums)
            for event in (begin, end):
                check(self.driver.cuEventDestroy(event), "cuEventDestroy")
        self.launches.clear()
        return sorted(found.values(), key=lambda group: -group.milliseconds)


class _TimedKernels:
    def __init__(self, kernels: Any, watch: Stopwatch, m: Machine) -> None:
        self._kernels, self._watch, self._m = kernels, watch, m

    def kernel(self, name: str) -> Callable[..., None]:
        launch = self._kernels.kernel(name)

        def timed(*arguments: Any) -> None:
            size = kernel_bytes(name, self._m, arguments[4:])  # behind grid, block, shared memory and stream
            self._watch.time(name, 0, size, lambda: launch(*arguments))

        return timed


class _TimedGemms:
    def __init__(self, gemms: Any, watch: Stopwatch) -> None:
        self._gemms, self._watch = gemms, watch

    def prepare(self, problem: Problem) -> Callable[..., None]:
        product = self._gemms.prepare(problem)

        def timed(*arguments: Any) -> None:
            self._watch.time(problem.key, problem.operations, 0, lambda: product(*arguments))

        return timed


class _TimedAttention:
    def __init__(self, attention: Any, watch: Stopwatch, m: Machine) -> None:
        self._attention, self._watch = attention, watch
        self._product = m.B * m.C * m.T * (m.T + 1)  # operations of one product of the causal half, all heads

    def forward(self, *arguments: Any) -> None:
        run = self._attention.forward
        self._watch.time("attention forward", 2 * self._product, 0, lambda: run(*arguments))

    def backward(self, *arguments: Any) -> None:
        run = self._attention.backward
        self._watch.time("attention backward", 5 * self._product, 0, lambda: run(*arguments))


def kernel_bytes(name: str, m: Machine, arguments: tuple[Any, ...]) -> int:
    """Return the bytes that a kernel of a step must at least move; 0 when that depends on the tokens."""
    s, N, C = BYTES[m.precision.storage], m.N, m.C
    P, statistics = m.arena.plan["weights"].shape[0], 8 * N
    shares = m.arena.plan["norm_shares"].bytes if m.norms else 0
    known = {
        "k_embed_fwd": 2 * N * C * s,
        "k_embed_bwd_position": N * C * s + 8 * m.T * C,
        "k_layernorm_fwd": 2 * N * C * s + statistics,
        "k_residual_layernorm_fwd": 4 * N * C * s + statistics,
        "k_layernorm_bwd": 4 * N * C * s + statistics,
        "k_layernorm_bwd_final": shares,
        "k_gelu_fwd": 2 * N * m.F * s,
        "k_gelu_bwd": 3 * N * m.F * s,
        "k_loss_bwd": 2 * N * m.V * s,
        "k_grad_norm_partial": m.arena.plan["gradients"].bytes,
        "k_adamw": P * (28 + s),  # weight, both moments in and out, the gradient in, the working copy out
    }
    if name in ("k_fp8_e4m3", "k_fp8_e5m2", "k_fp8_gelu_fwd", "k_fp8_gelu_bwd"):
        *stored, codes, turned, _, _, rows, columns = arguments
        return int(rows * columns) * (s * sum(map(bool, stored)) + bool(codes) + bool(turned))
    return int(arguments[1]) if name == "k_zero" else known.get(name, 0)


def time_launches(
    m: Machine, driver: Any, step: Callable[[], None], ahead: Callable[[], None], repeats: int = 3
) -> list[LaunchGroup]:
    """Return the groups of one step's launches, means over some repeats.

    Parameters
    ----------
    m
        Whose launches are watched; as before afterwards.
    driver
        Of its card.
    step
        Launches one step, one by one, through `m`.
    ahead
        Keeps the card busy for longer than the host needs to launch a step.
    repeats
        Steps that are timed.
    """
    watch = Stopwatch(driver, m.stream, [])
    kernels, attention, gemms, branch = m.elementwise.kernels, m.attention, m.gemms, m.branch
    timed: tuple[Any, Any, Any] = (
        _TimedKernels(kernels, watch, m),
        _TimedAttention(attention, watch, m),
        _TimedGemms(gemms, watch),
    )
    try:
        for _ in range(repeats):
            ahead()
            m.elementwise.kernels, m.attention, m.gemms = timed
            m.branch = Branch(branch.main)  # one by one: nothing runs beside what is timed
            step()
            m.elementwise.kernels, m.attention, m.gemms, m.branch = kernels, attention, gemms, branch
    finally:
        m.elementwise.kernels, m.attention, m.gemms, m.branch = kernels, attention, gemms, branch
    check(driver.cuStreamSynchronize(m.stream), "cuStreamSynchronize")
    return [_share(group, repeats) for group in watch.groups()]


def _share(group: LaunchGroup, repeats: int) -> LaunchGroup:
    """Return a group's mean over the repeats."""
    counts = {name: getattr(group, name) // repeats for name in ("launches", "operations", "bytes")}
    return evolve(group, milliseconds=group.milliseconds / repeats, **counts)
