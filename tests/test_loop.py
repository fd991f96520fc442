"""The loop: hooks in order, answers combined and checked, skipped updates, reasons, signals, what an error leaves."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest

from andrea import Choice, Limits, hookimpl, option, plugin, state
from andrea.batches import Batches
from andrea.checkpoint import Checkpoints, complete_steps, read_checkpoint
from andrea.config import from_json
from andrea.engine import EngineConfig
from andrea.engine.reference import ReferenceEngine
from andrea.errors import AndreaError
from andrea.evaluate import held_out_sets
from andrea.interrupts import Interrupts
from andrea.journal import Journal, read_journal
from andrea.loop import Hooks, Loop
from andrea.plugins.tokenizer.byte import ByteTokenizer
from andrea.registry import Chosen, available, create, register
from andrea.tokenfile import TokenFile, TokenWriter
from andrea.types import Precision

NAMES = ("one", "two", "three")
CONTEXT = 8
BASE = ("bandit.uniform", "sampler.proportional", "reward.ema_drop", "stop.not_finite", "signals.checkpoint")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return the token files of three sources."""
    folder, rng = tmp_path_factory.mktemp("tokens"), np.random.default_rng(1)
    for name in NAMES:
        with TokenWriter(folder / f"{name}.btok", ByteTokenizer()) as writer:
            for _ in range(12):
                writer.add(bytes(rng.integers(97, 105, size=int(rng.integers(20, 60)), dtype=np.uint8)))
    return {name: TokenFile.open(folder / f"{name}.btok") for name in NAMES}


@plugin
class Stop:
    """Stop after some steps."""

    steps: int = option(5, help="how many")

    @hookimpl
    def should_stop(self, record):
        """Count."""
        return "enough" if record.step + 1 >= self.steps else None


@pytest.fixture
def make_loop(files, tmp_path):
    """Return a function that makes a loop of the base plugins without some, and of others, given first by name."""

    def make(plugins=(), without=(), steps=5, folder=None, interrupts=None, snapshot=None, **sections):
        value = {
            "name": "test",
            "model": {"n_layer": 1, "n_head": 1, "d_model": 4, "context": CONTEXT},
            "schedule": {"steps": 30, "warmup_steps": 2, "peak": 1e-2},
            "batch": {"batch_size": 4},
            "sampling": {"sample_every": 0},
            "evaluation": {"eval_every": 0},
            "checkpoints": {"every": 0},
            "sources": [{"name": name, "reader": "source.text"} for name in NAMES],
        }
        config = from_json({**value, **sections}, "test")
        base = create([Chosen(available()[name], {}) for name in BASE if name not in without])
        ordered = [*plugins, *base, *([("test.stop", Stop(steps=steps))] if steps else [])]
        engine = ReferenceEngine(
            EngineConfig(
                config.model, 257, schedule=config.schedule, batch_size=4, seed=0, options={"threads": 1, "slices": 1}
            ),
            Precision("fp32"),
        )
        place = folder or tmp_path / "run"
        place.mkdir(exist_ok=True)
        loop = Loop(
            config=config,
            plugins=ordered,
            hooks=Hooks(register(ordered)),
            engine=engine,
            batches=Batches(files, config.batch.rows, CONTEXT, 0),
            tokenizer=ByteTokenizer(),
            held_out=held_out_sets(files, CONTEXT, 4),
            folder=place,
            journal=Journal(place, "test", NAMES, snapshot.record["journal"] if snapshot else 0),
            checkpoints=Checkpoints(place / "checkpoints", config.checkpoints),
            interrupts=interrupts or Interrupts(),
        )
        loop.start(snapshot)
        return loop

    return make


def journal_of(loop, kind="step"):
    """Return the lines of one kind in a loop's journal."""
    return [line for line in read_journal(loop.folder / "journal.jsonl") if line["kind"] == kind]


def _at_a_step(answer):
    return lambda self, step, run: answer(step, run) if callable(answer) else answer


def _of_one(name):
    """Return a maker of implementations that take the one argument called `name`, as pluggy reads it."""
    makers = {
        "record": lambda answer: lambda self, record: answer(record) if callable(answer) else answer,
        "pull": lambda answer: lambda self, pull: answer(pull) if callable(answer) else answer,
        "signal": lambda answer: lambda self, signal: answer(signal) if callable(answer) else answer,
    }
    return makers[name]


MAKERS = {
    **dict.fromkeys(("score_sources", "weigh_sources", "limit_sources", "select_source", "request_probes"), _at_a_step),
    "reward": _of_one("pull"),
    "should_stop": _of_one("record"),
    "on_signal": _of_one("signal"),
    "on_step": lambda answer: lambda self, record, run: answer(record, run),
}


def answering(**answers):
    """Return a plugin that answers hooks, by name, with a value or with a function of what the hook is about."""
    return type("Answering", (), {hook: hookimpl(MAKERS[hook](answer)) for hook, answer in answers.items()})()


# -- order -------------------------------------------------------------------------------------------------------------


class Diary:
    """Writes down which hooks are called, with the step where there is one."""

    def __init__(self):
        self.calls = []

    def _note(self, hook, step=None):
        self.calls.append((hook, step))

    @hookimpl
    def on_start(self):
        self._note("on_start")

    @hookimpl
    def score_sources(self, step, run):
        self._note("score_sources", step)
        return np.ones(3)

    @hookimpl
    def weigh_sources(self, step, run):
        self._note("weigh_sources", step)
        return np.ones(3)

    @hookimpl
    def limit_sources(self, step, run):
        self._note("limit_sources", step)
        return Limits(np.zeros(3), np.full(3, np.inf))

    @hookimpl
    def select_source(self, step, pull, pulls):
        self._note("select_source", (step, pull, tuple(pulls)))
        return pull

    @hookimpl
    def request_probes(self, step, pulls):
        self._note("request_probes", (step, tuple(pulls)))
        return []

    @hookimpl
    def reward(self, pull, record):
        self._note("reward", (record.step, pull.source))
        return {"term": 1.0}

    @hookimpl
    def on_step(self, record):
        self._note("on_step", record.step)

    @hookimpl
    def on_sample(self, sample):
        self._note("on_sample", sample.step)

    @hookimpl
    def on_evaluation(self, evaluation):
        self._note("on_evaluation", evaluation.step)

    @hookimpl
    def should_stop(self, record):
        self._note("should_stop", record.step)

    @hookimpl
    def on_signal(self, signal, step):
        self._note("on_signal", (signal, step))

    @hookimpl
    def on_finish(self, record, reasons, ending):
        self._note("on_finish", (record.step, tuple(reasons), ending))


