"""The kit's own proof: plugins that each do one thing wrong, and which contract catches them."""

from __future__ import annotations

import random
import time
from types import ModuleType

import attrs
import numpy as np
import pytest

from andrea import (
    AndreaError,
    Choice,
    Document,
    Limits,
    Precision,
    combine,
    hookimpl,
    option,
    plugin,
    state,
)
from andrea.registry import find
from andrea.testing import ContractError, check_plugin, check_plugin_object
from andrea.testing.contract import contracts_of, fault_of, subject
from andrea.testing.promise import CONTRACTS


def fault(target, name, contract):
    """Return what one contract says of a plugin; None when it is kept."""
    with subject(name, target, {}) as tested:
        return fault_of(next(one for one in contracts_of(tested.kind) if one.name == contract), tested)


def broken_by(target, name):
    """Return the names of the contracts that a plugin breaks."""
    with subject(name, target, {}) as tested:
        return [one.name for one in contracts_of(tested.kind) if fault_of(one, tested) is not None]


# -- one good plugin, and its bad relatives ----------------------------------------------------------------------------


@plugin
class Mean:
    """Score sources by their mean reward."""

    start: float = option(1.0, help="score of a source without reward")
    counts: np.ndarray = state()
    sums: np.ndarray = state()

    @hookimpl
    def on_start(self, run):
        self.counts, self.sums = np.zeros(len(run.sources)), np.zeros(len(run.sources))

    @hookimpl
    def score_sources(self):
        return np.where(self.counts > 0, self.sums / np.maximum(self.counts, 1), self.start)

    @hookimpl
    def on_step(self, record):
        for pull in record.pulls:
            self.counts[pull.source] += 1
            self.sums[pull.source] += pull.reward


@plugin
class CountsInAQuestion(Mean):
    """Moves its state when it is asked."""

    asked: int = state(0)

    @hookimpl
    def score_sources(self):
        self.asked += 1
        return np.full(len(self.counts), float(self.asked))


@plugin
class RemembersAQuestion(Mean):
    """Moves its state when it is asked the first time, and answers the same all the while."""

    asked: bool = state(False)

    @hookimpl
    def score_sources(self):
        self.asked = True
        return np.ones(len(self.counts))


@plugin
class ForgetsPublicly(Mean):
    """Learns in an attribute that is not state."""

    latest: float = attrs.field(init=False, default=1.0)

    @hookimpl
    def score_sources(self):
        return np.full(len(self.counts), self.latest)

    @hookimpl
    def on_step(self, record):
        self.latest = record.loss if record.loss == record.loss else 0.0


@plugin
class ForgetsPrivately(Mean):
    """Learns in a private attribute that its answers depend on."""

    _pulls: int = attrs.field(init=False, default=0)

    @hookimpl
    def score_sources(self):
        return np.full(len(self.counts), 1.0 + self._pulls)

    @hookimpl
    def on_step(self, record):
        self._pulls += len(record.pulls)


@plugin
class ForgetsAtStart(Mean):
    """Keeps a private cache that is right only when it was there from the start."""

    _order: list = attrs.field(init=False, factory=list)

    @hookimpl
    def on_step(self, record):
        self._order.append(record.pulls[0].source)

    @hookimpl
    def score_sources(self):
        return 1.0 + np.bincount(self._order, minlength=len(self.counts)).astype(np.float64)


class LearnsInItsClass:
    """Learns in an attribute of the class."""

    rewards = {"total": 0.0}  # noqa: RUF012

    @hookimpl
    def score_sources(self, run):
        return np.full(len(run.sources), 1.0 + self.rewards["total"])

    @hookimpl
    def on_step(self, record):
        self.rewards["total"] += record.pulls[0].reward


@plugin
class OneScoreTooMany(Mean):
    """Answers with another shape."""

    @hookimpl
    def score_sources(self):
        return np.ones(len(self.counts) + 1)


@plugin
class IntegerScores(Mean):
    """Answers with another type."""

    @hookimpl
    def score_sources(self):
        return np.ones(len(self.counts), dtype=np.int64)


@plugin
class ListOfScores(Mean):
    """Answers with a list."""

    @hookimpl
    def score_sources(self):
        return [1.0] * len(self.counts)


