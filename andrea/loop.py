"""The training loop, and the only caller of hooks.

on_start                                             a resume restores the saved state after it
for each step:
    score_sources, weigh_sources, limit_sources      questions
    for each pull:
        select_source                                question
        the source's next batch
    request_probes                                   question
    engine.train_step                                forward, loss, backward, clip, update
        meanwhile, of the step before                on_step of log plugins, the journal's line
        meanwhile, of the next step                  all up to its batches, where bandit and sampler do not learn, else
                                                     weigh_sources and limit_sources, where their plugins do not
    reward                                           question, for every pull
    on_step                                          plugins learn
    on_sample, on_evaluation                         when due
    should_stop                                      question: all are asked
    on_signal                                        for what arrived, also while sampling or evaluating: it waits
    checkpoint                                       when due or asked for
on_finish
"""

from __future__ import annotations

import json
import math
import pickle
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import attrs
import numpy as np
import numpy.typing as npt
import pluggy
from attrs import frozen

from andrea.batches import Batches
from andrea.checkpoint import Checkpoints, Snapshot
from andrea.config import RunConfig
from andrea.engine import Engine, GenerateOptions, StepResult
from andrea.errors import AndreaError, NotFiniteError
from andrea.evaluate import HeldOut, evaluate
from andrea.folder_lock import FolderLock
from andrea.hookspecs import hook_names
from andrea.interrupts import STOPPING, Interrupts
from andrea.journal import Journal, plain
from andrea.plugin import get_state, set_state
from andrea.tokenfile import write_whole
from andrea.types import (
    Batch,
    Choice,
    Device,
    Document,
    Floats,
    Human,
    Ints,
    Limits,
    Precision,
    Pull,
    Run,
    Sample,
    SourceSpec,
    StepRecord,
    Tokenizer,
    TokenizerRequest,
    Tokens,
)

Probes = dict[str, tuple[Tokens, Tokens]]

LARGEST = sys.float_info.max
MOVING = ("on_step", "on_sample", "on_evaluation", "on_signal")  # hooks in which a plugin's state may move in a run
BOUNDING, CHOOSING = ("weigh_sources", "limit_sources"), ("score_sources", "select_source")
COUNT_STOP = "stop.max_steps"  # the one plugin whose reason is a run that is done


