"""How short tokenizers make text, and how fast.

python benchmarks/compare_tokenizers.py FOLDER [--segments 4096] [--repeats 5]

FOLDER holds a NAME.jsonl (training) and a NAME.val.jsonl (held out) of every source, with a column "text". Every
tokenizer is trained on the same documents, at most 2 MB a source. Speeds are of this process' own time in user mode,
one thread, the best of the repeats: of held-out text that the tokenizer has not seen ("first", its memory is empty) and
has ("again"), one document at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

from andrea.plugins.tokenizer import bpe, harris
from andrea.types import Tokenizer, TokenizerRequest

BYTES_A_SOURCE = 2_000_000
KINDS = {"harris": harris.Harris, "bpe": bpe.BytePairs}


def read(path: Path) -> Iterator[bytes]:
    """Yield the documents of a file."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"].encode()


def head(path: Path, limit: int) -> list[bytes]:
    """Return the first documents, as many as fit into `limit` bytes."""
    documents, size = [], 0
    for document in read(path):
        size += len(document)
        if size > limit:
            break
        documents.append(document)
    return documents


def user_seconds(work: Callable[[], object]) -> float:
    """Return the time that work takes in user mode."""
    before = os.times().user
    work()
    return os.times().user - before


def compression(tokenizers: dict[str, Tokenizer], held_out: dict[str, list[bytes]]) -> None:
    """Print bytes per token of every source, and of all text together."""
    print(f"{'source':<24}" + "".join(f"{name:>10}" for name in tokenizers))
    sums = dict.fromkeys(tokenizers, 0)
    total = 0
    for source, documents in held_out.items():
        size = sum(map(len, documents))
        tokens = {name: sum(len(one.encode(d)) for d in documents) for name, one in tokenizers.items()}
        total += size
        for name, count in tokens.items():
            sums[name] += count
        print(f"{source:<24}" + "".join(f"{size / count:>10.3f}" for count in tokens.values()))
    print(f"{'all':<24}" + "".join(f"{total / count:>10.3f}" for count in sums.values()))


def speeds(make: Callable[[], Tokenizer], documents: list[bytes], repeats: int) -> dict[str, float]:
    """Return megabytes a second of the first and of a second encoding, and of decoding; the best of the repeats."""
    size = sum(map(len, documents)) / 1e6
    best = {"first": 0.0, "again": 0.0, "decode": 0.0}
    for _ in range(repeats):
        one = make()
        ids: list[object] = []
        work = {
            "first": lambda one=one: [one.encode(document) for document in documents],
            "again": lambda one=one, ids=ids: ids.extend(one.encode(document) for document in documents),
            "decode": lambda one=one, ids=ids: [one.decode(row) for row in ids],
        }
        for name, task in work.items():
            best[name] = max(best[name], size / user_seconds(task))
    return best


def main() -> None:
    """Train, compare, time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--segments", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit", type=int, default=10_000_000, help="bytes of the text for speeds")
    arguments = parser.parse_args()
    trained = {p.stem: p for p in sorted(arguments.folder.glob("*.jsonl")) if not p.name.endswith(".val.jsonl")}
    sample = [document for path in trained.values() for document in head(path, BYTES_A_SOURCE)]
    held_out = {name: list(read(arguments.folder / f"{name}.val.jsonl")) for name in trained}
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    print(f"{len(trained)} sources, {sum(map(len, sample)) / 1e6:.1f} MB to train on, {arguments.segments} segments")
    tokenizers: dict[str, Tokenizer] = {}
    for name, kind in KINDS.items():
        before = os.times().user
        request = TokenizerRequest(lambda limit: iter(sample))
        tokenizers[name] = kind(segments=arguments.segments).make_tokenizer(request)
        seconds = os.times().user - before
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{name}: trained in {seconds:.1f} s of user time; peak of this process so far {peak:.2f} GiB")
    compression(tokenizers, held_out)
    texts = [document for documents in held_out.values() for document in documents]
    documents = texts[:: max(1, round(sum(map(len, texts)) / arguments.limit))]
    makers = {
        "harris": lambda: harris.HarrisTokenizer(tokenizers["harris"].segments, tokenizers["harris"].training),
        "bpe": lambda: tokenizers["bpe"],
    }
    for name, make in makers.items():
        best = speeds(make, documents, arguments.repeats)
        print(f"{name}: " + ", ".join(f"{task} {speed:.1f} MB/s" for task, speed in best.items()))


if __name__ == "__main__":
    main()