@plugin
class NeverTried(Mean):
    """Scores sources inf that were tried."""

    @hookimpl
    def score_sources(self):
        return np.full(len(self.counts), np.inf)


@plugin
class NotANumber(Mean):
    """Divides 0 by 0 for a source whose updates were all skipped."""

    @hookimpl
    def score_sources(self):
        with np.errstate(all="ignore"):
            return np.where(self.counts > 0, self.sums / (self.sums != 0), 1.0)


@plugin
class RoundsTheRecord(Mean):
    """Changes the record that it is given."""

    @hookimpl
    def on_step(self, record):
        record.pulls[0].scores[:] = 0.0


@plugin
class ReadsTheClock(Mean):
    """Scores by the time of the day."""

    @hookimpl
    def on_step(self, record):
        self.sums += time.perf_counter()
        self.counts += 1


@plugin
class RollsItsOwnDice(Mean):
    """Learns from randomness that is not the run's."""

    @hookimpl
    def on_step(self, record):
        self.sums += random.random()
        self.counts += 1


@plugin
class Undocumented(Mean):
    """Has an option without help."""

    exploration: float = 2.0


@plugin
class EmptyHelp(Mean):
    """Has an option whose help says nothing."""

    exploration: float = option(2.0, help=" ")


@plugin
class Needed(Mean):
    """Has an option without a default."""

    exploration: float = option(help="no default")


@plugin
class WrongDefault(Mean):
    """Has an option whose default is not of its type."""

    exploration: float = option("much", help="a number, it says")


@plugin
class NotJson(Mean):
    """Has an option that JSON cannot hold."""

    exploration: set = option(factory=lambda: {1}, help="a set")


class Speechless(Mean):  # noqa: D101
    pass


class NoSentence(Mean):
    """mean
    of rewards"""  # noqa: D205, D209, D400


@plugin
class Prints(Mean):
    """Prints to standard output."""

    @hookimpl
    def on_step(self, record):
        print("step", record.step)


@plugin
class Fails(Mean):
    """Fails at a skipped update."""

    @hookimpl
    def on_step(self, record):
        assert not record.skipped, "never happens"


@plugin
class AnswersAnEvent(Mean):
    """Answers where nobody listens."""

    @hookimpl
    def on_evaluation(self, evaluation):
        return "better"


@plugin
class AlsoSelects(Mean):
    """Answers for another kind."""

    @hookimpl
    def select_source(self, run):
        return 0


@plugin
class UnknownHook(Mean):
    """Implements a hook that does not exist."""

    @hookimpl
    def on_stop(self, run):
        pass


@plugin
class StateOfObjects(Mean):
    """Keeps something in its state that no checkpoint can hold."""

    seen: set = state(factory=set)


def test_a_good_plugin_keeps_every_contract():
    """The kit finds no fault where there is none; else what it finds elsewhere means nothing."""
    assert broken_by(Mean, "bandit.mean") == []
    check_plugin_object(Mean, "bandit.mean", start=2.5)


@pytest.mark.parametrize(
    ("target", "contract", "words"),
    [
        (CountsInAQuestion, "questions_change_nothing", "changes asked"),
        (RemembersAQuestion, "questions_change_nothing", "changes asked"),
        (ForgetsPublicly, "memory_is_declared", "latest moves"),
        (ForgetsPublicly, "resume_is_exact", "score_sources gave"),
        (ForgetsPrivately, "resume_is_exact", "score_sources gave"),
        (ForgetsAtStart, "resume_is_exact", "score_sources gave"),
        (LearnsInItsClass, "memory_is_its_own", "rewards"),
        (OneScoreTooMany, "answers_fit", "shape (5,), not (4,)"),
        (IntegerScores, "answers_fit", "int64, not float64"),
        (ListOfScores, "answers_fit", "a list, not an array"),
        (NeverTried, "answers_fit", "it was tried"),
        (NotANumber, "answers_fit", "numbers"),
        (RoundsTheRecord, "arguments_are_left_alone", "changes its argument record"),
        (ReadsTheClock, "seed_decides", "second run"),
        (RollsItsOwnDice, "seed_decides", "second run"),
        (Undocumented, "options_are_documented", "exploration has no help"),
        (EmptyHelp, "options_are_documented", "exploration has no help"),
        (Needed, "options_are_documented", "exploration has no default"),
        (WrongDefault, "options_come_from_json", "not a number"),
        (NotJson, "options_come_from_json", "no JSON value"),
        (Speechless, "docstring_is_a_sentence", "no docstring"),
        (NoSentence, "docstring_is_a_sentence", "no sentence"),
        (Prints, "standard_output_is_left_alone", "step 0"),
        (Fails, "it_runs", "never happens"),
        (AnswersAnEvent, "answers_fit", "nobody reads it"),
        (AlsoSelects, "hooks_are_known", "only a sampler"),
        (UnknownHook, "hooks_are_known", "on_stop"),
        (StateOfObjects, "it_runs", "holds set"),
    ],
)
def test_what_a_bad_plugin_does_is_caught(target, contract, words):
    """Each is caught by the contract that names its fault."""
    assert words in fault(target, "bandit.bad", contract)


