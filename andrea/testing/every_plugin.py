"""The contracts of every plugin, whatever its kind."""

# ruff: noqa: D401  (a docstring here is a promise, so it states)

from __future__ import annotations

import json
import re
from types import ModuleType
from typing import Any, get_type_hints

import attrs

from andrea.errors import AndreaError
from andrea.plugin import get_state, option_fields, option_help, set_state, state_fields
from andrea.registry import KINDS, make, register
from andrea.testing.compare import moved, same
from andrea.testing.promise import (
    CUTS,
    MIXED_CUT,
    MIXED_WHOLE,
    WHOLE,
    ContractError,
    Subject,
    contract,
    report,
)
from andrea.testing.watch import Walk

_OF_ONE_KIND = {
    "make_tokenizer": "tokenizer",
    "choose_precision": "precision",
    "score_sources": "bandit",
    "select_source": "sampler",
    "reward": "reward",
}
_NEEDED = {
    **{kind: hook for hook, kind in _OF_ONE_KIND.items()},
    "source": "open_source",
    "filter": "keep_document",
    "weight": "weigh_sources",
    "limit": "limit_sources",
    "stop": "should_stop",
    "signals": "on_signal",
}


@contract()
def name_is_kind_and_variant(subject: Subject) -> None:
    """The name is ``kind.variant``, of a kind that exists, in lower case."""
    if not re.fullmatch(r"[a-z]+\.[a-z][a-z0-9_]*", subject.name) or subject.kind not in KINDS:
        raise ContractError(f"{subject.name!r} is not kind.variant with a kind of {', '.join(KINDS)}")


@contract()
def docstring_is_a_sentence(subject: Subject) -> None:
    """The docstring begins with one line that is a sentence: ``andrea plugins`` shows it."""
    first, _, rest = (subject.target.__doc__ or "").strip().partition("\n")
    if not first:
        raise ContractError("there is no docstring; its first line is what `andrea plugins` shows")
    if not first.endswith(".") or rest.split("\n")[0].strip():
        raise ContractError(f"the docstring's first line is no sentence of its own: {first!r}")


@contract()
def options_are_documented(subject: Subject) -> None:
    """Every option has a type, a default of that type, and a help line."""
    faults = []
    hints = get_type_hints(subject.target) if isinstance(subject.target, type) else {}
    for field in _options(subject):
        if field.name not in hints:
            faults.append(f"option {field.name} has no type")
        if field.default is attrs.NOTHING:
            faults.append(f"option {field.name} has no default")
        if not option_help(field).strip():
            faults.append(f"option {field.name} has no help: write {field.name}: ... = option(..., help='...')")
    report(faults)


@contract()
def options_come_from_json(subject: Subject) -> None:
    """Defaults and given options, written as JSON and read again, give the same options."""
    plugin, names = subject.new(), [field.name for field in _options(subject)]
    values = {name: getattr(plugin, name) for name in names}
    try:
        read = json.loads(json.dumps(values))
    except (TypeError, ValueError) as error:
        raise ContractError(f"an option is no JSON value: {error}") from None
    try:
        again = make(subject.target, subject.name, read)
    except AndreaError as error:
        raise ContractError(f"an option's value is not of its type: {error}") from None
    report([f"option {name} changes" for name in names if not same(getattr(again, name), values[name])])


@contract()
def hooks_are_known(subject: Subject) -> None:
    """Its hooks exist, take arguments that exist, and are those of its kind."""
    plugin = subject.new()
    try:
        manager = register([(subject.name, plugin)])
    except AndreaError as error:
        raise ContractError(str(error)) from None
    own = [caller.name for caller in manager.get_hookcallers(plugin) or []]
    needed = _NEEDED.get(subject.kind)
    faults = [] if own else ["it implements no hook"]
    if own and needed and needed not in own and not (subject.kind == "filter" and "identify_document" in own):
        faults.append(f"a {subject.kind} implements {needed}, this one only {', '.join(own)}")
    for hook in own:
        owner = _OF_ONE_KIND.get(hook, subject.kind)
        if owner != subject.kind:
            faults.append(f"only a {owner} implements {hook}: the first answer is taken, and others are not heard")
    report(faults)


