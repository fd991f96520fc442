"""Do the stops tell human text from garbage? How often each gate flags a batch of samples, source by source.

    python benchmarks/gates.py EXPERIMENT [--data FOLDER] [--batches 100] [--seeds 5] [--out FILE.json]

A batch is as the experiment's samples are: `sampling.count` texts of at most `sampling.max_tokens` tokens. Human
batches are beginnings of documents: of held-out ones and, where the folder has a NAME.val.jsonl for each source, of
documents that the preparation has never seen. Garbage is made from the training text of one source, and of all of them
("all"): one batch for each kind and seed. A gate flags a batch when the stop would count it as failed. The table has,
of the batches, those that stop.coherence flags and those that stop.human_range does.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from attrs import frozen
from corpora import documents, parser, prepare

from andrea.coherence import score_texts
from andrea.config import SamplingConfig
from andrea.human import Human
from andrea.plugins.stop.coherence import Coherence
from andrea.plugins.stop.human_ranges import judge
from andrea.rng import Draws
from andrea.testing.garbage import KINDS, Garbage
from andrea.tokens import Prepared

POOL = 200  # human documents of a source and side, from which batches are drawn
MATERIAL = 3000  # training documents of a source of which garbage is made
MIXED = 500  # and of each for that of all


class Remembering:
    """What is known of human text; every text is measured once, in however many batches it is."""

    def __init__(self, human: Human) -> None:
        self.measures, self.held_out, self.documents = human.measures, human.held_out, human.documents
        self._of = functools.cache(lambda text: (human.measure([text])[0], human.log_likelihood([text])[0]))

    def measure(self, texts):
        """Return what each text measures against each source."""
        return np.array([self._of(text)[0] for text in texts])

    def log_likelihood(self, texts):
        """Return how likely each text is under each source."""
        return np.array([self._of(text)[1] for text in texts])


@frozen
class Gates:
    """Both gates, as a run would have them."""

    human: Remembering
    names: Sequence[str]
    words: frozenset[str]

    def count(self, batches: Iterable[Sequence[str]]) -> dict[str, object]:
        """Return how many batches there are, how many each gate flags, and why stop.human_range does."""
        flagged, reasons, total = Counter(coherence=0, human_range=0, either=0), Counter(), 0
        for texts in batches:
            incoherent = score_texts(texts, self.words).total <= Coherence().threshold
            verdict = judge(self.human, self.names, texts, Draws(0, "stop.human_range").uniform)
            why = [" ".join(reason.split()[::2][:2]) for reason in verdict.outside]
            flagged.update(coherence=incoherent, human_range=bool(why), either=incoherent or bool(why))
            reasons.update(why)
            total += 1
        return {"batches": total, **flagged, "reasons": dict(reasons.most_common())}


@frozen
class Cut:
    """Makes batches as an experiment's samples are."""

    prepared: Prepared
    sampling: SamplingConfig

    def text(self, text: str) -> str:
        """Return the beginning of a text."""
        ids = self.prepared.tokenizer.encode(text.encode(errors="replace"))[: self.sampling.max_tokens]
        return self.prepared.tokenizer.decode(ids).decode(errors="replace")

    def human(self, pool: Sequence[str], side: str, batches: int) -> Iterator[list[str]]:
        """Yield batches of beginnings of documents, drawn from a pool."""
        beginnings = [self.text(document) for document in pool]
        for batch in range(batches):
            draws = Draws(batch, f"gates.{side}")
            yield [beginnings[draws.integer(len(beginnings))] for _ in range(self.sampling.count)]

    def garbage(self, maker: Garbage, kind: str, seeds: int) -> Iterator[list[str]]:
        """Yield a batch for each seed."""
        for seed in range(seeds):
            draws = Draws(seed, f"gates.{kind}")
            texts = [maker.text(kind, draws, self.sampling.max_tokens) for _ in range(self.sampling.count)]
            yield [self.text(text) for text in texts]


def human_pools(prepared: Prepared, folder: Path | None) -> dict[str, dict[str, list[str]]]:
    """Return documents by side and source, and of all sources evenly."""
    names = [source.name for source in prepared.sources]
    sides = {"held out": {source.name: list(documents(prepared, source.held_out, POOL)) for source in prepared.sources}}
    if folder and all(_unseen(folder, name).is_file() for name in names):
        sides["never seen"] = {name: _read(_unseen(folder, name)) for name in names}
    for pools in sides.values():
        pools["all"] = [text for pool in pools.values() for text in pool[: min(map(len, pools.values()))]]
    return sides


def _unseen(folder: Path, name: str) -> Path:
    return folder / f"{name}.val.jsonl"


def _read(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines[:: max(1, len(lines) // POOL)]]


def garbage_makers(prepared: Prepared) -> Iterator[tuple[str, Garbage]]:
    """Yield what makes garbage of each source, and last of all of them."""
    mixed: list[str] = []
    for source in prepared.sources:
        material = list(documents(prepared, source.train, MATERIAL))
        mixed += material[:MIXED]
        yield source.name, Garbage(material)
    yield "all", Garbage(mixed)


def main() -> None:
    """Print a table and write the figures."""
    asking = parser(__doc__)
    asking.add_argument("--batches", type=int, default=100)
    asking.add_argument("--seeds", type=int, default=5)
    asked = asking.parse_args()
    config, prepared = prepare(asked)
    names = [source.name for source in prepared.sources]
    gates = Gates(Remembering(prepared.open_human()), names, prepared.known_words())
    cut, sides = Cut(prepared, config.sampling), human_pools(prepared, asked.data)
    heads, figures = [*sides, *KINDS], {}
    print(f"| source | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
    for name, maker in garbage_makers(prepared):
        row = {side: gates.count(cut.human(pools[name], side, asked.batches)) for side, pools in sides.items()}
        row |= {kind: gates.count(cut.garbage(maker, kind, asked.seeds)) for kind in KINDS}
        figures[name] = row
        cells = [f"{row[head]['coherence']}, {row[head]['human_range']} of {row[head]['batches']}" for head in heads]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    if asked.out:
        asked.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
