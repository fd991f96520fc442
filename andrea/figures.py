"""A run as named numbers: what plugins of the kind log hand on to programs that draw curves.

Steps count completed updates, so that training, held-out figures and samples of one moment stand at one place.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import Any

from andrea.types import Evaluation, Run, StepRecord


def step_figures(record: StepRecord, run: Run) -> dict[str, float]:
    """Return the figures of a step: of the update, of the sources it pulled, and of all sources so far.

    ``train/...`` loss in nats per token, gradient norm, learning rate, tokens so far, 1 for a skipped update;
    ``source/NAME/...`` loss and reward, means over the step's pulls of it; ``share/NAME`` its part of all pulls so far,
    ``epochs/NAME`` passes over it.
    """
    figures = {
        "train/loss": record.loss,
        "train/gradient_norm": record.grad_norm,
        "train/learning_rate": record.learning_rate,
        "train/tokens": float((record.step + 1) * run.rows * run.context),
        "train/skipped": float(record.skipped),
    }
    pulled: dict[str, list[float]] = defaultdict(list)
    for pull in record.pulls:
        pulled[f"source/{run.sources[pull.source]}/loss"].append(pull.loss)
        if pull.rewards:
            pulled[f"source/{run.sources[pull.source]}/reward"].append(pull.reward)
    figures |= {name: math.fsum(values) / len(values) for name, values in pulled.items()}
    pulls = max(1, int(run.pulls.sum()))
    for index, name in enumerate(run.sources):
        figures[f"share/{name}"] = float(run.pulls[index]) / pulls
        figures[f"epochs/{name}"] = float(run.epochs[index])
    return figures


def evaluation_figures(evaluation: Evaluation) -> dict[str, float]:
    """Return held-out figures: ``held_out/mean`` in bits per byte, ``held_out/NAME/...`` bits per byte and loss."""
    figures = {"held_out/mean": evaluation.mean}
    for name, loss in evaluation.loss.items():
        figures[f"held_out/{name}/bits_per_byte"] = evaluation.bits_per_byte[name]
        figures[f"held_out/{name}/loss"] = loss
    return figures


def configuration(run: Run) -> dict[str, Any]:
    """Return the configuration of a run that has begun, or what `run` tells where none is written."""
    if run.folder is not None and (run.folder / "config.json").is_file():
        value: dict[str, Any] = json.loads((run.folder / "config.json").read_bytes())
        return value
    names = ("name", "seed", "sources", "rows", "context", "steps", "warmup_steps", "pulls_per_step", "vocabulary")
    return {name: getattr(run, name) for name in names}
