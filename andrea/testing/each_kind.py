"""The contracts of one kind each, beyond what every plugin promises."""

# ruff: noqa: D401  (a docstring here is a promise, so it states)

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import numpy as np

from andrea.errors import AndreaError
from andrea.loop import Hooks
from andrea.registry import register
from andrea.rng import Draws
from andrea.testing.answers import faults_of
from andrea.testing.compare import same
from andrea.testing.promise import ContractError, Subject, contract, report
from andrea.testing.steps import SOURCES, made_up_sources
from andrea.types import (
    Choice,
    Device,
    Document,
    Floats,
    Limits,
    Precision,
    Pull,
    Run,
    SourceSpec,
    StepRecord,
    Tokenizer,
    TokenizerRequest,
)

DRAWS = 2000
UNLIKELY = 1e-6  # of a correct sampler; a wrong one is less likely by many orders

# -- tokenizer ---------------------------------------------------------------------------------------------------------


def _sample(limit: int) -> Iterator[bytes]:
    """Yield the made-up text, at most `limit` bytes of it."""
    for texts in made_up_sources().values():
        for text in texts:
            if limit > 0:
                yield text.encode()[:limit]
            limit -= len(text.encode())


def _untouchable(limit: int) -> Iterator[bytes]:
    raise ContractError("a saved tokenizer is loaded, and nothing is trained")


