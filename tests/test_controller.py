"""benchmarks/controller.py: what the host does between the result of a step and the next launch, measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "controller.py"


def test_the_controller_is_measured(tmp_path):
    """Every stack has its figures, its parts do not exceed the whole, and runs with and without timing agree."""
    out = tmp_path / "found.json"
    options = ("--steps", "230", "--repeat", "1", "--only", "argmax", "--json", str(out))
    subprocess.run([sys.executable, str(SCRIPT), *options], check=True, capture_output=True)

    found = json.loads(out.read_text())
    assert list(found) == ["argmax:1", "argmax:16"]
    for row in found.values():
        assert 0 < row["p10"] <= row["median"] <= row["p95"]
        assert all(row[part] > 0 for part in ("rewards", "learning", "selection", "batches", "loop"))
    assert found["argmax:1"]["journal"] != found["argmax:16"]["journal"]
