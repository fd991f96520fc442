"""Trials: what a file may say, runs that are spread, interrupted and gone on with, and how arms are compared."""

from __future__ import annotations

import copy
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import attrs
import numpy as np
import pytest

from andrea import trial_queue
from andrea.errors import AndreaError
from andrea.trial import RESULT, ended, jobs_of, part_of, read_trial
from andrea.trial_plot import project
from andrea.trial_report import arm_rows, source_rows
from andrea.trial_results import Result, by_arm, count_worse, summarise, tokens_to_reach
from andrea.trial_run import train

CPU = ("--device", "cpu")


@pytest.fixture
def value(tiny, shared_folder):
    """Return the JSON value of a trial of two arms and two seeds on the tiny experiment."""
    experiment = copy.deepcopy(tiny)
    experiment["model"] |= {"context": 64, "d_model": 32}  # slow enough to be interrupted in the middle
    experiment["sampling"] = {"sample_every": 0}
    experiment["plugins"] = {"tokenizer.byte": {}, "weight.epoch_penalty": {}}
    for source in experiment["sources"]:
        source["options"]["path"] = "{data}/" + source["name"] + ".jsonl"
    return {
        "experiment": experiment,
        "steps": 30,
        "seeds": [0, 1],
        "baseline": "uniform",
        "arms": {"uniform": {}, "ucb1": {"plugins": {"bandit.ucb1": {}, "sampler.argmax": {}}}},
    }


@pytest.fixture
def write(value, current_folder):
    """Return a function that writes the trial, with changes, and returns its path."""

    def write_value(name="small.json", **changes):
        (current_folder / name).write_text(json.dumps({**value, **changes}))
        return current_folder / name

    return write_value


@pytest.fixture
def read_jobs(write, shared_folder, tmp_path):
    """Return a function that gives the jobs of a trial with changes."""

    def jobs(**changes):
        path = write(**changes)
        return jobs_of(read_trial(path, shared_folder), str(path), tmp_path / "out")

    return jobs


# -- the file ----------------------------------------------------------------------------------------------------------


def test_an_arm_changes_the_experiment_and_nothing_else(read_jobs):
    """An exclusive plugin takes the place of the experiment's, others are added, keys are set, plugins are left out."""
    arm = {
        "plugins": {"tokenizer.byte": {}, "bandit.ucb1": {"exploration": 2.0}, "weight.repetition": {}},
        "without": ["weight.epoch_penalty", "log.console"],
        "set": {"batch.pulls_per_step": 2, "bandit.ucb1.scale": "fixed"},
    }
    plain, changed = read_jobs(arms={"uniform": {}, "other": arm}, seeds=[7])
    assert plain.experiment["plugins"] == {"tokenizer.byte": {}, "weight.epoch_penalty": {}}
    assert changed.experiment["plugins"] == {
        "tokenizer.byte": {},
        "bandit.ucb1": {"exploration": 2.0, "scale": "fixed"},
        "weight.repetition": {},
    }
    assert changed.experiment["without"] == ["log.console"]
    assert changed.experiment["batch"] == {"batch_size": 4, "pulls_per_step": 2}
    same = {"model", "optimizer", "sources", "evaluation", "name", "schedule", "seed"}
    assert {k: v for k, v in changed.experiment.items() if k in same} == {
        k: v for k, v in plain.experiment.items() if k in same
    }
    assert plain.experiment["seed"] == 7
    assert plain.experiment["schedule"]["steps"] == 30


def test_an_arm_may_train_for_more_steps(read_jobs):
    """Arms whose tokens stand for other numbers of bytes are compared after the same text."""
    arms = {"uniform": {}, "longer": {"set": {"schedule.steps": 40, "evaluation.eval_every": 20}}}
    steps = [job.experiment["schedule"]["steps"] for job in read_jobs(arms=arms, seeds=[0])]
    assert steps == [30, 40]


def test_the_data_folder_and_other_runs_stand_in_braces(read_jobs, shared_folder, tmp_path):
    """{data} is the folder of the command line; {run:ARM} is the run of the same seed, behind which the arm comes."""
    arms = {"replay": {"plugins": {"bandit.replay": {"path": "{run:uniform}"}}}, "uniform": {}}
    jobs = read_jobs(arms=arms)
    assert [job.name for job in jobs] == ["uniform.0", "replay.0", "uniform.1", "replay.1"]
    assert jobs[3].experiment["plugins"]["bandit.replay"] == {"path": str(tmp_path / "out" / "runs" / "uniform.1")}
    assert jobs[3].waits_for == ("uniform.1",)
    assert jobs[0].experiment["sources"][0]["options"]["path"] == str(shared_folder / "one.jsonl")