def test_hooks_are_asked_in_the_order_of_the_flow(make_loop):
    """One step with two pulls, a sample, an evaluation and a signal asks every hook, each in its place."""
    diary, interrupts = Diary(), Interrupts()
    loop = make_loop(
        [("test.diary", diary)],
        without=("bandit.uniform", "sampler.proportional", "reward.ema_drop"),
        steps=1,
        interrupts=interrupts,
        batch={"batch_size": 4, "pulls_per_step": 2},
        sampling={"sample_every": 1, "count": 1, "max_tokens": 2},
        evaluation={"eval_every": 1, "rows": 2},
    )
    interrupts._pending.append("SIGUSR1")
    loop.run()

    choosing = [(hook, 0) for hook in ("score_sources", "weigh_sources", "limit_sources")]
    assert diary.calls == [
        ("on_start", None),
        *choosing,
        ("select_source", (0, 0, ())),
        ("select_source", (0, 1, (0,))),
        ("request_probes", (0, (0, 1))),
        ("reward", (0, 0)),
        ("reward", (0, 1)),
        ("on_step", 0),
        ("on_sample", 1),
        ("on_evaluation", 1),
        ("should_stop", 0),
        ("on_signal", ("SIGUSR1", 1)),
        ("on_finish", (0, ("test.stop: enough",), "done")),
    ]


def test_plugins_are_asked_in_call_order(make_loop):
    """Of two plugins of a kind the one that is named first is asked first."""
    order = []
    plugins = [(f"weight.{n}", answering(weigh_sources=lambda s, r, n=n: order.append(n) or np.ones(3))) for n in "ab"]
    make_loop(plugins, steps=1).run()

    assert order == ["a", "b"]


# -- combining ---------------------------------------------------------------------------------------------------------


def test_weights_are_multiplied(make_loop):
    """The sampler is given the product of all weights, and the journal keeps it."""
    plugins = [
        ("weight.a", answering(weigh_sources=np.array([1.0, 2.0, 0.5]))),
        ("weight.b", answering(weigh_sources=[3, 0, 0.5])),
    ]
    loop = make_loop(plugins, steps=1)
    loop.run()

    assert journal_of(loop)[0]["pulls"][0]["weights"] == [3.0, 0.0, 0.25]


def test_the_highest_floor_and_the_lowest_cap_hold(make_loop):
    """Of several limits the strictest counts, source by source."""
    inf = np.inf
    plugins = [
        ("limit.a", answering(limit_sources=Limits(np.array([0.1, 0.5, 0]), np.array([0.9, inf, 0.4])))),
        ("limit.b", answering(limit_sources=Limits(np.array([0.3, 0.2, 0]), np.array([inf, 0.7, 0.6])))),
    ]
    loop = make_loop(plugins, steps=1)
    loop.run()
    pull = journal_of(loop)[0]["pulls"][0]

    assert pull["floor"] == [0.3, 0.5, 0.0]
    assert pull["cap"] == [0.9, 0.7, 0.4]


def test_probes_are_the_union_of_what_is_asked_for(make_loop):
    """Sources that plugins name are measured before and after the update; the numbers are the engine's own."""
    seen = []
    plugins = [
        ("test.a", answering(request_probes=["two"])),
        ("test.b", answering(request_probes=lambda s, r: ["one", "two"] if s else None)),
        ("test.see", answering(on_step=lambda record, run: seen.append(dict(record.probes)))),
    ]
    loop = make_loop(plugins, steps=2)
    held_out = loop.held_out["two"]
    before = float(loop.engine.evaluate(held_out.inputs[:4], held_out.targets[:4]).mean(dtype=np.float64))
    loop.run()
    after = float(loop.engine.evaluate(held_out.inputs[:4], held_out.targets[:4]).mean(dtype=np.float64))

    assert [set(probes) for probes in seen] == [{"two"}, {"one", "two"}]
    assert seen[0]["two"][0] == before
    assert seen[0]["two"][1] == seen[1]["two"][0]
    assert seen[1]["two"][1] == after
    assert journal_of(loop)[1]["probes"]["two"] == list(seen[1]["two"])


def test_each_pull_of_a_mixed_step_has_the_loss_of_its_own_rows(make_loop, monkeypatch):
    """With two pulls a step, each has half of the rows, in order; the step's loss is the mean over all rows."""
    results, batches = [], []
    plugins = [("sampler.turns", answering(select_source=lambda step, run: int(run.pulls.sum()) % 3))]
    loop = make_loop(plugins, without=("sampler.proportional",), steps=3, batch={"batch_size": 4, "pulls_per_step": 2})
    real_step, real_take = loop.engine.train_step, loop.batches.take

    def step(number, inputs, targets, probes):
        results.append((inputs, real_step(number, inputs, targets, probes)))
        return results[-1][1]

    def take(source, rows):
        batches.append(real_take(source, rows))
        return batches[-1]

    monkeypatch.setattr(loop.engine, "train_step", step)
    monkeypatch.setattr(loop.batches, "take", take)
    loop.run()

    for number, line in enumerate(journal_of(loop)):
        inputs, result = results[number]
        rows = result.row_losses.astype(np.float64)
        assert [pull["source"] for pull in line["pulls"]] == [NAMES[(2 * number + i) % 3] for i in range(2)]
        assert [pull["loss"] for pull in line["pulls"]] == [(rows[0] + rows[1]) / 2, (rows[2] + rows[3]) / 2]
        assert line["loss"] == math.fsum(pull["loss"] for pull in line["pulls"]) / 2
        assert line["tokens"] == 4 * CONTEXT
        assert np.array_equal(inputs, np.concatenate([b.inputs for b in batches[2 * number : 2 * number + 2]]))
        assert [pull["documents"] for pull in line["pulls"]] == [
            list(b.documents) for b in batches[2 * number : 2 * number + 2]
        ]
    assert loop.view().pulls.tolist() == [2, 2, 2]


