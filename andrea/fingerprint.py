"""The fingerprint of a run: everything that a bit-exact resume depends on, part by part."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from andrea import __version__
from andrea.errors import AndreaError
from andrea.planning import Mode, Plan
from andrea.registry import source_digest
from andrea.tokens import Prepared

REFERENCE = ("__init__", "model", "network", "operations", "reference", "sampling", "schedule")  # engine of the CPU


def fingerprint(
    plan: Plan, plugins: Sequence[tuple[str, Any]], prepared: Prepared, engine: Mapping[str, str]
) -> dict[str, str]:
    """Return everything that a bit-exact resume depends on, part by part."""
    versions = {one.name: one.entry.version for one in plan.chosen}
    parts = {f"engine {key}": value for key, value in sorted(engine.items())}
    parts["andrea"] = f"{__version__} {own_digest(plan.device.kind)}"
    parts["python"] = f"{sys.version_info.major}.{sys.version_info.minor}"
    for name, target in plugins:
        if not name.startswith("log."):
            parts[f"plugin {name}"] = f"{versions[name]} {source_digest(target)}"
    parts["data"] = prepared.sha256
    parts["tokenizer"] = prepared.tokenizer.fingerprint
    return parts


@functools.cache
def own_digest(device: str) -> str:
    """Return the digest of our own text that decides numbers: the engine in use, batches, loop, evaluation, draws.

    Read once: an edit on the disk changes the next process, not the one that has loaded its modules.
    """
    digest = hashlib.sha256()
    for path in own_files(device):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def own_files(device: str) -> list[Path]:
    """Return the files of `own_digest`: of the engine only those of the implementation that the device takes."""
    here = Path(__file__).parent
    engine = [here / "engine" / f"{name}.py" for name in REFERENCE] if device == "cpu" else here.glob("engine/*.py")
    own = ("batches", "evaluate", "grams", "human", "known", "loop", "rng", "types", "words")
    return [*(here / f"{name}.py" for name in own), *sorted(engine)]


def check_drift(plan: Plan, identity: Mapping[str, Any]) -> None:
    """Refuse to resume where the numbers would come out otherwise, unless the user allows it."""
    if plan.snapshot is None or plan.request.mode is not Mode.RESUME or plan.request.allow_drift:
        return
    before, now = plan.snapshot.record["fingerprint"], identity["fingerprint"]
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    drift = [f"{key}: {before.get(key)} -> {now.get(key)}" for key in keys]
    if drift:
        raise AndreaError(
            "the run would not go on bit for bit, since this has changed:\n  " + "\n  ".join(drift),
            "--allow-drift goes on all the same",
        )