@pytest.mark.parametrize("wrong", ["ids", "counts"])
def test_texts_encoded_together_must_be_those_encoded_one_by_one(wrong):
    """A tokenizer whose second way to encode gives something else is caught."""
    byte = find("tokenizer.byte").load()

    class Together(byte):
        """Bytes, with a second way to encode them."""

        @hookimpl
        def make_tokenizer(self, request):
            made = super().make_tokenizer(request)

            def encode_all(texts):
                ids = np.frombuffer(b"".join(texts), dtype=np.uint8).astype(np.int32)
                counts = np.array([len(text) for text in texts], dtype=np.int64)
                return (255 - ids, counts) if wrong == "ids" else (ids, counts[::-1])

            made.encode_all = encode_all
            return made

    assert "encode_all gives" in fault(Together, "tokenizer.together", "tokenizer_encodes_all_as_one")
    assert fault(byte, "tokenizer.byte", "tokenizer_encodes_all_as_one") is None


def test_a_bad_plugin_breaks_no_other_contract():
    """A plugin with one fault is not accused of others."""
    assert broken_by(Undocumented, "bandit.bad") == ["options_are_documented"]
    assert broken_by(RemembersAQuestion, "bandit.bad") == ["questions_change_nothing"]


def test_a_module_has_no_memory():
    """A module that learns in its globals is caught: no checkpoint can restore them."""
    module = ModuleType("forgetful")
    module.__doc__ = "Learns in a global."
    source = (
        "from andrea import hookimpl\nimport numpy as np\npulls = [0]\n"
        "@hookimpl\ndef score_sources(run):\n    return np.full(len(run.sources), 1.0 + pulls[0])\n"
        "@hookimpl\ndef on_step(record):\n    pulls[0] += 1\n"
    )
    exec(source, vars(module))
    assert "pulls" in fault(module, "bandit.forgetful", "memory_is_its_own")


@pytest.mark.parametrize("name", ["mean", "bandit.Mean", "oracle.mean", "bandit.a.b"])
def test_a_bad_name_is_caught(name):
    """A name is kind.variant."""
    assert "kind.variant" in fault(Mean, name, "name_is_kind_and_variant")


def test_all_faults_are_told_at_once():
    """The error names the plugin, each broken contract, its promise and the fault."""
    with pytest.raises(ContractError) as caught:
        check_plugin_object(ForgetsPublicly, "bandit.forgets")
    text = str(caught.value)
    assert text.startswith("bandit.forgets breaks 2 of ")
    assert "memory_is_declared: Every public attribute that moves" in text
    assert "latest moves and is not saved: declare it with state(...)" in text


def test_a_wrong_option_is_the_testers_error():
    """Options that do not exist are told as to any user."""
    with pytest.raises(AndreaError, match="no option 'strat'") as caught:
        check_plugin_object(Mean, "bandit.mean", strat=1.0)
    assert "start" in caught.value.hint
    with pytest.raises(AndreaError, match=r"there is no plugin bandit\.ucb2"):
        check_plugin("bandit.ucb2")


# -- samplers ----------------------------------------------------------------------------------------------------------


