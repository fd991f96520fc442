"""A real run beside the bare engine: default plugins, real text, journal, samples, evaluation and checkpoints.

The text is what Python's packages say of themselves. Tokens a second of the whole run, from its first step to its
last, are compared with the engine's alone in the same process; a checkpoint's cost is what the steps after it took
longer than the median, as a share of a minute. Exits with 1 when a share is missed.

python benchmarks/real_run.py [--only 120M:64 12M:8] [--device cuda] [--out FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from andrea.assembly import open_run
from andrea.engine import Engine, StepResult
from andrea.engine.benchmark import FAMILY, measure
from andrea.interrupts import Interrupts
from andrea.planning import Request, plan

PACKAGES = ("torch", "transformers", "numpy", "scipy", "pandas", "sympy", "matplotlib", "sklearn", "jax", "networkx")
#: Steps of each point, steps between its samples and evaluations, and the least share of the bare engine's tokens a
#: second. Where a run of the default's 2,000 steps would take minutes, more is asked for than by default.
POINTS = {"120M:64": (600, 500, 0.97), "12M:8": (6000, 2000, 0.90)}
CHECKPOINT_SHARE = 0.02  # of a minute
IDLE_SHARE = {"120M:64": 0.004, "12M:8": 0.03}  # of a step in which the card may wait for who chooses the next
EVERY = 16  # steps from one look at the times of the card to the next: a look takes the host some microseconds
AFTERMATH = 10.0  # seconds in which a checkpoint that is written in the background may slow the steps down


class Watched:
    """An engine that notes when each step is asked for, and now and then how long the card had nothing to do."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.begins: list[float] = []
        self.idle_ms: list[float] = []

    def __getattr__(self, name: str) -> Any:
        answer = getattr(self._engine, name)
        if name != "launch_step":
            return answer

        def launch(*arguments: Any) -> Callable[[], StepResult]:
            self._note()
            finish: Callable[[], StepResult] = answer(*arguments)
            return finish

        return launch

    def train_step(self, *arguments: Any) -> StepResult:
        """Do one update of an engine that cannot launch one."""
        self._note()
        return self._engine.train_step(*arguments)

    def _note(self) -> None:
        self.begins.append(time.perf_counter())
        timing = getattr(self._engine, "last_timing", None) if len(self.begins) % EVERY == 0 else None
        if timing is not None:
            self.idle_ms.append(timing.idle_ms)


def documentation() -> list[dict[str, Any]]:
    """Return sources: the standard library, and every known package that is installed."""
    found = [name for name in PACKAGES if importlib.util.find_spec(name)]
    library = {"name": "library", "reader": "source.docstrings", "options": {"standard_library": True}}
    return [library] + [{"name": n, "reader": "source.docstrings", "options": {"packages": [n]}} for n in found]


