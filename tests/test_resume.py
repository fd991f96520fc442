"""Bit-exact resume, proved with `==` on the bytes of all state; and resumes that are broken on purpose must differ."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager

import attrs
import numpy as np
import pytest

from andrea import assembly
from andrea.assembly import open_run
from andrea.checkpoint import read_checkpoint
from andrea.engine import open_engine
from andrea.errors import AndreaError
from andrea.interrupts import Interrupts
from andrea.loop import Loop
from andrea.planning import Mode, Request, plan
from andrea.plugin import get_state, state_fields
from andrea.registry import Chosen, available, create

STEPS = 40
CURRICULUM = {
    "tokenizer.byte": {},
    "bandit.ucb1": {},
    "sampler.dice": {"lengths": [3, 5, 7]},
    "weight.warmup": {"curriculum_warmup_steps": 12, "curriculum_warmup_sources": ["one", "two"]},
    "weight.coverage_bonus": {},
    "weight.epoch_penalty": {},
    "limit.floors": {"floors": {"three": 0.2}},
    "limit.caps": {"caps": {"one": 0.9}},
    "stop.coherence": {"grace_steps": 0, "failures": 100, "threshold": 100.0},
}


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """Return an experiment of three small sources that wrap their epochs within 40 steps."""
    folder = tmp_path_factory.mktemp("resume")
    rng = np.random.default_rng(0)
    words = ["seed", "root", "leaf", "stem", "grows", "under", "rain", "and", "light"]
    sources = []
    for name, documents in (("one", 9), ("two", 14), ("three", 30)):
        path = folder / f"{name}.jsonl"
        texts = (" ".join(rng.choice(words, size=rng.integers(8, 30))) for _ in range(documents))
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        sources.append({"name": name, "reader": "source.jsonl", "options": {"path": str(path)}})
    path = folder / "resume.json"
    path.write_text(json.dumps(value(sources)))
    return path


def value(sources):
    """Return the experiment's JSON value: everything that has a schedule happens within 40 steps."""
    return {
        "name": "resume",
        "seed": 2,  # of which, at the cuts that are tried, every part of the state still shows at the end
        "model": {"n_layer": 1, "n_head": 2, "d_model": 8, "context": 16},
        "batch": {"batch_size": 4, "pulls_per_step": 2},
        "schedule": {"steps": STEPS, "warmup_steps": 6, "peak": 0.3, "floor": 1.0},
        "sampling": {"sample_every": 9, "count": 2, "max_tokens": 6},
        "evaluation": {"eval_every": 4, "rows": 4},
        "checkpoints": {"every": 1, "keep": STEPS + 1},
        "engine": {"threads": 1},
        "sources": sources,
        "plugins": CURRICULUM,
    }


class LateSkips:
    """An engine whose last steps report a skipped update, so that stops which count them have something to count."""

    def __init__(self, engine):
        self._engine = engine

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def train_step(self, step, inputs, targets, probes=None):
        result = self._engine.train_step(step, inputs, targets, probes)
        return attrs.evolve(result, skipped=True, grad_norm=np.inf) if step >= STEPS - 4 else result


