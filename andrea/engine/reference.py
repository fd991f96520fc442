"""The numpy engine: the specification of the CUDA one, and the engine of a machine without a card.

A micro-batch is cut into a fixed number of slices of rows. Every slice has its own gradient buffer and is computed by
one thread with one BLAS thread; the buffers are summed in order. So cores are used, yet the numbers depend only on
the option ``slices`` and never on how many cores there are.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from andrea.engine import (
    Buffer,
    EngineConfig,
    GenerateOptions,
    StepResult,
    Tokens,
    Watch,
    check_training,
    sum_losses,
)
from andrea.engine import operations as op
from andrea.engine.model import initial_weights, layout
from andrea.engine.network import Array, Reader, add_gradients, row_losses, tensors
from andrea.engine.sampling import check_options, choose, window_start
from andrea.engine.schedule import learning_rate
from andrea.errors import AndreaError
from andrea.rng import Draws
from andrea.types import Precision

Item = TypeVar("Item")
Result = TypeVar("Result")

_SLICES = 4
_RANGE = 4 * op.NORM_BLOCK
"""Parameters that one task sums and squares; whole blocks, so that partial sums do not depend on it."""


class ReferenceEngine:
    """An `andrea.engine.Engine` in numpy.

    Parameters
    ----------
    config
        Everything that decides what is computed. Options read here: ``slices`` (rows of a micro-batch are cut into so
        many parts; 4 by default; part of the result) and ``threads`` (workers; by default the cores that the process
        may use; never part of the result). Those of the CUDA engine are not read.
    precision
        Only storage and products in float32.
    dtype
        float32; tests take float64.

    Raises
    ------
    AndreaError
        When the precision needs a card.
    """

    def __init__(self, config: EngineConfig, precision: Precision, dtype: npt.DTypeLike = np.float32) -> None:
        if (precision.storage, precision.multiply) != ("float32", "float32"):
            raise AndreaError(
                f"precision {precision.name} needs a CUDA card, and this run is on the processor",
                "take --plugin precision.fp32 here, or --device cuda on a machine with a card",
            )
        self.config = config
        self.dtype = np.dtype(dtype)
        self._parameters = layout(config.model, config.vocabulary)
        self._slices = _slices(config)
        self._threads = _threads(config)
        self._weights_P = np.zeros(self._parameters[-1].end, dtype=self.dtype)
        if config.training:
            self._weights_P[:] = initial_weights(config.model, config.vocabulary, config.seed)
        trained = self._weights_P.size if config.training else 0
        self._first_P, self._second_P = np.zeros(trained, dtype=self.dtype), np.zeros(trained, dtype=self.dtype)
        self._gradients_SP = np.zeros((len(self._slices) if trained else 0, trained), dtype=self.dtype)
        self._w = tensors(self._weights_P, config.model, config.vocabulary)
        self._dw = [tensors(flat_P, config.model, config.vocabulary) for flat_P in self._gradients_SP]
        self._applied = 0
        _keep_freed_memory()
        self._pool: ThreadPoolExecutor | None = ThreadPoolExecutor(self._threads, "andrea-slice")

    # -- training ----------------------------------------------------------------------------------------------------

    def train_step(
        self, step: int, inputs: Tokens, targets: Tokens, probes: Mapping[str, tuple[Tokens, Tokens]] | None = None
    ) -> StepResult:
        """Do one update; see `Engine.train_step`.

        Raises
        ------
        ValueError
            When the rows are not those of a step, the row is longer than the context, or an id does not exist.
        """
        check_training(self.config)
        self._check_ids(inputs, targets, lowest_target=0)
        if len(inputs) != self.config.rows:
            raise ValueError(f"a step has {self.config.rows} rows, not {len(inputs)}")
        before = self._probe(probes)
        losses_R = self._gradients(inputs, targets)
        norm = op.k_grad_norm_final(np.concatenate(self._map(self._sum_slices, self._ranges())))
        rate = learning_rate(self.config.schedule, step)
        skipped = not np.isfinite(norm)
        if not skipped:
            self._update(rate, op.clip_scale(norm, self.config.optimizer.max_grad_norm))
        after = self._probe(probes)
        return StepResult(losses_R, norm, rate, skipped, {name: (before[name], after[name]) for name in before})

    def _gradients(self, inputs: Tokens, targets: Tokens) -> Array:
        """Fill every slice's gradient buffer with its rows of all micro-batches; return the losses, (R,)."""
        losses_R = np.empty(self.config.rows, dtype=self.dtype)
        scale = 1 / inputs.size

        def work(index: int) -> None:
            self._gradients_SP[index] = 0
            for first in range(0, self.config.rows, self.config.batch_size):
                part = slice(first + self._slices[index].start, first + self._slices[index].stop)
                losses_R[part] = add_gradients(
                    inputs[part], targets[part], self._w, self._dw[index], self.config.model, scale
                )

        self._map(work, range(len(self._slices)))
        return losses_R

    def _ranges(self) -> list[slice]:
        size = self._weights_P.size
        return [slice(start, min(start + _RANGE, size)) for start in range(0, size, _RANGE)]

    def _sum_slices(self, part: slice) -> npt.NDArray[np.float64]:
        """Add the slices' gradients into the first, in order; return the partial sums of squares."""
        total_P = self._gradients_SP[0, part]
        for other_P in self._gradients_SP[1:, part]:
            total_P += other_P
        return op.k_grad_norm_partial(total_P)

    def _update(self, rate: float, scale: float) -> None:
        self._applied += 1
        optimizer = self.config.optimizer
        gradients_P = self._gradients_SP[0]

        def work(bounds: tuple[int, int, bool]) -> None:
            part = slice(bounds[0], bounds[1])
            if scale != 1:
                op.k_grad_scale(gradients_P[part], scale)
            op.k_adamw(
                self._weights_P[part],
                gradients_P[part],
                self._first_P[part],
                self._second_P[part],
                rate=rate,
                beta1=optimizer.beta1,
                beta2=optimizer.beta2,
                epsilon=optimizer.epsilon,
                decay=optimizer.weight_decay if bounds[2] else 0.0,
                update=self._applied,
            )

        self._map(work, [(p.offset, p.end, p.decay) for p in self._parameters])

    def _probe(self, probes: Mapping[str, tuple[Tokens, Tokens]] | None) -> dict[str, float]:
        measured = {name: sum_losses(self.evaluate(*rows), rows[1]) for name, rows in (probes or {}).items()}
        return {name: total / count for name, (total, count) in measured.items()}

    # -- looking -----------------------------------------------------------------------------------------------------

    def evaluate(self, inputs: Tokens, targets: Tokens) -> npt.NDArray[np.float32]:
        """Return the loss of each row; see `Engine.evaluate`. A row without a valid target has loss 0."""
        self._check_ids(inputs, targets, lowest_target=-1)
        rows = self._slices[0].stop
        parts = [slice(first, first + rows) for first in range(0, len(inputs), rows)]

        def work(part: slice) -> Array:
            return row_losses(inputs[part], targets[part], self._w, self.config.model)

        return np.concatenate([np.empty(0, dtype=self.dtype), *self._map(work, parts)])

    def generate(
        self, prompts: Sequence[npt.ArrayLike], options: GenerateOptions, watch: Watch | None = None
    ) -> list[Tokens]:
        """Return the ids added to each prompt; see `Engine.generate`.

        Every row is computed for itself, so no other row changes it. When the context is full, the window jumps as
        `andrea.engine.sampling.window_start` says and its keys and values are computed again.
        """
        check_options(options)
        rows = [np.asarray(prompt, dtype=np.int64).reshape(-1) for prompt in prompts]
        for ids in rows:
            if not ids.size or ids.min() < 0 or ids.max() >= self.config.vocabulary:
                raise ValueError(f"a prompt needs at least one id, all in [0, {self.config.vocabulary})")
        return self._map(lambda row: self._continue(row, rows[row], options, watch), range(len(rows)))

    def _continue(
        self, row: int, prompt: npt.NDArray[np.int64], options: GenerateOptions, watch: Watch | None
    ) -> Tokens:
        reader = Reader.empty(self._w, self.config.model)
        ids = prompt.tolist()
        draws = Draws(options.seed, "generate", options.first + row)
        seen_from, seen_to = 0, 0
        for _ in range(options.max_tokens):
            start = window_start(len(ids), self.config.model.context)
            if start == seen_from and seen_to == len(ids) - 1 and seen_to:
                logits_V = reader.read(ids[-1])
            else:
                logits_V = reader.restart(np.array(ids[start:]))
            seen_from, seen_to = start, len(ids)
            uniform = float(draws.uniform(1)[0])
            ids.append(choose(logits_V, options, ids, uniform))
            ended = watch is not None and watch(row, ids[-1])
            if ended or ids[-1] in options.stop:
                break
        return np.array(ids[len(prompt) :], dtype=np.int32)

    # -- state -------------------------------------------------------------------------------------------------------

    def export_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of everything that training needs; see `Engine.export_state`."""
        self._check_open()
        weights = {"weights": self._weights_P.copy()}
        if not self.config.training:
            return weights
        return weights | {
            "first_moments": self._first_P.copy(),
            "second_moments": self._second_P.copy(),
            "applied_updates": np.array([self._applied], dtype=np.int64),
        }

    def import_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `export_state` gave, bit for bit.

        Raises
        ------
        ValueError
            When a key, shape or type does not fit; then nothing has changed.
        """
        expected = self.export_state()
        if set(state) != set(expected):
            raise ValueError(f"the state has {sorted(state)}, this engine wants {sorted(expected)}")
        for name, want in expected.items():
            got = state[name]
            if (got.shape, got.dtype) != (want.shape, want.dtype):
                raise ValueError(f"{name} is {got.dtype} {got.shape}, this engine wants {want.dtype} {want.shape}")
        self._weights_P[:] = state["weights"]
        if self.config.training:
            self._first_P[:] = state["first_moments"]
            self._second_P[:] = state["second_moments"]
            self._applied = int(state["applied_updates"][0])

    def memory_plan(self) -> list[Buffer]:
        """Return what the engine holds: parameters exactly, activations at their largest (full context)."""
        return plan_memory(self.config, self.dtype)

    def fingerprint(self) -> dict[str, str]:
        """Return what the numbers depend on beside the configuration."""
        libraries = [one for one in _controller().info() if one["user_api"] == "blas"]
        keys = ("internal_api", "version", "architecture")
        simd = np.show_config(mode="dicts").get("SIMD Extensions", {})
        return {
            "device": "cpu",
            "numpy": np.__version__,
            "numpy_simd": " ".join([*simd.get("baseline", []), *simd.get("found", [])]),
            "blas": "; ".join(" ".join(str(one.get(key)) for key in keys) for one in libraries) or "unknown",
            "blas_threads": "1" if libraries else "not controlled",
            "slices": str(len(self._slices)),
        }

    def close(self) -> None:
        """Give the memory back; further calls are errors."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
            del self._w, self._dw, self._weights_P, self._first_P, self._second_P, self._gradients_SP

    # -- inside ------------------------------------------------------------------------------------------------------

    def _map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Run tasks on the threads, one BLAS thread each; the gradient norm finds overflow, so nothing warns of it."""
        pool = self._check_open()

        def quiet(item: Item) -> Result:
            with np.errstate(all="ignore"):
                return work(item)

        with _controller().limit(limits=1, user_api="blas"):
            return list(pool.map(quiet, items))

    def _check_open(self) -> ThreadPoolExecutor:
        if self._pool is None:
            raise RuntimeError("the engine is closed")
        return self._pool

    def _check_ids(self, inputs: Tokens, targets: Tokens, lowest_target: int) -> None:
        V, T = self.config.vocabulary, self.config.model.context
        if inputs.ndim != 2 or inputs.shape != targets.shape or not 1 <= inputs.shape[1] <= T:
            raise ValueError(f"inputs {inputs.shape} and targets {targets.shape} must be (rows, at most {T})")
        for name, ids, lowest in (("inputs", inputs, 0), ("targets", targets, lowest_target)):
            if ids.size and not lowest <= ids.min() <= ids.max() < V:
                raise ValueError(f"{name} has ids outside [{lowest}, {V})")