# -- refusing ----------------------------------------------------------------------------------------------------------

nan, inf = np.nan, np.inf
ones, none = np.ones(3), np.zeros(3)


@pytest.mark.parametrize(
    ("hook", "answer", "said"),
    [
        ("score_sources", np.ones(2), "score_sources gave shape (2,), not (3,)"),
        ("score_sources", 1.0, "score_sources gave shape (), not (3,)"),
        ("score_sources", np.array([1, nan, 1]), "score_sources gave NaN at step 0"),
        ("score_sources", "high", "score_sources gave 'high', not numbers"),
        ("score_sources", None, "score_sources gave"),
        ("weigh_sources", np.ones((3, 1)), "weigh_sources gave shape (3, 1), not (3,)"),
        ("weigh_sources", [1, -1, 1], "weights must be finite and at least 0, not [1.0, -1.0, 1.0]"),
        ("weigh_sources", [1, inf, 1], "weights must be finite"),
        ("weigh_sources", [1, nan, 1], "weights must be finite"),
        ("limit_sources", (ones, ones), "limit_sources gave tuple, not Limits(floor, cap)"),
        ("limit_sources", Limits(np.ones(2), ones), "limit_sources gave shape (2,), not (3,)"),
        ("limit_sources", Limits(-ones, ones), "floors must be finite and at least 0"),
        ("limit_sources", Limits(ones * inf, ones), "floors must be finite"),
        ("limit_sources", Limits(none, ones * nan), "caps at least 0, not [nan, nan, nan]"),
        ("limit_sources", Limits(none, -ones), "caps at least 0"),
        ("select_source", 3, "chose 3, which is no index of the 3 sources"),
        ("select_source", -1, "chose -1"),
        ("select_source", True, "chose True"),
        ("select_source", "one", "chose 'one'"),
        ("select_source", None, "chose None"),
        ("select_source", Choice(7), "chose 7"),
        ("request_probes", ["four"], "there is no source 'four' to probe"),
        ("reward", 1.0, "reward must give finite numbers by name, not 1.0"),
        ("reward", {"term": nan}, "reward must give finite numbers"),
        ("reward", {"term": inf}, "reward must give finite numbers"),
        ("reward", {"term": "much"}, "reward must give finite numbers"),
        ("should_stop", True, "should_stop gives a reason as text, or None, not True"),
        ("should_stop", "", "should_stop gives a reason"),
    ],
)
def test_an_answer_that_cannot_be_is_refused_by_the_plugins_name(make_loop, hook, answer, said):
    """Wrong shapes, NaN, negative weights, foreign indices and the like end the run, naming who answered so."""
    rivals = {"score_sources": "bandit.uniform", "select_source": "sampler.proportional", "reward": "reward.ema_drop"}
    loop = make_loop([("test.wrong", answering(**{hook: answer}))], without=(rivals.get(hook, ""),))

    with pytest.raises(AndreaError) as caught:
        loop.run()

    assert said in caught.value.message
    assert "test.wrong" in caught.value.message


def test_a_choice_of_weight_zero_is_refused(make_loop):
    """A masked source cannot be drawn, whatever the sampler says; the sampler and the source are named."""
    plugins = [
        ("sampler.blind", answering(select_source=1)),
        ("weight.mask", answering(weigh_sources=lambda step, run: [1, float(step < 2), 1])),
    ]
    loop = make_loop(plugins, without=("sampler.proportional",))

    with pytest.raises(AndreaError, match=r"sampler.blind chose two, whose weight is 0 at step 2"):
        loop.run()
    assert len(journal_of(loop)) == 2


def test_weights_that_leave_nothing_are_refused(make_loop):
    """When every source is masked the run ends with that reason."""
    with pytest.raises(AndreaError, match="at step 0 every source has weight 0"):
        make_loop([("weight.none", answering(weigh_sources=none))]).run()


@pytest.mark.parametrize("sampler", ["sampler.proportional", "sampler.dice"])
def test_a_sampler_with_nothing_left_is_an_error_of_the_users(make_loop, sampler):
    """Caps of 0 leave no share to draw from: the sampler is named, and no traceback hides that."""
    plugins = create([Chosen(available()[sampler], {})])
    plugins.append(("limit.nothing", answering(limit_sources=Limits(none, none))))
    without = ("sampler.proportional",)

    with pytest.raises(AndreaError, match=f"{sampler} chose no source at step 0") as caught:
        make_loop(plugins, without=without).run()
    assert "caps" in caught.value.hint


def test_a_signal_plugin_may_only_ask_for_what_exists(make_loop):
    """A request that the loop does not know is refused with the plugin's name."""
    interrupts = Interrupts()
    loop = make_loop([("signals.odd", answering(on_signal={"dance"}))], interrupts=interrupts)
    interrupts._pending.append("SIGUSR1")

    with pytest.raises(AndreaError, match=r"signals.odd: on_signal asked for 'dance'"):
        loop.run()


def test_a_missing_kind_is_named(make_loop):
    """A run without a bandit says which kind is missing."""
    with pytest.raises(AndreaError, match="no plugin of the kind bandit"):
        make_loop(without=("bandit.uniform",)).run()


