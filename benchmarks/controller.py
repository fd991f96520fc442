"""What the host does while the card waits: from the moment when a step's losses are known to the next launch.

The real loop with its plugins and its journal over 19 made-up sources, around an engine that takes no time. For every
stack of plugins, with 1 and with 16 pulls a step, it prints microseconds a step, in processor time, so that other work
on the machine counts little, and from a second run, in which hooks are timed, where they are spent. `journal` is a
digest: two versions with equal digests have taken the same decisions.

python benchmarks/controller.py [--steps N] [--repeat N] [--only STACK ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import itertools
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from andrea.assembly import open_run
from andrea.batches import Batches
from andrea.engine import Engine, StepResult
from andrea.interrupts import Interrupts
from andrea.loop import Loop
from andrea.planning import Request, plan
from andrea.resources import experiments_folder
from andrea.rng import Draws

SOURCES = [f"source{number}" for number in range(19)]
QUICKSTART = json.loads((experiments_folder() / "quickstart.json").read_text())["plugins"]
STACKS: dict[str, dict[str, Any]] = {
    "default": {},
    "uniform": {"bandit.uniform": {}},
    "annealed": {"weight.repetition": {}, "weight.size": {"exponent": 1.0}, "bandit.uniform": {}},
    "argmax": {"bandit.ucb1": {}, "sampler.argmax": {}},
    "dice": QUICKSTART | {"limit.floors": {"floors": {SOURCES[0]: 0.2, SOURCES[2]: 0.1}}},
    "exp3s": {"bandit.exp3s": {}, "reward.normalised": {}},
}
WARM = 200  # steps that are not counted
SELECTION = ("score_sources", "weigh_sources", "limit_sources", "select_source")
PARTS = {"reward": "rewards", **dict.fromkeys(SELECTION, "selection"), "take": "batches"}
NAMES = ("rewards", "learning", "selection", "batches", "others")


class Instant:
    """An engine that takes no time, with made-up losses; it notes how long the host takes between two steps."""

    def __init__(self, engine: Engine, read: Callable[[], Counter[str]]) -> None:
        self._engine, self._read = engine, read
        losses = Draws(0, "controller").uniform(997 * engine.config.rows).reshape(997, -1)
        self._losses = (3 + losses).astype("float32")
        self._known, self._before = 0.0, Counter[str]()
        self.waits: list[float] = []
        self.parts: list[Counter[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def launch_step(self, step: int, *_: Any) -> Callable[[], StepResult]:
        """Note the end of what the card waits for; the result is there at once."""
        self.waits.append((time.thread_time() - self._known) * 1e6)
        self.parts.append(self._read() - self._before)
        return functools.partial(self._finish, StepResult(self._losses[step % 997], 1.0, 1e-3, False))

    def _finish(self, result: StepResult) -> StepResult:
        self._before, self._known = self._read(), time.thread_time()
        return result


def run(folder: Path, stack: str, pulls: int, steps: int, trace: bool) -> tuple[Instant, str]:
    """Run the loop; return what its engine noted and the digest of its journal."""
    value = {
        "name": "controller",
        "model": {"n_layer": 1, "n_head": 1, "d_model": 8},
        "batch": {"batch_size": max(8, pulls), "pulls_per_step": pulls},
        "schedule": {"steps": steps},
        **{"sampling": {"sample_every": 0}, "evaluation": {"eval_every": 0}},
        "sources": [{"name": n, "reader": "source.text", "options": {"path": f"{folder}/{n}"}} for n in SOURCES],
        "plugins": {k: v for k, v in STACKS[stack].items() if "tokenizer" not in k} | {"tokenizer.byte": {}},
    }
    (folder / "experiment.json").write_text(json.dumps(value))
    out = Path(tempfile.mkdtemp(dir=folder))
    asked = Request(experiment=f"{folder}/experiment.json", device="cpu", out=out, trace_hooks=trace)
    with Interrupts() as interrupts, (folder / "shown").open("w") as shown, contextlib.redirect_stderr(shown):
        loop = open_run(plan(asked, print), lambda _: None, lambda *_: None, interrupts)
        loop.engine = engine = Instant(loop.engine, lambda: seconds(loop))
        with batches_timed(loop.hooks.timings["batches", "take"]) if trace else contextlib.nullcontext():
            loop.run()
        engine.close()
    return engine, hashlib.sha256((out / "journal.jsonl").read_bytes()).hexdigest()[:12]


@contextlib.contextmanager
def batches_timed(timing: list[float]) -> Iterator[None]:
    """Count the seconds that batches take to be read, as those of a hook."""
    take = Batches.take

    def timed(*arguments: Any) -> Any:
        begin = time.perf_counter()
        batch = take(*arguments)
        timing[1] += time.perf_counter() - begin
        return batch

    with mock.patch.object(Batches, "take", timed):
        yield


def seconds(loop: Loop) -> Counter[str]:
    """Return the seconds that every part has taken so far."""
    total = Counter[str]()
    for (plugin, hook), (_, spent) in loop.hooks.timings.items():
        learns = hook == "on_step" and plugin.partition(".")[0] in ("bandit", "sampler", "reward")
        total["learning" if learns else PARTS.get(hook, "others")] += spent
    return total


def measure(folder: Path, stack: str, pulls: int, steps: int, repeat: int) -> dict[str, Any]:
    """Return the figures of a stack, in microseconds: of several runs the one that was disturbed least."""
    runs = [run(folder, stack, pulls, steps, trace) for trace in (False, True) for _ in range(repeat)]
    digests = {digest for _, digest in runs}
    assert len(digests) == 1, f"the runs have not taken the same decisions: {digests}"
    waits = min((e.waits[WARM:] for e, _ in runs[:repeat]), key=statistics.median)
    traced = min((e for e, _ in runs[repeat:]), key=lambda engine: statistics.median(engine.waits[WARM:]))
    found = dict(zip(("p10", "median", "p95"), np.quantile(waits, (0.1, 0.5, 0.95)).tolist(), strict=True))
    parts = {name: 1e6 * statistics.median(p[name] for p in traced.parts[WARM:]) for name in NAMES}
    rest = statistics.median(traced.waits[WARM:]) - sum(parts.values())
    return {**found, **parts, "loop": rest, "journal": digests.pop()}


def main() -> None:
    """Measure every stack and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("--steps", 2000), ("--repeat", 3)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--only", nargs="+", choices=list(STACKS), default=list(STACKS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as place:
        os.environ["ANDREA_CACHE"] = f"{place}/cache"
        for name, part in itertools.product(SOURCES, range(10)):
            text = " ".join(f"{word % 997:x}" for word in Draws(0, name, part).words(3000).tolist())
            (Path(place) / name).mkdir(exist_ok=True)
            (Path(place) / name / f"{part}.txt").write_text(text)
        for stack, pulls in itertools.product(options.only, (1, 16)):
            row = found[f"{stack}:{pulls}"] = measure(Path(place), stack, pulls, options.steps, options.repeat)
            if len(found) == 1:
                print("us a step  ", *(f"{name:>9s}" for name in row))
            *numbers, digest = row.values()
            print(f"{stack + ':' + str(pulls):11s}", *(f"{one:9.1f}" for one in numbers), digest, flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
