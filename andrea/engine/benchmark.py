"""Measures an engine: time of a step, what the card reaches of its peak, memory, and how long the host is busy.

One document of plain numbers; nothing here changes what is computed.
"""

from __future__ import annotations

import importlib.util
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from andrea.engine import Engine, EngineConfig, open_engine
from andrea.engine.model import ModelConfig
from andrea.errors import AndreaError
from andrea.rng import Draws
from andrea.types import Device, Precision

#: Dense peak of the matrix units in TFLOP/s by (words in the card's name, operand type), as the maker prints it.
DENSE_PEAK: dict[tuple[str, str], float] = {
    ("H200", "e4m3"): 1979.0,
    ("H200", "bfloat16"): 989.0,
    ("H200", "float16"): 989.0,
    ("H200", "tf32"): 494.5,
    ("H200", "float32"): 67.0,
    ("H100 80GB HBM3", "bfloat16"): 989.0,
    ("H100 80GB HBM3", "float16"): 989.0,
    ("A100", "bfloat16"): 312.0,
    ("A100", "float16"): 312.0,
    ("A100", "tf32"): 156.0,
    ("A100", "float32"): 19.5,
    ("RTX 4090", "bfloat16"): 165.2,
    ("RTX 4090", "float16"): 165.2,
    ("RTX 3060", "bfloat16"): 25.5,
    ("RTX 3060", "float16"): 25.5,
}

#: Bytes a second of the card's memory by words in its name, as the maker prints it.
BANDWIDTH: dict[str, float] = {
    "H200": 4.8e12,
    "H100 80GB HBM3": 3.35e12,
    "A100-SXM4-80GB": 2.04e12,
    "RTX 4090": 1.01e12,
    "RTX 3060": 0.36e12,
}

Tell = Callable[[str, int, int], None]  # stage, done, total


def say_nothing(stage: str, done: int, total: int) -> None:
    """Tell nobody how far the work is."""


FAMILY: dict[str, tuple[ModelConfig, int]] = {
    "12M": (ModelConfig(6, 12, 384), 4353),
    "120M": (ModelConfig(12, 12, 768), 8449),
    "480M": (ModelConfig(16, 24, 1536), 8449),
    "GPT-2": (ModelConfig(12, 12, 768), 50257),  # the shape that others' figures are of; without its biases
}


def dense_peak(card: str, multiply: str) -> float | None:
    """Return the dense peak of a card in TFLOP/s, or None when it is not known here."""
    for (words, operand), peak in DENSE_PEAK.items():
        if words in card and operand == multiply:
            return peak
    return None


def bandwidth(card: str) -> float | None:
    """Return the bytes a second of a card's memory, or None when it is not known here."""
    return next((rate for words, rate in BANDWIDTH.items() if words in card), None)


def step_operations(config: EngineConfig) -> int:
    """Return the floating-point operations that the model itself needs for one step, 2 for a multiply-add.

    Linear layers and head, and attention at its causal half; the backward counts twice the forward. What an
    implementation computes again, or pads, does not count.
    """
    model = config.model
    C, T = model.d_model, model.context
    linear = model.n_layer * 12 * C * C + config.vocabulary * C
    attention = model.n_layer * (T + 1) * C  # scores and values over (T + 1) / 2 keys each
    return 3 * 2 * (linear + attention) * config.rows * T


def random_batch(config: EngineConfig, seed: int = 0) -> tuple[Any, Any]:
    """Return inputs and targets of one step, int32 (R, T), drawn evenly."""
    R, T = config.rows, config.model.context
    words = Draws(seed, "benchmark").words(R * (T + 1)) % np.uint64(config.vocabulary)
    tokens = words.astype(np.int32).reshape(R, T + 1)
    return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])


def measure(
    config: EngineConfig,
    device: Device,
    precision: Precision,
    steps: int = 30,
    warmup: int = 5,
    tune: bool = False,
    kernels: bool = False,
    tell: Tell = say_nothing,
) -> dict[str, Any]:
    """Run steps on random tokens and return the figures.

    `tell` hears how far that is: after every step on the CPU, where one may take minutes; on a card only of the
    stages, so that nothing is drawn while a step is timed.

    With `tune`, every algorithm of the matrix products is timed first; ``gemm_table`` is then what was found. With
    `kernels`, the launches of a step are timed one by one afterwards; ``kernels`` is then a list of groups.

    Returns
    -------
    dict
        ``median_ms``, ``p95_ms`` by the wall clock, one call of `train_step` each; ``tokens_per_second``;
        ``model_tflops`` and ``share_of_peak`` (None when the peak is unknown); ``memory_planned`` in bytes;
        and, where the engine can tell, ``device_ms`` (median time of a step on the card), ``idle_ms`` (from its end to
        the begin of the next), ``host_ms`` (of a call outside waiting), ``graph_nodes``,
        ``other_nodes`` (of these, no kernels) and ``memory_measured``.

    Raises
    ------
    AndreaError
        When the engine has nothing to tune, or no kernels to time.
    """
    if device.kind == "cpu" and (tune or kernels):
        asked = "--tune" if tune else "--kernels"
        raise AndreaError(f"{asked} is for a card; this runs in numpy on the CPU", "--device cuda, or leave it out")
    engine = open_engine(config, device, precision)
    try:
        watch = tell if device.kind == "cpu" else say_nothing
        tell("warming up", 0, warmup)
        for step in range(warmup):
            engine.train_step(step, *random_batch(config, step))
        extra: dict[str, Any] = {}
        if tune:
            tell("tuning matrix products", 0, 0)
            extra["gemm_table"] = getattr(engine, "tune")()  # noqa: B009  (on the activations of a real step)
        tell("timing steps", 0, steps)
        figures = _measure(engine, config, device, precision, steps, warmup, watch)
        if kernels:
            tell("timing kernels", 0, 0)
            groups = getattr(engine, "time_kernels")()  # noqa: B009  (only a card's engine has it)
            extra["kernels"] = [_group(group, device, precision) for group in groups]
        return figures | extra
    finally:
        engine.close()