def plan_memory(config: EngineConfig, dtype: npt.DTypeLike = np.float32) -> list[Buffer]:
    """Return what the numpy engine would hold; nothing is allocated."""
    P, S, rows = layout(config.model, config.vocabulary)[-1].end, len(_slices(config)), _rows_at_work(config)
    T, C, V = config.model.context, config.model.d_model, config.vocabulary
    L = config.model.n_layer if config.training else min(2, config.model.n_layer)  # the last and the one at work
    shapes: list[tuple[str, str, tuple[int, ...]]] = [("weights", "parameters", (P,))]
    if config.training:
        shapes += [
            ("first_moments", "AdamW", (P,)),
            ("second_moments", "AdamW", (P,)),
            ("gradients", "one buffer a slice of rows", (S, P)),
        ]
    shapes += [
        ("activations", "of the layers kept, rows of all threads", (L * (4 + 3 + 1 + 4) + 2, rows, T, C)),
        ("statistics", "mean, rstd and log-sum-exp", (L * (4 + config.model.n_head) + 3, rows, T)),
        ("logits", "and their gradient, in place", (rows, T, V)),
        ("mlp", "activation and slope", (3, rows, T, 4 * C)),
    ]
    kind = np.dtype(dtype)
    return [Buffer(n, why, shape, str(kind), kind.itemsize * math.prod(shape)) for n, why, shape in shapes]


