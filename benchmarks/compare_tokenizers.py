"""How short tokenizers make text, and how fast.

python benchmarks/compare_tokenizers.py FOLDER [--segments 4096] [--repeats 3]

FOLDER holds a NAME.jsonl (training) and a NAME.val.jsonl (held out) of every source, with a column "text". Every
tokenizer is trained on the same documents, at most 2 MB a source. Speeds are of this process' own processor time, user
and system, one thread (`taskset -c 0` keeps the library to one), the best of the repeats, each with a tokenizer whose
memory is empty. All held-out documents of a source are encoded together, as preparing data does; one at a time; one at
a time once more; and decoded.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from andrea.plugins.tokenizer import bpe, harris
from andrea.tokenfile import encode_all
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


def loader(name: str, tokenizer: Tokenizer, folder: Path) -> Callable[[], Tokenizer]:
    """Save a tokenizer, and return what loads it, with an empty memory."""
    place = folder / name
    place.mkdir()
    tokenizer.save(place)
    return lambda: KINDS[name]().make_tokenizer(TokenizerRequest(lambda limit: iter(()), place))


def megabytes_a_second(make: Callable[[], Tokenizer], documents: list[bytes], repeats: int) -> dict[str, float]:
    """Return the speeds of a tokenizer that is new each time; the best of the repeats."""
    size = sum(map(len, documents)) / 1e6
    best: dict[str, float] = {}
    for _ in range(repeats):
        one, new = make(), make()
        encode_all(new, [bytes(1 << 17)])  # tables are made at first use, in some hundredths of a second
        ids: list[object] = []
        work = {
            "together": lambda new=new: encode_all(new, documents),
            "one by one": lambda one=one: [one.encode(document) for document in documents],
            "again": lambda one=one, ids=ids: ids.extend(one.encode(document) for document in documents),
            "decode": lambda one=one, ids=ids: [one.decode(row) for row in ids],
        }
        for name, task in work.items():
            before = time.process_time()
            task()
            best[name] = max(best.get(name, 0.0), size / (time.process_time() - before))
    return best


def speeds(makers: dict[str, Callable[[], Tokenizer]], held_out: dict[str, list[bytes]], repeats: int) -> None:
    """Print the speeds for every source, and for all text together."""
    everything = {**held_out, "all": [document for documents in held_out.values() for document in documents]}
    for kind, make in makers.items():
        print(f"\n{kind + ', MB/s':<24}{'documents':>12}{'MB':>8}", end="")
        for number, (source, documents) in enumerate(everything.items()):
            found = megabytes_a_second(make, documents, repeats)
            if number == 0:
                print("".join(f"{name:>12}" for name in found))
            size = sum(map(len, documents)) / 1e6
            print(f"{source:<24}{len(documents):>12,}{size:>8.2f}" + "".join(f"{s:>12.1f}" for s in found.values()))


def main() -> None:
    """Train, compare, time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--segments", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    trained = {p.stem: p for p in sorted(arguments.folder.glob("*.jsonl")) if not p.name.endswith(".val.jsonl")}
    sample = [document for path in trained.values() for document in head(path, BYTES_A_SOURCE)]
    held_out = {name: list(read(arguments.folder / f"{name}.val.jsonl")) for name in trained}
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    print(f"{len(trained)} sources, {sum(map(len, sample)) / 1e6:.1f} MB to train on, {arguments.segments} segments")
    tokenizers: dict[str, Tokenizer] = {}
    for name, kind in KINDS.items():
        before = time.process_time()
        request = TokenizerRequest(lambda limit: iter(sample))
        tokenizers[name] = kind(segments=arguments.segments).make_tokenizer(request)
        seconds = time.process_time() - before
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{name}: trained in {seconds:.1f} s of processor time; peak of this process so far {peak:.2f} GiB")
    compression(tokenizers, held_out)
    with tempfile.TemporaryDirectory() as saved:
        speeds({name: loader(name, one, Path(saved)) for name, one in tokenizers.items()}, held_out, arguments.repeats)


if __name__ == "__main__":
    main()