# -- what a plugin cannot disturb --------------------------------------------------------------------------------------


def test_an_answer_that_is_changed_later_changes_no_record(make_loop):
    """A bandit that answers with its own array does not rewrite the journal when it learns."""
    scores = np.ones(3)

    def learn(record, run):
        scores[:] = 7.0
        assert record.pulls[0].scores.tolist() == [1.0, 1.0, 1.0] or record.step > 0

    plugins = [("bandit.own", answering(score_sources=lambda step, run: scores, on_step=learn))]
    loop = make_loop(plugins, without=("bandit.uniform",), steps=2)
    loop.run()

    assert [line["pulls"][0]["scores"] for line in journal_of(loop)] == [[1.0] * 3, [7.0] * 3]


# -- a gradient that is not finite -------------------------------------------------------------------------------------


@pytest.fixture
def poisoned(monkeypatch):
    """Return a set of steps in which the backward gives a NaN."""
    from andrea.engine import reference

    steps, now = set(), []
    real_step, real_backward = ReferenceEngine.train_step, reference.add_gradients

    def step(self, number, *arguments, **named):
        now[:] = [number]
        return real_step(self, number, *arguments, **named)

    def backward(inputs, targets, weights, gradients, *arguments):
        losses = real_backward(inputs, targets, weights, gradients, *arguments)
        if now[0] in steps:
            gradients.embed[0, 0] = np.nan
        return losses

    monkeypatch.setattr(ReferenceEngine, "train_step", step)
    monkeypatch.setattr(reference, "add_gradients", backward)
    return steps


def test_a_gradient_that_is_not_finite_leaves_the_weights(make_loop, poisoned):
    """At step 7 nothing moves: weights and moments are those of step 6, no reward is given, and the pull counts."""
    poisoned.add(7)
    states, records = [], []
    see = answering(on_step=lambda record, run: (records.append(record), states.append(loop.engine.export_state())))
    loop = make_loop([("test.see", see)], steps=9, checkpoints={"every": 1, "keep": 20})
    loop.run()

    for name in ("weights", "first_moments", "second_moments", "applied_updates"):
        assert np.array_equal(states[7][name], states[6][name])
        assert not np.array_equal(states[8][name], states[7][name])
    assert [record.skipped for record in records] == [step == 7 for step in range(9)]
    assert not math.isfinite(records[7].grad_norm)
    assert dict(records[7].pulls[0].rewards) == {}
    assert dict(records[8].pulls[0].rewards) != {}
    assert loop.view().pulls.sum() == 9
    line = journal_of(loop)[7]
    assert (line["skipped"], line["grad_norm"], line["pulls"][0]["rewards"]) == (True, "nan", {})
    for step in complete_steps(loop.folder / "checkpoints"):
        engine = read_checkpoint(loop.folder / "checkpoints" / f"step_{step:06d}").engine
        assert all(np.isfinite(array).all() for array in engine.values())


def test_gradients_that_stay_not_finite_end_the_run(make_loop, poisoned):
    """stop.not_finite ends it when its patience is over, with the weights of the last good step in a checkpoint."""
    poisoned.update(range(3, 100))
    loop = make_loop(steps=50)
    outcome = loop.run()

    assert outcome.step == 13
    assert list(outcome.reasons) == ["stop.not_finite"]
    saved = read_checkpoint(loop.folder / "checkpoints" / "step_000013")
    assert saved.engine["applied_updates"].tolist() == [3]
    assert np.isfinite(saved.engine["weights"]).all()


def test_a_skipped_update_is_shown_on_the_console(make_loop, poisoned, capsys):
    """The line of the step says so."""
    poisoned.add(1)
    console = create([Chosen(available()["log.console"], {"every": 1})])
    make_loop(console, steps=3).run()

    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step ")]
    assert [line.endswith("update skipped") for line in lines] == [False, True, False]


# -- the end -----------------------------------------------------------------------------------------------------------


def test_all_are_asked_for_reasons_and_all_reasons_are_kept(make_loop):
    """One plugin's reason does not hide another's; checkpoint, journal and outcome have both."""
    loop = make_loop([("stop.too", answering(should_stop=lambda record: "me too" if record.step == 4 else None))])
    outcome = loop.run()

    both = {"stop.too": "me too", "test.stop": "enough"}
    assert (outcome.step, dict(outcome.reasons), outcome.signal) == (5, both, "")
    assert read_checkpoint(loop.folder / "checkpoints" / "step_000005").record["reasons"] == both
    assert journal_of(loop, "stop") == [{"kind": "stop", "step": 5, "reasons": both}]


def test_a_recorded_reason_does_not_end_a_resume_at_once(make_loop):
    """A reason that is still true after a resume is not heard again until it has passed in between."""
    fires = {4, 5, 6, 7, 10}
    stop = ("stop.some", answering(should_stop=lambda record: "again" if record.step in fires else None))
    first = make_loop([stop], steps=0)
    assert first.run().step == 5
    saved = read_checkpoint(first.folder / "checkpoints" / "step_000005")

    second = make_loop([stop], steps=0, snapshot=saved, checkpoints={"every": 1, "keep": 20})
    assert second.run().step == 11

    middle = read_checkpoint(first.folder / "checkpoints" / "step_000006")
    assert middle.record["reasons"] == {"stop.some": "again"}, "a resume of the resume knows it too"
    third = make_loop([stop], steps=0, snapshot=middle)
    assert third.run().step == 11


def test_a_signal_ends_the_run_between_two_steps(make_loop):
    """SIGTERM is delivered after the step, a checkpoint is written, on_finish is told, and the outcome names it."""
    interrupts, told = Interrupts(), []

    class Watcher:
        @hookimpl
        def on_step(self, record):
            if record.step == 2:
                interrupts._remember(15, None)

        @hookimpl
        def on_finish(self, record, reasons, ending):
            told.append((record.step, list(reasons), ending))

    outcome = make_loop([("test.watch", Watcher())], interrupts=interrupts).run()

    assert (outcome.step, outcome.signal, dict(outcome.reasons)) == (3, "SIGTERM", {})
    assert told == [(2, ["SIGTERM"], "interrupted")]


