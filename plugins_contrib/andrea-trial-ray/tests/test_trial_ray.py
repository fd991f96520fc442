import copy
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray
from andrea_trial_ray import RayQueue, Ready
from ray.tune.search import Searcher

from andrea import AndreaError
from andrea.interrupts import Interrupts
from andrea.trial import Job, ended
from andrea.trial_queue import find_queue

TIMED = ("seconds", "curriculum")


@pytest.fixture(autouse=True, scope="module")
def silence():
    """Nothing of these tests goes out."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


@pytest.fixture(scope="module")
def cluster():
    """Start a Ray of two CPUs on this machine, for all tests that run in this process."""
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    yield
    ray.shutdown()


@pytest.fixture
def write(tiny, tmp_path):
    """Return a function that writes a trial of three arms and two seeds, and returns the file's name."""

    def make(name="small.json", **changes):
        experiment = copy.deepcopy(json.loads((tiny / "tiny.json").read_text()))
        experiment |= {"sampling": {"sample_every": 0}, "plugins": {"tokenizer.byte": {}}}
        value = {
            "experiment": experiment,
            "steps": 10,
            "seeds": [0, 1],
            "baseline": "uniform",
            "test_rows": 2,
            "arms": {
                "uniform": {},
                "ucb1": {"plugins": {"bandit.ucb1": {}}},
                "replay": {"plugins": {"bandit.replay": {"path": "{run:ucb1}"}}},
            },
        }
        (tmp_path / name).write_text(json.dumps(value | changes))
        return name

    return make


def untimed(value):
    """Return a report without what the clock has measured."""
    if isinstance(value, dict):
        return {key: untimed(item) for key, item in value.items() if key not in TIMED}
    return [untimed(item) for item in value] if isinstance(value, list) else value


def results(folder):
    """Return the bytes of what every run ends with, by path, and of the experiments."""
    patterns = ("runs/*/checkpoints/step_000010.*", "runs/*/journal.jsonl", "runs/*/test.json", "runs/*/config.json")
    paths = [path for pattern in (*patterns, "experiments/*.json") for path in folder.glob(pattern)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(paths)}


def test_its_results_are_those_of_the_trial_on_one_machine(andrea, write, cluster, tmp_path, capsys):
    """Bytes of checkpoints, journals and test figures; the report but for times; an arm waited for the other's run."""
    trial = write()
    assert andrea("trial", trial, "--out", "there", "--queue", "ray", "--device", "cpu", "--json") == 0
    out, err = capsys.readouterr()
    there = json.loads(out)  # nothing else on standard output
    assert err.index("ucb1.1 is done") < err.index("replay.1 begins")
    # The same names in the experiments, so that their bytes can be compared: {run:ucb1} is a folder.
    Path("there").rename("done")
    assert andrea("trial", trial, "--out", "there", "--device", "cpu", "--json") == 0
    here = json.loads(capsys.readouterr().out)
    assert untimed(there) == untimed(here)
    assert len(here["runs"]) == 6
    found = results(tmp_path / "done")
    assert len(found) == 6 * (3 + 1 + 1 + 1 + 1)
    assert found == results(tmp_path / "there")

    Path("there").rename("here")
    Path("done").rename("there")
    assert andrea("trial", trial, "--out", "there", "--report", "--json") == 0
    assert untimed(json.loads(capsys.readouterr().out)) == untimed(here)
    times = {path: path.stat().st_mtime_ns for path in Path("there/runs").rglob("*")}
    assert andrea("trial", trial, "--out", "there", "--queue", "ray", "--device", "cpu") == 0
    assert "6 runs, 6 of them done" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in Path("there/runs").rglob("*")} == times


def test_a_run_that_fails_is_named_and_the_others_go_on(andrea, write, cluster, capsys):
    """With the end of what it said; what waits for it is not begun."""
    nowhere = [{"name": "one", "reader": "source.text", "options": {"path": "nowhere"}}]
    arms = {
        "uniform": {},
        "broken": {"set": {"sources": nowhere}},
        "waiting": {"plugins": {"bandit.replay": {"path": "{run:broken}"}}},
    }
    code = andrea("trial", write(arms=arms, seeds=[3]), "--out", "t", "--queue", "ray", "--device", "cpu")
    out, err = capsys.readouterr()
    assert code == 1
    assert "broken.3 ended with exit code 2" in err
    assert "nowhere" in err
    assert "2 of 3 runs are not done: broken.3, waiting.3" in err
    assert out.splitlines()[1].startswith("uniform")
    assert not Path("t/runs/waiting.3").exists()