def experiment(point: str, steps: int, sources: Sequence[Mapping[str, Any]], **sections: Any) -> dict[str, Any]:
    """Return the run of a point: everything that it does not name is the default."""
    name, batch = point.split(":")
    model, vocabulary = FAMILY[name]
    return {
        "name": f"real-{name}",
        "model": {"n_layer": model.n_layer, "n_head": model.n_head, "d_model": model.d_model},
        "batch": {"batch_size": int(batch)},
        "schedule": {"steps": steps, "warmup_steps": 50},
        "checkpoints": {"every": steps // 2},
        "sources": list(sources),
        "plugins": {"tokenizer.harris": {"segments": vocabulary - 257, "sample_bytes": 4_000_000}},
        **sections,
    }


def real_run(value: Mapping[str, Any], device: str, folder: Path) -> dict[str, Any]:
    """Train an experiment as `andrea run` does, then measure its engine alone; return the figures of both."""
    path = folder / "experiment.json"
    path.write_text(json.dumps(value))
    request = Request(experiment=str(path), device=device, out=folder / "run")
    planned = plan(request, _say)
    precision = None
    with Interrupts() as interrupts:
        loop = open_run(planned, _say, lambda *_: None, interrupts)
        precision = loop.hooks.choose_precision(planned.device)
        config, own = loop.engine.config, loop.engine
        watched = Watched(own)
        loop.engine = watched  # type: ignore[assignment]
        loop.run()
        own.close()
    alone = measure(config, planned.device, precision, steps=10 if planned.device.kind == "cpu" else 100)
    every = planned.config.checkpoints.every, planned.config.sampling.sample_every
    return figures(watched.begins, config.rows * config.model.context, *every) | {
        "bare_tokens_per_second": alone["tokens_per_second"],
        "bare": alone,
        "idle_ms": statistics.median(watched.idle_ms) if planned.device.kind == "cuda" else 0.0,
        "vocabulary": config.vocabulary,
        "sources": len(planned.config.sources),
    }


def figures(begins: Sequence[float], tokens: int, checkpoint: int, look: int) -> dict[str, Any]:
    """Return what the times say at which steps began.

    ``tokens_per_second`` of everything; ``median_ms`` from a step to the next; ``checkpoint_seconds``: what the first
    checkpoint cost, the stall and the slower steps behind it; ``look_ms``: what a look at the model cost, a sample and
    an evaluation, after every `look`-th step.
    """
    periods = [end - begin for begin, end in itertools.pairwise(begins)]
    median = statistics.median(periods)
    saved = begins[checkpoint - 1]
    looks = [period for number, period in enumerate(periods, start=1) if number % look == 0]
    after = [
        period - median
        for number, (period, begin) in enumerate(zip(periods, begins, strict=False), start=1)
        if saved <= begin < saved + AFTERMATH and number % look
    ]
    return {
        "tokens_per_second": tokens * len(periods) / (begins[-1] - begins[0]),
        "median_ms": median * 1e3,
        "median_tokens_per_second": tokens / median,
        "stall_ms": (periods[checkpoint - 1] - median) * 1e3,
        "checkpoint_seconds": sum(after),
        "look_ms": (statistics.fmean(looks) - median) * 1e3 if looks else 0.0,
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def main() -> int:
    """Measure every point; the exit code is 1 when a share was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(POINTS), default=list(POINTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, help="in place of the point's own number")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    document: dict[str, Any] = {}
    missed = False
    with tempfile.TemporaryDirectory() as place:
        os.environ.setdefault("ANDREA_CACHE", f"{place}/cache")
        for point in options.only:
            steps, look, wanted = POINTS[point]
            sections = {"sampling": {"sample_every": look}, "evaluation": {"eval_every": look}}
            folder = Path(place) / point.replace(":", "-")
            folder.mkdir()
            value = experiment(point, options.steps or steps, documentation(), **sections)
            found = real_run(value, options.device, folder)
            share = found["tokens_per_second"] / found["bare_tokens_per_second"]
            between = found["median_tokens_per_second"] / found["bare_tokens_per_second"]
            saved = found["checkpoint_seconds"] / 60
            idle = (found["idle_ms"] - found["bare"].get("idle_ms", 0.0)) / found["median_ms"]
            shares = {"share": share, "median_share": between, "checkpoint_share": saved, "idle_share": idle}
            document[point] = found | shares
            missed |= share < wanted or saved > CHECKPOINT_SHARE or idle > IDLE_SHARE[point]
            print(
                f"{point:8s} {found['tokens_per_second'] / 1e3:7.0f} K tok/s, {share:.1%} of the bare engine's "
                f"{found['bare_tokens_per_second'] / 1e3:.0f} K (median step {between:.1%}; wanted {wanted:.0%}); a "
                f"sample and an evaluation take {found['look_ms']:.0f} ms; a checkpoint "
                f"stalls {found['stall_ms']:.0f} ms and costs {saved:.2%} of a minute; the card waits {idle:.2%} of a "
                f"step for the choice of the next (at most {IDLE_SHARE[point]:.1%} wanted)",
                flush=True,
            )
            if options.out:
                options.out.write_text(json.dumps(document, indent=1))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
