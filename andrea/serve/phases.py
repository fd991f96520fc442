"""The phases through which a model grows: random, frequency, structure, coherence, knowledge.

docs/dashboard.md says what was measured to set the thresholds.
"""

from __future__ import annotations

import math
from bisect import bisect_right

from andrea.serve.history import History

RANDOM = 0.9  # of chance, ln V: a smoothed loss above is as good as guessing
FREQUENCY = 2.85  # bits per byte held out, the mean of all sources: above, tokens are known by how often they occur
STRUCTURE = 1.9  # above, by their neighbours
KNOWLEDGE = 1.1  # below, more is known than how texts go on
COHERENT = 30.0  # of 100: samples at or below are loops, as stop.coherence counts them
MOST = 256  # places of a history at which is looked, beside those where it was evaluated


def phase_of(smma: float, chance: float, bits_per_byte: float | None, coherence: float | None) -> str:
    """Return the phase of a model.

    Parameters
    ----------
    smma
        Smoothed training loss, nats per token.
    chance
        Loss of guessing, ln V; NaN when it is not known, which leaves "random" out.
    bits_per_byte
        Mean of the held-out sources; None before the first evaluation.
    coherence
        Score of the samples, 0-100; None before the first.
    """
    if smma >= RANDOM * chance or math.isnan(smma):
        return "random"
    if bits_per_byte is None or not bits_per_byte < FREQUENCY:
        return "frequency"
    if not bits_per_byte < STRUCTURE or (coherence is not None and coherence <= COHERENT):
        return "structure"
    return "coherence" if bits_per_byte >= KNOWLEDGE else "knowledge"


def phases(history: History, chance: float) -> list[tuple[int, str]]:
    """Return (step, phase) wherever another one begins."""
    steps, smma = history.rows["step"], history.rows["smma"]
    evaluated = [row for row, _ in history.evaluations]
    means = [mean_bits(line.bits_per_byte) for _, line in history.evaluations]
    scored = [step for step, _ in history.coherence]
    looked = {len(steps) * part // MOST for part in range(MOST)} | {row - 1 for row in evaluated} | {len(steps) - 1}
    found: list[tuple[int, str]] = []
    for row in sorted(row for row in looked if 0 <= row < len(steps)):
        known = bisect_right(evaluated, row + 1)
        heard = bisect_right(scored, steps[row] + 1)
        score = history.coherence[heard - 1][1] if heard else None
        phase = phase_of(smma[row], chance, means[known - 1] if known else None, score)
        if not found or found[-1][1] != phase:
            found.append((steps[row], phase))
    return found


def mean_bits(bits_per_byte: dict[str, float | str]) -> float:
    """Return the mean over sources, NaN of none."""
    values = [float(value) for value in bits_per_byte.values()]
    return math.fsum(values) / len(values) if values and all(map(math.isfinite, values)) else math.nan
