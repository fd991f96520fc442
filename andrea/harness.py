"""Our models in EleutherAI's lm-evaluation-harness: its three questions answered, and its tasks run.

Imported only when asked for: the harness, and what it needs, is large. ``pip install 'andrea[lm-eval]'``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

from andrea.engine import GenerateOptions
from andrea.errors import AndreaError, did_you_mean
from andrea.scoring import ROWS, continue_texts, score_pairs, score_texts
from andrea.trained import Model

Progress = Callable[[str, int, int], None]
Answer = TypeVar("Answer")
TOKENS = 256  # of a text, where a task does not say


class HarnessModel(LM):  # type: ignore[misc]
    """A model as the harness asks it.

    Parameters
    ----------
    model
        An open model.
    progress
        Told (stage, done, total).
    """

    def __init__(self, model: Model, progress: Progress = lambda stage, done, total: None) -> None:
        super().__init__()
        self._model, self._progress = model, progress

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return of each (context, continuation) its log-likelihood, and whether it is the greedy one."""
        return self._in_parts("loglikelihood", requests, lambda part: score_pairs(self._model, part, self._progress))

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of each whole text."""

        def score(part: Sequence[Any]) -> list[float]:
            return score_texts(self._model, [text for (text,) in part], self._progress)

        return self._in_parts("loglikelihood_rolling", requests, score)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the text that follows each context, greedy unless the task asks for draws."""
        answers: list[str] = []
        for how, group in itertools.groupby(requests, key=lambda one: json.dumps(one.args[1], sort_keys=True)):
            options, stops = read_options(json.loads(how))

            def write(part: Sequence[Any], options: GenerateOptions = options, stops: Any = stops) -> list[str]:
                return continue_texts(self._model, [text for text, _ in part], options, stops, self._progress)

            answers += self._in_parts("generate_until", list(group), write)
        return answers

    def _in_parts(
        self, name: str, requests: Sequence[Instance], answer: Callable[[Sequence[Any]], list[Answer]]
    ) -> list[Answer]:
        """Answer some requests at a time, so that the harness's cache holds what was done when a person ends it."""
        answers: list[Answer] = []
        for first in range(0, len(requests), 8 * ROWS):
            part = requests[first : first + 8 * ROWS]
            for request, one in zip(part, answer([request.args for request in part]), strict=True):
                self.cache_hook.add_partial(name, request.args, one)
                answers.append(one)
        return answers

    @property
    def tokenizer_name(self) -> str:
        """What tells this tokenizer from others."""
        return self._model.tokenizer.fingerprint


def read_options(given: Mapping[str, Any]) -> tuple[GenerateOptions, list[str]]:
    """Return how text is drawn, and what ends it, from the harness's keys."""
    until = given.get("until") or []
    stops = [until] if isinstance(until, str) else list(until)
    draws = bool(given.get("do_sample")) and given.get("temperature", 1.0) > 0
    options = GenerateOptions(
        max_tokens=int(given.get("max_gen_toks", given.get("max_tokens", TOKENS))),
        temperature=float(given.get("temperature", 1.0)) if draws else 0.0,
        top_k=int(given.get("top_k", 0)) if draws else 0,
        top_p=float(given.get("top_p", 1.0)) if draws else 1.0,
        repetition_penalty=float(given.get("repetition_penalty", 1.0)),
        seed=int(given.get("seed", 0)),
    )
    return options, [stop for stop in stops if stop]


def run_tasks(
    model: Model,
    tasks: Sequence[str],
    *,
    folder: Path | None = None,
    shots: int | None = None,
    limit: int | None = None,
    cache: Path | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> dict[str, Any]:
    """Run tasks of the harness.

    Parameters
    ----------
    model
        An open model.
    tasks
        Names.
    folder
        With further tasks, as YAML files.
    shots
        Examples before each question; as each task has it when None.
    limit
        Documents of each task.
    cache
        File in which answers are kept, so that an interrupted evaluation goes on.
    progress
        Told (stage, done, total).

    Returns
    -------
    results
        ``results`` by task, ``versions``, ``n-shot``, ``n-samples``: what the harness reports.

    Raises
    ------
    AndreaError
        When there is no such task, or its data cannot be had.
    """
    manager = TaskManager(include_path=str(folder) if folder else None, include_defaults=not folder)
    if any(name not in manager.all_tasks for name in tasks):  # reading all of the harness's own takes a while
        manager = TaskManager(include_path=str(folder) if folder else None)
    known = [*manager.all_tasks]
    if unknown := [name for name in tasks if name not in known]:
        raise AndreaError(
            f"the harness has no task {', '.join(unknown)}",
            did_you_mean(unknown[0], known) or f"it has {len(known):,}; lm-eval ls tasks lists them",
        )
    try:
        found = simple_evaluate(
            HarnessModel(model, progress),
            tasks=list(tasks),
            num_fewshot=shots,
            limit=limit,
            use_cache=str(cache) if cache else None,
            task_manager=manager,
            log_samples=False,
            bootstrap_iters=1000,
        )
    except (OSError, ValueError) as error:
        raise AndreaError(
            f"the harness stopped: {error}", "the data of most tasks comes from the hub, which must be in reach"
        ) from error
    keys = ("results", "groups", "versions", "n-shot", "n-samples")
    return {key: found[key] for key in keys if key in found}
