"""How soon and how fast a model answers, through what `andrea chat` does: the 120M in bf16, one row.

A model is trained for a few steps first: what it says does not matter, how long that takes does. Delays are from the
question to the first text that is shown, the prompt's reading included; the first reply of a process is told apart. The
pace is that of texts of a fixed length, whose end nothing cuts: so young a model ends its replies after a few tokens.
Prints a line a claim, writes one JSON, and exits with 1 when a claim fails.

python benchmarks/chat_speed.py [--device cuda] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import evolve
from real_run import documentation, experiment

from andrea.assembly import open_run
from andrea.chat import Chat
from andrea.engine import GenerateOptions
from andrea.interrupts import Interrupts
from andrea.planning import Request, plan
from andrea.trained import Model, open_model

STEPS, REPLIES = 20, 8
OPTIONS = GenerateOptions(256, temperature=0.8, top_p=0.95)  # what `andrea chat` draws with by default
DELAY, PACE = 0.2, 1500.0  # seconds at most; tokens a second at least
LENGTH, TEXTS = 512, 3  # tokens of a text whose pace is measured, and how many such texts after one that warms up
QUESTIONS = ("What does the function return?", "Why?", "Describe a class that holds the lines of a file.")


def train(value: Mapping[str, Any], device: str, folder: Path) -> Path:
    """Train an experiment as `andrea run` does, and return its run's folder."""
    path = folder / "experiment.json"
    path.write_text(json.dumps(value))
    planned = plan(Request(experiment=str(path), device=device, out=folder / "run"), _say)
    with Interrupts() as interrupts:
        loop = open_run(planned, _say, lambda *_: None, interrupts)
        loop.run()
        loop.engine.close()
    return planned.folder


def talk(model: Model, options: GenerateOptions = OPTIONS, replies: int = REPLIES) -> dict[str, Any]:
    """Ask some questions in one conversation; return delays in seconds and tokens of each reply, and their pace."""
    chat = Chat(model, options)
    delays: list[float] = []
    tokens: list[int] = []
    seconds: list[float] = []
    for number in range(replies):
        shown: list[float] = []
        begin = time.perf_counter()
        written = chat.reply(QUESTIONS[number % len(QUESTIONS)], lambda new, at=shown: at.append(time.perf_counter()))
        end = time.perf_counter()
        delays.append((shown[0] if shown else end) - begin)
        seconds.append(end - begin)
        tokens.append(written.tokens)
    return {
        "first_reply_delay": delays[0],
        "delay": statistics.median(delays[1:]),
        "longest_delay": max(delays[1:]),
        "tokens": tokens,
        "seconds": seconds,
    }


def pace(model: Model, length: int = LENGTH) -> float:
    """Return the tokens a second of one row, its prompt included; the median of some texts."""
    rates = []
    for number in range(TEXTS + 1):
        begin = time.perf_counter()
        (ids,) = model.engine.generate([[1, 2, 3]], evolve(OPTIONS, max_tokens=length, seed=number))
        rates.append(len(ids) / (time.perf_counter() - begin))
    return statistics.median(rates[1:])


def claims(found: Mapping[str, Any]) -> dict[str, bool]:
    """Return what must be true of the figures."""
    return {
        f"the first text of a reply comes within {DELAY} s": found["longest_delay"] <= DELAY,
        f"one row is written at {PACE:,.0f} tokens/s or more": found["tokens_per_second"] >= PACE,
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def main() -> int:
    """Train, talk, and say what holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        os.environ.setdefault("ANDREA_CACHE", f"{place}/cache")
        quiet = {"sampling": {"sample_every": STEPS + 1}, "evaluation": {"eval_every": STEPS + 1}}
        folder = train(experiment("120M:8", STEPS, documentation(), **quiet), options.device, Path(place))
        begin = time.perf_counter()
        model = open_model(folder, None, options.device, _say, rows=1)
        opened = time.perf_counter() - begin
        found = talk(model) | {
            "tokens_per_second": pace(model),
            "open_seconds": opened,
            "memory_planned": sum(b.bytes for b in model.engine.memory_plan()),
        }
        model.engine.close()
    found["claims"] = claims(found)
    for claim, holds in found["claims"].items():
        print(f"chat         {'holds' if holds else 'FAILS'}  {claim}", flush=True)
    print(f"chat         first text after {found['delay']:.3f} s, {found['tokens_per_second']:,.0f} tokens/s")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))
    return int(not all(found["claims"].values()))


if __name__ == "__main__":
    sys.exit(main())
