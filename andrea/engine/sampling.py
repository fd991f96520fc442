"""Choosing the next id from logits, and which ids the model still sees: one rule for every engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from andrea.errors import AndreaError, NotFiniteError

if TYPE_CHECKING:
    from andrea.engine import GenerateOptions


def check_options(options: GenerateOptions) -> None:
    """Refuse options that mean nothing.

    Raises
    ------
    AndreaError
        Naming the option and its range.
    """
    ranges = {
        "max_tokens": (options.max_tokens >= 0, "at least 0"),
        "temperature": (options.temperature >= 0, "at least 0; 0 takes the most likely id"),
        "top_k": (options.top_k >= 0, "at least 0; 0 keeps all ids"),
        "top_p": (0 < options.top_p <= 1, "above 0 and at most 1; 1 keeps all ids"),
        "repetition_penalty": (options.repetition_penalty > 0, "above 0; 1 is no penalty"),
        "first": (options.first >= 0, "at least 0; it is the number of a row"),
    }
    for name, (fits, meaning) in ranges.items():
        if not fits:
            raise AndreaError(f"{name} is {getattr(options, name)}", f"{name} must be {meaning}")


def window_start(length: int, context: int) -> int:
    """Return the index of the first id that the model sees when `length` ids are there.

    All of them while they fit. Then the window jumps ahead, so that it never exceeds the context and the last
    `context // 2` ids always stay: positions are absolute, so every move costs a recomputation of the window, and a
    jump by half a context makes it rare.
    """
    if length <= context:
        return 0
    jump = context - context // 2
    return -(-(length - context) // jump) * jump


def choose(logits_V: npt.NDArray[Any], options: GenerateOptions, history: Sequence[int], uniform: float) -> int:
    """Return the next id: a function of its arguments alone.

    In this order: repetition penalty, temperature, top-k, top-p, then the inverse of the cumulative distribution in
    the order of ids. All in float64. Equal logits rank by id, lowest first.

    Parameters
    ----------
    logits_V
        Scores of every id, finite.
    options
        How text is drawn.
    history
        Ids already in the row, prompt included.
    uniform
        A number in [0, 1); not used at temperature 0.

    Raises
    ------
    ValueError
        When a logit is not finite.
    """
    scores = np.array(logits_V, dtype=np.float64)
    if not np.isfinite(scores).all():
        raise NotFiniteError
    if options.repetition_penalty != 1 and len(history):
        seen = np.unique(np.asarray(history, dtype=np.int64))
        penalty = options.repetition_penalty
        scores[seen] = np.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)
    if options.temperature == 0:
        return int(np.argmax(scores))
    scores -= scores.max()
    kept = _kept_ids(scores / options.temperature, options)
    edges = np.cumsum(np.exp(scores[kept] / options.temperature))
    index = int(np.searchsorted(edges, uniform * edges[-1], side="right"))
    return int(kept[min(index, len(kept) - 1)])


def _kept_ids(scores: npt.NDArray[np.float64], options: GenerateOptions) -> npt.NDArray[np.int64]:
    """Return the ids that top-k, and then top-p of what is left, keep, ascending."""
    if not 0 < options.top_k < scores.size and options.top_p >= 1:
        return np.arange(scores.size)
    order = np.argsort(-scores, kind="stable")
    if options.top_k:
        order = order[: options.top_k]
    if options.top_p < 1:
        edges = np.cumsum(np.exp(scores[order]))
        order = order[: int(np.searchsorted(edges, options.top_p * edges[-1], side="left")) + 1]
    return np.sort(order)
