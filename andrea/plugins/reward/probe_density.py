"""From nats per token to what compares between sources: how many tokens a source needs for a byte."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, Evaluation

UNITS = ("bits_per_byte", "nats")


def tokens_per_byte(evaluation: Evaluation, sources: tuple[str, ...]) -> npt.NDArray[np.float64]:
    """Return each source's tokens per byte relative to the mean of all, float64 (S,).

    An evaluation gives every held-out set in nats per token and in bits per byte, so their ratio is its tokens per
    byte / ln 2. Losses times the result are in proportion to bits per byte, in the unit of nats per average token: what
    was rewarded before the first evaluation, in nats, has about the same size.
    """
    ratios = np.array([evaluation.bits_per_byte[name] / evaluation.loss[name] for name in sources], dtype=np.float64)
    return np.asarray(ratios / ratios.mean(), dtype=np.float64) if np.isfinite(ratios).all() else np.ones(len(sources))


def refuse_unknown_unit(plugin: str, unit: str) -> None:
    """Raise `AndreaError` for a unit that does not exist."""
    if unit not in UNITS:
        raise AndreaError(f"{plugin}.unit is {unit!r}", f"{' or '.join(UNITS)}: --set {plugin}.unit={UNITS[0]}")
