"""Engines compared byte by byte: what a few steps give, and what they leave."""

from __future__ import annotations

from andrea.engine import Engine
from andrea.engine.benchmark import random_batch


def state_bytes(engine: Engine) -> dict[str, bytes]:
    """Return all state of an engine, byte by byte."""
    return {name: value.tobytes() for name, value in engine.export_state().items()}


def train(engine: Engine, steps: int, first: int = 0) -> list[bytes]:
    """Run steps on batches that depend on the step alone; return the losses' bytes."""
    return [
        engine.train_step(step, *random_batch(engine.config, seed=step)).row_losses.tobytes()
        for step in range(first, first + steps)
    ]
