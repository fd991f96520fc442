"""From Python: a run is trained, opened, looked at and written with, as the command line does it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import andrea as package
from andrea import AndreaError
from andrea.config import from_json
from andrea.notebook import draw_curve, in_notebook

CPU = ("--device", "cpu")


@pytest.fixture
def run(tiny, current_folder):
    """Return a run of 20 steps, trained from a value."""
    return package.train(tiny, out="run", steps=20, device="cpu")


def test_training_is_that_of_the_command_line(run, andrea, experiment, current_folder):
    """Byte for byte, whether the experiment is a value, a file's name or a configuration."""
    assert andrea("run", experiment, "--out", "told", "--steps", 20, *CPU).code == 0
    value = json.loads((current_folder / experiment).read_text())
    package.train(from_json(value, "here"), out="typed", steps=20, device="cpu")
    package.train(experiment, out="named", steps=20, device="cpu")
    names = ("journal.jsonl", "checkpoints/step_000020.bin", "checkpoints/step_000020.npz")
    for name in names:
        contents = {(current_folder / folder / name).read_bytes() for folder in ("run", "told", "typed", "named")}
        assert len(contents) == 1, name


def test_options_reach_the_run(tiny, current_folder):
    """Steps, seed, plugins, settings; the folder is the next free one, named after the experiment."""
    one = package.train(
        tiny, steps=3, seed=7, plugins=["sampler.argmax"], without=["weight.epoch_penalty"],
        settings={"schedule.peak": 1e-4, "name": "mine"}, device="cpu",
    )  # fmt: skip
    assert one.folder == Path("runs/tiny-001")
    assert one.config.seed == 7
    assert one.config.schedule.peak == 1e-4
    assert one.name == "mine"
    assert "sampler.argmax" in one.config.plugins
    assert "weight.epoch_penalty" not in one.config.plugins
    assert one.steps.rows == 3
    assert package.Run.open().folder == one.folder  # the newest


def test_a_run_goes_on(run, andrea, experiment, current_folder):
    """A resume ends as if it had not been interrupted; one that is done is opened."""
    more = package.train(out="run", steps=30, resume=True, device="cpu")
    assert andrea("run", experiment, "--out", "whole", "--steps", 30, *CPU).code == 0
    name = "checkpoints/step_000030.bin"
    assert (current_folder / "run" / name).read_bytes() == (current_folder / "whole" / name).read_bytes()
    assert more.checkpoints[-1] == 30
    assert package.train(out="run", steps=30, resume=True, device="cpu").checkpoints == more.checkpoints


def test_training_from_another_thread(tiny, current_folder):
    """Where signals cannot be taken, it trains all the same."""
    runs = []
    thread = threading.Thread(target=lambda: runs.append(package.train(tiny, out="run", steps=2, device="cpu")))
    thread.start()
    thread.join(60)
    assert runs[0].steps.rows == 2


