"""The scripts of benchmarks/ that can be tried without a card: rendered numbers, a real run, names of parts."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from andrea.engine import GenerateOptions
from andrea.engine.model import ModelConfig

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"


def load(name):
    """Import a script by its path."""
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_readme_shows_the_record():
    """README.md's table is what the committed record gives."""
    render = load("render")
    text = render.README.read_text()
    assert render.render(text, json.loads(render.RECORD.read_text())) == text


def test_table_follows_the_record():
    """A changed record changes the text between the markers and nothing else; without markers it is refused."""
    render = load("render")
    record = json.loads(render.RECORD.read_text())
    record["peers"]["details"]["points"]["12M:8"]["andrea"] |= {"tokens_per_second": 1234567.0, "median_ms": 4.2}
    text = f"before\n{render.BEGIN}\nold\n{render.END}\nafter\n"
    made = render.render(text, record)
    assert made.startswith("before\n")
    assert made.endswith("\nafter\n")
    assert "| 12M | 8 | 4.2 | 1,234,567 |" in made
    assert "old" not in made
    with pytest.raises(ValueError, match="lacks the lines"):
        render.render("no markers", record)


def test_a_real_run_is_measured_beside_its_engine(tmp_path, monkeypatch):
    """On the CPU, with real files: default plugins, samples, evaluation, checkpoint; every step is seen."""
    real = load("real_run")
    sources = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for i in range(60):
            (tmp_path / name / f"{i}.txt").write_text(f"{name} {i} is a short document about the number {i * 7}.\n")
        sources.append({"name": name, "reader": "source.text", "options": {"path": str(tmp_path / name)}})
    value = real.experiment(
        "12M:8",
        12,
        sources,
        model={"n_layer": 1, "n_head": 1, "d_model": 8, "context": 16},
        batch={"batch_size": 2},
        sampling={"sample_every": 4, "count": 1, "max_tokens": 3},
        evaluation={"eval_every": 6, "rows": 2},
        plugins={"tokenizer.byte": {}},
    )
    monkeypatch.setenv("ANDREA_CACHE", str(tmp_path / "cache"))
    found = real.real_run(value, "cpu", tmp_path)
    journal = (tmp_path / "run" / "journal.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in journal]
    assert (kinds.count("step"), kinds.count("sample"), kinds.count("evaluation")) == (12, 3, 2)
    assert (tmp_path / "run" / "checkpoints" / "step_000006.json").is_file()
    assert found["tokens_per_second"] > 0
    assert found["bare_tokens_per_second"] == found["bare"]["tokens_per_second"]
    assert (found["vocabulary"], found["sources"]) == (257, 2)


def test_a_chat_is_measured(andrea, experiment, monkeypatch):
    """A run is trained, its model answers; delays and tokens are those of the replies behind the first."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    chat = load("chat_speed")
    value = json.loads(Path(experiment).read_text()) | {"schedule": {"steps": 4}, "checkpoints": {"every": 2}}
    folder = chat.train(value, "cpu", Path.cwd())
    model = chat.open_model(folder, None, "cpu", lambda line: None, rows=1)
    found = chat.talk(model, GenerateOptions(12), replies=3)
    clock = SimpleNamespace(perf_counter=functools.partial(next, itertools.count(0, 2)))
    monkeypatch.setattr(chat, "time", clock)  # two seconds pass between any two looks at it
    assert chat.pace(model, 30) == 15
    model.engine.close()
    assert len(found["tokens"]) == len(found["seconds"]) == 3
    assert 0 < found["delay"] <= found["longest_delay"] <= max(found["seconds"][1:])


@pytest.mark.parametrize(
    ("figures", "true"),
    [({}, [True] * 2), ({"longest_delay": 0.21}, [False, True]), ({"tokens_per_second": 1499.0}, [True, False])],
)
def test_what_is_claimed_of_a_chat(monkeypatch, figures, true):
    """The first text came in time, and texts are fast enough."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    found = {"longest_delay": 0.1, "tokens_per_second": 1500.0} | figures
    assert list(load("chat_speed").claims(found).values()) == true


def test_claims_stand_in_the_table(tmp_path):
    """What a part claims is listed behind the table, at whatever depth of its details, false ones in capitals."""
    details = {"delay": 0.1, "claims": {"it is fast": True}, "exact": {"claims": {"it is exact": False}, "losses": [1]}}
    (tmp_path / "chat.json").write_text(json.dumps(details))
    command = [sys.executable, str(BENCHMARKS / "merge_check.py"), str(tmp_path)]
    subprocess.run([*command, "chat", "1", "7", "abcdef"], check=True)
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["part", "result", "seconds", "commit"],
        ["chat", "failed", "1", "7", "abcdef"],
        ["chat", "true", "it", "is", "fast"],
        ["chat", "FALSE", "exact:", "it", "is", "exact"],
    ]


