"""What the runs of a trial came to, read from their journals, and how the arms compare over the seeds."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import asdict, evolve, field, frozen

from andrea.errors import AndreaError
from andrea.journal import read_journal
from andrea.strict_json import read_json
from andrea.student_t import interval
from andrea.tokenfile import write_whole
from andrea.trial import RESULT, TEST, Job, Trial, read_beside, read_cost

WINDOWS = 50  # parts of a run for which shares are shown
JOURNAL = "journal.jsonl"
ELSEWHERE = ("arm", "seed", "test", "seconds", "curriculum")  # what a file of a run is not asked for
LATEST = 20  # pulls of a source whose training loss is compared with the held-out one

Floats = npt.NDArray[np.float64]


@frozen(eq=False)
class Result:
    """One finished run.

    Attributes
    ----------
    arm, seed
        Which.
    steps, tokens
        How far it came.
    stopped
        Why it ended before the last step; empty when it did not.
    bits_per_byte
        Held-out, after the last step, by source.
    sizes
        Training tokens of each source.
    epochs
        Passes over each source.
    curve
        (tokens seen, mean held-out bits per byte) of every evaluation.
    shares
        Part of the pulls that each source had in each window of the run, float64 (W, S).
    gap
        Held-out loss minus the training loss of the last pulls, nats per token, of each source that was pulled.
    test
        Bits per byte on the test rows, by source; empty when there are none.
    seconds, curriculum
        Time of training, and the part of it that the curriculum's plugins took; NaN when it was not measured.
    """

    arm: str
    seed: int
    steps: int
    tokens: int
    stopped: str
    bits_per_byte: Mapping[str, float]
    sizes: Mapping[str, int]
    epochs: Mapping[str, float]
    curve: Sequence[tuple[int, float]]
    shares: Floats
    gap: Mapping[str, float]
    test: Mapping[str, float] = field(factory=dict)
    seconds: float = math.nan
    curriculum: float = math.nan

    @property
    def mean(self) -> float:
        """Unweighted mean over the sources, bits per byte."""
        return mean_of(self.bits_per_byte)

    @property
    def worst(self) -> float:
        """The highest bits per byte of a source."""
        return max(self.bits_per_byte.values())

    @property
    def weighted(self) -> float:
        """Mean over the sources, each counting by its training tokens."""
        total = sum(self.sizes.values())
        return math.fsum(self.bits_per_byte[name] * size for name, size in self.sizes.items()) / total


def mean_of(values: Mapping[str, float]) -> float:
    """Return the unweighted mean over the sources; of none it is not a number."""
    return math.fsum(values.values()) / len(values) if values else math.nan


# -- reading -----------------------------------------------------------------------------------------------------------


def read_results(jobs: Sequence[Job], say: Callable[[str], None]) -> list[Result]:
    """Return the results of all jobs that are done; one that ended before its first evaluation is only spoken of."""
    results = []
    for job in jobs:
        result = read_result(job) if job.done else None
        if result is not None:
            results.append(result)
        elif job.done:
            say(f"{job.name} ended before it was evaluated once, so it is in no table; {job.folder} says why")
    return results


def read_result(job: Job) -> Result | None:
    """Read one finished run; None when it was never evaluated.

    A journal is long, so what it comes to is kept in a file beside it, which counts while the journal is not newer.
    Time and test rows have files of their own.
    """
    file, journal = job.folder / RESULT, job.folder / JOURNAL
    kept = file.is_file() and (not journal.is_file() or file.stat().st_mtime_ns >= journal.stat().st_mtime_ns)
    result = _kept(job, file) if kept else _from_journal(job)
    if result is None:
        return None
    if not kept:
        _keep(result, file)
    cost = read_cost(job.folder)
    return evolve(
        result,
        test=_test(job) if job.test_rows else {},
        seconds=cost.seconds if cost else math.nan,
        curriculum=cost.curriculum_seconds / cost.seconds if cost and cost.seconds else math.nan,
    )


def _test(job: Job) -> dict[str, float]:
    """Return bits per byte on the test rows, by source."""

    def take(value: Any) -> dict[str, float]:
        found = {name: figure + 0.0 for name, figure in value["bits_per_byte"].items()}
        if found.keys() != value["rows"].keys() or any(figure < 0 for figure in found.values()):
            raise ValueError
        return found

    return read_beside(job.folder / TEST, take, "andrea trial without --report measures it anew") or {}


def _keep(result: Result, file: Path) -> None:
    """Write what a journal came to, where it is numbers and the folder lets itself be written."""
    with suppress(ValueError, OSError):  # a run that diverged has no such numbers: its journal is read every time
        text = json.dumps(asdict(result, filter=_of_journal, value_serializer=_plain), allow_nan=False)
        write_whole(file, text.encode())


def _of_journal(field: Any, _: Any) -> bool:
    return field.name not in ELSEWHERE


def _plain(_: Any, field: Any, value: Any) -> Any:
    return value.tolist() if field is not None and field.name == "shares" else value


def _kept(job: Job, file: Path) -> Result:
    """Return what an earlier look at the journal has kept.

    Raises
    ------
    AndreaError
        When the file is not whole; the journal, if it is still there, tells the same.
    """
    try:
        value = read_json(file)
        for name in ("bits_per_byte", "sizes", "epochs", "gap"):
            value[name] = {str(source): figure + 0 for source, figure in value[name].items()}
        value["curve"] = [(int(tokens), float(mean)) for tokens, mean in value["curve"]]
        value["shares"] = np.array(value["shares"], dtype=np.float64)
        if not value["bits_per_byte"] or value["shares"].ndim != 2:
            raise ValueError
        return Result(arm=job.arm, seed=job.seed, **value)
    except (AndreaError, AttributeError, KeyError, TypeError, ValueError):
        there = (job.folder / JOURNAL).is_file()
        cure = f"it is made anew from {JOURNAL}" if there else "the run must be made again, since its journal is gone"
        raise AndreaError(f"{file} is not what a trial keeps of a run", f"delete it: {cure}") from None


def _from_journal(job: Job) -> Result | None:
    lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in read_journal(job.folder / JOURNAL):
        lines[line["kind"]].append(line)
    if not lines["evaluation"]:
        return None
    name = json.loads((job.folder / "config.json").read_bytes())["name"]
    data = json.loads((job.folder / f"{name}.state.json").read_bytes())["data"]
    last, reasons = lines["evaluation"][-1], lines["stop"][-1]["reasons"]
    return Result(
        arm=job.arm,
        seed=job.seed,
        steps=len(lines["step"]),
        tokens=sum(line["tokens"] for line in lines["step"]),
        stopped="; ".join(f"{who}: {why}" for who, why in reasons.items() if who != "stop.max_steps"),
        bits_per_byte=last["bits_per_byte"],
        sizes=dict(zip(data["sources"], data["tokens"], strict=True)),
        epochs=_epochs(data),
        curve=_curve(lines["step"], lines["evaluation"]),
        shares=_shares(lines["step"], data["sources"]),
        gap=_gap(lines["step"], last["loss"]),
    )


def _epochs(data: Mapping[str, Any]) -> dict[str, float]:
    parts = zip(data["sources"], data["epoch"], data["index"], data["documents"], strict=True)
    return {name: epoch + index / documents for name, epoch, index, documents in parts}


def _curve(steps: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    seen = np.cumsum([line["tokens"] for line in steps])
    return [(int(seen[line["step"] - 1]), mean_of(line["bits_per_byte"])) for line in evaluations]


def _shares(steps: Sequence[Mapping[str, Any]], sources: Sequence[str]) -> Floats:
    windows = min(WINDOWS, len(steps))
    counts = np.zeros((windows, len(sources)))
    for number, line in enumerate(steps):
        for pull in line["pulls"]:
            counts[number * windows // len(steps), sources.index(pull["source"])] += 1
    return np.asarray(counts / counts.sum(axis=1, keepdims=True), dtype=np.float64)


def _gap(steps: Sequence[Mapping[str, Any]], held_out: Mapping[str, float]) -> dict[str, float]:
    losses: dict[str, list[float]] = defaultdict(list)
    for line in reversed(steps):
        for pull in line["pulls"]:
            if len(losses[pull["source"]]) < LATEST and isinstance(pull["loss"], float):
                losses[pull["source"]].append(pull["loss"])
    return {name: held_out[name] - math.fsum(seen) / len(seen) for name, seen in losses.items() if seen}


# -- comparing ---------------------------------------------------------------------------------------------------------


@frozen
class Summary:
    """One arm over its finished seeds.

    Attributes
    ----------
    arm, seeds, stopped
        Which, and how many of its runs ended early.
    mean, worst, weighted
        Bits per byte, means over the seeds.
    spread
        Standard deviation of the mean over the seeds; NaN for one.
    differences
        By arm compared with: the mean paired difference of the mean, and half of its 95% interval; negative is better.
    worse
        Sources that are worse than under the baseline by more than the baseline's spread over the seeds; None for the
        baseline, and where one seed shows no spread.
    tokens_to_reach
        Tokens at which the baseline's final mean was reached, as a part of those that the baseline took; means over
        the seeds, None when a seed did not reach it.
    gap
        (source, nats per token) of the largest memorisation gap.
    epochs
        (source, passes) of the source that was repeated most.
    seconds, curriculum
        Means over the seeds.
    test, test_differences
        As `mean` and `differences`, on the test rows; NaN and empty when there are none.
    """

    arm: str
    seeds: tuple[int, ...]
    stopped: int
    mean: float
    spread: float
    worst: float
    weighted: float
    differences: Mapping[str, tuple[float, float]]
    worse: int | None
    tokens_to_reach: float | None
    gap: tuple[str, float]
    epochs: tuple[str, float]
    seconds: float
    curriculum: float
    test: float
    test_differences: Mapping[str, tuple[float, float]]


Table = Mapping[str, Mapping[int, Result]]


def by_arm(trial: Trial, results: Sequence[Result]) -> dict[str, dict[int, Result]]:
    """Return the results by arm, in the order of the trial, and by seed."""
    table: dict[str, dict[int, Result]] = {arm: {} for arm in trial.arms}
    for result in sorted(results, key=lambda one: one.seed):
        table[result.arm][result.seed] = result
    return {arm: found for arm, found in table.items() if found}


def summarise(trial: Trial, table: Table) -> list[Summary]:
    """Return a summary of every arm that has a finished run."""
    return [_summary(trial, arm, table) for arm in table]


def _summary(trial: Trial, arm: str, table: Table) -> Summary:
    results = list(table[arm].values())
    baseline = table.get(trial.baseline, {})
    others = [other for other in trial.compared if other != arm and table.get(other)]
    test = [mean_of(one.test) for one in results if one.test]
    return Summary(
        arm=arm,
        seeds=tuple(table[arm]),
        stopped=sum(bool(one.stopped) for one in results),
        mean=_mean([one.mean for one in results]),
        spread=_spread([one.mean for one in results]),
        worst=_mean([one.worst for one in results]),
        weighted=_mean([one.weighted for one in results]),
        differences=_paired(table, arm, others, lambda one: one.mean),
        worse=None if arm == trial.baseline else count_worse(table[arm], baseline),
        tokens_to_reach=tokens_to_reach(table[arm], baseline),
        gap=_largest([one.gap for one in results]),
        epochs=_largest([one.epochs for one in results]),
        seconds=_mean([one.seconds for one in results]),
        curriculum=_mean([one.curriculum for one in results]),
        test=_mean(test) if test else math.nan,
        test_differences=_paired(table, arm, others, lambda one: mean_of(one.test)) if test else {},
    )


def _paired(table: Table, arm: str, others: Sequence[str], figure: Any) -> dict[str, tuple[float, float]]:
    found = {}
    for other in others:
        common = [seed for seed in table[arm] if seed in table[other]]
        if common:
            found[other] = interval([figure(table[arm][seed]) - figure(table[other][seed]) for seed in common])
    return found


def count_worse(results: Mapping[int, Result], baseline: Mapping[int, Result]) -> int | None:
    """Return how many sources are worse than under the baseline by more than its spread over the seeds."""
    common = [seed for seed in results if seed in baseline]
    if len(common) < 2:
        return None
    worse = 0
    for source in baseline[common[0]].bits_per_byte:
        before = [baseline[seed].bits_per_byte[source] for seed in common]
        now = [results[seed].bits_per_byte[source] for seed in common]
        worse += _mean(now) - _mean(before) > _spread(before)
    return worse


def tokens_to_reach(results: Mapping[int, Result], baseline: Mapping[int, Result]) -> float | None:
    """Return the part of the baseline's tokens after which its final mean is reached, over the common seeds.

    Between two evaluations the curve is taken as straight.
    """
    parts = []
    for seed in results:
        if seed in baseline:
            reached = _first_at(results[seed].curve, baseline[seed].mean)
            if reached is None:
                return None
            parts.append(reached / baseline[seed].tokens)
    return _mean(parts) if parts else None


def _first_at(curve: Sequence[tuple[int, float]], target: float) -> float | None:
    before: tuple[int, float] | None = None
    for tokens, value in curve:
        if value <= target:
            if before is None:
                return float(tokens)
            part = (before[1] - target) / (before[1] - value)
            return before[0] + part * (tokens - before[0])
        before = tokens, value
    return None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _spread(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def _largest(maps: Sequence[Mapping[str, float]]) -> tuple[str, float]:
    """Return the source whose mean over the seeds is the largest, and that mean."""
    values: dict[str, list[float]] = defaultdict(list)
    for one in maps:
        for name, value in one.items():
            values[name].append(value)
    means = {name: _mean(found) for name, found in values.items()}
    name = max(means, key=lambda key: means[key])
    return name, means[name]