def _texts() -> list[bytes]:
    """Return bytes that are hard on a tokenizer."""
    text = next(_sample(1000))
    return [
        b"",
        b"\0",
        bytes(range(256)),
        bytes(reversed(range(256))),
        b"a\r\nb\rc\n\n\t  d ",
        "na\u00efve \u4e2d\u6587 \U0001f600\U0001f44d\U0001f3fd e\u0301 \ufeff".encode(),
        b"\xff\xfe\xc3(\xe2\x82 \xed\xa0\x80 \xf0\x9f\x98",  # cut and malformed UTF-8, half a surrogate pair
        b" " * 300 + b"x" * 300,
        text,
        text[: len(text) // 2] + b"\xc3" + text[len(text) // 2 :],
        Draws(0, "contract.bytes").words(500).astype("<u8").tobytes(),
    ]


def _tokenizer(subject: Subject) -> Tokenizer:
    made = subject.new().make_tokenizer(request=TokenizerRequest(_sample))
    if not isinstance(made, Tokenizer):
        raise ContractError(f"make_tokenizer gives a {type(made).__name__}, which lacks parts of a Tokenizer")
    return made


@contract("tokenizer")
def tokenizer_loses_nothing(subject: Subject) -> None:
    """decode(encode(x)) == x for any bytes, as ids within the vocabulary and never `bos`."""
    tokenizer, faults = _tokenizer(subject), []
    for data in _texts():
        ids = np.asarray(tokenizer.encode(data))
        if ids.ndim != 1 or ids.dtype != np.int32:
            faults.append(f"encode gives {ids.dtype} {ids.shape}, not int32 (n,)")
        elif ids.size and not (ids.min() >= 0 and ids.max() < tokenizer.size):
            faults.append(f"encode({data[:20]!r}) gives ids outside [0, {tokenizer.size})")
        elif (ids == tokenizer.bos).any():
            faults.append(f"encode({data[:20]!r}) gives bos")
        elif tokenizer.decode(ids) != data:
            faults.append(f"decode(encode(x)) is not x for {data[:20]!r}")
    report(faults)


@contract("tokenizer")
def tokenizer_encodes_all_as_one(subject: Subject) -> None:
    """A tokenizer that has `encode_all` gives, for many texts, what `encode` gives for each."""
    tokenizer = _tokenizer(subject)
    together = getattr(tokenizer, "encode_all", None)
    if together is None:
        return
    for texts in ([], _texts(), 300 * _texts()):  # few bytes may take another way than many
        ids, counts = together(texts)
        each = [tokenizer.encode(text) for text in texts]
        if ids.dtype != np.int32 or list(counts) != [one.size for one in each]:
            raise ContractError(f"encode_all gives {ids.dtype} and {len(counts)} counts for {len(texts)} texts")
        if not np.array_equal(ids, np.concatenate([np.zeros(0, np.int32), *each])):
            raise ContractError("encode_all gives other ids than encode")


@contract("tokenizer")
def tokenizer_decodes_any_ids(subject: Subject) -> None:
    """Any ids give bytes, the sum of what each gives alone, and `bos` gives none."""
    tokenizer = _tokenizer(subject)
    if not 0 <= tokenizer.bos < tokenizer.size:
        raise ContractError(f"bos {tokenizer.bos} is not in [0, {tokenizer.size})")
    if tokenizer.decode([tokenizer.bos]) != b"":
        raise ContractError("bos gives bytes")
    alone = [tokenizer.decode([i]) for i in range(tokenizer.size)]
    ids = (Draws(0, "contract.ids").words(400) % np.uint64(tokenizer.size)).astype(np.int32)
    if tokenizer.decode(ids) != b"".join(alone[i] for i in ids):
        raise ContractError("ids together give other bytes than one by one")


@contract("tokenizer")
def tokenizer_is_reproducible(subject: Subject) -> None:
    """The same sample gives the same tokenizer, with a fingerprint of 1 to 64 hex digits."""
    first, second = _tokenizer(subject), _tokenizer(subject)
    fingerprint = first.fingerprint
    if not (0 < len(fingerprint) <= 64 and all(digit in "0123456789abcdef" for digit in fingerprint)):
        raise ContractError(f"the fingerprint is {fingerprint!r}")
    _same_tokenizer(first, second, "made again")


@contract("tokenizer")
def tokenizer_is_saved(subject: Subject) -> None:
    """What `save` wrote is loaded as the same tokenizer, without training; an empty folder is an `AndreaError`."""
    first = _tokenizer(subject)
    folder, empty = subject.folder / "tokenizer", subject.folder / "empty"
    for place in (folder, empty):
        place.mkdir(exist_ok=True)
    first.save(folder)
    loaded = subject.new().make_tokenizer(request=TokenizerRequest(_untouchable, folder))
    _same_tokenizer(first, loaded, "loaded")
    try:
        subject.new().make_tokenizer(request=TokenizerRequest(_untouchable, empty))
    except AndreaError:
        return
    raise ContractError("an empty folder is taken for a saved tokenizer")


def _same_tokenizer(first: Tokenizer, second: Tokenizer, how: str) -> None:
    for name in ("size", "bos", "fingerprint"):
        if getattr(first, name) != getattr(second, name):
            raise ContractError(f"{name} {how} is {getattr(second, name)!r}, not {getattr(first, name)!r}")
    for data in _texts():
        if not np.array_equal(first.encode(data), second.encode(data)):
            raise ContractError(f"{how} it encodes {data[:20]!r} otherwise, under the same fingerprint")


# -- source and filter -------------------------------------------------------------------------------------------------


def _open(subject: Subject, plugin: Any) -> Any:
    try:
        return plugin.open_source(spec=SourceSpec("tested", subject.name, subject.options))
    except AndreaError as error:
        raise _without_text(error) from None


def _read(documents: Any) -> list[Any]:
    try:
        read = list(documents)
    except AndreaError as error:
        raise _without_text(error) from None
    if not read:
        raise ContractError("it gives no document")
    return read


def _without_text(error: AndreaError) -> ContractError:
    return ContractError(f"{error}\na reader is tested with the options that the tester gives")


@contract("source")
def source_gives_documents(subject: Subject) -> None:
    """It gives documents that have a text, a name and a group."""
    faults = []
    for document in _read(_open(subject, subject.new())):
        if not isinstance(document, Document):
            raise ContractError(f"it gives a {type(document).__name__}, not a Document")
        wrong = [n for n in ("text", "name", "group") if not isinstance(getattr(document, n), str)]
        faults += [f"the {name} of a document is {getattr(document, name)!r}" for name in wrong]
        if not wrong and not (document.name and document.group):
            faults.append(f"a document has name {document.name!r} and group {document.group!r}; both are needed")
    report(faults)


@contract("source")
def source_is_read_again(subject: Subject) -> None:
    """Iterating twice, also at once, and opening twice gives the same documents."""
    plugin = subject.new()
    documents = _open(subject, plugin)
    first = _read(documents)
    for what, other in (
        ("read again", _read(documents)),
        ("opened again", _read(_open(subject, plugin))),
        ("read twice at once", [one for one, _ in zip(documents, documents, strict=False)]),
    ):
        for number, (one, two) in enumerate(zip_longest(first, other)):
            if one != two:
                raise ContractError(f"{what}, document {number} is another: {one!r:.80}, then {two!r:.80}")


@contract("source")
def source_refuses_what_it_does_not_know(subject: Subject) -> None:
    """An option that does not exist is an `AndreaError` that names it."""
    wrong = "no_such_option"
    try:
        list(subject.new().open_source(spec=SourceSpec("tested", subject.name, {**subject.options, wrong: 1})))
    except AndreaError as error:
        if wrong in str(error):
            return
        raise ContractError(f"the error does not name the option {wrong!r}: {error}") from None
    raise ContractError(f"the option {wrong!r} is passed over")


@contract("filter")
def filter_gives_reasons(subject: Subject) -> None:
    """A document is kept (None) or dropped with a text, the same whenever it is asked."""
    plugin, texts = subject.new(), [text for texts in made_up_sources().values() for text in texts]
    hooks = Hooks(register([(subject.name, plugin)]))
    for number, text in enumerate(["x", "\n", "\0", *texts, "y" * 100_000]):
        document = Document(text, f"text {number}", f"work {number}")
        first, again = hooks.keep_document(document, SOURCES[0]), hooks.keep_document(document, SOURCES[0])
        report(list(faults_of("keep_document", first, {})))
        if first != again:
            raise ContractError(f"document {number}: {first!r}, asked again {again!r}")
        asked = {"document": document, "source": SOURCES[0]}
        keys, keys_again = (list(hooks.ask("identify_document", **asked)) for _ in range(2))
        report([fault for _, answer in keys for fault in faults_of("identify_document", answer, asked)])
        if keys != keys_again:
            raise ContractError(f"document {number}: keys {keys!r:.80}, asked again {keys_again!r:.80}")


# -- precision ---------------------------------------------------------------------------------------------------------


@contract("precision")
def precision_needs_no_card(subject: Subject) -> None:
    """Without a GPU it answers for every device, or says in an `AndreaError` which device it needs."""
    answered, loaded = 0, set(sys.modules)
    devices = (Device("cpu"), *(Device("cuda", "card", capability) for capability in ((7, 5), (8, 0), (9, 0), (12, 0))))
    for device in devices:
        try:
            first = subject.new().choose_precision(device=device)
        except AndreaError as error:
            if not error.hint:
                raise ContractError(f"the error for {device} has no hint that says what to type next") from None
            continue
        answered += 1
        report(list(faults_of("choose_precision", first, {})))
        _judge_precision(subject, device, first)
    if not answered:
        raise ContractError("it refuses every device")
    if cuda := sorted(name for name in set(sys.modules) - loaded if name.partition(".")[0] in ("cuda", "nvmath")):
        raise ContractError(f"asking it loads {cuda[0]}")


def _judge_precision(subject: Subject, device: Device, first: Precision) -> None:
    if not same(first, subject.new().choose_precision(device=device)):
        raise ContractError(f"asked again for {device}, it answers otherwise")
    if first.name != subject.name.partition(".")[2]:
        raise ContractError(f"it is called {subject.name}, and its answer {first.name!r}")


# -- bandit, reward, weight, limit -------------------------------------------------------------------------------------


def _run(drawn: Any = 0, documents: int = 100, sources: tuple[str, ...] = SOURCES) -> Run:
    """Return a run of which so many documents of each source are drawn."""
    count = len(sources)
    counts = np.broadcast_to(np.asarray(drawn, dtype=np.int64), count).copy()
    return Run(
        name="contract",
        seed=3,
        sources=sources,
        documents=np.full(count, documents, dtype=np.int64),
        tokens=np.full(count, 50 * documents, dtype=np.int64),
        drawn=counts,
        distinct=np.minimum(counts, documents),
        pulls=counts.copy(),
        rows=4,
        context=16,
        steps=1000,
        warmup_steps=5,
    )


class _Started:
    """A plugin that a run has started, alone."""

    def __init__(self, subject: Subject, run: Run) -> None:
        self._hooks = Hooks(register([(subject.name, subject.new())]))
        self.tell("on_start", run=run)

    def tell(self, hook: str, **arguments: Any) -> None:
        self._hooks.tell(hook, **arguments)

    def ask(self, hook: str, **arguments: Any) -> Any:
        """Return the answer to one question."""
        return next(answer for _, answer in self._hooks.ask(hook, **arguments))


def _record(step: int, source: int, detail: Any, loss: float, skipped: bool = False, reward: float = 1.0) -> StepRecord:
    count = len(SOURCES)
    limits = Limits(np.zeros(count), np.full(count, np.inf))
    pull = Pull(source, (0,), loss, np.ones(count), np.ones(count), limits, detail, {} if skipped else {"term": reward})
    return StepRecord(step, (pull,), loss, math.inf if skipped else 1.0, 1e-3, skipped, 64)


@contract("bandit")
def bandit_survives_extremes(subject: Subject) -> None:
    """After rewards huge, tiny, negative and missing the scores are still numbers, and the order is decided."""
    run = _run()
    plugin = _Started(subject, run)
    for step in range(200):
        reward = (0.0, 1e12, -5.0, 1e-12, 3.0)[step % 5]
        record = _record(step, step % len(SOURCES), {}, math.nan if step % 7 == 3 else 2.0, step % 7 == 3, reward)
        plugin.tell("on_step", record=record, run=run)
        scores = plugin.ask("score_sources", step=step + 1, run=run)
        report([f"after step {step}: {text}" for text in faults_of("score_sources", scores, {"run": run})])


@contract("reward")
def reward_survives_extremes(subject: Subject) -> None:
    """Losses of 0, of 1e30 and of the same source again give finite terms."""
    run = _run()
    plugin = _Started(subject, run)
    for step, loss in enumerate((3.0, 0.0, 1e30, 1e-30, 5.0, 5.0, 2.0)):
        record = _record(step, 1, {}, loss)
        terms = plugin.ask("reward", pull=record.pulls[0], record=record, run=run)
        report([f"at a loss of {loss}: {text}" for text in faults_of("reward", terms, {"run": run})])
        plugin.tell("on_step", record=record, run=run)


@contract("weight")
def weights_survive_extremes(subject: Subject) -> None:
    """Sources never drawn, drawn once and drawn a million times over get finite weights, and not all of them 0."""
    for drawn in (0, 1, [0, 50, 100, 1000], 10**8):
        for step in (0, 1, 10**6):
            run = _run(drawn)
            answer = _Started(subject, run).ask("weigh_sources", step=step, run=run)
            report([f"{drawn} of 100 documents drawn: {t}" for t in faults_of("weigh_sources", answer, {"run": run})])
            if not answer.any():
                raise ContractError(f"at step {step}, {drawn} of 100 documents drawn, every source has weight 0")


@contract("limit")
def limits_survive_extremes(subject: Subject) -> None:
    """Bounds hold for one source as for many, at the first step as at the millionth."""
    for drawn in (0, [0, 50, 100, 1000]):
        for step in (0, 10**6):
            run = _run(drawn)
            answer = _Started(subject, run).ask("limit_sources", step=step, run=run)
            report(list(faults_of("limit_sources", answer, {"run": run})))


# -- sampler -----------------------------------------------------------------------------------------------------------


def _play(subject: Subject, steps: int, scores: Any, weights: Any, limits: Any) -> list[int]:
    """Return the choices of a sampler that sees these, functions of the step, and learns from every step."""
    run = _run(50)
    plugin, chosen = _Started(subject, run), []
    for step in range(steps):
        question = {"scores": scores(step), "weights": weights(step), "limits": limits(step)}
        asked = {"step": step, "pull": 0, "pulls": [], "run": run, **question}
        answer = plugin.ask("select_source", **copy.deepcopy(asked))
        report([f"at step {step}: {text}" for text in faults_of("select_source", answer, asked)])
        choice = answer if isinstance(answer, Choice) else Choice(answer)
        chosen.append(int(choice.source))
        plugin.tell("on_step", record=_record(step, chosen[-1], choice.detail, 2.0), run=run)
    return chosen


@contract("sampler")
def sampler_never_draws_a_masked_source(subject: Subject) -> None:
    """A source of weight 0 is not chosen, though it is untried, scores best, or has a floor."""

    def scores(step: int) -> Floats:
        values = Draws(0, "contract.scores", step).uniform(4) * 4 - 1
        values[Draws(0, "contract.untried", step).uniform(4) < 0.2] = np.inf
        return np.zeros(4) if step % 11 == 0 else values

    def weights(step: int) -> Floats:
        draws = Draws(0, "contract.masks", step)
        values = draws.uniform(4) + 0.1
        values[draws.permutation(4)[: step % 4]] = 0.0
        return values

    def limits(step: int) -> Limits:
        draws = Draws(0, "contract.limits", step)
        return Limits(draws.uniform(4), np.where(draws.uniform(4) < 0.5, np.inf, 0.5))

    _play(subject, 300, scores, weights, limits)


@contract("sampler")
def sampler_keeps_shares(subject: Subject) -> None:
    """Where floor and cap leave one weight, sources are drawn in that proportion (chi-square); or the best is taken.

    Whatever a sampler thinks of a source, `combine` raises it to the floor and lowers it to the cap: where both are
    0.1, 0.3 and 0.6, so are the shares, and a fourth source is masked. A sampler that ranks draws nothing; it must
    then take the highest score x weight every time.
    """
    bounds, mask = np.array([0.1, 0.3, 0.6, 0.9]), np.array([1.0, 1.0, 1.0, 0.0])
    scores = np.array([2.0, 1.0, 3.0, 9.0])
    chosen = _play(subject, DRAWS, lambda step: scores, lambda step: mask, lambda step: Limits(bounds, bounds))
    counts = np.bincount(chosen, minlength=4)
    if counts.max() == DRAWS:
        if chosen[0] != 2:
            raise ContractError(f"it always takes source {chosen[0]}, and source 2 has the highest score x weight")
        return
    expected = DRAWS * bounds[:3]
    statistic = float(np.sum((counts[:3] - expected) ** 2 / expected))
    if math.exp(-statistic / 2) < UNLIKELY:  # the tail of chi-square with two degrees of freedom, exactly
        raise ContractError(f"drawn {counts.tolist()} times, where floors and caps ask for {expected.tolist()} and 0")


# -- stop and signals --------------------------------------------------------------------------------------------------


@contract("stop")
def stop_answers_at_any_loss(subject: Subject) -> None:
    """It answers text or None for losses that are NaN, infinite or 0, and for skipped updates."""
    run = _run(50)
    plugin = _Started(subject, run)
    for step, loss in enumerate((3.0, math.nan, math.inf, 0.0, 1e30) * 10):
        record = _record(step, 0, {}, loss, skipped=not math.isfinite(loss))
        plugin.tell("on_step", record=record, run=run)
        answer = plugin.ask("should_stop", record=record, run=run)
        report([f"at a loss of {loss}: {text}" for text in faults_of("should_stop", answer, {})])


@contract("signals")
def signals_answer_for_any_signal(subject: Subject) -> None:
    """It answers with requests, or None, also for a signal that it does not know."""
    run = _run()
    plugin = _Started(subject, run)
    for signal in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP"):
        answer = plugin.ask("on_signal", signal=signal, step=3, run=run)
        report([f"{signal}: {text}" for text in faults_of("on_signal", answer, {})])