def test_figures_of_a_run():
    """Rates from the first begin to the last, and a checkpoint's stall and aftermath beside the median."""
    real = load("real_run")
    found = real.figures([0.0, 1.0, 2.0, 5.0, 6.5, 7.5, 8.5, 15.5], tokens=10, checkpoint=3, look=7)
    assert found["median_ms"] == 1000
    assert found["tokens_per_second"] == 70 / 15.5
    assert found["look_ms"] == 6000  # the last step, behind which the model was looked at; no part of the checkpoint
    assert found["stall_ms"] == 2000  # the third step, behind which the checkpoint was made
    assert found["checkpoint_seconds"] == 2.5


@pytest.mark.skipif(sys.platform == "win32", reason="a script of bash")
def test_an_unknown_part_is_refused(tmp_path):
    """A misspelt part of the GPU check ends it at once."""
    script = tmp_path / "benchmarks" / "gpu_check.sh"  # away from any wheels beside the checkout
    script.parent.mkdir()
    script.write_text((BENCHMARKS / "gpu_check.sh").read_text())
    environment = os.environ | {"PYTHON": sys.executable, "OUT": str(tmp_path / "out")}
    command = ["bash", str(script), "racecheck"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no part racecheck" in done.stderr


def test_a_grown_model_and_the_same_one_cut_in_its_middle(tiny, tmp_path, monkeypatch, capsys):
    """The run that was cut ends in the same bytes; figures are those of the whole run; a changed byte is named."""
    grow = load("grow")
    steps, model = 60, {"context": 64, "d_model": 64}  # slow enough to be cut
    experiment = {
        **tiny,
        "model": {**tiny["model"], **model},
        "schedule": {**tiny["schedule"], "steps": steps},
        "sampling": {"sample_every": 30, "count": 1, "max_tokens": 4},
        "evaluation": {"eval_every": 30, "rows": 2},
    }
    (tmp_path / "tiny.json").write_text(json.dumps(experiment))
    out = tmp_path / "grown"
    monkeypatch.setattr(
        sys, "argv", ["grow.py", str(tmp_path / "tiny.json"), "--out", str(out), "--device", "cpu", "--cut"]
    )
    assert grow.main() == 0
    assert '"cut_differs_in": []' in capsys.readouterr().out
    found = json.loads((out / "figures.json").read_text())
    assert found["steps"] == steps
    assert found["curve"][-1][0] == steps
    assert 0 < found["resumed_from"] <= found["cut_at"] < steps
    assert [step for step, _ in found["samples"]] == [30, 60]
    assert len(found["bits_per_byte"]) == 2 * len(tiny["sources"])
    weights = out / "cut" / "checkpoints" / f"step_{steps:06d}.bin"
    weights.write_bytes(b"x" + weights.read_bytes()[1:])
    assert grow.differences(out / "whole", out / "cut", steps) == [f"checkpoints/{weights.name}"]
    with pytest.raises(RuntimeError, match="nothing was cut"):
        grow.resume(out / "cut", ["--device", "cpu"], steps)


@pytest.fixture
def small_family(monkeypatch):
    """Make the family's models small enough for a test; scripts find their neighbours."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    model = ModelConfig(n_layer=1, n_head=1, d_model=8, context=16)
    return {"12M": (model, 257), "120M": (model, 257)}


def test_curves_that_agree_and_one_that_strays(small_family, tmp_path, monkeypatch, capsys):
    """A curve is compared at every place; one that strays, or is no number, fails the script."""
    curves = load("curves")
    monkeypatch.setattr(curves, "FAMILY", small_family)
    monkeypatch.setattr(curves, "POINTS", {"12M:2": {"fp32": 0.0, "again": 5e-3, "far": 5e-3, "nan": 5e-3}})
    drawn, bends = curves.curve, {"far": (70, 2.0), "nan": (3, math.nan)}

    def curve(point, precision, device, steps):
        losses = drawn(point, "fp32", device, steps)
        where, factor = bends.get(precision, (0, 1.0))
        losses[where] *= factor
        return losses

    monkeypatch.setattr(curves, "curve", curve)
    out = tmp_path / "curves.json"
    monkeypatch.setattr(sys, "argv", ["curves.py", "--device", "cpu", "--steps", "120", "--only", "12M:2"])
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--out", str(out)])
    assert curves.main() == 1
    found = json.loads(out.read_text())["12M:2"]
    assert list(found["claims"].values()) == [True, False, False]
    assert found["distance"]["again"] == 0
    assert 0.015 < found["distance"]["far"] < 0.025  # one of 50 losses is doubled
    assert len(found["every_50"]["fp32"]) == 2
    monkeypatch.setattr(curves, "POINTS", {"12M:2": {"fp32": 0.0, "again": 5e-3}})
    assert curves.main() == 0


def test_a_start_is_measured_to_its_first_step(tmp_path, monkeypatch):
    """A cold start and warm ones print their first step; one that ends without is shown with what it said."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    start = load("start")
    (tmp_path / "text").mkdir()
    for i in range(40):
        (tmp_path / "text" / f"{i}.txt").write_text(f"document {i} is about the number {i * 7}.\n")
    sources = [{"name": "text", "reader": "source.text", "options": {"path": str(tmp_path / "text")}}]
    small = {
        "model": {"n_layer": 1, "n_head": 1, "d_model": 8, "context": 16},
        "batch": {"batch_size": 2},
        "plugins": {"tokenizer.byte": {}},
    }
    made = start.experiment
    monkeypatch.setattr(start, "experiment", lambda point, steps, _: made(point, steps, sources, **small))
    for name in ("ANDREA_CACHE", "XDG_CACHE_HOME"):  # the script sets them for its own processes
        monkeypatch.setenv(name, str(tmp_path / name))
    out = tmp_path / "start.json"
    monkeypatch.setattr(sys, "argv", ["start.py", "--device", "cpu", "--only", "12M:8", "--warm", "1"])
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--out", str(out)])
    monkeypatch.setattr(start, "POINTS", {"12M:8": (60.0, 0.01)})
    assert start.main() == 1
    found = json.loads(out.read_text())["12M:8"]
    assert list(found["claims"].values()) == [True, False]
    assert [0 < seconds < 60 for seconds in found["warm_seconds"]] == [True]
    with pytest.raises(SystemExit, match=r"ended with 2:\n.*missing\.json"):
        start.first_step(tmp_path / "missing.json", "cpu", tmp_path / "none")


def test_a_start_is_profiled(tmp_path, monkeypatch):
    """Where a command spends its time is written by function, from its first import on."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    start = load("start")

    def first_step(*arguments, under):
        subprocess.run(start.andrea("--version", under=under), check=True, stdout=subprocess.DEVNULL)

    monkeypatch.setattr(start, "first_step", first_step)
    start.profile(tmp_path / "e.json", "cpu", tmp_path / "run", tmp_path / "profile.txt")
    written = (tmp_path / "profile.txt").read_text()
    assert re.search(r"cli\.py:\d+\(main\)", written)
    assert "(exec_module)" in written