class Ending:
    """Hears how a run ends."""

    @hookimpl
    def on_finish(self, reasons, ending):
        self.heard = (list(reasons), ending)


def test_the_loop_says_how_a_run_ended_whatever_the_reasons_are_called(make_loop):
    """A plugin with any name and text; a signal that a plugin takes for a stop; an exit on the way."""
    log = Ending()
    make_loop([("log", log), ("mine", answering(should_stop="SIGTERM"))], steps=0).run()
    assert log.heard == (["mine: SIGTERM"], "done")

    interrupts = Interrupts()
    interrupts._pending.append("SIGUSR1")
    make_loop([("log", log), ("mine", answering(on_signal={"stop"}))], steps=0, interrupts=interrupts).run()
    assert log.heard == ([], "interrupted")

    with pytest.raises(SystemExit):
        make_loop([("log", log), ("mine", answering(on_step=lambda record, run: sys.exit(3)))]).run()
    assert log.heard == (["SystemExit: 3"], "interrupted")


def test_a_model_that_is_adopted_is_a_run_that_is_done(make_loop):
    """Its plugins are told so, and its checkpoint has the weights that were given."""
    log = Ending()
    loop = make_loop([("log", log)], steps=0)
    weights = np.full_like(loop.engine.export_state()["weights"], 0.5)
    loop.adopt({"weights": weights}, 7)
    assert log.heard == (["a model was imported"], "done")
    assert np.array_equal(read_checkpoint(loop.folder / "checkpoints" / "step_000007").engine["weights"], weights)


def test_a_signal_may_only_ask_for_a_checkpoint(make_loop):
    """SIGUSR1 writes one and the run goes on to its end."""
    interrupts = Interrupts()
    see = answering(on_step=lambda record, run: record.step == 1 and interrupts._pending.append("SIGUSR1"))
    loop = make_loop([("test.see", see)], interrupts=interrupts)

    assert loop.run().step == 5
    assert complete_steps(loop.folder / "checkpoints") == [2, 5]


def test_an_error_in_a_plugin_is_shown_and_loses_nothing(make_loop):
    """The plugin's own exception comes through, on_finish is told, and the checkpoint under way is finished."""
    told = []

    class Fragile:
        @hookimpl
        def on_step(self, record):
            if record.step == 4:
                raise ZeroDivisionError("my fault")

        @hookimpl
        def on_finish(self, reasons, ending):
            told.append((list(reasons), ending))
            raise RuntimeError("and mine")

    loop = make_loop([("test.fragile", Fragile())], steps=9, checkpoints={"every": 2})
    with pytest.raises(ZeroDivisionError, match="my fault"):
        loop.run()

    assert told == [(["ZeroDivisionError: my fault"], "failed")]
    assert complete_steps(loop.folder / "checkpoints") == [2, 4]
    assert read_checkpoint(loop.folder / "checkpoints" / "step_000004").step == 4


def test_samples_and_evaluations_come_when_due_and_change_nothing(make_loop):
    """They stand in the journal at their steps, and the weights are those of a run without them."""
    looking = make_loop(
        steps=6, sampling={"sample_every": 2, "count": 3, "max_tokens": 4}, evaluation={"eval_every": 3, "rows": 2}
    )
    looking.run()
    lines = {kind: [line["step"] for line in journal_of(looking, kind)] for kind in ("sample", "evaluation")}
    texts = [len(line["texts"]) for line in journal_of(looking, "sample")]
    plain = make_loop(steps=6, folder=looking.folder.with_name("plain"))
    plain.run()

    assert lines == {"sample": [2, 4, 6], "evaluation": [3, 6]}
    assert texts == [3, 3, 3]
    assert np.array_equal(looking.engine.export_state()["weights"], plain.engine.export_state()["weights"])


def test_plugins_see_the_counts_of_what_was_drawn(make_loop):
    """The view is true at the moment of the call: pulls count before on_step."""
    seen = []

    def look(record, run):
        seen.append(run.pulls.tolist())

    plugins = [("test.see", answering(on_step=look)), ("sampler.first", answering(select_source=0))]
    make_loop(plugins, without=("sampler.proportional",), steps=3).run()

    assert seen == [[1, 0, 0], [2, 0, 0], [3, 0, 0]]


def test_the_time_of_every_plugin_is_measured_on_request(make_loop):
    """With tracing, calls and seconds of each plugin and hook are counted; without it nothing is."""
    loop = make_loop(steps=3)
    assert not loop.hooks.timings
    loop.hooks._trace = True
    loop.run()

    calls = {key: timing[0] for key, timing in loop.hooks.timings.items()}
    assert calls["sampler.proportional", "select_source"] == 3
    assert calls["test.stop", "should_stop"] == 3
    assert all(seconds >= 0 for _, seconds in loop.hooks.timings.values())


@plugin
class Memory:
    """Counts its steps."""

    count: int = state(0)

    @hookimpl
    def on_step(self, record):
        self.count += 1


def test_state_comes_back_after_on_start(make_loop):
    """A resumed plugin has what it had, whatever on_start made; losses go on in the same list."""
    first = make_loop([("test.memory", Memory())], steps=3)
    first.run()
    saved = read_checkpoint(first.folder / "checkpoints" / "step_000003")
    memory = Memory()
    make_loop([("test.memory", memory)], steps=6, snapshot=saved).run()

    assert memory.count == 6
    assert [step for step, _ in json.loads((first.folder / "test.loss.json").read_text())] == list(range(6))


class Beside:
    """An engine that computes beside the host: it notes what is there when its result is fetched."""

    def __init__(self, loop):
        self.loop, self.engine, self.seen = loop, loop.engine, []

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def launch_step(self, *arguments):
        """Compute at once, and hand over later."""
        result = self.engine.train_step(*arguments)

        def finish():
            self.seen.append(len(self.loop.journal.losses))
            return result

        return finish