@contextmanager
def surroundings(cache):
    """Set the cache and the engine for a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANDREA_CACHE", str(cache))
        patch.setattr(assembly, "open_engine", lambda *given: LateSkips(open_engine(*given)))
        yield


@pytest.fixture(autouse=True)
def _surrounded(tmp_path_factory):
    with surroundings(tmp_path_factory.getbasetemp() / "cache"):
        yield


def open_loop(request) -> Loop:
    """Return the loop of a request, without a word."""
    planned = plan(request, lambda line: None)
    return open_run(planned, lambda line: None, lambda stage, done, total: None, Interrupts())


@pytest.fixture(scope="module")
def uncut(experiment, tmp_path_factory):
    """Return the folder of a run of 40 steps with a checkpoint after every step."""
    folder = tmp_path_factory.mktemp("uncut") / "run"
    with surroundings(tmp_path_factory.getbasetemp() / "cache"):
        open_loop(Request(experiment=str(experiment), steps=STEPS, device="cpu", out=folder)).run()
    return folder


def state_bytes(folder, step):
    """Return the bytes of all state of a checkpoint: weights and moments, arrays, and the record."""
    base = folder / "checkpoints" / f"step_{step:06d}"
    return tuple(base.with_suffix(suffix).read_bytes() for suffix in (".bin", ".npz", ".json"))


def cut_copy(uncut, folder, step):
    """Make `folder` what the uncut run would have been, had it been killed after `step` steps."""
    shutil.copytree(uncut, folder, ignore=shutil.ignore_patterns("checkpoints"))
    (folder / "checkpoints").mkdir()
    for path in (uncut / "checkpoints").glob(f"step_{step:06d}.*"):
        shutil.copy2(path, folder / "checkpoints" / path.name)
    return folder


def test_the_run_meets_everything_that_could_break_a_resume(uncut):
    """The 40 steps cross an epoch wrap, phase boundaries, the end of the curriculum warm-up, samples, evaluations."""
    lines = [json.loads(line) for line in (uncut / "journal.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    last = read_checkpoint(uncut / "checkpoints" / f"step_{STEPS:06d}.json")

    assert len({step["pulls"][0]["detail"]["start"] for step in steps}) > 3
    assert max(last.data["epoch"]) >= 1
    assert {pull["source"] for step in steps[:12] for pull in step["pulls"]} <= {"one", "two"}
    assert "three" in {pull["source"] for step in steps[12:] for pull in step["pulls"]}
    assert {line["kind"] for line in lines} == {"step", "sample", "evaluation", "stop"}


@pytest.mark.parametrize("cut", range(1, STEPS))
def test_a_run_cut_anywhere_goes_on_as_if_it_had_not_been(uncut, tmp_path, cut):
    """Weights, moments, plugin state, record, journal, losses and samples equal the uncut run's, byte for byte."""
    folder = cut_copy(uncut, tmp_path / "run", cut)

    open_loop(Request(Mode.RESUME, device="cpu", steps=STEPS, out=folder)).run()

    assert state_bytes(folder, STEPS) == state_bytes(uncut, STEPS)
    for name in ("journal.jsonl", "resume.loss.json", "resume.samples.json", "resume.state.json", "config.json"):
        assert (folder / name).read_bytes() == (uncut / name).read_bytes()


@pytest.fixture(scope="module")
def ahead(experiment, tmp_path_factory):
    """Return the folder of such a run, of learners, whose choices are made while the step before computes."""
    folder = tmp_path_factory.mktemp("ahead") / "run"
    with surroundings(tmp_path_factory.getbasetemp() / "cache"):
        request = Request(experiment=str(experiment), steps=STEPS, device="cpu", out=folder, settings=AHEAD)
        open_loop(request).run()
    return folder


AHEAD = ("batch.ahead=true",)


@pytest.mark.parametrize("cut", [1, 8, 9, 17, 36])
def test_a_run_that_chooses_ahead_is_cut_and_goes_on(ahead, tmp_path, cut):
    """What was chosen for the next step is in the checkpoint: byte for byte the run that was not cut."""
    folder = cut_copy(ahead, tmp_path / "run", cut)

    open_loop(Request(Mode.RESUME, device="cpu", steps=STEPS, out=folder)).run()

    assert state_bytes(folder, STEPS) == state_bytes(ahead, STEPS)
    assert (folder / "journal.jsonl").read_bytes() == (ahead / "journal.jsonl").read_bytes()


def test_choosing_ahead_is_another_run_and_its_choices_are_needed(uncut, ahead, tmp_path, monkeypatch):
    """Learners hear of a step later, so it differs; and so does a resume that asks them again, since they know more."""
    assert (ahead / "journal.jsonl").read_bytes() != (uncut / "journal.jsonl").read_bytes()
    monkeypatch.setattr(Loop, "_recall", lambda loop, chosen: None)
    differs = []
    for cut in (8, 17, 30):
        folder = cut_copy(ahead, tmp_path / f"run{cut}", cut)
        open_loop(Request(Mode.RESUME, device="cpu", steps=STEPS, out=folder)).run()
        differs.append((folder / "journal.jsonl").read_bytes() != (ahead / "journal.jsonl").read_bytes())
    assert any(differs)


