"""The words of training text that occur at least twice, counted exactly in bounded memory.

Words are gathered until there are many, then written to a file, sorted; a word that occurred more than once stands
there twice. The files are merged at the end.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

MOST_WORDS = 1 << 19  # distinct words held in memory: about 80 MB
_WORD = re.compile(r"(?:[^\W_]|')+")


def split_words(text: str) -> list[str]:
    """Return the words of a text, lower case: the longest runs of letters, digits and apostrophes."""
    return _WORD.findall(text.lower())


def write_runs(documents: Iterable[Sequence[str]], name: Path, most: int = MOST_WORDS) -> list[Path]:
    """Write the words of many documents, each as `split_words` gives them, to sorted files named `name`.number."""
    count: Counter[str] = Counter()
    paths: list[Path] = []
    for words in documents:
        count.update(words)
        if len(count) >= most:
            paths.append(_write_run(count, name, len(paths)))
    return [*paths, _write_run(count, name, len(paths))]


def _write_run(count: Counter[str], name: Path, number: int) -> Path:
    path = name.with_name(f"{name.name}.{number}")
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{word}\n" * min(count[word], 2) for word in sorted(count))
    count.clear()
    return path


def merge_runs(paths: Sequence[Path]) -> Iterator[str]:
    """Yield, sorted, each word that stands in the files at least twice, with its line end."""
    files = [path.open(encoding="utf-8", newline="\n") for path in paths]
    try:
        for word, lines in itertools.groupby(heapq.merge(*files)):
            if len(list(lines)) >= 2:
                yield word
    finally:
        for file in files:
            file.close()
