"""How long a run takes from its command to its first step: with nothing compiled yet, and again.

The data is prepared before. Every start is a process of its own, `andrea run EXPERIMENT --steps 1`, and the clock stops
when it prints its first step. A cold start finds neither compiled kernels nor Python's bytecode, and leaves both to the
warm ones that follow, whose median counts. Writes one JSON and exits with 1 when a start takes too long. With --profile
one more warm start of the first point tells where its time goes, import and all.

python benchmarks/start.py [--only 120M:64] [--device cuda] [--warm 3] [--out FILE] [--profile FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from real_run import documentation, experiment

#: Seconds that a cold and a warm start may take.
POINTS = {"120M:64": (10.0, 2.0), "12M:8": (10.0, 2.0)}


def andrea(*arguments: str, under: Sequence[str] = ()) -> list[str]:
    """Return the command line of one of andrea's commands, perhaps under another module of Python."""
    return [sys.executable, *under, "-m", "andrea", *arguments]


def first_step(experiment_file: Path, device: str, out: Path, under: Sequence[str] = ()) -> float:
    """Start a run and return the seconds until it has printed its first step."""
    command = andrea("run", str(experiment_file), "--steps", "1", "--device", device, "--out", str(out), under=under)
    begin = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        printed: list[str] = []
        seconds = None
        for line in process.stderr:
            printed.append(line)
            if seconds is None and line.startswith("step 1/"):
                seconds = time.perf_counter() - begin
    if process.returncode not in (0, 3) or seconds is None:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{''.join(printed)}")
    return seconds


def profile(experiment_file: Path, device: str, out: Path, text: Path) -> None:
    """Write where a start spends its time, functions that take most with all that they call first."""
    with tempfile.NamedTemporaryFile() as stats, text.open("w") as written:
        first_step(experiment_file, device, out, under=("-m", "cProfile", "-o", stats.name))
        pstats.Stats(stats.name, stream=written).sort_stats("cumulative").print_stats(120)


def main() -> int:
    """Measure every point; the exit code is 1 when a start took too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(POINTS), default=list(POINTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--warm", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--profile", type=Path)
    options = parser.parse_args()
    document: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["ANDREA_CACHE"] = str(folder / "prepared")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # bytecode is kept as on any user's machine
        for point in options.only:
            file, runs = folder / f"{point.replace(':', '-')}.json", folder / point.replace(":", "-")
            file.write_text(json.dumps(experiment(point, 600, documentation()[:1])))
            subprocess.run(andrea("prepare", str(file)), check=True, stdout=subprocess.DEVNULL)
            os.environ["XDG_CACHE_HOME"] = str(runs / "kernels")  # where the compiled kernels are kept
            os.environ["PYTHONPYCACHEPREFIX"] = str(runs / "bytecode")
            cold = first_step(file, options.device, runs / "cold")
            warm = [first_step(file, options.device, runs / f"warm{number}") for number in range(options.warm)]
            allowed, usual = POINTS[point], statistics.median(warm)
            document[point] = {
                "claims": {
                    f"a cold start takes at most {allowed[0]:.0f} s": cold <= allowed[0],
                    f"a warm start takes at most {allowed[1]:.0f} s": usual <= allowed[1],
                },
                "cold_seconds": round(cold, 3),
                "warm_seconds": [round(seconds, 3) for seconds in warm],
            }
            print(f"{point:8s} first step after {cold:.1f} s cold, {usual:.1f} s warm", flush=True)
            if options.profile and point == options.only[0]:
                profile(file, options.device, runs / "profiled", options.profile)
            if options.out:
                options.out.write_text(json.dumps(document, indent=1) + "\n")
    return int(not all(true for point in document.values() for true in point["claims"].values()))


if __name__ == "__main__":
    sys.exit(main())
