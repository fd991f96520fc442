"""A run under watch: every call of one plugin is judged, every question is asked twice, every answer is kept.

The plugin is given copies of its arguments, so that one that changes them is caught and spoils nothing. Its reasons to
stop and its requests are kept and not obeyed, so that every walk has its full length.
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pluggy
from attrs import define, field

from andrea.checkpoint import Snapshot
from andrea.interrupts import Interrupts
from andrea.loop import Hooks
from andrea.plugin import get_state
from andrea.testing.answers import faults_of
from andrea.testing.compare import moved, own_memory, same, shared_memory
from andrea.testing.engine import FakeEngine
from andrea.testing.steps import History, StopAfter, build_loop, configure, resolve
from andrea.tokens import TokenFile

SKIPPED = (6, 13)  # steps whose update is skipped: one with losses, one whose losses are NaN
SIGNALS = {9: "SIGUSR1", 19: "SIGTERM", 29: "SIGINT"}
_COMPANIONS = ("bandit.ucb1", "sampler.proportional", "reward.ema_drop")


@define
class Walk:
    """What a watched run showed.

    Attributes
    ----------
    answers
        (step, hook, answer) of every call of the plugin.
    history
        Records, samples and evaluations.
    faults
        What was wrong, by the contract that it breaks.
    state
        Of the plugin after the last step.
    first, last
        Its public attributes after the start and after the last step.
    printed
        What it wrote to standard output.
    error
        The exception that ended the walk early.
    """

    answers: list[tuple[int, str, Any]] = field(factory=list)
    history: History = field(factory=History)
    faults: dict[str, list[str]] = field(factory=lambda: defaultdict(list))
    state: Mapping[str, Any] = field(factory=dict)
    first: Mapping[str, Any] = field(factory=dict)
    last: Mapping[str, Any] = field(factory=dict)
    printed: str = ""
    error: Exception | None = None

    def fault(self, contract: str, text: str) -> None:
        """Remember a fault once."""
        if text not in self.faults[contract]:
            self.faults[contract].append(text)


class WatchedHooks(Hooks):
    """Hooks that watch one plugin."""

    def __init__(self, manager: pluggy.PluginManager, name: str, plugin: Any, walk: Walk) -> None:
        super().__init__(manager)
        self._name, self._plugin, self._walk = name, plugin, walk
        self._step = -1
        self._settled: set[int] = set()
        self._asked: Mapping[str, Any] = {}

    def ask(self, hook: str, **arguments: Any) -> Iterator[tuple[str, Any]]:
        """Ask as always; keep what the plugin remembers when the first step begins and when the run ends."""
        self._asked = arguments
        if hook == "score_sources":
            if self._step < 0:
                self._walk.first = own_memory(self._plugin)
            self._step = arguments["step"]
        if hook == "on_finish":
            self._walk.last = own_memory(self._plugin)
        yield from super().ask(hook, **arguments)
        if hook == "on_signal":
            yield "the walk", set()  # a signal that nobody answers would end it
        if hook == "on_step" and not arguments["record"].skipped:
            self._settled |= {pull.source for pull in arguments["record"].pulls}

    def _call(self, name: str, hook: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        if name != self._name:
            return super()._call(name, hook, function, arguments)
        shared, own = shared_memory(self._plugin), own_memory(self._plugin)
        answer = self._once(hook, function, arguments)
        if not hook.startswith("on_") or hook == "on_signal":
            self._again(hook, function, arguments, answer)
            for attribute in moved(own, own_memory(self._plugin)):
                self._walk.fault("questions_change_nothing", f"{hook} changes {attribute}")
        for attribute in moved(shared, shared_memory(self._plugin)):
            self._walk.fault("memory_is_its_own", f"{hook} changes {attribute}, which lives in the module or the class")
        for text in faults_of(hook, answer, self._asked):
            self._walk.fault("answers_fit", f"{hook}: {text}")
        if hook == "score_sources" and not self._walk.faults["answers_fit"]:
            self._judge_untried(answer)
        return None if hook in ("should_stop", "on_signal") else answer

    def _once(self, hook: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Call with copies, and keep the answer."""
        given = copy.deepcopy(arguments)
        try:
            answer = function(**given)
        except Exception as error:
            error.add_note(f"in {hook} of {self._name}, at step {self._step}")
            raise
        for argument in moved(arguments, given):
            self._walk.fault("arguments_are_left_alone", f"{hook} changes its argument {argument}")
        step = self._asked["record"].step if hook == "on_step" else self._step  # a log hears of a step in the next one
        self._walk.answers.append((step, hook, copy.deepcopy(answer)))
        return answer

    def _again(self, hook: str, function: Callable[..., Any], arguments: Mapping[str, Any], answer: Any) -> None:
        """Ask a question again and compare."""
        kept = copy.deepcopy(answer)
        again = function(**copy.deepcopy(arguments))
        if not same(kept, again):
            self._walk.fault("questions_change_nothing", f"{hook} answers {kept!r}, and asked again {again!r}")

    def _judge_untried(self, scores: Any) -> None:
        for source in self._settled:
            if scores[source] == float("inf"):
                self._walk.fault("answers_fit", f"score_sources: source {source} scores inf, but it was tried")


class _Scripted(Interrupts):
    """Signals that arrive after given steps."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._step = step

    def take(self) -> list[str]:
        """Return the signal of this step."""
        self._step += 1
        return [SIGNALS[self._step - 1]] if self._step - 1 in SIGNALS else []


def walk(
    name: str,
    plugin: Any,
    steps: int,
    files: Mapping[str, tuple[TokenFile, TokenFile]],
    settings: Mapping[str, Any],
    folder: Path | None = None,
    snapshot: Snapshot | None = None,
) -> Walk:
    """Run a plugin among ordinary ones until `steps` updates are done, and return what was seen.

    Parameters
    ----------
    name, plugin
        Under test.
    steps
        In all.
    files
        Of `write_sources`.
    settings
        Of `configure`.
    folder
        Where a checkpoint is written at the end.
    snapshot
        To go on from.
    """
    seen = Walk()
    companions = [one for one in _COMPANIONS if one.partition(".")[0] != name.partition(".")[0]]
    loop = build_loop(
        [*resolve([(name, plugin), *companions]), ("log.history", seen.history), ("stop.steps", StopAfter(steps))],
        files,
        configure(tuple(files), seed=1, settings=settings),
        engine=lambda config: FakeEngine(config, SKIPPED),
        folder=folder,
        hooks=lambda manager: WatchedHooks(manager, name, plugin, seen),
        interrupts=_Scripted(snapshot.step if snapshot else 0),
        snapshot=snapshot,
    )
    printed, shown = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(shown):
            loop.start(snapshot)
            loop.run()
        seen.state = get_state(plugin)
    except Exception as error:
        seen.error = error
    finally:
        if loop.journal:
            loop.journal.close()
    seen.printed = printed.getvalue()
    return seen