def test_two_fresh_runs_are_equal(experiment, uncut, tmp_path):
    """The same experiment twice gives the same bytes."""
    open_loop(Request(experiment=str(experiment), steps=STEPS, device="cpu", out=tmp_path / "run")).run()

    assert state_bytes(tmp_path / "run", STEPS) == state_bytes(uncut, STEPS)


def test_stopping_early_and_resuming_is_not_seen(experiment, uncut, tmp_path):
    """17 steps, then on to 40, equals 40 steps at once, and a horizon is not where a run stops."""
    folder = tmp_path / "run"
    open_loop(Request(experiment=str(experiment), steps=17, device="cpu", out=folder)).run()
    open_loop(Request(Mode.RESUME, device="cpu", steps=STEPS, out=folder)).run()

    assert state_bytes(folder, STEPS) == state_bytes(uncut, STEPS)
    assert (folder / "journal.jsonl").read_bytes() == (uncut / "journal.jsonl").read_bytes()


def fields_with_state():
    """Return (plugin, field) of every state field of the plugins of the run."""
    names = [*CURRICULUM, "reward.ema_drop", "stop.max_steps", "stop.not_finite"]
    return [(name, field) for name in names for field in state_fields(created(name))]


def created(name):
    """Return a new plugin object, as the run has it."""
    return create([Chosen(available()[name], CURRICULUM.get(name, {}))])[0][1]


@pytest.mark.parametrize(("name", "field"), fields_with_state())
def test_a_resume_without_one_state_field_differs(uncut, tmp_path, name, field):
    """Every state field is needed: left at what `on_start` made of it, the resumed run's state is another."""
    differs = []
    for cut in (20, 38):
        folder = cut_copy(uncut, tmp_path / f"run{cut}", cut)
        loop = open_loop(Request(Mode.RESUME, device="cpu", steps=STEPS, out=folder))
        forgetful = created(name)
        if hasattr(forgetful, "on_start"):
            forgetful.on_start(run=loop.view())
        setattr(dict(loop.plugins)[name], field, get_state(forgetful)[field])
        loop.run()
        differs.append(state_bytes(folder, STEPS) != state_bytes(uncut, STEPS))

    assert any(differs), f"{name}.{field} could be forgotten"


@pytest.mark.parametrize("key", ["weights", "first_moments", "second_moments", "applied_updates"])
def test_a_resume_without_one_part_of_the_engine_differs(uncut, tmp_path, key):
    """Weights, moments and the count of applied updates are each needed."""
    folder = cut_copy(uncut, tmp_path / "run", 20)
    loop = open_loop(Request(Mode.RESUME, device="cpu", steps=STEPS, out=folder))
    state = loop.engine.export_state()
    state[key] = np.zeros_like(state[key])
    loop.engine.import_state(state)
    loop.run()

    assert state_bytes(folder, STEPS) != state_bytes(uncut, STEPS)


@pytest.mark.parametrize("key", ["epoch", "index", "offset", "pulls"])
def test_a_resume_without_one_data_position_differs(uncut, tmp_path, key):
    """Every part of the position in the data is needed: without it the run is another, or the position is refused."""
    folder = cut_copy(uncut, tmp_path / "run", 33)
    loop = open_loop(Request(Mode.RESUME, device="cpu", steps=STEPS, out=folder))
    state = loop.batches.export_state()
    state[key] = np.zeros_like(state[key])
    if key == "index":  # at this cut, document 0 is shorter than the offset
        with pytest.raises(AndreaError, match="there is no token"):
            loop.batches.import_state(state)
        loop.close()
        return
    loop.batches.import_state(state)
    loop.run()

    assert state_bytes(folder, STEPS) != state_bytes(uncut, STEPS)