def test_what_can_wait_is_done_while_the_engine_computes(make_loop, tmp_path, monkeypatch):
    """Between launch and result the step before is written and the next batch made; the run's bytes are the same."""
    plain = make_loop(folder=tmp_path / "plain")
    plain.run()
    loop = make_loop(folder=tmp_path / "beside")
    loop.engine = engine = Beside(loop)
    events, assemble = [], Batches._assemble
    note_results(engine, events)
    monkeypatch.setattr(Batches, "_assemble", lambda *given: (events.append("batch"), assemble(*given))[1])
    loop.run()
    assert engine.seen == [0, 1, 2, 3, 4]
    assert events == ["batch", *(event for step in range(5) for event in ("batch", ("result", step)))]
    for name in ("journal.jsonl", "test.loss.json", "checkpoints/step_000005.bin"):
        assert (loop.folder / name).read_bytes() == (plain.folder / name).read_bytes()


def test_the_next_launch_waits_for_learning_and_choosing_alone(make_loop, monkeypatch):
    """What a person sees of a step, its line in the journal and further batches come behind the next launch."""
    events = []

    def noting(name, function):
        return lambda *arguments: (events.append(name), function(*arguments))[1]

    learns = answering(
        score_sources=lambda step, run: (events.append("choose"), np.ones(3))[1],
        select_source=0,
        on_step=lambda record, run: events.append("learn"),
        should_stop=lambda record: events.append("stop?"),
    )
    shows = answering(on_step=lambda record, run: events.append("show"))
    plugins = [("log.shows", shows), ("bandit.learns", learns)]
    loop = make_loop(plugins, without=("bandit.uniform", "sampler.proportional"), steps=3)
    loop.engine = engine = Beside(loop)
    launch = engine.launch_step
    monkeypatch.setattr(engine, "launch_step", lambda *a: (events.append("launch"), noting("result", launch(*a)))[1])
    monkeypatch.setattr(loop.journal, "_write", noting("write", loop.journal._write))
    monkeypatch.setattr(loop.batches, "_assemble", noting("batch", loop.batches._assemble))
    loop.run()

    assert events == [
        *("choose", "batch", "launch", "batch", "batch", "result", "learn", "stop?"),
        *("choose", "launch", "show", "write", "batch", "result", "learn", "stop?"),
        *("choose", "launch", "show", "write", "batch", "result", "learn", "stop?"),
        *("show", "write", "write"),  # the last step, and why the run ended
    ]


def note_results(engine, events):
    """Note when each result of an engine that computes beside the host is fetched."""
    launch = engine.launch_step

    def noting(step, *arguments):
        finish = launch(step, *arguments)
        return lambda: (events.append(("result", step)), finish())[1]

    engine.launch_step = noting


@pytest.mark.parametrize("learns", [False, True])
def test_bounds_that_nobody_learns_are_asked_while_the_engine_computes(make_loop, tmp_path, learns):
    """They are what they would be in their place, of the same counts; a plugin that learns is asked there once more."""
    events = []

    def weigh(step, run):
        events.append(("weigh", step, run.pulls.tolist()))
        return 1 / (1 + run.pulls)

    def make(name):
        more = {"on_step": lambda record, run: events.append(("learn", record.step))} if learns else {}
        limit = ("limit.three", answering(limit_sources=lambda step, run: Limits(run.pulls / 9, np.full(3, inf))))
        return make_loop([("weight.test", answering(weigh_sources=weigh, **more)), limit], folder=tmp_path / name)

    plain = make("plain")
    plain.run()
    asked = [event for event in events if event[0] == "weigh"]
    events.clear()
    loop = make("beside")
    loop.engine = Beside(loop)
    note_results(loop.engine, events)
    loop.run()

    assert (loop.folder / "journal.jsonl").read_bytes() == (plain.folder / "journal.jsonl").read_bytes()
    assert list(dict.fromkeys(map(str, (one for one in events if one[0] == "weigh"))))[:5] == list(map(str, asked))
    place = [event[:2] for event in events]
    for step in range(1, 5):
        assert place.index(("weigh", step)) < place.index(("result", step - 1))
        assert place.count(("weigh", step)) == 1 + learns


@pytest.mark.parametrize("pulls", [1, 2])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("learner", ["", "bandit.test", "sampler.test", "weight.test"])
def test_choices_that_nobody_learns_are_made_while_the_engine_computes(make_loop, tmp_path, learner, ahead, pulls):
    """They are what they would be in their place, of the same counts; a checkpoint holds nothing of the next step.

    With ``batch.ahead`` learners are asked then too, whether the engine computes by itself or not.
    """
    events = []

    def select(step, run):
        events.append(("select", step, run.pulls.tolist(), run.drawn.tolist()))
        return (step + int(run.pulls.sum())) % 3

    def make(name):
        answers = {
            "bandit.test": {"score_sources": lambda step, run: 1 + run.pulls},
            "sampler.test": {"select_source": select},
            "weight.test": {"weigh_sources": lambda step, run: 1 / (1 + run.pulls)},
        }
        if learner:
            answers[learner]["on_step"] = lambda record, run: None
        plugins = [(plugin, answering(**given)) for plugin, given in answers.items()]
        batch = {"batch_size": 4, "pulls_per_step": pulls, "ahead": ahead}
        sections = {"batch": batch, "checkpoints": {"every": 1, "keep": 9}}
        return make_loop(plugins, ("bandit.uniform", "sampler.proportional"), folder=tmp_path / name, **sections)

    plain = make("plain")
    plain.run()
    asked = events.copy()
    events.clear()
    loop = make("beside")
    loop.engine = Beside(loop)
    note_results(loop.engine, events)
    loop.run()

    assert [event for event in events if event[0] == "select"][: len(asked)] == asked
    place = [event[:2] for event in events]
    for step in range(1, 5):
        early = ahead or learner in ("", "weight.test")  # which gives the same when it is asked again
        assert (place.index(("select", step)) < place.index(("result", step - 1))) == early
        assert place.count(("select", step)) == pulls
    assert loop.view().pulls.tolist() == plain.view().pulls.tolist()
    for name in ("journal.jsonl", *(f"checkpoints/step_{step:06d}.bin" for step in range(1, 6))):
        assert (loop.folder / name).read_bytes() == (plain.folder / name).read_bytes()