def _threads(config: EngineConfig) -> int:
    threads: int = config.options.get("threads", _cores())
    return min(threads, len(_slices(config)))


def _rows_at_work(config: EngineConfig) -> int:
    """Return the rows that all threads together compute at a time."""
    return _threads(config) * int(_slices(config)[0].stop)


def _slices(config: EngineConfig) -> list[slice]:
    """Cut the rows of a micro-batch as evenly as possible, the longer slices first."""
    B = config.batch_size
    count = min(config.options.get("slices", _SLICES), B)
    edges = np.cumsum([0] + [B // count + (i < B % count) for i in range(count)]).tolist()
    return [slice(start, stop) for start, stop in itertools.pairwise(edges)]


def _cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _controller() -> ThreadpoolController:
    """Return the control over the BLAS that numpy has loaded; looking for it takes milliseconds, so once."""
    return ThreadpoolController()


@functools.cache
def _keep_freed_memory() -> None:
    """Tell glibc to keep what a step frees for the next step: fresh pages cost a fault each, a fifth of a step."""
    if sys.platform != "linux":
        return
    trim_threshold, mmap_threshold, arena_max = -1, -3, -8
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(arena_max, 1)
        mallopt(mmap_threshold, 1 << 30)
        mallopt(trim_threshold, (1 << 31) - 1)
