"""The adapter in the real lm-evaluation-harness, on tasks made here. Needs lm-eval."""

from __future__ import annotations

import json
import math
import warnings

import pytest

from andrea.engine import GenerateOptions
from andrea.scoring import continue_texts, score_pairs, score_texts
from andrea.trained import open_model

with warnings.catch_warnings():  # what the harness's own libraries warn of is not ours
    warnings.simplefilter("ignore")
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance

    from andrea.harness import HarnessModel, read_options, run_tasks

pytestmark = pytest.mark.filterwarnings("ignore")

CPU = ("--device", "cpu")
WORDS = ["seed", "root", "leaf", "stem", "grows", "under", "rain", "and", "light"]
TASKS = {
    "choose": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "doc_to_choice": "{{choices}}",
        "metric_list": [{"metric": "acc"}],
    },
    "whole": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{question}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    },
    "write": {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{written}}",
        "generation_kwargs": {"until": ["e"], "max_gen_toks": 8},
        "metric_list": [{"metric": "exact_match"}],
    },
}


@pytest.fixture
def model(andrea, experiment, current_folder, monkeypatch):
    """Return the model of a tiny run."""
    monkeypatch.setenv("HF_HOME", str(current_folder / "hub"))
    ended = andrea("run", experiment, "--out", "run", "--steps", 20, *CPU)
    assert ended.code == 0, ended.err
    return open_model(current_folder / "run", None, "cpu", lambda line: None)


@pytest.fixture
def tasks(model, current_folder):
    """Return a folder of tasks on twelve documents, and the documents."""
    documents = []
    for n in range(12):
        question = " ".join(WORDS[(n + k) % 9] for k in range(2 + n))
        choices = [" seed", " root", " leaf and"]
        written = continue_texts(model, [question], GenerateOptions(8, temperature=0), ["e"])[0]
        documents.append(
            {"question": question, "choices": choices, "answer": n % 3, "written": written if n < 9 else "no"}
        )
    (current_folder / "documents.json").write_text("\n".join(map(json.dumps, documents)))
    folder = current_folder / "tasks"
    folder.mkdir()
    for name, task in TASKS.items():
        data = {
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(current_folder / "documents.json")}},
        }
        (folder / f"{name}.yaml").write_text(json.dumps({"task": f"own_{name}", "test_split": "test", **data, **task}))
    return folder, documents


def requests(kind, *arguments):
    """Return what the harness asks."""
    return [Instance(kind, {}, each, n, ("task", n, 1)) for n, each in enumerate(arguments)]


def test_the_three_questions(model):
    """Each is answered as our own functions answer it, in the order in which it was asked."""
    harness = HarnessModel(model)
    pairs = [(" ".join(WORDS[:n]), f" {word}") for n in range(5) for word in WORDS]
    assert harness.loglikelihood(requests("loglikelihood", *pairs)) == score_pairs(model, pairs)
    texts = [" ".join(WORDS * n) for n in (1, 5, 2)]
    assert harness.loglikelihood_rolling(requests("loglikelihood_rolling", *((t,) for t in texts))) == score_texts(
        model, texts
    )

    greedy, drawn = (
        {"until": ["e"], "max_gen_toks": 9},
        {"until": "a", "do_sample": True, "temperature": 0.8, "top_p": 0.9},
    )
    asked = [("seed", greedy), ("root", drawn), ("leaf", greedy), ("stem", greedy)]
    got = harness.generate_until(requests("generate_until", *asked))
    first = continue_texts(model, ["seed"], GenerateOptions(9, temperature=0), ["e"])
    second = continue_texts(model, ["root"], GenerateOptions(256, 0.8, top_p=0.9), ["a"])
    rest = continue_texts(model, ["leaf", "stem"], GenerateOptions(9, temperature=0), ["e"])
    assert got == [*first, *second, *rest]
    assert harness.tokenizer_name == model.tokenizer.fingerprint


@pytest.mark.parametrize(
    ("given", "options", "stops"),
    [
        ({}, GenerateOptions(256, temperature=0.0), []),
        ({"until": "\n", "temperature": 0.7}, GenerateOptions(256, temperature=0.0), ["\n"]),
        ({"until": ["", "a"], "do_sample": True}, GenerateOptions(256, temperature=1.0), ["a"]),
        ({"do_sample": True, "temperature": 0.0, "top_k": 5}, GenerateOptions(256, temperature=0.0), []),
        (
            {"do_sample": True, "top_k": 5, "top_p": 0.5, "seed": 3, "max_tokens": 7, "repetition_penalty": 1.1},
            GenerateOptions(7, 1.0, 5, 0.5, 1.1, 3),
            [],
        ),
    ],
)
def test_how_the_harness_says_options(given, options, stops):
    """Greedy unless a task asks for draws."""
    assert read_options(given) == (options, stops)


def test_tasks_run(model, tasks):
    """Accuracy, bits per byte and exact matches are what direct computation gives."""
    folder, documents = tasks
    found = run_tasks(model, ["own_choose", "own_whole", "own_write"], folder=folder)
    results = found["results"]

    right = 0
    for one in documents:
        likelihoods = [score for score, _ in score_pairs(model, [(one["question"], c) for c in one["choices"]])]
        right += likelihoods.index(max(likelihoods)) == one["answer"]
    assert results["own_choose"]["acc,none"] == pytest.approx(right / 12)
    nats = math.fsum(score_texts(model, [one["question"] for one in documents]))
    size = sum(len(one["question"].encode()) for one in documents)
    assert results["own_whole"]["bits_per_byte,none"] == pytest.approx(-nats / size / math.log(2))
    assert results["own_write"]["exact_match,none"] == pytest.approx(9 / 12)


def test_the_command(andrea, model, tasks):
    """A table, or one document; fewer questions by --limit; answers kept by --cache are used again."""
    folder, _ = tasks
    how = ("evaluate", "run", "--tasks", "own_choose,own_whole", "--task-folder", folder, *CPU)
    printed = andrea(*how)
    assert printed.code == 0, printed.err
    assert "own_choose" in printed.out
    assert "bits_per_byte" in printed.out
    document = json.loads(andrea(*how, "--json", "--limit", 5, "--cache", "answers").out)
    assert document["n-samples"]["own_choose"]["effective"] == 5
    assert document["step"] == 20
    assert json.loads(andrea(*how, "--json", "--limit", 5, "--cache", "answers").out)["results"] == document["results"]


def test_what_cannot_be_run_is_refused(andrea, model, tasks):
    """An unknown task with the nearest one, and data that cannot be had."""
    folder, _ = tasks
    how = ("evaluate", "run", "--task-folder", folder, *CPU)
    refused = andrea(*how, "--tasks", "own_chose")
    assert refused.code == 2
    assert "did you mean own_choose" in refused.err
    (folder / "gone.yaml").write_text(
        json.dumps({**TASKS["whole"], "task": "own_gone", "dataset_path": "json", "test_split": "test",
                    "dataset_kwargs": {"data_files": {"test": "gone.json"}}})
    )  # fmt: skip
    refused = andrea(*how, "--tasks", "own_gone")
    assert refused.code == 2
    assert "the harness stopped" in refused.err
