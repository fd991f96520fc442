"""What each hook may answer: shape, type and range, stricter than the loop, which mends what it can."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from andrea.journal import plain
from andrea.types import Choice, Limits, Precision, Run

REQUESTS = {"checkpoint", "stop"}
_STORAGE = ("float32", "float16", "bfloat16")


def faults_of(hook: str, answer: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with an answer."""
    judge: Callable[[Any, Mapping[str, Any]], Iterator[str]] | None = _JUDGES.get(hook)
    if judge is not None:
        yield from judge(answer, arguments)
    elif hook.startswith("on_") and answer is not None:
        yield f"answers {answer!r}; nobody reads it"


def _array(answer: Any, run: Run, what: str = "answer") -> Iterator[str]:
    wanted = (len(run.sources),)
    if not isinstance(answer, np.ndarray):
        yield f"the {what} is a {type(answer).__name__}, not an array"
    elif answer.shape != wanted:
        yield f"the {what} has shape {answer.shape}, not {wanted}: one number for each source"
    elif answer.dtype != np.float64:
        yield f"the {what} has the type {answer.dtype}, not float64"


def _scores(answer: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    found = list(_array(answer, arguments["run"]))
    yield from found
    if not found and (np.isnan(answer).any() or np.isneginf(answer).any()):
        yield f"scores are numbers, or inf for a source never tried, not {answer.tolist()}"


def _weights(answer: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    found = list(_array(answer, arguments["run"]))
    yield from found
    if not found and not (np.isfinite(answer).all() and (answer >= 0).all()):
        yield f"weights are finite and at least 0, not {answer.tolist()}"


def _limits(answer: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(answer, Limits):
        yield f"the answer is a {type(answer).__name__}, not Limits(floor, cap)"
        return
    found = [*_array(answer.floor, arguments["run"], "floor"), *_array(answer.cap, arguments["run"], "cap")]
    yield from found
    if not found and not (np.isfinite(answer.floor).all() and (answer.floor >= 0).all()):
        yield f"floors are finite and at least 0, not {answer.floor.tolist()}"
    if not found and not (answer.cap >= 0).all():
        yield f"caps are at least 0, or inf, not {answer.cap.tolist()}"


def _choice(answer: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    run, weights = arguments["run"], arguments["weights"]
    choice = answer if isinstance(answer, Choice) else Choice(answer)
    source = choice.source
    if isinstance(source, bool) or not isinstance(source, (int, np.integer)):
        yield f"chooses {source!r}, which is no index"
    elif not 0 <= source < len(run.sources):
        yield f"chooses {source}, which is no index of {len(run.sources)} sources"
    elif not weights[source] > 0:
        yield f"chooses source {source}, whose weight is 0: a mask is a mask, whatever its floor"
    try:
        json.dumps(plain(dict(choice.detail)), allow_nan=False)
    except (TypeError, ValueError) as error:
        yield f"the detail of the choice cannot stand in the journal: {error}"


def _probes(answer: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(answer, str) or not all(isinstance(name, str) for name in answer or ()):
        yield f"asks for {answer!r}, which is no sequence of names"
    elif unknown := [name for name in answer or () if name not in arguments["run"].sources]:
        yield f"asks for {unknown[0]!r}, which is no source"


def _reward(answer: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(answer, dict) or not all(isinstance(name, str) for name in answer):
        yield f"the answer is {answer!r}, not numbers by name"
        return
    for name, value in answer.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            yield f"the term {name!r} is {value!r}, not a finite number"


def _reason(answer: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    if answer is not None and (not isinstance(answer, str) or not answer.strip()):
        yield f"answers {answer!r}; a reason is a text, and no reason is None"


def _keys(answer: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(answer, (list, tuple)):
        yield f"answers {answer!r}, not a list of keys"
    elif wrong := [key for key in answer if type(key) is not int or not 0 <= key < 2**64]:
        yield f"gives the key {wrong[0]!r}; keys are whole numbers from 0 to 2**64 - 1"


def _requests(answer: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    if answer is not None and (not isinstance(answer, (set, frozenset)) or not answer <= REQUESTS):
        yield f"answers {answer!r}, not a set of {sorted(REQUESTS)}"


def _precision(answer: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(answer, Precision):
        yield f"the answer is a {type(answer).__name__}, not a Precision"
        return
    if answer.storage not in _STORAGE:
        yield f"storage {answer.storage!r} is none of {', '.join(_STORAGE)}"
    if answer.multiply not in (*_STORAGE, "tf32"):
        yield f"multiply {answer.multiply!r} is none of {', '.join(_STORAGE)}, tf32"
    if not (math.isfinite(answer.loss_scale) and answer.loss_scale >= 1 and answer.loss_scale_window >= 1):
        yield f"loss_scale {answer.loss_scale} and loss_scale_window {answer.loss_scale_window} must be at least 1"
    if not all(isinstance(part, str) for pair in answer.macros.items() for part in pair):
        yield f"macros are texts by name, not {dict(answer.macros)!r}"


_JUDGES: dict[str, Callable[[Any, Mapping[str, Any]], Iterator[str]]] = {
    "score_sources": _scores,
    "weigh_sources": _weights,
    "limit_sources": _limits,
    "select_source": _choice,
    "request_probes": _probes,
    "reward": _reward,
    "keep_document": _reason,
    "identify_document": _keys,
    "should_stop": _reason,
    "on_signal": _requests,
    "choose_precision": _precision,
}
