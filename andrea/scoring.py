"""How likely a model finds a text: sums over tokens, whatever the length, each token predicted once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import attrs
import numpy as np
import numpy.typing as npt
from attrs import frozen

from andrea.engine import GenerateOptions
from andrea.trained import Model

Ids = npt.NDArray[np.int32]
Progress = Callable[[str, int, int], None]
ROWS = 32  # that are measured at once


@frozen(eq=False)
class Window:
    """What the model reads at once, and which of the ids behind each place are counted; -1 for those that are not."""

    inputs: Ids
    targets: Ids


def windows(ids: Ids, first: int, context: int) -> Iterator[Window]:
    """Yield windows in which every id from `first` on is predicted exactly once, each with all the context that fits.

    Parameters
    ----------
    ids
        The first one begins the document.
    first
        Place of the first id that is counted, at least 1.
    context
        Ids that the model reads at most (T). A long text is cut into windows of T counted ids; the last one ends where
        the text ends and begins T ids before, so that it has a full context too.
    """
    for start in range(first, len(ids), context):
        end = min(start + context, len(ids))
        begin = max(0, end - 1 - context)
        targets = ids[begin + 1 : end].copy()
        targets[: start - 1 - begin] = -1
        yield Window(ids[begin : end - 1], targets)


def sum_log_likelihoods(
    model: Model, texts: Sequence[tuple[Ids, int]], progress: Progress = lambda stage, done, total: None
) -> list[float]:
    """Return the log-likelihood of each text, in nats.

    Parameters
    ----------
    model
        An open model.
    texts
        (ids, place of the first id that is counted).
    progress
        Told (stage, done, total).
    """
    context = model.config.model.context
    parts = [(n, window) for n, (ids, first) in enumerate(texts) for window in windows(ids, first, context)]
    parts.sort(key=lambda part: -len(part[1].inputs))  # rows of one length waste nothing
    sums: list[list[float]] = [[] for _ in texts]
    for start in range(0, len(parts), ROWS):
        progress("scoring", start, len(parts))
        batch = parts[start : start + ROWS]
        width = len(batch[0][1].inputs)
        inputs, targets = np.zeros((len(batch), width), np.int32), np.full((len(batch), width), -1, np.int32)
        for row, (_, window) in enumerate(batch):
            inputs[row, : len(window.inputs)], targets[row, : len(window.targets)] = window.inputs, window.targets
        losses = model.engine.evaluate(inputs, targets).astype(np.float64) * (targets >= 0).sum(axis=1)
        for (number, _), loss in zip(batch, losses.tolist(), strict=True):
            sums[number].append(-loss)
    return [math.fsum(one) for one in sums]


def split_pair(model: Model, context: str, continuation: str) -> tuple[Ids, int]:
    """Return the ids of both texts together, and the place of the first id that belongs to the continuation.

    The texts are encoded as one, as the model has learned to read them. An id that begins in the context and ends in
    the continuation counts as the continuation's; spaces at the end of the context go with the word behind them.
    """
    ids = model.begin(context + continuation)
    before = len(context.rstrip().encode("utf-8", "surrogateescape"))
    lengths = [len(model.tokenizer.decode([int(one)])) for one in ids]
    ends = np.cumsum(lengths)
    return ids, max(1, int(np.searchsorted(ends, before, side="right")))


def score_pairs(
    model: Model, pairs: Sequence[tuple[str, str]], progress: Progress = lambda stage, done, total: None
) -> list[tuple[float, bool]]:
    """Return for each (context, continuation) the log-likelihood of the continuation, and whether it is the likeliest.

    The second is true when greedy text after the context is the continuation, id for id. A continuation longer than the
    model reads at once is never called so.
    """
    texts = [split_pair(model, *pair) for pair in pairs]
    sums = sum_log_likelihoods(model, texts, progress)
    return list(zip(sums, _are_greedy(model, texts, progress), strict=True))


def _are_greedy(model: Model, texts: Sequence[tuple[Ids, int]], progress: Progress) -> list[bool]:
    """Generate greedily after every context, each row up to its first id that differs."""
    context, rows = model.config.model.context, model.engine.config.batch_size
    answers = [len(ids) - first <= context for ids, first in texts]
    asked = [n for n, (ids, first) in enumerate(texts) if answers[n] and first < len(ids)]
    for start in range(0, len(asked), rows):
        progress("comparing with greedy text", start, len(asked))
        batch = asked[start : start + rows]
        wanted = [texts[n][0][texts[n][1] :].tolist() for n in batch]
        prompts = [texts[n][0][max(0, len(texts[n][0]) - 1 - context) : texts[n][1]] for n in batch]
        drawn: list[list[int]] = [[] for _ in batch]

        def differs(row: int, one: int, wanted: list[list[int]] = wanted, drawn: list[list[int]] = drawn) -> bool:
            drawn[row].append(one)
            return len(drawn[row]) == len(wanted[row]) or one != wanted[row][len(drawn[row]) - 1]

        options = GenerateOptions(max(len(one) for one in wanted), temperature=0)
        model.engine.generate(prompts, options, differs)
        for n, want, got in zip(batch, wanted, drawn, strict=True):
            answers[n] = got == want
    return answers


def score_texts(
    model: Model, texts: Sequence[str], progress: Progress = lambda stage, done, total: None
) -> list[float]:
    """Return the log-likelihood of whole texts, each by itself as a document, in nats."""
    return sum_log_likelihoods(model, [(model.begin(text), 1) for text in texts], progress)


def continue_texts(
    model: Model,
    prompts: Sequence[str],
    options: GenerateOptions,
    stops: Sequence[str],
    progress: Progress = lambda stage, done, total: None,
) -> list[str]:
    """Return what the model adds to each prompt, up to a stop string or the end of the document."""
    rows = model.engine.config.batch_size
    texts: list[str] = []
    for first in range(0, len(prompts), rows):
        progress("writing", first, len(prompts))
        part = attrs.evolve(options, first=first, stop=(model.tokenizer.bos,))
        texts += [one.text for one in model.write(prompts[first : first + rows], part, stops)]
    return texts