def test_an_interrupted_cell_leaves_a_checkpoint(tiny, current_folder):
    """SIGINT ends the run between two steps and is no exception; the handler of before is back."""
    (current_folder / "tiny.json").write_text(json.dumps({**tiny, "schedule": {"steps": 10**6}}))
    script = (
        "import os, signal, threading, andrea\n"
        "before = signal.getsignal(signal.SIGINT)\n"  # ignored, where the tests run in the background of a shell
        "threading.Timer(4, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
        "run = andrea.train('tiny.json', out='run', device='cpu')\n"
        "back = signal.getsignal(signal.SIGINT) == before\n"
        "print(run.checkpoints[-1] == run.steps.rows > 0, back)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "True True\n", done.stderr


def test_the_history_in_columns(run, current_folder):
    """The numbers are those of the journal, and new ones appear when it has grown."""
    losses = json.loads((current_folder / "run/tiny.loss.json").read_text())
    assert run.steps["step"].tolist() == [step for step, _ in losses]
    assert run.steps["loss"].tolist() == [loss for _, loss in losses]
    assert set(run.pulls["source"]) <= {"one", "two"}
    assert run.pulls.rows == 20
    assert run.evaluations["step"].tolist() == [10, 10, 20, 20]
    samples = json.loads((current_folder / "run/tiny.samples.json").read_text())
    assert run.samples["text"].tolist() == [one["text"] for one in samples]
    assert run.reasons == {"stop.max_steps": "20 steps are done"}

    package.train(out="run", steps=23, resume=True, device="cpu")
    assert run.steps.rows == 23
    assert run.reasons == {"stop.max_steps": "23 steps are done"}


def test_the_model_of_a_run(run, andrea, current_folder):
    """It writes, is measured and exported as by the commands; a checkpoint can be named."""
    asked = ("sample", "run", "--prompt", "seed ", "--tokens", 30, "--seed", 4, "--json", *CPU)
    for step, more in ((None, ()), (10, ("--checkpoint", "step_000010"))):
        text = json.loads(andrea(*asked, *more).out)["samples"][0]["text"]
        assert run.write("seed ", 30, seed=4, step=step, device="cpu") == text
    assert run.model(10, "cpu") is run.model(10, "cpu")
    assert run.model(10, "cpu").step == 10
    whole = run.write("seed ", 30, seed=4, device="cpu")
    assert run.write("seed ", 30, seed=4, stop=[whole[5:7]], device="cpu") == whole[: whole.index(whole[5:7])]
    measured = json.loads(andrea("evaluate", "run", "--json", *CPU).out)
    assert run.evaluate(device="cpu").bits_per_byte == measured["bits_per_byte"]
    with np.load(run.export("npz", "model.npz")) as file:
        assert file["embed"].shape == (257, 8)


def test_how_a_run_looks(run, tiny, current_folder):
    """Where it is, how far, how good, why it ended; in a notebook as a table with its curve, and nothing is a tag."""
    text = repr(run)
    for said in (
        "run",
        "1 layers, width 8",
        "one, two",
        "20 of a schedule of 30",
        "bits per byte after 20",
        "stop.max_steps",
    ):
        assert said in text
    html = run._repr_html_()
    assert html.startswith("<table>")
    assert "<polyline" in html
    strange = {**tiny, "sources": [{**tiny["sources"][0], "name": "<i>one"}, tiny["sources"][1]]}
    html = package.train(strange, out="strange", steps=1, device="cpu")._repr_html_()
    assert "<i>" not in html
    assert "&lt;i&gt;one" in html


def test_the_curve():
    """It falls to the bottom and has few points whatever the length; without two numbers there is none."""
    curve = draw_curve(np.linspace(5, 2, 10_000))
    points = [tuple(map(float, point.split(","))) for point in curve.split('points="')[1].split('"')[0].split()]
    assert len(points) == 200
    assert points[0] == (2.0, 2.0)
    assert points[-1] == (418.0, 88.0)
    assert "from 5.0000 to 2.0000" in curve
    assert draw_curve([]) == draw_curve([1.0]) == draw_curve([np.nan, 2.0]) == ""
    assert "polyline" in draw_curve([3.0, 3.0])


def test_a_run_that_has_just_begun(tiny, current_folder):
    """No journal, no checkpoint: it opens, is shown, and says what it has not."""
    folder = current_folder / "new"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(tiny))
    opened = package.Run.open(folder)
    assert opened.steps.rows == 0
    assert "none yet" in repr(opened)
    assert opened._repr_html_().endswith("</table>")
    with pytest.raises(AndreaError, match="has no checkpoint yet"):
        opened.model()


def test_damaged_and_missing_runs(run, tiny, current_folder):
    """What is wrong is said, with what to type next."""
    with pytest.raises(AndreaError, match="gone holds no run"):
        package.Run.open("gone")
    with pytest.raises(AndreaError, match="there is no run in"):
        package.Run.open()
    with (current_folder / "run/journal.jsonl").open("r+b") as file:
        file.write(b"{,")
    with pytest.raises(AndreaError, match="is damaged"):
        package.Run.open("run").steps  # noqa: B018
    with pytest.raises(AndreaError, match="has no name"):
        package.train({"model": {}})
    with pytest.raises(AndreaError, match="not a value of JSON"):
        package.train({"name": "x", "model": {1, 2}})
    with pytest.raises(AndreaError, match="already holds a run"):
        package.train(tiny, out="run", device="cpu")


def test_the_example_of_the_page(tiny, current_folder, capsys):
    """What docs/export.md shows runs as it stands there, on a smaller experiment."""
    page = (Path(__file__).parents[1] / "docs/export.md").read_text(encoding="utf-8")
    block = next(part for part in re.findall(r"```python\n(.*?)```", page, re.S) if "import andrea" in part)
    smaller = 'tiny, steps=20, out="runs/quickstart-001", device="cpu"'
    assert '"quickstart", steps=200' in block
    code = block.replace('"quickstart", steps=200', smaller).replace('"topics"', '"one"')
    names = {"tiny": tiny}
    exec(compile(code, "docs/export.md", "exec", dont_inherit=True), names)
    assert names["run"].folder == Path("runs/quickstart-001")
    assert len(capsys.readouterr().out) > 1


def test_what_is_lazy_is_found():
    """`andrea.train` is a function; a name that is not there is an error as usual."""
    assert callable(package.train)
    assert "train" in package.__all__
    with pytest.raises(AttributeError, match="no attribute 'trane'"):
        package.trane  # noqa: B018
    assert not in_notebook()
    assert signal.getsignal(signal.SIGINT) is not None
