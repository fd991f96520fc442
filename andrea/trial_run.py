"""One run of a trial, in a process of its own: begun or gone on with, timed, and measured on its test rows.

    python -m andrea.trial_run EXPERIMENT FOLDER DEVICE TEST_ROWS

A process for each run keeps a card's memory apart, and several devices busy.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from attrs import asdict

from andrea.assembly import open_run
from andrea.batches import held_out_rows
from andrea.errors import AndreaError
from andrea.evaluate import HeldOut, evaluate
from andrea.interrupts import Interrupts, exit_code, leaving
from andrea.planning import Mode, Request, plan
from andrea.progress import Preparing, print_line
from andrea.run_data import cache_folder
from andrea.tokenfile import TokenFile, write_whole
from andrea.tokens import StoppedError, reopen
from andrea.trained import open_model
from andrea.trial import COST, TEST, Cost, ended, read_cost

DECIDING = ("bandit", "sampler", "weight", "limit", "reward")  # the kinds of plugin that make the curriculum


def run(experiment: Path, folder: Path, device: str, test_rows: int) -> int:
    """Make or finish one run; return the exit code: 0, or 128 + the signal that interrupted it."""
    if not ended(folder):
        interrupted = train(experiment, folder, device)
        if interrupted:
            return interrupted
    if test_rows:
        write_whole(folder / TEST, json.dumps(measure_test(folder, device, test_rows), indent=1).encode())
    return 0


def train(experiment: Path, folder: Path, device: str) -> int:
    """Train until the run ends by itself, from its last checkpoint if there is one."""
    begun, before = (folder / "config.json").is_file(), read_cost(folder) or Cost()
    request = Request(
        Mode.RESUME if begun else Mode.NEW,
        None if begun else str(experiment),
        device=device,
        out=folder,
        trace_hooks=True,
    )
    planned = plan(request, print_line)
    with Interrupts() as interrupts:
        try:
            with Preparing() as preparing:
                loop = open_run(planned, print_line, preparing, interrupts)
        except StoppedError:
            return exit_code(interrupts.stopped_by)
        started, first = time.perf_counter(), planned.snapshot.step if planned.snapshot else 0
        outcome = loop.run()
        seconds = time.perf_counter() - started
        loop.engine.close()
    deciding = sum(spent for (name, _), (_, spent) in loop.hooks.timings.items() if name.partition(".")[0] in DECIDING)
    cost = Cost(before.seconds + seconds, before.steps + outcome.step - first, before.curriculum_seconds + deciding)
    write_whole(folder / COST, json.dumps(asdict(cost), indent=1).encode())
    return exit_code(outcome.signal) if outcome.signal else 0


def measure_test(folder: Path, device: str, test_rows: int) -> dict[str, Any]:
    """Return loss and bits per byte on the held-out rows behind those that the run evaluated, by source.

    A source whose held-out text is used up by the evaluation is left out.
    """
    model = open_model(folder, None, device, print_line)
    prepared = reopen(cache_folder(), str(model.snapshot.record["data_sha256"]), model.hooks.make_tokenizer)
    seen, context = model.config.evaluation.rows, model.config.model.context
    sets = {}
    for source in prepared.sources:
        file = TokenFile.open(source.held_out)
        _, _, seen_bytes = held_out_rows(file, context, seen)
        inputs, targets, all_bytes = held_out_rows(file, context, seen + test_rows)
        if all_bytes > seen_bytes:
            sets[source.name] = HeldOut(inputs[seen:], targets[seen:], all_bytes - seen_bytes)
    evaluation = evaluate(model.engine, sets, model.step)
    assert evaluation is not None
    model.engine.close()
    return {
        "step": evaluation.step,
        "rows": {name: len(held_out.inputs) for name, held_out in sets.items()},
        "loss": dict(evaluation.loss),
        "bits_per_byte": dict(evaluation.bits_per_byte),
    }


if __name__ == "__main__":
    try:
        with leaving():
            sys.exit(run(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
    except AndreaError as error:
        print_line("\n".join(text for text in (f"error: {error.message}", error.hint) if text))
        sys.exit(2)
