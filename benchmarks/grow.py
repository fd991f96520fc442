"""Grow a model in one command, prove that a cut in the middle changes nothing, and keep what it came to as figures.

    python benchmarks/grow.py EXPERIMENT --out FOLDER [--data FOLDER] [--device cuda] [--set KEY=VALUE ...] [--cut]

FOLDER/whole is the run. With --cut its files are copied to FOLDER/cut when it is half way, as a loss of power would
leave them there; then the copy is resumed, and the numbers of both must be the same bytes. FOLDER/figures.json has
losses (SMMA), held-out bits per byte, samples and the time that it took.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import andrea
from andrea.columns import smooth

POINTS = 20  # of the loss curve that are kept


def train(folder: Path, arguments: Sequence[str], cut: Path | None) -> float:
    """Train until the end, and copy what is on disk in the middle to `cut`; return the seconds without the copy."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "andrea", "run", *arguments, "--out", str(folder)])
    pause = 0.0
    while cut is not None and process.poll() is None and not half_way(folder):
        time.sleep(0.2)
    if cut is not None and process.poll() is None:
        pause = time.perf_counter()
        copy_at_rest(process, folder, cut)
        pause = time.perf_counter() - pause
    if code := process.wait():
        raise subprocess.CalledProcessError(code, process.args)
    return time.perf_counter() - begin - pause


def copy_at_rest(process: subprocess.Popen[bytes], folder: Path, cut: Path) -> None:
    """Copy the files of a process that is stopped meanwhile, so that they are of one moment."""
    process.send_signal(signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        shutil.copytree(folder, cut)
    finally:
        process.send_signal(signal.SIGCONT)


def half_way(folder: Path) -> bool:
    """Return whether a run has come to the middle of its schedule, and has a checkpoint."""
    if not any(folder.glob("checkpoints/step_*.json")):
        return False
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return done(folder) >= config["schedule"]["steps"] // 2


def resume(folder: Path, arguments: Sequence[str], steps: int) -> int:
    """Train on from the newest checkpoint until the end; return the step of that.

    Raises
    ------
    RuntimeError
        When there is nothing to train, which would prove nothing.
    """
    newest = max((int(path.stem[5:]) for path in folder.glob("checkpoints/step_*.json")), default=0)
    if not 0 < newest < steps:
        raise RuntimeError(f"nothing was cut: no checkpoint between the first step and {steps}; set checkpoints.every")
    device = arguments[arguments.index("--device") : arguments.index("--device") + 2]
    command = [sys.executable, "-m", "andrea", "run", "--resume", "--out", str(folder), *device]
    subprocess.run(command, check=True)
    return newest


def done(folder: Path) -> int:
    """Return the last step that the journal knows."""
    journal = folder / "journal.jsonl"
    if not journal.is_file():
        return 0
    with journal.open("rb") as file:
        file.seek(max(0, journal.stat().st_size - 100_000))
        lines = file.read().split(b"\n")[1:-1]
    return next((line["step"] for line in map(json.loads, reversed(lines)) if line["kind"] == "step"), 0)


def differences(one: Path, other: Path, steps: int) -> list[str]:
    """Return what of the last checkpoint, the journal, the losses and the samples is not the same in another run."""
    patterns = (f"checkpoints/step_{steps:06d}.*", "journal.jsonl", "*.loss.json", "*.samples.json")
    names = {str(path.relative_to(one)) for pattern in patterns for path in one.glob(pattern)}
    return sorted(n for n in names if not (other / n).is_file() or (one / n).read_bytes() != (other / n).read_bytes())


def figures(folder: Path) -> dict[str, Any]:
    """Return what a run came to."""
    run = andrea.Run.open(folder)
    steps, evaluations, samples = run.steps, run.evaluations, run.samples
    chosen = [*range(0, steps.rows - 1, max(1, steps.rows // POINTS)), steps.rows - 1]
    smoothed = smooth(steps["loss"])
    return {
        "steps": steps.rows,
        "tokens": int(steps["tokens"].sum()),
        "curve": [[int(steps["step"][i]) + 1, round(float(smoothed[i]), 4)] for i in chosen],
        "bits_per_byte": [
            [int(step), source, round(float(bits), 4)]
            for step, source, bits in zip(*(evaluations[n] for n in ("step", "source", "bits_per_byte")), strict=True)
        ],
        "samples": [[int(step), text] for step, text in zip(samples["step"], samples["text"], strict=True)],
    }


def write(path: Path, found: dict[str, Any]) -> None:
    """Write figures, a line each."""
    lines = (f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in found.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main() -> int:
    """Train, compare, write; the exit code is 1 when the run that was cut has other numbers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("experiment")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--cut", action="store_true")
    asked = parser.parse_args()
    arguments = [asked.experiment, "--device", asked.device, *(["--data", asked.data] if asked.data else [])]
    for one in asked.set:
        arguments += ["--set", one]
    whole, cut = asked.out / "whole", asked.out / "cut"
    seconds = train(whole, arguments, cut if asked.cut else None)
    found = {"seconds": round(seconds, 1), **figures(whole)}
    write(asked.out / "figures.json", found)
    if asked.cut:
        found["cut_at"] = done(cut)
        found["resumed_from"] = resume(cut, arguments, found["steps"])
        found["cut_differs_in"] = differences(whole, cut, found["steps"])
        write(asked.out / "figures.json", found)
    print(json.dumps({key: found[key] for key in found if key not in ("curve", "samples", "bits_per_byte")}))
    return 1 if found.get("cut_differs_in") else 0


if __name__ == "__main__":
    sys.exit(main())
