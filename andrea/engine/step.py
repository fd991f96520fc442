"""The CUDA engine: one card, one arena, one graph up to what the host wants to know of a step, one for its update."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import frozen

from andrea.engine import Buffer, EngineConfig, GenerateOptions, StepResult, Tokens, Watch, check_training, sum_losses
from andrea.engine.backward import backward
from andrea.engine.buffers import Pinned
from andrea.engine.compiler import architecture_of, compiler_version, kernel_digest
from andrea.engine.elementwise import STATE, initial_state
from andrea.engine.forward import forward
from andrea.engine.fp8 import open_linear, products_of
from andrea.engine.gemm import CublasLt, Table
from andrea.engine.generate import Decoder
from andrea.engine.graph import Graph
from andrea.engine.kernel_times import LaunchGroup, time_launches
from andrea.engine.launcher import check, download, driver, upload
from andrea.engine.linear import Linear
from andrea.engine.machine import Machine, build_machine, check_support, current_context
from andrea.engine.model import initial_weights
from andrea.engine.optimizer import (
    clip,
    embedding_gradient,
    loss_gradient,
    refresh_working_weights,
    sort_positions,
    update,
)
from andrea.engine.schedule import learning_rate
from andrea.types import Device, Precision

FLAT = ("weights", "first_moments", "second_moments")
HELD = {"applied_updates": "applied", "loss_scale": "loss_scale", "loss_scale_growth": "growth"}  # and its field


@frozen
class Timing:
    """Times in milliseconds.

    Attributes
    ----------
    device_ms
        From the first launch of a step to the end of its update, on the card.
    idle_ms
        From there to the first launch of the next step: what the card waited for the host, and the copy of its inputs.
    host_ms
        Of that next step: in `train_step`, outside waiting.
    """

    device_ms: float
    idle_ms: float
    host_ms: float


class CudaEngine:
    """An `andrea.engine.Engine` on one card.

    Parameters
    ----------
    config
        What is computed. Options read here: ``graph`` (True: what the card does again and again is captured; False
        gives the same bits), ``overlap`` (whether by two streams, with the same bits; see `andrea.engine.branch`),
        ``arena_limit`` (bytes that the arena may take), ``gemm`` (``auto``, ``cublaslt`` or ``own``, see
        `andrea.engine.gemm`), ``attention`` (see `andrea.engine.attention_choice`) and ``fused_gelu``
        (True or False; by default as `andrea.engine.machine` decides).
    device
        A card, from `andrea.engine.device.find_device`.
    precision
        How numbers are stored and multiplied.

    Raises
    ------
    AndreaError
        When the card cannot run the precision, the shape has no kernel, or the memory does not suffice.
    """

    def __init__(self, config: EngineConfig, device: Device, precision: Precision) -> None:
        check_support(config, device, precision)
        self.config, self.device, self.precision = config, device, precision
        self._context = current_context(device.index)
        self._driver = driver()
        try:
            self._machine = build_machine(config, device, precision)
        except Exception:
            check(self._driver.cuDevicePrimaryCtxRelease(device.index), "cuDevicePrimaryCtxRelease")
            raise
        self._linear = open_linear(self._machine)
        self._flat = (*FLAT, *self._linear.state) if config.training else ("weights",)
        arena = self._machine.arena
        self._inputs = Pinned(arena, "ids", "learning_rate")
        self._results = Pinned(arena, "row_losses", "train_state")
        self._decoder = Decoder(self._machine, self._inputs)
        self._ids, self._targets = self._inputs.view("ids"), self._inputs.view("targets")
        self._rate, self._row_losses = self._inputs.view("learning_rate"), self._results.view("row_losses")
        self._state = self._results.view("train_state", STATE)
        self._events = [check(self._driver.cuEventCreate(0), "cuEventCreate") for _ in range(5)]
        self._known = self._events[0]  # reached when a step's results are with the host
        self._marks = [self._events[1:3], self._events[3:5]]  # begin and end of the last step and of the one before
        self._steps, self._host_ms = 0, 0.0
        self._graph: Graph | None = None
        self._first: Graph | None = None
        self._update: Graph | None = None
        self._evaluation: Graph | None = None
        self._scale_of_step = precision.loss_scale
        self._prepare()
        if config.training:
            self._place({"weights": initial_weights(config.model, config.vocabulary, config.seed)}, self._fresh_state())

    # -- training ----------------------------------------------------------------------------------------------------

    def train_step(
        self, step: int, inputs: Tokens, targets: Tokens, probes: Mapping[str, tuple[Tokens, Tokens]] | None = None
    ) -> StepResult:
        """Do one update; see `Engine.train_step`. Rows are as long as the context.

        Raises
        ------
        ValueError
            When the rows are not those of a step, or an id does not exist.
        """
        return self.launch_step(step, inputs, targets, probes)()

    def launch_step(
        self, step: int, inputs: Tokens, targets: Tokens, probes: Mapping[str, tuple[Tokens, Tokens]] | None = None
    ) -> Callable[[], StepResult]:
        """Launch one update as `train_step` does, and return the function that waits for its result.

        The host is free in between; the engine is not: the function comes before any other call. Losses and norm are
        known before AdamW has run, and the function does not wait for that: what the host does then, up to the launch
        of the next step, costs the card nothing as long as it is shorter than the update.
        """
        begin = time.perf_counter()
        self._use_card()
        check_training(self.config)
        before = self._probe(probes)
        rate = learning_rate(self.config.schedule, step)
        self._take(inputs, targets, rate)
        self._marks.reverse()
        self._mark(self._marks[0][0])
        if self._linear.ready:
            self._run(self._graph, self._record)
        else:
            self._run(self._first, self._record_first)
        self._results.copy_out(self._machine.stream)
        self._mark(self._known)
        self._run(self._update, self._apply)
        self._mark(self._marks[0][1])
        return functools.partial(self._finish, rate, before, probes, time.perf_counter() - begin)

    def _finish(
        self,
        rate: float,
        before: Mapping[str, float],
        probes: Mapping[str, tuple[Tokens, Tokens]] | None,
        seconds: float,
    ) -> StepResult:
        """Wait for a launched step and return what it did; `seconds` is what the launch took the host."""
        check(self._driver.cuEventSynchronize(self._known), "cuEventSynchronize")
        begin = time.perf_counter()
        row_losses, state = self._row_losses.copy(), self._state[0]
        norm, skipped, self._scale_of_step = (
            float(state["grad_norm"]),
            bool(state["skipped"]),
            float(state["loss_scale"]),
        )
        self._linear.ready |= not skipped
        after = self._probe(probes)
        pairs = {name: (loss, after[name]) for name, loss in before.items()}
        self._steps += 1
        self._host_ms = (seconds + time.perf_counter() - begin) * 1e3
        return StepResult(row_losses, norm, rate, skipped, pairs)

    @property
    def last_timing(self) -> Timing | None:
        """Times around the last step; None before the second."""
        if self._steps < 2:
            return None
        self._use_card()
        (now, _), (start, end) = self._marks
        return Timing(self._elapsed(start, end), self._elapsed(end, now), self._host_ms)

    @property
    def graph_nodes(self) -> int | None:
        """Launches that the graph of a step holds; None where there is no graph."""
        return self._graph.nodes if self._graph is not None else None

    @property
    def other_nodes(self) -> int | None:
        """Those of them that are no kernels, for which the driver launches node by node; see `Graph`."""
        return self._graph.other if self._graph is not None else None

    def _take(self, inputs: Tokens, targets: Tokens, rate: float) -> None:
        """Send a step's inputs to the card, after the ids were checked where they lie: the mirror is only written."""
        shape, vocabulary = (self.config.rows, self.config.model.context), self.config.vocabulary
        for name, given in (("ids", inputs), ("targets", targets)):
            if given.shape != shape or given.dtype != np.int32:
                raise ValueError(f"a step takes int32 {shape} ids, not {given.dtype} {given.shape}")
            if int(given.view(np.uint32).max()) >= vocabulary:  # negative ids are huge without a sign: one pass
                raise ValueError(f"{name} outside [0, {vocabulary})")
        self._ids[...], self._targets[...], self._rate[0] = inputs, targets, rate
        self._inputs.copy_in(self._machine.stream)

    def _record(self) -> None:
        """Launch a step up to what the host wants to know of it: all micro-batches, norm and clipping factor."""
        launch_gradients(self._machine, self._linear)

    def _record_first(self) -> None:
        """Launch the same for a step that some layer products must learn from before they are as they will be."""
        launch_gradients(self._machine, self._linear.first())

    def _apply(self) -> None:
        update(self._machine)
        self._linear.follow_update()

    def _run(self, graph: Graph | None, launches: Callable[[], None]) -> None:
        """Do what a graph holds; launch by launch where there is none."""
        if graph is None:
            launches()
        else:
            graph.launch()

    def _prepare(self) -> None:
        """Launch everything once on zeros, so that code is loaded and products are prepared, then record the graphs."""
        self._place({}, self._fresh_state())
        if self.config.training:
            if not self._linear.ready:
                self._record_first()
            self._record()
            self._apply()
        self._evaluate_batch()
        self._decoder.prepare()
        self._wait()
        if self.config.options.get("graph", True):
            self._record_graphs()

    def _record_graphs(self) -> None:
        self._close_graphs()
        self._decoder.record()
        if self.config.training:
            self._graph = self._machine.record(self._record)
            self._update = self._machine.record(self._apply)
        if self._linear.state:
            self._first = self._machine.record(self._record_first)
        self._evaluation = self._machine.record(self._evaluate_batch)

    def _close_graphs(self) -> None:
        """Give the graphs back; what follows is launched one by one."""
        self._decoder.close_graphs()
        for graph in (self._graph, self._first, self._update, self._evaluation):
            if graph is not None:
                graph.close()
        self._graph = self._first = self._update = self._evaluation = None

    def _probe(self, probes: Mapping[str, tuple[Tokens, Tokens]] | None) -> dict[str, float]:
        measured = {name: sum_losses(self.evaluate(*rows), rows[1]) for name, rows in (probes or {}).items()}
        return {name: total / count for name, (total, count) in measured.items()}

    def tune(self) -> Table:
        """Time the algorithms of all matrix products, go on with the fastest, and return them as a table's entry."""
        self._use_card()
        gemms = self._machine.gemms
        if not isinstance(gemms, CublasLt):
            return {}
        table = gemms.tune(self._time, self._machine.stream)
        if self._evaluation is not None:
            self._record_graphs()  # a graph holds the algorithms it was recorded with
        return table

    def time_kernels(self) -> list[LaunchGroup]:
        """Time the launches of a step one by one, see `time_launches`; trains on what the last step left."""
        self._use_card()
        check_training(self.config)

        def step() -> None:
            self._record()
            self._apply()

        def ahead() -> None:
            for _ in range(4):
                self._run(self._graph, step)

        return time_launches(self._machine, self._driver, step, ahead)

    def _time(self, run: Callable[[], None], repeats: int = 10) -> float:
        """Return the milliseconds of one run on the card, after two to warm up."""
        run()
        run()
        begin, end = self._marks[0]
        self._mark(begin)
        for _ in range(repeats):
            run()
        self._mark(end)
        self._wait()
        return self._elapsed(begin, end) / repeats

    def gradients(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the last step's gradients by parameter, before clipping and without the loss scale; for tests."""
        self._use_card()
        check_training(self.config)
        m = self._machine
        raw = np.empty(m.placement.size, dtype=np.float32)
        download(m.at("gradients"), raw)
        result = {}
        for s in m.placement.segments:
            part = np.lib.stride_tricks.as_strided(raw[s.target :], (s.rows, s.columns), (4 * s.stride, 4))
            result[s.name] = part / np.float32(self._scale_of_step)
        return result

    # -- looking -----------------------------------------------------------------------------------------------------

    def evaluate(self, inputs: Tokens, targets: Tokens) -> npt.NDArray[np.float32]:
        """Return the loss of each row; see `Engine.evaluate`. Shorter rows are padded, which changes no loss."""
        self._use_card()
        self._check_rows(inputs, targets)
        m = self._machine
        result = np.empty(len(inputs), dtype=np.float32)
        T = inputs.shape[1]
        for first in range(0, len(inputs), m.B):
            rows = slice(first, min(first + m.B, len(inputs)))
            count = rows.stop - rows.start
            ids, wanted = self._inputs.view("ids")[: m.B], self._inputs.view("targets")[: m.B]
            ids[...], wanted[...] = 0, -1
            ids[:count, :T], wanted[:count, :T] = inputs[rows], targets[rows]
            self._inputs.copy_in(self._machine.stream)
            self._run(self._evaluation, self._evaluate_batch)
            self._results.copy_out(self._machine.stream)
            self._wait()
            result[rows] = self._results.view("row_losses")[:count]
        return result

    def _evaluate_batch(self) -> None:
        m = self._machine
        targets, losses = m.at("targets"), m.at("token_losses")
        forward(m, m.at("ids"), m.B)
        m.elementwise.loss_fwd(m.at("logits"), targets, losses, m.N, self.config.vocabulary, m.V)
        m.elementwise.loss_rows(losses, targets, m.at("row_losses"), m.B, m.T)

    def _check_rows(self, inputs: Tokens, targets: Tokens) -> None:
        V, T = self.config.vocabulary, self.config.model.context
        if inputs.ndim != 2 or inputs.shape != targets.shape or not 1 <= inputs.shape[1] <= T:
            raise ValueError(f"inputs {inputs.shape} and targets {targets.shape} must be (rows, at most {T})")
        for name, ids, lowest in (("inputs", inputs, 0), ("targets", targets, -1)):
            if ids.size and not lowest <= ids.min() <= ids.max() < V:
                raise ValueError(f"{name} has ids outside [{lowest}, {V})")

    def generate(
        self, prompts: Sequence[npt.ArrayLike], options: GenerateOptions, watch: Watch | None = None
    ) -> list[Tokens]:
        """Return the ids added to each prompt; see `Engine.generate`."""
        self._use_card()
        return self._decoder.generate(prompts, options, watch)

    # -- state -------------------------------------------------------------------------------------------------------

    def export_state(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of everything that training needs; see `Engine.export_state`.

        With a dynamic loss scale also ``loss_scale``, float32 (1,), and ``loss_scale_growth``, int64 (1,): updates
        since it last changed. With products in 8 bits ``fp8_history``, float32 (S, 16): the largest magnitudes of what
        is cast (see `andrea.engine.fp8.Plan8`), of the update number n in column n % 16.
        """
        self._use_card()
        state: dict[str, npt.NDArray[Any]] = {}
        for name in self._flat:
            state[name] = np.empty(self._machine.arena.plan[name].shape, dtype=np.float32)
            download(self._machine.at(name), state[name])
        if not self.config.training:
            return state
        held = np.zeros(1, dtype=STATE)
        download(self._machine.at("train_state"), held)
        state["applied_updates"] = held["applied"].astype(np.int64)
        if self.precision.loss_scale != 1:
            state["loss_scale"] = held["loss_scale"].astype(np.float32)
            state["loss_scale_growth"] = held["growth"].astype(np.int64)
        return state

    def import_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `export_state` gave, bit for bit.

        Raises
        ------
        ValueError
            When a key, shape or type does not fit; then nothing has changed.
        """
        self._use_card()
        plan = self._machine.arena.plan
        expected = {name: (plan[name].shape, "float32") for name in self._flat}
        if self.config.training:
            expected |= {"applied_updates": ((1,), "int64")}
            if self.precision.loss_scale != 1:
                expected |= {"loss_scale": ((1,), "float32"), "loss_scale_growth": ((1,), "int64")}
        if set(state) != set(expected):
            raise ValueError(f"the state has {sorted(state)}, this engine wants {sorted(expected)}")
        for name, want in expected.items():
            got = (state[name].shape, str(state[name].dtype))
            if got != want:
                raise ValueError(f"{name} is {got[1]} {got[0]}, this engine wants {want[1]} {want[0]}")
        held = self._fresh_state()
        for name, field in HELD.items():
            if name in state:
                held[field] = state[name]
        self._place({name: state[name] for name in self._flat}, held)

    def _fresh_state(self) -> npt.NDArray[Any]:
        return initial_state(self.precision.loss_scale)

    def _place(self, given: Mapping[str, npt.NDArray[Any]], held: npt.NDArray[Any]) -> None:
        """Write state to the card, zeros where nothing is given, and make the working weights from it."""
        self._wait()
        m = self._machine
        for name in self._flat:
            if name in given:
                upload(m.at(name), given[name])
            else:
                m.zero(name)
        upload(m.at("train_state"), held)
        check(self._driver.cuCtxSynchronize(), "cuCtxSynchronize")  # uploads do not run on the engine's stream
        refresh_working_weights(m)
        self._linear.begin(given)
        self._wait()
        self._state[...] = held

    # -- the engine itself -------------------------------------------------------------------------------------------

    def memory_plan(self) -> list[Buffer]:
        """Return every buffer that the engine holds on the card."""
        return list(self._machine.arena.plan)

    def measured_memory(self) -> int:
        """Return the bytes that the driver has given since the kernels were loaded, by its own account."""
        self._use_card()
        free, _ = check(self._driver.cuMemGetInfo(), "cuMemGetInfo")
        return self._machine.free_before - int(free)

    def fingerprint(self) -> dict[str, str]:
        """Return what the numbers depend on beside the configuration."""
        m = self._machine
        algorithms = json.dumps(m.gemms.used, sort_keys=True)
        return {
            "device": self.device.name,
            "architecture": architecture_of(self.device.capability),
            "precision": f"{self.precision.name} {self.precision.storage} {self.precision.multiply}",
            "compiler": "NVRTC " + ".".join(map(str, compiler_version())),
            "kernels": kernel_digest(),
            "gemm": f"{m.gemms.name} {m.gemms.version}",
            "gemm_algorithms": hashlib.sha256(algorithms.encode()).hexdigest(),
            "attention": f"{m.attention.name} {m.attention.version}".rstrip(),
            "fused_gelu": f"{m.fused_gelu} {m.fused_gelu_gradient}",
            "fp8": " ".join(products_of(self.config, self.precision)),
        }

    def close(self) -> None:
        """Give the memory back; further calls are errors."""
        if self._context is None:
            return
        self._use_card()
        self._wait()
        self._close_graphs()
        self._decoder.close()
        del self._ids, self._targets, self._rate, self._row_losses, self._state
        self._inputs.close()
        self._results.close()
        for event in self._events:
            check(self._driver.cuEventDestroy(event), "cuEventDestroy")
        self._machine.close()
        check(self._driver.cuDevicePrimaryCtxRelease(self.device.index), "cuDevicePrimaryCtxRelease")
        self._context = None

    def _use_card(self) -> None:
        """Make the card's context current: the caller may be another thread than last time."""
        if self._context is None:
            raise RuntimeError("the engine is closed")
        check(self._driver.cuCtxSetCurrent(self._context), "cuCtxSetCurrent")

    def _mark(self, event: Any) -> None:
        check(self._driver.cuEventRecord(event, self._machine.stream), "cuEventRecord")

    def _elapsed(self, begin: Any, end: Any) -> float:
        return float(check(self._driver.cuEventElapsedTime(begin, end), "cuEventElapsedTime"))

    def _wait(self) -> None:
        check(self._driver.cuStreamSynchronize(self._machine.stream), "cuStreamSynchronize")


def launch_gradients(m: Machine, linear: Linear) -> None:
    """Launch a step up to its clipping factor; `linear` computes the layers' products."""
    m.zero("gradients")
    for micro in range(m.config.accumulation):
        ids, targets = m.at("ids", micro * m.N), m.at("targets", micro * m.N)
        sort_positions(m, ids)
        forward(m, ids, m.B, linear)
        loss_gradient(m, targets, m.at("row_losses", micro * m.B))
        backward(m, linear)
        embedding_gradient(m, ids)
        m.branch.join()
    clip(m)