@pytest.mark.parametrize("what", ["weights", "floor", "cap"])
def test_choices_are_made_anew_where_the_last_step_has_moved_a_weight_or_a_limit(
    make_loop, tmp_path, monkeypatch, what
):
    """Only at the steps where it has, and as if never made before: journal and checkpoints are the same."""
    events = []

    def make(name):
        learned = {"taught": 1.0}

        def learn(record, run):
            if record.step % 3 == 1:
                learned["taught"] = 1.0 + record.loss

        def bounds(step, run):
            low, high = np.zeros(3), np.full(3, inf)
            if what == "floor":
                low[1] = learned["taught"]
            elif what == "cap":
                high[1] = 1 / learned["taught"]
            return Limits(low, high)

        weights = {"weigh_sources": lambda step, run: [1.0, learned["taught"] if what == "weights" else 1.0, 1.0]}
        plugins = [("weight.test", answering(on_step=learn, limit_sources=bounds, **weights))]
        sections = {"batch": {"batch_size": 4, "pulls_per_step": 2}, "checkpoints": {"every": 1, "keep": 9}}
        return make_loop(plugins, folder=tmp_path / name, steps=8, **sections)

    choose = Loop._choose_all
    monkeypatch.setattr(Loop, "_choose_all", lambda loop, step, *a: (events.append(step), choose(loop, step, *a))[1])

    plain = make("plain")
    plain.run()
    assert events == list(range(8))
    events.clear()
    loop = make("beside")
    loop.engine = Beside(loop)
    loop.run()

    for name in ("journal.jsonl", *(f"checkpoints/step_{step:06d}.bin" for step in range(1, 9))):
        assert (loop.folder / name).read_bytes() == (plain.folder / name).read_bytes()
    # Steps 2 and 5 follow one that has taught something; the ninth, foreseen in the eighth, is never made.
    assert [events.count(step) for step in range(9)] == [1, 1, 2, 1, 1, 2, 1, 1, 1]


def test_a_plugin_that_fails_is_named(make_loop):
    """Its error comes through as it is, with a note of whose hook it was."""

    def fail(record, run):
        raise KeyError("seven")

    with pytest.raises(KeyError, match="seven") as caught:
        make_loop([("weight.seven", answering(on_step=fail))]).run()
    assert caught.value.__notes__ == ["in on_step of plugin weight.seven"]


@pytest.mark.parametrize("ahead", [False, True])
def test_a_bound_that_fails_when_asked_early_fails_in_its_place(make_loop, ahead):
    """The step before is finished and written, and the last step of a run never asks for one behind it in earnest.

    With ``batch.ahead`` a learner's failure is not passed over by asking it again, when it knows more.
    """
    asked = []
    more = {"on_step": lambda record, run: None} if ahead else {}

    def weigh(step, run):
        asked.append(step)
        return [1 / (3 - step)] * 3

    for steps, written in ((3, 3), (9, 3)):
        asked.clear()
        loop = make_loop(
            [("weight.fails", answering(weigh_sources=weigh, **more))],
            steps=steps,
            batch={"batch_size": 4, "ahead": ahead},
        )
        loop.engine = Beside(loop)
        if steps == 3:
            assert loop.run().step == 3
        else:
            with pytest.raises(ZeroDivisionError):
                loop.run()
        assert len(journal_of(loop)) == written
        assert asked == [0, 1, 2, 3]


def test_a_learner_that_fails_when_asked_early_is_asked_again_in_its_place(make_loop):
    """Once the step has taught it what it lacked, its answer counts; nothing of the failure is seen."""
    known = {"step": 0}

    def weigh(step, run):
        if step > known["step"]:
            raise ZeroDivisionError
        return [1.0, 1.0 + step, 1.0]

    learner = answering(weigh_sources=weigh, on_step=lambda record, run: known.update(step=record.step + 1))
    loop = make_loop([("weight.test", learner)], steps=4)
    loop.engine = Beside(loop)
    assert loop.run().step == 4
    assert [line["pulls"][0]["weights"][1] for line in journal_of(loop)] == [1.0, 2.0, 3.0, 4.0]


def test_the_engine_is_given_a_batch_as_it_was_made(make_loop, monkeypatch):
    """Its ids are int32 already, one row behind the other, and those of a step's only pull are not copied."""
    loop, taken, given = make_loop(steps=2), [], []
    take, step = loop.batches.take, loop.engine.train_step
    monkeypatch.setattr(loop.batches, "take", lambda *a: (taken.append(take(*a)), taken[-1])[1])
    monkeypatch.setattr(loop.engine, "train_step", lambda *a: (given.append(a), step(*a))[1])
    loop.run()

    assert len(given) == len(taken) == 2
    assert all(a[1] is batch.inputs and a[2] is batch.targets for a, batch in zip(given, taken, strict=True))
    assert all(ids.dtype == np.int32 and ids.flags.c_contiguous for _, *both, _ in given for ids in both)


@plugin
class Screen:
    """Shows a run to nobody."""

    seen: list[list] = state(factory=list)

    @hookimpl
    def on_step(self, record, run):
        self.seen.append(["step", record.step + 1, run.pulls.tolist()])

    @hookimpl
    def on_sample(self, sample):
        self.seen.append(["sample", sample.step])

    @hookimpl
    def on_evaluation(self, evaluation):
        self.seen.append(["evaluation", evaluation.step])

    @hookimpl
    def on_finish(self, reasons):
        self.seen.append(["finish", *reasons])