def test_a_part_of_a_trial_has_what_it_waits_for(read_jobs):
    """Arms and seeds that are named, all where none is, in the order of the trial."""
    arms = {
        "uniform": {},
        "again": {"plugins": {"bandit.replay": {"path": "{run:first}"}}},
        "first": {},
        "third": {"plugins": {"bandit.replay": {"path": "{run:again}"}}},
    }
    jobs = read_jobs(arms=arms)
    assert part_of(jobs, [], []) == jobs
    assert [job.name for job in part_of(jobs, ["uniform"], [])] == ["uniform.0", "uniform.1"]
    assert [job.name for job in part_of(jobs, ["third"], [1])] == ["first.1", "again.1", "third.1"]
    with pytest.raises(AndreaError, match="no arm 'unifrom'") as refusal:
        part_of(jobs, ["unifrom"], [])
    assert "uniform" in refusal.value.hint
    with pytest.raises(AndreaError, match="no seed 2"):
        part_of(jobs, [], [2])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"arm": {}}, "did you mean arms"),
        ({"steps": "many"}, '"many" is not a whole number'),
        ({"steps": 0}, "steps is 0"),
        ({"seeds": [1, 1]}, "each once"),
        ({"baseline": "unifrom"}, "did you mean uniform"),
        ({"against": ["best"]}, "against names 'best', which is no arm"),
        ({"arms": {}}, "arms is empty"),
        ({"arms": {"uniform": {}, "A/B": {}}}, "cannot be part of a file name"),
        ({"arms": {"uniform": {"plugin": {}}}}, "did you mean plugins"),
        ({"arms": {"uniform": {"plugins": {"bandit.ucb": {}}}}}, "arm uniform: there is no plugin bandit.ucb"),
        ({"arms": {"uniform": {"plugins": {"bandit.ucb1": {"explore": 1}}}}}, "did you mean exploration"),
        ({"arms": {"uniform": {"plugins": {"weight.size": {"exponent": 9.0}}}}}, "weight.size.exponent is 9.0"),
        (
            {"arms": {"uniform": {"plugins": {"limit.caps": {"caps": {"on": 0.1}}}}}},
            "arm uniform: limit.caps.caps names on",
        ),
        ({"arms": {"uniform": {"set": {"engine.graph": "no"}}}}, "engine.graph is 'no'"),
        ({"arms": {"uniform": {"set": {"batch.size": 1}}}}, "unknown key 'size'"),
        ({"arms": {"uniform": {"without": ["stop.coherence"]}}}, "which is not used"),
        (
            {"arms": {"uniform": {"without": ["weight.size"], "set": {"weight.size.exponent": 2}}}},
            "set names weight.size.exponent, but without leaves weight.size out",
        ),
        ({"arms": {"uniform": {"set": {"evaluation.eval_every": 7}}}}, "let eval_every divide the steps"),
        ({"arms": {"uniform": {"plugins": {"bandit.replay": {"path": "{run:ucb}"}}}}}, "which is no arm"),
        ({"arms": {"uniform": {"plugins": {"bandit.replay": {"path": "{run:uniform}"}}}}}, "wait for each other"),
        ({"experiment": 3}, "experiment: 3 is not an object"),
        ({"experiment": "quickstar"}, "did you mean quickstart"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_before_anything_runs(read_jobs, changes, said, tmp_path):
    """Unknown keys, wrong types, arms that do not exist, experiments that would be refused later."""
    with pytest.raises(AndreaError) as caught:
        read_jobs(**changes)
    assert said in f"{caught.value.message}\n{caught.value.hint}"
    assert not (tmp_path / "out").exists()


def test_a_data_folder_must_be_named_where_the_file_wants_one(andrea, write):
    """The error names the option."""
    ended_with = andrea("trial", write(), *CPU)
    assert ended_with.code == 2
    assert "--data" in ended_with.err


def test_a_queue_is_found_by_its_name(andrea, write, shared_folder, monkeypatch):
    """One that is not there names those that are; one that cannot be imported says why; nothing is written."""

    def broken():
        raise ImportError("no module named cluster")

    points = [SimpleNamespace(name="cluster", load=broken), SimpleNamespace(name="other", load=lambda: dict)]
    monkeypatch.setattr(trial_queue, "entry_points", lambda group: points)
    assert trial_queue.find_queue("here") is trial_queue.Queue
    assert trial_queue.find_queue("other") is dict
    for name, said in (
        ("clustr", "did you mean cluster?"),
        ("x", "queues: here, cluster, other"),
        ("cluster", "no module"),
    ):
        ended_with = andrea("trial", write(), "--data", shared_folder, "--queue", name, *CPU)
        assert ended_with.code == 2
        assert said in ended_with.err
    assert not Path("trials").exists()


def test_a_device_that_is_not_there_is_said_first(andrea, write, shared_folder, monkeypatch):
    """Whichever it is of those that are named, before anything is written; one that is not needed does not matter."""
    monkeypatch.setattr("andrea.engine.device.find_cards", lambda: ([], "no card here"))
    ended_with = andrea("trial", write(), "--data", shared_folder, *CPU, "--device", "cuda:3")
    assert ended_with.code == 2
    assert ended_with.err.startswith("error: device 'cuda:3' cannot be used: no card here")
    assert not Path("trials").exists()
    small = write(steps=10, seeds=[0], arms={"uniform": {}})
    assert andrea("trial", small, "--data", shared_folder, *CPU).code == 0
    assert andrea("trial", small, "--data", shared_folder, "--device", "cuda:3").code == 0


def test_a_report_of_nothing_says_so(andrea, write, shared_folder):
    """--report runs nothing."""
    ended_with = andrea("trial", write(), "--data", shared_folder, "--report")
    assert ended_with.code == 2
    assert "no run of trials/small is done" in ended_with.err


# -- running -----------------------------------------------------------------------------------------------------------

NUMBERS = ("*.bin", "*.npz", "step_*.json", "journal.jsonl")


def numbers(folder):
    """Return the bytes of every run's checkpoints and journal, by path."""
    files = sorted(path for pattern in NUMBERS for path in folder.glob(f"runs/**/{pattern}"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def wait_for(condition, process, seconds=60):
    """Wait until a condition holds while a process runs."""
    for _ in range(int(seconds / 0.005)):
        if condition():
            return
        assert process.poll() is None, "the trial ended before it could be interrupted"
        time.sleep(0.005)
    raise AssertionError("it does not come")


def test_a_trial_runs_and_an_interrupted_one_ends_in_the_same_bytes(andrea, write, shared_folder, current_folder):
    """2 arms x 2 seeds x 30 steps at once on two devices; interrupted within a run and gone on with; again."""
    trial = write()
    whole = andrea("trial", trial, "--data", shared_folder, "--out", "whole", *CPU, *CPU)
    assert whole.code == 0, whole.err
    assert all(ended(folder) for folder in (current_folder / "whole" / "runs").iterdir())

    command = [sys.executable, "-m", "andrea", "trial", trial, "--data", shared_folder, "--out", "cut", *CPU]
    process = subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, env=dict(os.environ))
    first = current_folder / "cut" / "runs" / "uniform.0"
    wait_for((first / "config.json").exists, process)  # it is written just before the first step
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143, said
    steps = [json.loads(line) for line in (first / "journal.jsonl").read_text().splitlines()]
    assert 0 < sum(line["kind"] == "step" for line in steps) < 30
    assert steps[-1] == {"kind": "stop", "step": steps[-1]["step"], "reasons": {"signal": "SIGTERM"}}
    assert not ended(first)

    part = andrea("trial", trial, "--data", shared_folder, "--out", "cut", "--arm", "uniform", "--seed", "0", *CPU)
    assert part.code == 0, part.err
    assert [folder.name for folder in (current_folder / "cut" / "runs").iterdir()] == ["uniform.0"]
    resumed = andrea("trial", trial, "--data", shared_folder, "--out", "cut", *CPU)
    assert resumed.code == 0, resumed.err
    assert "4 runs, 1 of them done" in resumed.err
    expected, found = numbers(current_folder / "whole"), numbers(current_folder / "cut")
    last = [name for name in expected if "000030" in name or name.endswith("journal.jsonl")]
    assert len(last) == 4 * 4
    assert {name: found[name] for name in last} == {name: expected[name] for name in last}

    times = {path: path.stat().st_mtime_ns for path in (current_folder / "cut" / "runs").rglob("*")}
    again = andrea("trial", trial, "--data", shared_folder, "--out", "cut", "--json", *CPU)
    assert again.code == 0
    assert "4 runs, 4 of them done" in again.err
    assert {path: path.stat().st_mtime_ns for path in (current_folder / "cut" / "runs").rglob("*")} == times
    report = json.loads(again.out)
    assert [arm["arm"] for arm in report["arms"]] == ["uniform", "ucb1"]
    assert len(report["runs"]) == 4
    assert 0 < report["runs"][0]["curriculum"] < 1
    for name in ("report.md", "report.json", "trial.json", "experiments/ucb1.1.json", "logs/ucb1.1.txt"):
        assert (current_folder / "cut" / name).read_text(), name
    assert json.loads((current_folder / "cut" / "runs" / "ucb1.1" / "config.json").read_text())["seed"] == 1
    for folder in (current_folder / "cut" / "runs").iterdir():
        (folder / "journal.jsonl").unlink()  # what it came to is kept
    kept = andrea("trial", trial, "--data", shared_folder, "--out", "cut", "--report", "--json", *CPU)
    assert json.loads(kept.out) == report
    value = json.loads((first / RESULT).read_text())
    wrong = [{"steps": 30}, [], *(value | change for change in ({"gap": 3}, {"shares": []}, {"bits_per_byte": {}}))]
    for damaged in ("", "{", *map(json.dumps, wrong)):
        (first / RESULT).write_text(damaged)
        broken = andrea("trial", trial, "--data", shared_folder, "--out", "cut", "--report")
        assert broken.code == 2
        assert f"{RESULT} is not what a trial keeps of a run" in broken.err
        assert "its journal is gone" in broken.err
    plots = {path.name for path in (current_folder / "cut" / "plots").iterdir()}
    assert plots == {"curves.png", "differences.png", "walk.png", "shares-uniform.png", "shares-ucb1.png"}


def test_an_arm_that_fails_is_named_and_the_others_go_on(andrea, value, write, shared_folder, current_folder):
    """A run that ends with an error, and one that waits for it, are reported; exit code 1, and a table of the rest."""
    arms = {
        "uniform": {},
        "broken": {"set": {"sources": [{"name": "one", "reader": "source.text", "options": {"path": "nowhere"}}]}},
        "ruined": {"plugins": {"stop.max_steps": {"steps": 5}}},
        "waiting": {"plugins": {"bandit.replay": {"path": "{run:broken}"}}},
        "replay": {"plugins": {"bandit.replay": {"path": "{run:uniform}", "order": "reversed"}}},
    }
    experiment = {**value["experiment"], "evaluation": {"eval_every": 10, "rows": 1}}
    trial = write(arms=arms, seeds=[3], test_rows=2, experiment=experiment)
    ended_with = andrea("trial", trial, "--data", shared_folder, *CPU)
    assert ended_with.code == 1
    assert "2 of 5 runs are not done: broken.3, waiting.3" in ended_with.err
    assert "nowhere" in ended_with.err
    assert "ruined.3 ended before it was evaluated once" in ended_with.err
    assert ended_with.out.splitlines()[0].split()[:3] == ["arm", "seeds", "mean"]
    test = json.loads((current_folder / "trials" / "small" / "runs" / "replay.3" / "test.json").read_text())
    assert test["step"] == 30
    assert test["bits_per_byte"].keys() <= {"one", "two"}
    assert len(test["bits_per_byte"]) > 0

    other = write(arms={"uniform": {"set": {"schedule.peak": 0.1}}}, seeds=[3], experiment=experiment)
    refused = andrea("trial", other, "--data", shared_folder, *CPU)
    assert refused.code == 2
    assert "is a run of another experiment" in refused.err


def test_test_losses_that_are_asked_for_later_are_missed(andrea, write, shared_folder, current_folder):
    """A report says of which runs, and what measures them; that makes no run again."""
    asked = ("--data", shared_folder, *CPU)
    small = {"steps": 10, "arms": {"uniform": {}}}
    assert andrea("trial", write(**small), *asked).code == 0
    later = write(**small, test_rows=2)
    reported = andrea("trial", later, *asked, "--report")
    assert reported.code == 2
    assert "the test losses of 2 of 2 runs are not measured: uniform.0, uniform.1" in reported.err
    assert "the same command without --report" in reported.err
    journals = {path: path.stat().st_mtime_ns for path in (current_folder / "trials").rglob("journal.jsonl")}
    assert andrea("trial", later, *asked, "--seed", "1").code == 0
    reported = andrea("trial", later, *asked, "--report")
    assert reported.code == 0
    assert "the test losses of 1 of 2 runs are not measured: uniform.0, so they are in no table" in reported.err
    assert {path: path.stat().st_mtime_ns for path in journals} == journals


def test_a_damaged_file_of_a_run_is_named(andrea, write, shared_folder, current_folder):
    """What was measured beside the journal can be measured anew, or is lost: the error says which."""
    trial = write(steps=10, seeds=[0], arms={"uniform": {}}, test_rows=2)
    asked = ("trial", trial, "--data", shared_folder, *CPU)
    assert andrea(*asked).code == 0
    run = current_folder / "trials" / "small" / "runs" / "uniform.0"
    test = (run / "test.json").read_bytes()
    for name, cure in (("test.json", "measures it anew"), ("cost.json", "nothing is then known")):
        texts = (
            b'{"bits_per_byte": {"one": "2"}, "rows": {"one": 2}, "seconds": "2"}',
            b'{"bits_per_byte": {}, "rows": {"one": 2}, "seconds": Infinity, "steps": 1, "curriculum_seconds": 0}',
            b'{"bits_per_byte": {"one": 2}, "rows": {"one": 2, "two": 2}, "seconds": 2, "steps": 1}',
            b'{"bits_per_byte": {"one": -2}, "rows": {"one": 2}, "seconds": 2, "steps": -1, "curriculum_seconds": 0}',
        )
        for damage in (b"", b"{", b"[]", b"{}", b"\xff", *texts):
            (run / name).write_bytes(damage)
            reported = andrea(*asked, "--report")
            assert reported.code == 2
            assert f"{name} is damaged\n  delete it: " in reported.err
            assert cure in reported.err
        (run / name).unlink()
        assert andrea(*asked).code == 0
    assert (run / "test.json").read_bytes() == test
    assert not (run / "cost.json").exists()


def test_a_damaged_time_is_said_before_the_run_goes_on(tmp_path):
    """It could not be added to at the end."""
    (tmp_path / "cost.json").write_text("{")
    with pytest.raises(AndreaError, match=r"cost\.json is damaged"):
        train(tmp_path / "no.json", tmp_path, "cpu")


def test_a_folder_that_cannot_be_written(andrea, write, shared_folder, current_folder):
    """It is said like that of a run."""
    (current_folder / "file").write_text("in the way")
    ended_with = andrea("trial", write(), "--data", shared_folder, "--out", "file/out", *CPU)
    assert ended_with.code == 2
    assert "cannot write in file/out" in ended_with.err
    assert "--out" in ended_with.err


# -- comparing ---------------------------------------------------------------------------------------------------------


def result(arm, seed, a, b, curve=(), **changes):
    """Return a result with two sources of 100 and 300 tokens."""
    fields = {
        "steps": 10,
        "tokens": 1000,
        "stopped": "",
        "bits_per_byte": {"a": a, "b": b},
        "sizes": {"a": 100, "b": 300},
        "epochs": {"a": 3.0, "b": 1.0},
        "curve": list(curve) or [(500, 4.0), (1000, (a + b) / 2)],
        "shares": np.full((5, 2), 0.5),
        "gap": {"a": 0.5, "b": 0.1},
        "test": {},
        "seconds": 10.0,
        "curriculum": 0.01,
    }
    return Result(arm=arm, seed=seed, **(fields | changes))


def test_a_summary_is_worked_by_hand(read_jobs, write, shared_folder):
    """Means, worst, weighted by size, paired differences with their interval, and sources that got worse."""
    trial = read_trial(write(seeds=[0, 1, 2]), shared_folder)
    table = by_arm(
        trial,
        [result("uniform", seed, 2.0 + 0.01 * seed, 3.0) for seed in (2, 1, 0)]
        + [result("ucb1", seed, 1.9 + 0.01 * seed + 0.03 * (seed == 2), 3.1) for seed in (0, 1, 2)],
    )
    assert list(table["uniform"]) == [0, 1, 2]
    uniform, other = summarise(trial, table)
    assert (uniform.arm, uniform.differences, uniform.worse) == ("uniform", {}, None)
    # Sums of decimal fractions in another order than the hand's.
    assert uniform.mean == pytest.approx(2.505, rel=1e-14)
    assert uniform.spread == pytest.approx(0.005, rel=1e-10)
    assert uniform.worst == 3.0
    assert uniform.weighted == pytest.approx((2.01 * 100 + 3.0 * 300) / 400, rel=1e-14)
    mean, half = other.differences["uniform"]
    assert mean == pytest.approx(0.005, rel=1e-10)  # 0, 0 and 0.015
    assert half == pytest.approx(4.30265 * 0.015 / math.sqrt(3) / math.sqrt(3), rel=2e-6)  # tables of six digits
    assert other.worse == 1  # b is 0.1 worse where uniform's spread is 0; a is better
    assert other.gap == ("a", 0.5)
    assert other.epochs == ("a", 3.0)


def test_tokens_to_reach_is_where_the_curve_crosses():
    """From 3 at 400 to 2 at 600 tokens, the baseline's final 2.5 of 1,000 tokens is reached at 500: a half."""
    baseline = {0: result("uniform", 0, 2.0, 3.0)}
    fast = {0: result("ucb1", 0, 2.0, 2.0, curve=[(200, 4.0), (400, 3.0), (600, 2.0), (800, 2.6)])}
    slow = {0: result("ucb1", 0, 3.0, 3.0, curve=[(500, 3.0), (1000, 2.51)])}
    at_once = {0: result("ucb1", 0, 2.0, 2.0, curve=[(200, 2.5)])}
    assert tokens_to_reach(fast, baseline) == 0.5
    assert tokens_to_reach(slow, baseline) is None
    assert tokens_to_reach(at_once, baseline) == 0.2
    assert tokens_to_reach(fast, {}) is None


def test_one_seed_has_no_spread_to_be_worse_by():
    """The number of worse sources needs two common seeds."""
    assert count_worse({0: result("b", 0, 9.0, 9.0)}, {0: result("a", 0, 1.0, 1.0)}) is None


def test_the_table_shows_the_best_first_and_what_ended_early(write, shared_folder):
    """Arms by their mean, a star where the interval is clear of zero, the early end of a run."""
    trial = read_trial(write(test_rows=1), shared_folder)
    test = {"a": 2.0, "b": 2.0}
    results = [result("uniform", seed, 3.0, 3.0 + 0.01 * seed, test=test) for seed in (0, 1)]
    results += [
        result("ucb1", seed, 2.0, 2.0 + 0.01 * seed, test=test, stopped="stop.not_finite: 9" * seed) for seed in (0, 1)
    ]
    table = by_arm(trial, results)
    head, best, last = arm_rows(trial, summarise(trial, table))
    row = dict(zip(head, best, strict=True))
    assert [best[0], last[0]] == ["ucb1", "uniform"]
    assert row["seeds"] == "2, 1 early"
    assert row["minus uniform"] == "-1.0000 +- 0.0000 *"
    assert row["test minus uniform"] == "+0.0000 +- 0.0000"
    assert source_rows(table)[1] == ["a", "100", "3.0000", "**2.0000**"]


def test_walks_are_projected_without_changing_distances():
    """Three sources span a plane, so two directions keep every distance; the uniform mix is at the origin."""
    walks = {
        "one": np.array([[1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]),
        "two": np.array([[1.0, 0.0, 0.0], [0.6, 0.2, 0.2]]),
    }
    flat = project(walks)
    assert flat["one"][0] == pytest.approx([0, 0], abs=1e-15)  # rounding of thirds
    before, after = np.concatenate(list(walks.values())), np.concatenate(list(flat.values()))
    distances = [np.linalg.norm(points[:, None] - points[None], axis=2) for points in (before, after)]
    assert distances[1] == pytest.approx(distances[0], abs=1e-14)  # an orthogonal map


def test_results_are_attributes_of_a_run():
    """The three figures of a run come from its sources."""
    one = attrs.evolve(result("uniform", 0, 1.0, 3.0))
    assert (one.mean, one.worst, one.weighted) == (2.0, 3.0, 2.5)


# -- the trials that come with the package -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[1] / "experiments" / "trials").glob("*.json")), ids=str)
def test_a_trial_of_the_package_is_one_that_could_run(path, tmp_path):
    """Every arm is an experiment with plugins that exist and options that fit."""
    trial = read_trial(path, tmp_path)
    assert len(jobs_of(trial, str(path), tmp_path / "out")) == len(trial.arms) * len(trial.seeds)
