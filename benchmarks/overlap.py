"""How much of the held-out text stands in the training text too: the share of its runs of 13 words, source by source.

    python benchmarks/overlap.py EXPERIMENT [--data FOLDER] [--length 13] [--test-rows 256] [--out FILE.json]

Validation is what a run evaluates, the first `evaluation.rows` rows of every source's held-out text; test are the
`--test-rows` rows behind them, as `andrea trial` has them. A run of words counts as often as it occurs, and lies within
one document.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
from corpora import documents, parser, prepare

from andrea.grams import Hashes, WordHashes, distinct, hash_documents, hash_runs, is_in, whole_runs
from andrea.tokenfile import TokenFile
from andrea.tokens import Prepared
from andrea.words import split_words

TOGETHER = 1000  # documents that are hashed at once


def runs_of(texts: Iterable[str], length: int) -> Iterator[Hashes]:
    """Yield the hashes of all runs of so many words, some documents at a time."""
    hashes, waiting = WordHashes(), []
    for text in texts:
        waiting.append(split_words(text))
        if len(waiting) == TOGETHER:
            yield _runs(waiting, hashes, length)
            waiting = []
    yield _runs(waiting, hashes, length)


def _runs(documents: list[list[str]], hashes: WordHashes, length: int) -> Hashes:
    words, lengths = hash_documents(documents, hashes)
    return hash_runs(words, length)[whole_runs(lengths, length)]


def part_of(prepared: Prepared, file: TokenFile, start: int, end: int) -> Iterator[str]:
    """Yield the documents, or what is of them, between two places in a token file."""
    bounds = np.clip(file.offsets.astype(np.int64), start, end)
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        ids = file.tokens[first:last].astype(np.int32)
        yield prepared.tokenizer.decode(ids[ids != file.bos]).decode(errors="replace")


def measure(prepared: Prepared, context: int, rows: dict[str, int], length: int) -> dict[str, dict[str, object]]:
    """Return for each source and split its runs, and which share occurs in its own and in any training text."""
    asked: dict[tuple[str, str], Hashes] = {}
    for source in prepared.sources:
        file, start = TokenFile.open(source.held_out), 0
        for split, count in rows.items():
            end = start + count * context
            asked[source.name, split] = np.concatenate(list(runs_of(part_of(prepared, file, start, end), length)))
            start = end
    own: dict[tuple[str, str], npt.NDArray[np.bool_]] = {}
    anywhere = {key: np.zeros(len(runs), dtype=np.bool_) for key, runs in asked.items()}
    for source in prepared.sources:
        known = distinct(list(runs_of(documents(prepared, source.train), length)))
        for key, runs in asked.items():
            found = is_in(runs, known)
            anywhere[key] |= found
            if key[0] == source.name:
                own[key] = found
    figures: dict[str, dict[str, object]] = {source.name: {} for source in prepared.sources}
    for (name, split), runs in asked.items():
        key = (name, split)
        figures[name][split] = {"runs": len(runs), "same": share(own[key]), "any": share(anywhere[key])}
    return figures


def share(found: npt.NDArray[np.bool_]) -> float | None:
    """Return which part is found; None of nothing."""
    return round(float(found.mean()), 5) if found.size else None


def main() -> None:
    """Print a table and write the figures."""
    asking = parser(__doc__)
    asking.add_argument("--length", type=int, default=13)
    asking.add_argument("--test-rows", type=int, default=256)
    asked = asking.parse_args()
    config, prepared = prepare(asked)
    rows = {"validation": config.evaluation.rows, "test": asked.test_rows}
    figures = measure(prepared, config.model.context, rows, asked.length)
    if asked.out:
        value = {"length": asked.length, "rows": rows, "context": config.model.context, "sources": figures}
        asked.out.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    print(f"| source | {' | '.join(f'{split}: runs | same source | any source' for split in rows)} |")
    print("|---|" + "--:|" * 3 * len(rows))
    for name, splits in figures.items():
        cells = [show(splits[split]) for split in rows]
        print(f"| {name} | {' | '.join(cells)} |")


def show(figure: dict[str, float | None]) -> str:
    """Return the cells of one split."""
    if not figure["runs"]:
        return "0 | | "
    return f"{figure['runs']:,} | {figure['same']:.2%} | {figure['any']:.2%}"


if __name__ == "__main__":
    main()