class IgnoresTheMask:
    """Draws by score, whatever the weights."""

    @hookimpl
    def select_source(self, step, pull, scores, run):
        shares = np.where(np.isfinite(scores), np.maximum(scores, 0) + 0.1, 10.0)
        return run.draws("sampler.bad", step, pull).choice(shares)


class LetsAFloorLiftAMask:
    """Applies floors behind the mask."""

    @hookimpl
    def select_source(self, step, pull, weights, limits, run):
        return run.draws("sampler.bad", step, pull).choice(np.maximum(weights, limits.floor) + 1e-9)


class TakesUntriedFirst:
    """Takes an untried source although it is masked."""

    @hookimpl
    def select_source(self, step, pull, scores, weights, run):
        untried = np.flatnonzero(np.isposinf(scores))
        return int(untried[0]) if untried.size else run.draws("sampler.bad", step, pull).choice(weights)


class IgnoresLimits:
    """Draws by weight, whatever floors and caps say."""

    @hookimpl
    def select_source(self, step, pull, weights, run):
        return run.draws("sampler.bad", step, pull).choice(weights)


class TakesTheFirst:
    """Takes the first source that is allowed."""

    @hookimpl
    def select_source(self, weights):
        return int(np.flatnonzero(weights)[0])


class WeighsInPlace:
    """Multiplies its arguments in place, and draws well."""

    @hookimpl
    def select_source(self, step, pull, scores, weights, limits, run):
        scores[np.isposinf(scores)] = 1.0
        return run.draws("sampler.bad", step, pull).choice(combine(np.maximum(scores, 0.01), weights, limits))


class ExplainsInObjects:
    """Gives a reason that the journal cannot hold."""

    @hookimpl
    def select_source(self, step, pull, weights, limits, run):
        source = run.draws("sampler.bad", step, pull).choice(combine(np.ones(len(weights)), weights, limits))
        return Choice(source, {"why": object})


class ChoosesOutside:
    """Counts sources from 1."""

    @hookimpl
    def select_source(self, run):
        return len(run.sources)


@pytest.mark.parametrize(
    ("target", "contract", "words"),
    [
        (IgnoresTheMask, "sampler_never_draws_a_masked_source", "weight is 0"),
        (LetsAFloorLiftAMask, "sampler_never_draws_a_masked_source", "weight is 0"),
        (TakesUntriedFirst, "sampler_never_draws_a_masked_source", "weight is 0"),
        (IgnoresLimits, "sampler_keeps_shares", "floors and caps ask for"),
        (TakesTheFirst, "sampler_keeps_shares", "source 2 has the highest"),
        (WeighsInPlace, "arguments_are_left_alone", "changes its argument scores"),
        (ExplainsInObjects, "answers_fit", "cannot stand in the journal"),
        (ChoosesOutside, "answers_fit", "no index of 4 sources"),
    ],
)
def test_what_a_bad_sampler_does_is_caught(target, contract, words):
    """Each is caught by the contract that names its fault."""
    assert words in fault(target, "sampler.bad", contract)


# -- other kinds -------------------------------------------------------------------------------------------------------


class OnePass:
    """Can be read only once."""

    @hookimpl
    def open_source(self, spec):
        if spec.options:
            raise AndreaError(f"there is no option {next(iter(spec.options))}")
        return (Document(str(number), str(number), "work") for number in range(3))


class OtherOrder:
    """Reads in another order every time."""

    _order = random.Random(1)  # private to the class, and no data that the kit compares

    @hookimpl
    def open_source(self, spec):
        documents = [Document(str(number), str(number), "work") for number in range(9)]
        return self._order.sample(documents, 9)


class Tuples:
    """Gives tuples."""

    @hookimpl
    def open_source(self, spec):
        return [("text", "name", "group")]


class Nameless:
    """Gives documents without a group, and passes over unknown options."""

    @hookimpl
    def open_source(self, spec):
        return [Document("text", "name", "")]


class NegativeWeights:
    """Punishes repetition beyond nothing."""

    @hookimpl
    def weigh_sources(self, run):
        return 1 - run.epochs


class MasksAll:
    """Allows no source in the end."""

    @hookimpl
    def weigh_sources(self, step, run):
        return np.full(len(run.sources), float(step < 1000))


