"""What runs and machine come to, as Prometheus reads it: text format 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from andrea.serve.brief import Brief

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STATES = ("empty", "running", "finished", "stopped", "interrupted")
RUN = {
    "step": "Completed updates.",
    "loss": "Training loss of the last step, nats per token.",
    "grad_norm": "Gradient norm of the last step.",
    "learning_rate": "Learning rate of the last step.",
    "tokens_per_second": "Speed of late.",
}
MACHINE = {
    "gpu_util": "Utilisation of the GPU, percent.",
    "gpu_mem_used": "Memory of the GPU in use, bytes.",
    "gpu_mem_total": "Memory of the GPU, bytes.",
    "gpu_power_w": "Power of the GPU, watts.",
    "gpu_power_limit_w": "Limit of the GPU's power, watts.",
    "gpu_temp_c": "Temperature of the GPU, degrees Celsius.",
    "cpu_load_1m": "Load of the processors over a minute.",
    "cpu_cores": "Logical processors.",
    "mem_used": "Memory in use, bytes.",
    "mem_total": "Memory, bytes.",
}

Sample = tuple[Mapping[str, str], float | None]


def metrics(briefs: Iterable[Brief], figures: Mapping[str, float | None]) -> str:
    """Return the metrics of all runs and of the machine; what is not known is left out."""
    runs = [(brief.model, brief.to_json()) for brief in briefs]
    lines: list[str] = []
    for key, text in RUN.items():
        lines += _metric(f"andrea_run_{key}", text, [({"model": model}, value[key]) for model, value in runs])
    states = [
        ({"model": model, "state": state}, float(value["state"] == state)) for model, value in runs for state in STATES
    ]
    lines += _metric("andrea_run_state", "1 for the state that a run is in.", states)
    bits = [
        ({"model": model, "source": source}, float(number))
        for model, value in runs
        for source, number in (value["bits_per_byte"] or {}).items()
    ]
    lines += _metric("andrea_run_bits_per_byte", "Bits per byte of the last evaluation, by held-out source.", bits)
    for key, text in MACHINE.items():
        lines += _metric(f"andrea_{key}", text, [({}, figures[key])])
    return "\n".join(lines) + "\n"


def _metric(name: str, text: str, samples: Iterable[Sample]) -> list[str]:
    known = [(labels, value) for labels, value in samples if value is not None]
    if not known:
        return []
    return [
        f"# HELP {name} {text}",
        f"# TYPE {name} gauge",
        *(f"{name}{_labels(labels)} {_number(value)}" for labels, value in known),
    ]


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: Any) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