def _measure(
    engine: Engine, config: EngineConfig, device: Device, precision: Precision, steps: int, warmup: int, watch: Tell
) -> dict[str, Any]:
    batches = [random_batch(config, seed) for seed in range(4)]
    engine.train_step(warmup, *batches[0])
    wall, timings = [], []
    for step in range(warmup + 1, warmup + 1 + steps):
        begin = time.perf_counter()
        result = engine.train_step(step, *batches[step % 4])
        wall.append((time.perf_counter() - begin) * 1e3)
        timings.append(getattr(engine, "last_timing", None))
        watch(f"timed step {len(wall)} of {steps}: {wall[-1] / 1e3:.3g} s", len(wall), steps)
    median = statistics.median(wall)
    reached = step_operations(config) / median / 1e9
    peak = dense_peak(device.name, precision.multiply)
    figures: dict[str, Any] = {
        "precision": precision.name,
        "batch_size": config.batch_size,
        "accumulation": config.accumulation,
        "median_ms": median,
        "p95_ms": sorted(wall)[math.ceil(0.95 * len(wall)) - 1],
        "tokens_per_second": config.rows * config.model.context / median * 1e3,
        "model_tflops": reached,
        "share_of_peak": reached / peak if peak else None,
        "memory_planned": sum(buffer.bytes for buffer in engine.memory_plan()),
        "loss": float(np.mean(result.row_losses)),
        "fingerprint": engine.fingerprint(),
    }
    known = [timing for timing in timings if timing is not None]
    if known:
        figures["device_ms"] = statistics.median(one.device_ms for one in known)
        figures["host_ms"] = statistics.median(one.host_ms for one in known)
        figures["idle_ms"] = statistics.median(one.idle_ms for one in known)
    nodes = getattr(engine, "graph_nodes", None)
    if nodes is not None:
        figures["graph_nodes"], figures["other_nodes"] = nodes, getattr(engine, "other_nodes", None)
    measured = getattr(engine, "measured_memory", None)
    if measured is not None:
        figures["memory_measured"] = measured()
    return figures


def _group(group: Any, device: Device, precision: Precision) -> dict[str, Any]:
    """Return a group of launches as plain numbers, with its share of the roof that bounds it, or None."""
    if group.operations:
        peak = dense_peak(device.name, "e4m3" if "e4m3->" in group.name else precision.multiply)
        roof = peak * 1e12 if peak else None
    else:
        roof = bandwidth(device.name) if group.bytes else None
    rate = (group.operations or group.bytes) / group.milliseconds * 1e3 if group.milliseconds else 0.0
    return {
        "name": group.name,
        "launches": group.launches,
        "milliseconds": group.milliseconds,
        "operations": group.operations,
        "bytes": group.bytes,
        "share_of_roof": rate / roof if roof else None,
    }


PEER = Path(__file__).parents[2] / "benchmarks" / "peer_torch.py"


def measure_peer(config: EngineConfig, steps: int = 20, script: Path = PEER) -> dict[str, Any]:
    """Measure the same model in PyTorch, in a process of its own, so that neither disturbs the other's memory.

    Raises
    ------
    AndreaError
        When PyTorch or the script is not there, or the script fails.
    """
    if importlib.util.find_spec("torch") is None:
        raise AndreaError("--peer measures PyTorch, which is not installed here", "pip install torch, or leave it out")
    if not script.is_file():
        raise AndreaError(f"{script} is missing", "--peer works in a checkout of andrea, which holds benchmarks/")
    model = config.model
    sizes = {"layers": model.n_layer, "heads": model.n_head, "width": model.d_model, "context": model.context}
    sizes |= {"vocabulary": config.vocabulary, "batch": config.batch_size, "steps": steps}
    options = [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
    command = [sys.executable, str(script), *options, "--backends", "cudnn"]  # the faster at every shape of the family
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines() or ["it gives no reason"]
        raise AndreaError(f"the PyTorch twin failed: {reason[-1]}", " ".join(command))
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    result: dict[str, Any] = {"version": answer["torch"], **answer["results"][0]}
    if "failed" in result:
        raise AndreaError(f"the PyTorch twin failed: {result['failed']}", " ".join(command))
    return result