class TupleOfLimits:
    """Gives a tuple."""

    @hookimpl
    def limit_sources(self, run):
        return np.zeros(len(run.sources)), np.ones(len(run.sources))


class InfiniteFloor:
    """Mixes up floor and cap."""

    @hookimpl
    def limit_sources(self, run):
        return Limits(np.full(len(run.sources), np.inf), np.zeros(len(run.sources)))


class RewardNumber:
    """Gives a number without a name."""

    @hookimpl
    def reward(self, pull):
        return 3.0 - pull.loss


class RewardRatio:
    """Divides by a loss, which may be 0."""

    @hookimpl
    def reward(self, pull):
        return {"ratio": 1 / pull.loss if pull.loss else float("inf")}


class StopBool:
    """Answers False and True."""

    @hookimpl
    def should_stop(self, record):
        return record.loss < 1


class StopSilently:
    """Stops without a reason."""

    @hookimpl
    def should_stop(self, record):
        return ""


class RequestText:
    """Asks with a text in place of a set."""

    @hookimpl
    def on_signal(self, signal):
        return "stop"


class RequestUnknown:
    """Asks for what does not exist."""

    @hookimpl
    def on_signal(self, signal):
        return {"pause"}


class FilterBool:
    """Answers True to keep."""

    @hookimpl
    def keep_document(self, document):
        return len(document.text) > 3


class FilterByTurns:
    """Drops every second document."""

    turn: int = 0

    @hookimpl
    def keep_document(self, document):
        self.turn += 1
        return "odd" if self.turn % 2 else None


class AnyCard:
    """Stores what no kernel knows."""

    @hookimpl
    def choose_precision(self, device):
        return Precision("bad", storage="int4")


class NoHint:
    """Refuses without a way out."""

    @hookimpl
    def choose_precision(self, device):
        if device.kind == "cpu":
            raise AndreaError("not here")
        return Precision("bad")


@pytest.mark.parametrize(
    ("target", "name", "contract", "words"),
    [
        (OnePass, "source.bad", "source_is_read_again", "it gives no document"),
        (OtherOrder, "source.bad", "source_is_read_again", "opened again"),
        (Tuples, "source.bad", "source_gives_documents", "a tuple, not a Document"),
        (Nameless, "source.bad", "source_gives_documents", "both are needed"),
        (Nameless, "source.bad", "source_refuses_what_it_does_not_know", "passed over"),
        (NegativeWeights, "weight.bad", "weights_survive_extremes", "at least 0"),
        (MasksAll, "weight.bad", "weights_survive_extremes", "every source has weight 0"),
        (TupleOfLimits, "limit.bad", "answers_fit", "a tuple, not Limits"),
        (InfiniteFloor, "limit.bad", "answers_fit", "floors are finite"),
        (RewardNumber, "reward.bad", "answers_fit", "not numbers by name"),
        (RewardRatio, "reward.bad", "reward_survives_extremes", "not a finite number"),
        (StopBool, "stop.bad", "answers_fit", "a reason is a text"),
        (StopSilently, "stop.bad", "stop_answers_at_any_loss", "a reason is a text"),
        (RequestText, "signals.bad", "signals_answer_for_any_signal", "not a set"),
        (RequestUnknown, "signals.bad", "signals_answer_for_any_signal", "not a set"),
        (FilterBool, "filter.bad", "filter_gives_reasons", "a reason is a text"),
        (FilterByTurns, "filter.bad", "filter_gives_reasons", "asked again"),
        (AnyCard, "precision.bad", "precision_needs_no_card", "storage 'int4'"),
        (NoHint, "precision.bad", "precision_needs_no_card", "no hint"),
        (Mean, "stop.mean", "hooks_are_known", "a stop implements should_stop"),
    ],
)
def test_what_a_bad_plugin_of_another_kind_does_is_caught(target, name, contract, words):
    """Each is caught by the contract that names its fault."""
    assert words in fault(target, name, contract)


def test_every_contract_says_what_it_promises():
    """A broken contract is shown with its promise."""
    for contract in CONTRACTS:
        assert contract.promise.endswith("."), contract.name