class Hooks:
    """Asks the plugins, in call order, and remembers who answered.

    pluggy's own call drops answers of None and forgets whose they are, so the implementations are walked here.

    Parameters
    ----------
    manager
        With the plugins registered by `andrea.registry.register`.
    trace
        Measure how long every plugin takes.
    """

    def __init__(self, manager: pluggy.PluginManager, trace: bool = False) -> None:
        self._calls: dict[str, list[tuple[str, Any, tuple[str, ...]]]] = {}
        for hook in hook_names():
            found = reversed(getattr(manager.hook, hook).get_hookimpls())
            self._calls[hook] = [(i.plugin_name, i.function, (*i.argnames, *i.kwargnames)) for i in found]
        self._trace = trace
        self.timings: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0])

    def ask(self, hook: str, *, whom: Any = None, **arguments: Any) -> Iterator[tuple[str, Any]]:
        """Yield (plugin name, answer) of every implementation, in call order; only of those that `whom` names, if any.

        A step of a small model waits for a dozen of these calls, so they do nothing that can be done before.
        """
        for name, function, wanted in self._calls[hook]:
            if whom is None or name in whom:
                yield name, self._call(name, hook, function, {key: arguments[key] for key in wanted})

    def _call(self, name: str, hook: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        started = time.perf_counter() if self._trace else 0.0
        try:
            answer = function(**arguments)
        except Exception as error:
            if not isinstance(error, AndreaError):  # a traceback shows a function's file, not whose it is
                error.add_note(f"in {hook} of plugin {name}")
            raise
        if not self._trace:
            return answer
        timing = self.timings[name, hook]
        timing[0] += 1
        timing[1] += time.perf_counter() - started
        return answer

    def tell(self, hook: str, **arguments: Any) -> None:
        """Call every implementation that `ask` would; answers do not matter."""
        for _ in self.ask(hook, **arguments):
            pass

    def one(self, hook: str, kind: str, **arguments: Any) -> tuple[str, Any]:
        """Return (plugin name, answer) of the one plugin of an exclusive kind."""
        for answer in self.ask(hook, **arguments):
            return answer
        raise missing_kind(kind)

    def owner(self, hook: str) -> str:
        """Return the name of the plugin that `one` asks."""
        return next((name for name, _, _ in self._calls[hook]), "no plugin")

    def who(self, hook: str) -> frozenset[str]:
        """Return the names of the plugins that implement a hook."""
        return frozenset(name for name, _, _ in self._calls[hook])

    def of(self, name: str, hook: str, **arguments: Any) -> Any:
        """Return the answer of the plugin `name`; None when it does not implement the hook."""
        for owner, function, wanted in self._calls[hook]:
            if owner == name:
                return self._call(name, hook, function, {key: arguments[key] for key in wanted})
        return None

    # What is asked before a run, as plain functions for those who do not know hooks.

    def open_source(self, spec: SourceSpec) -> Any:
        """Ask the reader that the source names."""
        return self.of(spec.reader, "open_source", spec=spec)

    def keep_document(self, document: Document, source: str) -> str | None:
        """Return the first reason to drop a document."""
        answers = self.ask("keep_document", document=document, source=source)
        return next((reason for _, reason in answers if reason is not None), None)

    def identify_document(self, document: Document, source: str) -> list[int]:
        """Return all keys by which a document is known as a duplicate."""
        answers = self.ask("identify_document", document=document, source=source)
        return [key for _, keys in answers for key in keys]

    def make_tokenizer(self, request: TokenizerRequest) -> Tokenizer:
        """Ask the tokenizer plugin."""
        answer: Tokenizer = self.one("make_tokenizer", "tokenizer", request=request)[1]
        return answer

    def choose_precision(self, device: Device) -> Precision:
        """Ask the precision plugin."""
        answer: Precision = self.one("choose_precision", "precision", device=device)[1]
        return answer


def missing_kind(kind: str) -> AndreaError:
    """Return the error for a run without a plugin of an exclusive kind."""
    return AndreaError(f"no plugin of the kind {kind} is in use", f"name one; andrea plugins --kind {kind} lists them")


@frozen
class Outcome:
    """How a run ended: completed updates, reasons by plugin name, and the signal that stopped it, if one did."""

    step: int
    reasons: Mapping[str, str]
    signal: str = ""


@frozen(eq=False)
class Draft:
    """What a step trains on, and what that was chosen by.

    Attributes
    ----------
    asked
        Scores, weights and limits.
    choices, taken
        The source of each pull, and its batch.
    batches
        The sources as they stand behind what was taken.
    inputs, targets
        Of all pulls, int32 (R, T).
    """

    asked: tuple[Floats, Floats, Limits]
    choices: Sequence[Choice]
    taken: Sequence[Batch]
    batches: Batches
    inputs: Tokens
    targets: Tokens


@frozen(eq=False)
class Foreseen:
    """What is known of a step, with the run as it was seen then, before the last one has taught anything.

    The answer is a draft; or weights and limits, where scores have to wait; or what went wrong, told in its place.
    """

    step: int
    run: Run
    answer: Draft | tuple[Floats, Limits] | Exception


@attrs.define(eq=False)
class Loop:
    """Trains until a plugin or a signal says stop.

    Attributes
    ----------
    config
        Of the run.
    plugins
        (name, object) in call order.
    hooks
        That ask them.
    engine, batches, tokenizer
        What computes, feeds and reads back.
    held_out
        Evaluation set of each source.
    known_words, human, stop_step
        For `Run`.
    folder, journal, checkpoints
        Where the run lives; all None when nothing is written.
    lock
        Of the folder; `close` releases it.
    identity
        What checkpoints record beside the state: configuration, plugin list, fingerprint, data.
    interrupts
        Signals.
    """

    config: RunConfig
    plugins: Sequence[tuple[str, Any]]
    hooks: Hooks
    engine: Engine
    batches: Batches
    tokenizer: Tokenizer
    held_out: Mapping[str, HeldOut]
    known_words: frozenset[str] = frozenset()
    human: Human | None = None
    stop_step: int | None = None
    folder: Path | None = None
    lock: FolderLock | None = None
    journal: Journal | None = None
    checkpoints: Checkpoints | None = None
    identity: Mapping[str, Any] = attrs.field(factory=dict)
    interrupts: Interrupts = attrs.field(factory=Interrupts)
    _logs: frozenset[str] = attrs.field(init=False)
    _learners: frozenset[str] = attrs.field(init=False)
    _probing: bool = attrs.field(init=False)
    _bounds_move: bool = attrs.field(init=False)
    _choices_move: bool = attrs.field(init=False)
    _foreseen: Foreseen | None = attrs.field(init=False, default=None)
    _step: int = attrs.field(init=False, default=0)
    _saved: int = attrs.field(init=False, default=-1)
    _heard: dict[str, str] = attrs.field(init=False, factory=dict)
    _record: StepRecord | None = attrs.field(init=False, default=None)
    _untold: tuple[StepRecord, Run] | None = attrs.field(init=False, default=None)
    _view: Run | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        # A log only shows a run to a person: nothing that it does may influence what comes next.
        self._logs = frozenset(name for name in self.hooks.who("on_step") if name.startswith("log."))
        self._learners = self.hooks.who("on_step") - self._logs
        self._probing = bool(self.hooks.who("request_probes"))
        bounding, choosing, moving = (
            frozenset[str]().union(*map(self.hooks.who, hooks)) for hooks in (BOUNDING, CHOOSING, MOVING)
        )
        late = self.config.batch.ahead  # all are asked before they learn, and what they learn comes a step later
        self._bounds_move = bool(moving & bounding) and not late
        self._choices_move = bool(moving & choosing) and not late

    def start(self, snapshot: Snapshot | None = None, restore: Callable[[str], bool] = lambda name: True) -> None:
        """Call `on_start`, then take over a snapshot's state.

        Parameters
        ----------
        snapshot
            To go on from; None begins anew.
        restore
            Says of which plugins the state is taken over; all for a resume.
        """
        self.hooks.tell("on_start", run=self.view())
        if snapshot is None:
            return
        self._step = self._saved = snapshot.step
        self.engine.import_state(snapshot.engine)
        self.batches.import_state(snapshot.data)
        self._view = None
        for name, target in self.plugins:
            if restore(name):
                set_state(target, dict(snapshot.plugins.get(name, {})), name)
        # A reason that ended the run before does not end it again at once: it must have passed in between. A count is
        # no such reason: who goes on has set another one.
        reasons = snapshot.record.get("reasons", {})
        self._heard = {name: reason for name, reason in reasons.items() if name != COUNT_STOP}
        if all(restore(name) for name, _ in self.plugins):
            self._recall(snapshot.ahead)

    def adopt(self, state: Mapping[str, npt.NDArray[Any]], step: int) -> None:
        """Take weights, and what else of an engine's state there is, as if this run had come to them in `step` updates.

        The checkpoint is written, the plugins are told the end, and the loop is closed.
        """
        try:
            self.engine.import_state({**self.engine.export_state(), **state})
            self._step = step
            self.save_now()
            self.wait()
            self._tell_finish(["a model was imported"], "done")
        finally:
            self.close()

    def run(self) -> Outcome:
        """Train; return when a plugin or a signal stops the run, with the last checkpoint written."""
        reasons: dict[str, str] = {}
        requests: set[str] = set()
        try:
            while not reasons and "stop" not in requests:
                self._record = record = self.train_one()
                self._look(record)
                reasons = self._reasons(record)
                requests = self._requests()
                if "checkpoint" in requests or self._due(self.config.checkpoints.every):
                    self.save(reasons)
            self.save(reasons)
            return self._finish(reasons, requests)
        except BaseException as error:
            with suppress(Exception):  # what went wrong first is what the user has to see
                how = "failed" if isinstance(error, Exception) else "interrupted"
                self._tell_finish([f"{type(error).__name__}: {error}"], how)
            raise
        finally:
            self.close()

    def close(self) -> None:
        """Wait for the checkpoint under way, close the journal, let the folder go; the engine stays, to write with."""
        try:
            self.wait()
        finally:
            if self.journal:
                self.journal.close()
            if self.lock:
                self.lock.release()

    def wait(self) -> None:
        """Wait for the checkpoint under way; raise what went wrong in it."""
        if self.checkpoints:
            self.checkpoints.wait()

    def train_one(self) -> StepRecord:
        """Make one step: choose, update, reward, learn; return its record."""
        step, draft = self._step, self._draft(self._step)
        self.batches, self._view = draft.batches, None
        result = self._update(step, draft)
        self._step += 1
        rewards: list[dict[str, float]] = [{} for _ in draft.choices]
        record = _record(step, _pulls(draft, result, rewards), result, draft.inputs.size)
        if not record.skipped:
            self._reward(record, rewards)
        self.hooks.tell("on_step", whom=self._learners, record=record, run=self.view())
        self._untold = record, self.view()
        if self.journal:
            self.journal.step(record)
        return record

    def _update(self, step: int, draft: Draft) -> StepResult:
        """Do one update; where the engine computes by itself, what can wait is done meanwhile."""
        pulled = [choice.source for choice in draft.choices]
        asked = step, draft.inputs, draft.targets, self._probes(step, pulled)
        launch = getattr(self.engine, "launch_step", None)
        finish = launch(*asked) if launch else None
        self._catch_up()
        if not ((finish or self.config.batch.ahead) and self._foresee(step + 1)):
            for source, count in Counter(pulled).items():  # one more than last time: who is pulled often stays so
                self.batches.ready(source, self._rows, count + 1)
        return finish() if finish else self.engine.train_step(*asked)

    def _catch_up(self) -> None:
        """Show and write down the last step, on which nothing else waits; before anything else is shown or saved."""
        told, self._untold = self._untold, None
        if told is not None:
            self.hooks.tell("on_step", whom=self._logs, record=told[0], run=told[1])
        if self.journal:
            self.journal.catch_up()

    # -- before the update ---------------------------------------------------------------------------------------------

    def _draft(self, step: int) -> Draft:
        """Return what a step trains on: as it was foreseen, or chosen now from what could be foreseen."""
        known, run = self._foreseen, self.view()
        answer = known.answer if known is not None and known.step == step and known.run is run else None
        if isinstance(answer, Draft) and (not self._bounds_move or self._still_holds(answer, step, run)):
            return answer
        if isinstance(answer, Exception) and not self._bounds_move:
            raise answer
        if isinstance(answer, tuple):
            asked = self._scores(step, run), *answer
        else:
            asked = self._scores(step, run), self._weights(step, run), self._limits(step, run)
        return self._choose_all(step, self.batches, *asked)

    def _still_holds(self, draft: Draft, step: int, run: Run) -> bool:
        """Say whether the last step has moved neither weights nor limits."""
        _, weights, limits = draft.asked
        now = self._limits(step, run)
        return (
            np.array_equal(self._weights(step, run), weights)
            and np.array_equal(now.floor, limits.floor)
            and np.array_equal(now.cap, limits.cap)
        )

    def _foresee(self, step: int) -> bool:
        """Choose what the next step trains on now, as far as the update that is under way cannot change it.

        Choices depend on the step's number, on what has been drawn then, and both are known, and on what plugins learn.
        Where bandit and sampler do not learn, choices are made with weights and limits as they are now: they hold if
        these are still the same afterwards. Where one of the two does, only weights and limits can be had, if nobody
        learns those. Batches are taken from a fork: a checkpoint of this step must not hold that. With ``batch.ahead``
        whoever learns is asked all the same, before this step has taught anything. Return whether the batches are
        there.
        """
        if self._choices_move and self._bounds_move:
            return False
        run = self.view()
        answer: Draft | tuple[Floats, Limits] | Exception
        try:
            answer = weights, limits = self._weights(step, run), self._limits(step, run)
            if not self._choices_move:
                answer = self._choose_all(step, self.batches.fork(), self._scores(step, run), weights, limits)
        except Exception as error:  # a run that ends before this step must not fail by it
            answer = error
        self._foreseen = Foreseen(step, run, answer)
        return isinstance(answer, Draft)

    def _choose_all(self, step: int, batches: Batches, *asked: *tuple[Floats, Floats, Limits]) -> Draft:
        """Choose the source of every pull, all from the same scores, weights and limits, and take its batch."""
        choices: list[Choice] = []
        taken: list[Batch] = []
        run, rows = self.view(), self._rows
        for number in range(self.config.batch.pulls_per_step):
            if number:
                run = self._seen(batches)
            choices.append(self._choose(step, number, [c.source for c in choices], *asked, run))
            taken.append(batches.take(choices[-1].source, rows))
        return _draft_of(asked, choices, taken, batches)

    def _choose(
        self, step: int, number: int, chosen: list[int], scores: Floats, weights: Floats, limits: Limits, run: Run
    ) -> Choice:
        try:
            name, answer = self.hooks.one(
                "select_source",
                "sampler",
                step=step,
                pull=number,
                pulls=chosen,
                scores=scores,
                weights=weights,
                limits=limits,
                run=run,
            )
        except ValueError as error:  # so `combine` and the draws say that nothing is left to choose from
            raise AndreaError(
                f"{self.hooks.owner('select_source')} chose no source at step {step}: {error}",
                "loosen the weights and caps, or add sources",
            ) from error
        choice = answer if isinstance(answer, Choice) else Choice(answer)
        source = choice.source
        if isinstance(source, bool) or not isinstance(source, (int, np.integer)) or not 0 <= source < len(run.sources):
            raise AndreaError(f"{name} chose {source!r}, which is no index of the {len(run.sources)} sources")
        if not weights[source] > 0:
            raise AndreaError(f"{name} chose {run.sources[source]}, whose weight is 0 at step {step}")
        # A copy: the journal writes it later, and the sampler may go on with its own. pickle's is the fastest.
        return Choice(int(source), pickle.loads(pickle.dumps(dict(choice.detail), -1)))

    def _scores(self, step: int, run: Run) -> Floats:
        name, answer = self.hooks.one("score_sources", "bandit", step=step, run=run)
        scores = _array(name, "score_sources", answer, run)
        if not _within(scores, -math.inf, math.inf):
            raise AndreaError(f"{name}: score_sources gave NaN at step {step}")
        return _locked(scores)

    def _weights(self, step: int, run: Run) -> Floats:
        product = np.ones(len(run.sources))
        for name, answer in self.hooks.ask("weigh_sources", step=step, run=run):
            weights = _array(name, "weigh_sources", answer, run)
            if not _within(weights, 0.0, LARGEST):
                raise AndreaError(f"{name}: weights must be finite and at least 0, not {weights.tolist()}")
            product = product * weights
        if not any(product.tolist()):
            raise AndreaError(f"at step {step} every source has weight 0", "loosen a weight plugin, or add sources")
        return _locked(product)

    def _limits(self, step: int, run: Run) -> Limits:
        floor, cap = np.zeros(len(run.sources)), np.full(len(run.sources), np.inf)
        for name, answer in self.hooks.ask("limit_sources", step=step, run=run):
            if not isinstance(answer, Limits):
                raise AndreaError(f"{name}: limit_sources gave {type(answer).__name__}, not Limits(floor, cap)")
            low = _array(name, "limit_sources", answer.floor, run)
            high = _array(name, "limit_sources", answer.cap, run)
            if not (_within(low, 0.0, LARGEST) and _within(high, 0.0, math.inf)):
                raise AndreaError(
                    f"{name}: floors must be finite and at least 0, not {low.tolist()}; caps at least 0, not "
                    f"{high.tolist()}"
                )
            floor, cap = np.maximum(floor, low), np.minimum(cap, high)
        return Limits(_locked(floor), _locked(cap))

    def _probes(self, step: int, chosen: list[int]) -> Probes:
        wanted: Probes = {}
        if not self._probing:  # as a rule; the view of the run can be made later then
            return wanted
        for name, answer in self.hooks.ask("request_probes", step=step, pulls=chosen, run=self.view()):
            for source in answer or ():
                if source not in self.held_out:
                    raise AndreaError(f"{name}: there is no source {source!r} to probe")
                held_out, rows = self.held_out[source], self.config.batch.batch_size
                wanted[source] = (held_out.inputs[:rows], held_out.targets[:rows])
        return wanted

    # -- after the update ----------------------------------------------------------------------------------------------

    def _reward(self, record: StepRecord, rewards: Sequence[dict[str, float]]) -> None:
        """Fill in the rewards of the pulls, which are empty until the last pull's is known."""
        answers = [self._worth(pull, record) for pull in record.pulls]
        for own, terms in zip(rewards, answers, strict=True):
            own.update(terms)

    def _worth(self, pull: Pull, record: StepRecord) -> dict[str, float]:
        name, terms = self.hooks.one("reward", "reward", pull=pull, record=record, run=self.view())
        if not isinstance(terms, dict) or not all(_is_finite(value) for value in terms.values()):
            raise AndreaError(f"{name}: reward must give finite numbers by name, not {terms!r}")
        return {key: float(value) for key, value in terms.items()}

    def _look(self, record: StepRecord) -> None:
        """Sample and evaluate when due."""
        if self._due(self.config.sampling.sample_every):
            self._catch_up()
            sample = self.sample(record.loss)
            self.hooks.tell("on_sample", sample=sample, run=self.view())
            if self.journal:
                self.journal.sample(sample)
        if self._due(self.config.evaluation.eval_every):
            self._catch_up()
            evaluation = evaluate(self.engine, self.held_out, self._step)
            self.hooks.tell("on_evaluation", evaluation=evaluation, run=self.view())
            if self.journal:
                self.journal.evaluation(evaluation)

    def sample(self, loss: float) -> Sample:
        """Return texts drawn from the model as it is now, from the configured prompts and the run's seed."""
        how = self.config.sampling
        prompts = tuple(how.prompts[i % len(how.prompts)] for i in range(how.count))
        ids = [np.append(self.tokenizer.bos, self.tokenizer.encode(p.encode())).astype(np.int32) for p in prompts]
        options = GenerateOptions(
            how.max_tokens, how.temperature, top_p=how.top_p, seed=self.config.seed, stop=(self.tokenizer.bos,)
        )
        try:
            rows = self.engine.generate(ids, options)
        except NotFiniteError:  # whether such a run ends is for a plugin to say; it wrote nothing
            return Sample(self._step, loss, prompts, ("",) * len(prompts))
        texts = (self.tokenizer.decode(row).decode(errors="replace") for row in rows)
        return Sample(self._step, loss, prompts, tuple(texts))

    def _reasons(self, record: StepRecord) -> dict[str, str]:
        reasons = {}
        for name, answer in self.hooks.ask("should_stop", record=record, run=self.view()):
            if answer is None:
                self._heard.pop(name, None)
            elif not isinstance(answer, str) or not answer:
                raise AndreaError(f"{name}: should_stop gives a reason as text, or None, not {answer!r}")
            elif name not in self._heard:
                reasons[name] = answer
        return reasons

    def _requests(self) -> set[str]:
        requests: set[str] = set()
        for signal in self.interrupts.take():
            answered = False
            for name, answer in self.hooks.ask("on_signal", signal=signal, step=self._step, run=self.view()):
                answered = answered or answer is not None
                if unknown := sorted(set(answer or ()) - {"checkpoint", "stop"}):
                    raise AndreaError(f"{name}: on_signal asked for {unknown[0]!r}; it may be 'checkpoint' or 'stop'")
                requests |= set(answer or ())
            if signal in STOPPING and not answered:
                requests.add("stop")  # what everybody expects of it; without a plugin it would be lost
        return requests

    def _finish(self, reasons: Mapping[str, str], requests: set[str]) -> Outcome:
        signal = self.interrupts.stopped_by if "stop" in requests else ""
        texts = [f"{name}: {reason}" for name, reason in reasons.items()] + ([signal] if signal else [])
        self.wait()
        self._catch_up()
        if self.journal:
            self.journal.stop(self._step, {**reasons, **({"signal": signal} if signal else {})})
            self.journal.flush()
        self._tell_finish(texts, "interrupted" if "stop" in requests else "done")
        return Outcome(self._step, dict(reasons), signal)

    def _tell_finish(self, reasons: Sequence[str], ending: str) -> None:
        self._catch_up()
        self.hooks.tell("on_finish", record=self._record, reasons=reasons, ending=ending, run=self.view())

    # -- state ---------------------------------------------------------------------------------------------------------

    def save(self, reasons: Mapping[str, str]) -> None:
        """Write a checkpoint of the state after this step; once for every step."""
        if self._saved != self._step:
            self.save_now(reasons)

    def save_now(self, reasons: Mapping[str, str] | None = None) -> None:
        """Write a checkpoint of the state as it is, even of a step that has one."""
        if self.checkpoints is None or self.journal is None:
            return
        self._saved = self._step
        self._catch_up()
        self.journal.flush()
        snapshot = self.snapshot(reasons)
        render, mirror = self.journal.rendering(), self._mirror(snapshot, self.checkpoints.folder.parent)

        def finish() -> None:
            render()
            mirror()

        self.checkpoints.save(snapshot, finish)

    def snapshot(self, reasons: Mapping[str, str] | None = None) -> Snapshot:
        """Return copies of everything that moves."""
        record = {
            **self.identity,
            "reasons": {**self._heard, **(reasons or {})},
            "journal": self.journal.length if self.journal else 0,
        }
        states = {name: get_state(target) for name, target in self.plugins}
        engine, data = self.engine.export_state(), self.batches.export_state()
        return Snapshot(self._step, engine, data, states, record, self._chosen_ahead())

    def _chosen_ahead(self) -> dict[str, Any]:
        """Return the next step's choices where a resumed run could not ask for them: learners know more by now."""
        known = self._foreseen
        if not self.config.batch.ahead or known is None or known.step != self._step:
            return {}
        if not isinstance(known.answer, Draft):
            return {}
        scores, weights, limits = known.answer.asked
        choices = [{"source": choice.source, "detail": plain(choice.detail)} for choice in known.answer.choices]
        return {"choices": choices, "scores": scores, "weights": weights, "floor": limits.floor, "cap": limits.cap}

    def _recall(self, ahead: Mapping[str, Any]) -> None:
        """Take over the choices that `_chosen_ahead` gave, and their batches from a fork, as `_foresee` does."""
        batch = self.config.batch
        if not batch.ahead or len(ahead.get("choices", ())) != batch.pulls_per_step:
            return
        weights, limits = _locked(ahead["weights"]), Limits(_locked(ahead["floor"]), _locked(ahead["cap"]))
        choices = [Choice(choice["source"], choice["detail"]) for choice in ahead["choices"]]
        batches = self.batches.fork()
        taken = [batches.take(choice.source, self._rows) for choice in choices]
        draft = _draft_of((_locked(ahead["scores"]), weights, limits), choices, taken, batches)
        self._foreseen = Foreseen(self._step, self.view(), draft)

    def _mirror(self, snapshot: Snapshot, folder: Path) -> Callable[[], None]:
        """Return a function that writes ``<model>.state.json``, the state for a person to read."""
        shown = {
            "step": snapshot.step,
            "reasons": snapshot.record["reasons"],
            "data": dict(snapshot.data),
            "plugins": {name: dict(state) for name, state in snapshot.plugins.items() if state},
        }

        def write() -> None:
            write_whole(folder / f"{self.config.name}.state.json", json.dumps(plain(shown), indent=1).encode())

        return write

    def view(self) -> Run:
        """Return the run as plugins see it now; the same object until a batch is taken."""
        if self._view is None:
            self._view = self._seen(self.batches)
        return self._view

    def _seen(self, batches: Batches) -> Run:
        return Run(
            name=self.config.name,
            seed=self.config.seed,
            sources=batches.names,
            documents=batches.documents,
            tokens=batches.tokens,
            drawn=_locked(batches.drawn),
            distinct=_locked(batches.distinct),
            pulls=_locked(batches.pulls),
            rows=self.config.batch.rows,
            context=self.config.model.context,
            steps=self.config.schedule.steps,
            warmup_steps=self.config.schedule.warmup_steps,
            pulls_per_step=self.config.batch.pulls_per_step,
            folder=self.folder,
            known_words=self.known_words,
            stop_step=self.stop_step,
            vocabulary=self.tokenizer.size,
            human=self.human,
        )

    @property
    def _rows(self) -> int:
        """Rows of a pull."""
        return self.config.batch.rows // self.config.batch.pulls_per_step

    def _due(self, every: int) -> bool:
        return bool(every) and self._step % every == 0


def _draft_of(
    asked: tuple[Floats, Floats, Limits], choices: Sequence[Choice], taken: Sequence[Batch], batches: Batches
) -> Draft:
    """Return a draft with the batches of its pulls one behind the other."""
    inputs = np.concatenate([b.inputs for b in taken]) if len(taken) > 1 else taken[0].inputs
    targets = np.concatenate([b.targets for b in taken]) if len(taken) > 1 else taken[0].targets
    return Draft(asked, choices, taken, batches, inputs, targets)


def _pulls(draft: Draft, result: StepResult, rewards: Sequence[Mapping[str, float]]) -> tuple[Pull, ...]:
    """Return the pulls of a step, their losses being means over their rows."""
    parts = result.row_losses.reshape(len(draft.choices), -1).tolist()
    return tuple(
        Pull(choice.source, batch.documents, math.fsum(part) / len(part), *draft.asked, choice.detail, terms)
        for choice, batch, part, terms in zip(draft.choices, draft.taken, parts, rewards, strict=True)
    )


def _record(step: int, pulls: tuple[Pull, ...], result: StepResult, tokens: int) -> StepRecord:
    """Return the record of a step; its loss is the mean of its pulls'."""
    return StepRecord(
        step=step,
        pulls=pulls,
        loss=math.fsum([pull.loss for pull in pulls]) / len(pulls),
        grad_norm=result.grad_norm,
        learning_rate=result.learning_rate,
        skipped=result.skipped,
        tokens=tokens,
        probes=result.probe_losses,
    )


Numbers = TypeVar("Numbers", Floats, Ints)


def _locked(array: Numbers) -> Numbers:
    """Return the array, read-only: all plugins see the same one, and none may change what the next one sees."""
    array.setflags(write=False)
    return array


def _within(array: Floats, low: float, high: float) -> bool:
    """Say whether all numbers are from `low` to `high`, and none NaN; of so few, a list is faster than an array."""
    return not [value for value in array.tolist() if not low <= value <= high]


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and math.isfinite(value)


def _array(name: str, hook: str, answer: Any, run: Run) -> Floats:
    """Check that an answer is one number for each source."""
    try:
        array = np.array(answer, dtype=np.float64)  # a copy: the record must not change when the plugin goes on
    except (TypeError, ValueError):
        raise AndreaError(f"{name}: {hook} gave {answer!r}, not numbers") from None
    if array.shape != (len(run.sources),):
        raise AndreaError(f"{name}: {hook} gave shape {array.shape}, not ({len(run.sources)},), one for each source")
    return array