@contract()
def it_runs(subject: Subject) -> None:
    """It goes through a run: epochs that wrap, samples, evaluations, signals, skipped updates and NaN losses."""
    subject.walk()
    subject.walk(MIXED_WHOLE, pulls=2)


@contract()
def answers_fit(subject: Subject) -> None:
    """Every answer has the shape, the type and the range that its hook wants."""
    _report_walks(subject, "answers_fit")


@contract()
def questions_change_nothing(subject: Subject) -> None:
    """A question leaves the plugin as it was, and asked twice it answers the same."""
    _report_walks(subject, "questions_change_nothing")


@contract()
def arguments_are_left_alone(subject: Subject) -> None:
    """No hook changes what it is given."""
    _report_walks(subject, "arguments_are_left_alone")


@contract()
def memory_is_its_own(subject: Subject) -> None:
    """What it learns lives in the plugin object, not in its module or class, which no checkpoint can restore."""
    _report_walks(subject, "memory_is_its_own")


@contract()
def memory_is_declared(subject: Subject) -> None:
    """Every public attribute that moves during a run is declared with ``state(...)``."""
    seen, plugin = subject.walk(), subject.new()
    undeclared = [name for name in moved(seen.first, seen.last) if name not in state_fields(plugin)]
    report([f"{name} moves and is not saved: declare it with state(...)" for name in undeclared])


@contract()
def state_round_trips(subject: Subject) -> None:
    """State that is taken out and put into a fresh plugin comes out again the same."""
    state, plugin = subject.walk().state, subject.new()
    set_state(plugin, dict(state), subject.name)
    report([f"state field {name} changes" for name in moved(state, get_state(plugin))])


@contract()
def seed_decides(subject: Subject) -> None:
    """Two runs with one seed are the same: no clock, no randomness but ``run.draws``."""
    _compare(subject.walk(), subject.walk(repeat=1), 0, "a second run")


@contract()
def resume_is_exact(subject: Subject) -> None:
    """A run that is cut, saved to a checkpoint file and resumed goes on like one that was not."""
    for cut in CUTS:
        _compare(subject.walk(WHOLE), subject.walk(WHOLE, cut), cut, f"the run resumed at step {cut}")
    whole = subject.walk(MIXED_WHOLE, pulls=2)
    _compare(whole, subject.walk(MIXED_WHOLE, MIXED_CUT, pulls=2), MIXED_CUT, "the resumed run of two pulls a step")


@contract()
def standard_output_is_left_alone(subject: Subject) -> None:
    """It prints nothing to standard output, which belongs to ``--json``."""
    if printed := subject.walk().printed:
        raise ContractError(f"it printed {printed[:60]!r}; write to standard error")


def _options(subject: Subject) -> list[attrs.Attribute[Any]]:
    return [] if isinstance(subject.target, ModuleType) else option_fields(subject.target)


def _report_walks(subject: Subject, name: str) -> None:
    """Report the faults that walks found, even in one that ended early."""
    faults: list[str] = []
    for steps, pulls in ((WHOLE, 1), (MIXED_WHOLE, 2)):
        seen = subject.attempt(steps, pulls=pulls)  # one that ended early counts until there; it_runs tells of the end
        faults += [text for text in seen.faults[name] if text not in faults]
    report(faults)


def _compare(whole: Walk, part: Walk, cut: int, what: str) -> None:
    """Compare answers, records and state of two runs from a step on."""
    silent = ("on_start", "on_finish")
    expected = [one for one in whole.answers if one[0] >= cut and one[1] not in silent]
    given = [one for one in part.answers if one[1] not in silent]
    for first, second in zip(expected, given, strict=False):
        if not same(first, second):
            raise ContractError(f"{what} differs at step {first[0]}: {first[1]} gave {second[2]!r}, not {first[2]!r}")
    if len(expected) != len(given):
        raise ContractError(f"{what} asked {len(given)} times, not {len(expected)}")
    if not same(whole.history.records[cut:], part.history.records):
        raise ContractError(f"{what} has other records, though the plugin answered the same")
    report([f"{what} ends with another {name}" for name in moved(whole.state, part.state)])
    report([f"{what} ends with another {name}, which is not saved" for name in moved(whole.last, part.last)])
