"""The scripts of benchmarks/ that look at text: overlap with training text by brute force, and gates on little text."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from andrea.rng import Draws
from andrea.tokenfile import TokenFile
from andrea.words import split_words

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def call(current_folder, monkeypatch):
    """Return a function that runs a script in this process and returns the figures that it wrote."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments, "--out", "figures.json"])
        importlib.import_module(name).main()
        return json.loads((current_folder / "figures.json").read_text())

    return run


def write(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def words(name, count):
    return " ".join(f"{name}x{i}" for i in range(count))


def runs(texts, length):
    return [
        tuple(one[i : i + length]) for text in texts if (one := split_words(text)) for i in range(len(one) - length + 1)
    ]


def test_overlap_is_that_of_plain_runs(tiny, write_experiment, current_folder, call):
    """Texts of the first source have a part in common, and each of the second quotes one of the first."""
    write(current_folder / "one.jsonl", [f"{words(f'u{n}', 20)} {words('common', 20)}" for n in range(60)])
    write(current_folder / "two.jsonl", [f"{words(f'v{n}', 20)} {words(f'u{n}', 20)}" for n in range(60)])
    for source in tiny["sources"]:
        source["options"]["path"] = f"{source['name']}.jsonl"
    tiny["data"] = {"held_out_share": 0.2}
    tiny["model"]["context"] = 4096
    experiment = write_experiment(tiny)

    figures = call("overlap", experiment, "--length", "13", "--test-rows", "8")

    corpora = sys.modules["corpora"]
    _, prepared = corpora.prepare(corpora.parser(None).parse_args([experiment]))
    train = {one.name: set(runs(corpora.documents(prepared, one.train), 13)) for one in prepared.sources}
    for source in prepared.sources:
        held_out = runs(corpora.documents(prepared, source.held_out), 13)
        assert TokenFile.open(source.held_out).tokens.size < 4 * 4096, "all of it is validation"
        assert figures["sources"][source.name] == {
            "validation": {
                "runs": len(held_out),
                "same": round(sum(run in train[source.name] for run in held_out) / len(held_out), 5),
                "any": round(sum(any(run in known for known in train.values()) for run in held_out) / len(held_out), 5),
            },
            "test": {"runs": 0, "same": None, "any": None},
        }
    one, two = (figures["sources"][name]["validation"] for name in ("one", "two"))
    assert one["same"] == round(8 / 28, 5)  # of 40 words, the last 20
    assert two["same"] == 0 < two["any"] < 8 / 28  # what is quoted is held out there too, of some


def test_validation_and_test_are_parts_of_the_held_out_text(tiny, write_experiment, call):
    """Rows of the evaluation first, then rows for the test; a document in both is cut in two."""
    tiny["evaluation"]["rows"], tiny["model"]["context"] = 1, 64
    tiny["data"] = {"held_out_share": 0.4}
    figures = call("overlap", write_experiment(tiny), "--length", "1", "--test-rows", "2")
    assert figures["rows"] == {"validation": 1, "test": 2}
    counts = {name: {split: one["runs"] for split, one in found.items()} for name, found in figures["sources"].items()}
    assert all(0 < one["validation"] < one["test"] for one in counts.values())
    assert all(one["same"] > 0.8 for found in figures["sources"].values() for one in found.values())  # but cut words


def test_gates_on_little_text(tiny, write_experiment, current_folder, shared_folder, call):
    """Every kind of batch is counted; of a few words in any order only collapse and loops are no such text."""
    tiny["sampling"] |= {"count": 4, "max_tokens": 200}
    tiny["data"] = {"held_out_share": 0.4}
    for name in ("one", "two"):
        write(current_folder / f"{name}.val.jsonl", fresh(shared_folder / f"{name}.jsonl"))
    figures = call("gates", write_experiment(tiny), "--data", ".", "--batches", "6", "--seeds", "2")
    assert list(figures) == ["one", "two", "all"]
    for row in figures.values():
        assert {head: found["batches"] for head, found in row.items()} == {
            "held out": 6,
            "never seen": 6,
            "loop": 2,
            "salad": 2,
            "collapse": 2,
            "copy": 2,
        }
        assert row["held out"]["human_range"] == row["never seen"]["human_range"] == 0
        assert row["collapse"]["human_range"] == row["collapse"]["coherence"] == row["collapse"]["either"] == 2
        assert row["collapse"]["reasons"]["words below"] == 2


def fresh(path):
    """Return documents of the words of a file that are none of its documents."""
    known, draws = (
        sorted({word for text in path.read_text().splitlines() for word in text.split()}),
        Draws(0, path.stem),
    )
    plain = [word for word in known if word.isalpha()]
    return [" ".join(plain[draws.integer(len(plain))] for _ in range(8 + draws.integer(22))) for _ in range(30)]