def test_a_log_sees_every_step_in_its_place(make_loop):
    """Steps come before the samples, evaluations, checkpoints and the end behind them, with the counts of that step."""
    screen, look = Screen(), {"sampling": {"sample_every": 2, "count": 1, "max_tokens": 2}}
    plugins = [("log.screen", screen), ("sampler.first", answering(select_source=0))]
    look |= {"evaluation": {"eval_every": 3, "rows": 2}, "checkpoints": {"every": 2, "keep": 9}}
    loop = make_loop(plugins, without=("sampler.proportional",), steps=4, **look)
    loop.run()

    steps = [["step", number, [number, 0, 0]] for number in range(1, 5)]
    seen = [*steps[:2], ["sample", 2], steps[2], ["evaluation", 3], steps[3], ["sample", 4]]
    assert screen.seen == [*seen, ["finish", "test.stop: enough"]]
    for step, length in ((2, 3), (4, 7)):
        saved = read_checkpoint(loop.folder / "checkpoints" / f"step_{step:06d}")
        assert saved.plugins["log.screen"]["seen"] == seen[:length]


def test_a_log_sees_the_last_step_before_an_error(make_loop):
    """What a person sees of a run that fails is all that there was."""
    screen = Screen()
    plugins = [("log.screen", screen), ("test.fails", answering(weigh_sources=lambda step, run: [1 / (2 - step)] * 3))]
    with pytest.raises(ZeroDivisionError):
        make_loop(plugins).run()
    assert [name for name, *_ in screen.seen] == ["step", "step", "finish"]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("answer", [None, "nothing"])
def test_a_stopping_signal_that_no_plugin_answers_stops(make_loop, name, answer):
    """Without signals.checkpoint, and where a plugin only looks on, the run saves and ends; an answer is respected."""
    looks_on = answering(on_signal=lambda signal: None)
    keeps_on = answering(on_signal=lambda signal: set())
    interrupts = Interrupts()
    plugins = [("test.signal", keeps_on if answer else looks_on)]
    loop = make_loop(plugins, without=("signals.checkpoint",), steps=3, interrupts=interrupts)
    interrupts._pending.append(name)
    interrupts.stopped_by = name
    outcome = loop.run()

    assert (outcome.step, outcome.signal) == ((3, "") if answer else (1, name))
    assert complete_steps(loop.folder / "checkpoints") == [outcome.step]


def test_sigusr1_without_a_plugin_does_nothing(make_loop):
    """Only signals that stop have a meaning of their own."""
    interrupts = Interrupts()
    interrupts._pending.append("SIGUSR1")
    loop = make_loop(without=("signals.checkpoint",), steps=3, interrupts=interrupts)

    assert loop.run().step == 3
    assert complete_steps(loop.folder / "checkpoints") == [3]


def test_no_plugin_can_write_into_what_others_see(make_loop):
    """The arrays of the run, of the combined scores, weights and limits are read-only for everybody."""
    tried = []

    def refuse(array):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 1
        tried.append(1)

    class Writes:
        @hookimpl
        def select_source(self, scores, weights, limits, run):
            for array in (scores, weights, limits.floor, limits.cap):
                refuse(array)
            for name in ("documents", "tokens", "drawn", "distinct", "pulls"):
                refuse(getattr(run, name))
            return 0

        @hookimpl
        def on_step(self, record):
            refuse(record.pulls[0].weights)

    make_loop([("sampler.writes", Writes())], without=("sampler.proportional",), steps=2).run()
    assert len(tried) == 20


def test_all_pulls_of_a_step_choose_from_the_same(make_loop):
    """Scores, weights and limits are asked once a step: what moves with a pull cannot differ between two of a step."""
    plugins = [
        ("bandit.moves", answering(score_sources=lambda step, run: np.ones(3) + run.pulls)),
        ("weight.moves", answering(weigh_sources=lambda step, run: 1.0 + run.pulls)),
        ("limit.moves", answering(limit_sources=lambda step, run: Limits(np.zeros(3), 1.0 + run.pulls))),
    ]
    loop = make_loop(plugins, without=("bandit.uniform",), steps=4, batch={"batch_size": 4, "pulls_per_step": 4})
    for step in range(4):
        pulls = loop.train_one().pulls
        for pull in pulls[1:]:
            assert pull.scores.tolist() == pulls[0].scores.tolist()
            assert pull.weights.tolist() == pulls[0].weights.tolist()
            assert pull.limits.cap.tolist() == pulls[0].limits.cap.tolist()
        assert pulls[0].weights.sum() == 3 + 4 * step
    loop.close()


def test_dice_rolls_one_phase_a_step(make_loop):
    """With several pulls a step and weights that move with every pull, all pulls of a step name the one latched."""
    dice = create([Chosen(available()["sampler.dice"], {"lengths": [1, 2]})])[0]
    moves = answering(weigh_sources=lambda step, run: np.exp(-3.0 * (run.pulls - run.pulls.min())))
    loop = make_loop(
        [dice, ("weight.moves", moves)], ("sampler.proportional",), 30, batch={"batch_size": 4, "pulls_per_step": 4}
    )
    for _ in range(30):
        record = loop.train_one()
        keys = ("start", "length", "focus", "joined")
        phases = [[pull.detail[key] for key in keys] for pull in record.pulls]
        assert phases == [[getattr(dice[1], key) for key in keys]] * 4
    loop.close()


def test_plugins_know_where_the_run_stops_and_how_many_ids_there_are(make_loop):
    """`Run.stop_step` is what the loop was given, None where nothing counts; the vocabulary is the tokenizer's."""
    loop = make_loop()
    assert (loop.view().stop_step, loop.view().vocabulary) == (None, 257)
    loop.stop_step, loop._view = 7, None
    assert loop.view().stop_step == 7
    loop.close()