def test_an_interruption_ends_all_runs_at_a_checkpoint_and_the_same_command_goes_on(andrea, tiny, write, tmp_path):
    """SIGTERM to the command, which starts and ends a Ray of its own: exit code 143, and no run is lost."""
    trial = write(steps=500, arms={"uniform": {}}, test_rows=0)
    value = json.loads(Path(trial).read_text())
    value["experiment"]["model"] |= {"context": 64, "d_model": 32}  # slow enough to be interrupted in the middle
    Path(trial).write_text(json.dumps(value))
    environment = {**os.environ, "ANDREA_CACHE": str(tiny / "cache")}
    command = [sys.executable, "-m", "andrea", "trial", trial, "--out", "t", "--queue", "ray", "--device", "cpu"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "t" / "runs" / "uniform.0" / "journal.jsonl"
    for _ in range(12000):
        if journal.is_file() and journal.stat().st_size > 5000:
            break
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 143, said
    begun = [path for path in (tmp_path / "t" / "runs").iterdir() if (path / "journal.jsonl").is_file()]
    assert begun
    for folder in begun:
        last = json.loads((folder / "journal.jsonl").read_text().splitlines()[-1])
        assert (last["kind"], last["reasons"]) == ("stop", {"signal": "SIGTERM"})
        assert (folder / "checkpoints" / f"step_{last['step']:06d}.json").is_file()
        assert not ended(folder)
        assert f"{folder.name} is interrupted; the same command goes on with it" in said
    assert andrea("trial", trial, "--out", "t", "--device", "cpu", "--device", "cpu") == 0  # here, as it might be there
    for seed in (0, 1):
        folder = tmp_path / "t" / "runs" / f"uniform.{seed}"
        steps = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
        assert [line["step"] for line in steps if line["kind"] == "step"] == list(range(500))
        assert ended(folder)


# -- its parts ---------------------------------------------------------------------------------------------------------


def job(name, *waits_for):
    return Job(name, 0, {}, Path("x"), Path("nowhere"), 0, tuple(f"{other}.0" for other in waits_for))


def test_what_may_begin_is_suggested_in_order():
    """None while what is waited for runs, FINISHED behind the last; who waits for a failed one is failed, not begun."""
    said, failed = [], []

    def say(job, code):
        said.append((job.name, code))
        if code:
            failed.append(job.name)

    jobs = [job("a"), job("b", "a"), job("c", "b"), job("d")]
    ready = Ready(jobs, failed, say, Interrupts())
    assert ready.suggest("1") == {"job": "a.0"}
    assert ready.suggest("2") == {"job": "d.0"}
    assert ready.suggest("3") is None
    ready.on_trial_complete("1", {"code": 0})
    assert ready.suggest("3") == {"job": "b.0"}
    assert ready.suggest("4") is None
    ready.on_trial_complete("3", {"code": 2})
    assert ready.suggest("4") == Searcher.FINISHED
    assert failed == ["b.0", "c.0"]
    ready.on_trial_complete("2", None, error=True)
    assert said == [("a.0", None), ("d.0", None), ("a.0", 0), ("b.0", None), ("b.0", 2), ("d.0", 1)]


def test_after_a_signal_nothing_begins():
    """What runs is told to be interrupted."""
    interrupts, said = Interrupts(), []
    ready = Ready([job("a"), job("b")], [], lambda job, code: said.append((job.name, code)), interrupts)
    assert ready.suggest("1") == {"job": "a.0"}
    interrupts.stopped_by = "SIGTERM"
    assert ready.suggest("2") == Searcher.FINISHED
    ready.close()
    assert said == [("a.0", None), ("a.0", -15)]


@pytest.mark.parametrize(
    ("devices", "words"),
    [(["cpu", "cuda"], "name one kind"), (["cuda:0"], "start its nodes with --num-gpus"), (["tpu"], "name one kind")],
)
def test_devices_that_cannot_be_are_refused(cluster, devices, words, tmp_path):
    """The error says what to name."""
    with pytest.raises(AndreaError) as caught:
        RayQueue([job("a")], devices, tmp_path / "logs", lambda line: None).work()
    assert words in caught.value.hint


def test_it_is_found_by_its_name():
    """Through its entry point."""
    assert find_queue("ray") is RayQueue
