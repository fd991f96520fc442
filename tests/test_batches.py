"""Batches: no token lost, order a function of the seed, exact resume, exact bytes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea import AndreaError
from andrea.batches import Batches, held_out_rows
from andrea.rng import Draws
from andrea.tokenfile import TokenFile, TokenWriter


class Pairs:
    """A tokenizer whose ids stand for one byte or for two equal ones: token and byte counts differ."""

    size = 513
    bos = 512
    fingerprint = "aa" * 32

    def encode(self, data):
        ids, i = [], 0
        while i < len(data):
            double = data[i : i + 2] == data[i : i + 1] * 2
            ids.append(data[i] + 256 * double)
            i += 1 + double
        return np.array(ids, dtype=np.int32)

    def decode(self, ids):
        return b"".join(bytes([i % 256]) * (1 + i // 256) for i in np.asarray(ids).tolist() if i != self.bos)

    def save(self, folder):
        raise AssertionError("not needed here")


def write(path: Path, lengths) -> TokenFile:
    with TokenWriter(path, Pairs()) as writer:
        for number, length in enumerate(lengths):
            writer.add(bytes((number * 7 + i) % 251 for i in range(length)))
    return TokenFile.open(path)


def stream(file: TokenFile, name: str, seed: int, epochs: int) -> tuple[list[int], list[int]]:
    """Return the stream by the specification alone, a document at a time, and the document of every token."""
    tokens, owners = [], []
    for epoch in range(epochs):
        for document in Draws(seed, f"order.{name}", epoch).permutation(file.documents).tolist():
            ids = [file.bos, *file.document(document).tolist()]
            tokens += ids
            owners += [document] * len(ids)
    return tokens, owners


def in_order(owners) -> tuple[int, ...]:
    """Return every document once for each stretch of the stream that it fills."""
    return tuple(o for i, o in enumerate(owners) if i == 0 or owners[i - 1] != o)


GOLDEN = [(2, 1, 0, 3, 4, 5), (5, 0, 4, 1, 3, 2)]

SHAPES = given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    rows=st.integers(1, 4),
    context=st.integers(1, 17),
    pulls=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokens")


@SHAPES
@settings(max_examples=150, deadline=None)
def test_no_token_is_lost_or_repeated(folder, lengths, rows, context, pulls, seed):
    """The pulls, one behind another, are the stream of the specification, across ends of epochs as well."""
    file = write(folder / "a.btok", lengths)
    batches = Batches({"a": file}, rows, context, seed)
    count = rows * context * pulls
    tokens, owners = stream(file, "a", seed, math.ceil((count + 1) / file.tokens.size) + 1)
    for pull in range(pulls):
        batch, start = batches.take(0), pull * rows * context
        assert batch.inputs.ravel().tolist() == tokens[start : start + rows * context]
        assert batch.targets.ravel().tolist() == tokens[start + 1 : start + rows * context + 1]
        assert batch.inputs.shape == batch.targets.shape == (rows, context)
        assert batch.inputs.dtype == batch.targets.dtype == np.int32
        # One document ends an epoch and may begin the next: then it stands twice, which `in_order` cannot see.
        if len(lengths) > 1 and start // file.tokens.size == (start + rows * context - 1) // file.tokens.size:
            assert batch.documents == in_order(owners[start : start + rows * context])
    begun = tokens[:count].count(file.bos)
    assert batches.drawn.tolist() == [begun]
    assert batches.distinct.tolist() == [len(set(owners[:count]))]
    assert batches.pulls.tolist() == [pulls]


@SHAPES
@settings(max_examples=60, deadline=None)
def test_resume_at_every_pull_equals_uncut(folder, lengths, rows, context, pulls, seed):
    """A state taken before any pull, imported elsewhere, gives the same batches and the same states."""
    files = {"a": write(folder / "b.btok", lengths), "b": write(folder / "c.btok", [*lengths[::-1], 3])}
    uncut, order = Batches(files, rows, context, seed), [(i * i) % 3 % 2 for i in range(pulls)]
    states, taken = [], []
    for source in order:
        states.append(uncut.export_state())
        taken.append(uncut.take(source))
    for cut, state in enumerate(states):
        resumed = Batches(files, rows, context, seed)
        resumed.import_state(state)
        assert same_state(resumed.export_state(), state)
        for source, expected in zip(order[cut:], taken[cut:], strict=True):
            same_batch(resumed.take(source), expected)
        assert same_state(resumed.export_state(), uncut.export_state())
        for name in ("drawn", "distinct", "pulls"):
            assert np.array_equal(getattr(resumed, name), getattr(uncut, name))


def same_batch(one, other):
    assert (one.source, one.documents) == (other.source, other.documents)
    assert np.array_equal(one.inputs, other.inputs)
    assert np.array_equal(one.targets, other.targets)


def same_state(one, other):
    return set(one) == set(other) and all(np.array_equal(one[key], other[key]) for key in one)


@pytest.fixture
def two(folder):
    return {"a": write(folder / "d.btok", [30, 5, 17, 9, 40, 2]), "b": write(folder / "e.btok", [8, 3, 21])}


def test_batch_does_not_depend_on_the_other_sources(two):
    """The n-th batch of a source is the same whatever was drawn of others in between."""
    alone, mixed = Batches(two, 2, 8, 5), Batches(two, 2, 8, 5)
    for number in range(9):
        for _ in range(number % 3):
            mixed.take(1)
        same_batch(alone.take(0), mixed.take(0))


def test_seed_name_and_epoch_decide_the_order(two):
    """Another seed, another name or another epoch is another order; the same is the same."""
    one = two["a"]

    def epochs(name, seed):
        batches = Batches({name: one}, 1, int(one.tokens.size), seed)
        return [batches.take(0).documents for _ in range(3)]

    assert epochs("a", 1) == epochs("a", 1)
    assert len({*epochs("a", 1), *epochs("a", 2), *epochs("b", 1)}) == 9
    assert {tuple(sorted(order)) for order in epochs("a", 1)} == {(0, 1, 2, 3, 4, 5)}


def test_order_is_this_one(two):
    """The order of the documents of seed 1 is fixed for good: golden values."""
    batches = Batches({"a": two["a"]}, 1, int(two["a"].tokens.size), 1)
    assert [batches.take(0).documents for _ in range(2)] == GOLDEN


def test_rows_of_a_pull_may_differ(two):
    """A pull of more or fewer rows goes on where the last one ended, also when another size was made ready."""
    batches = Batches(two, 2, 8, 5)
    got = np.concatenate([batches.take(0, rows).inputs.ravel() for rows in (1, 3, 2, None, 1)])
    assert got.tolist() == stream(two["a"], "a", 5, 3)[0][: 8 * 9]


def test_ready_batches_are_no_state(two):
    """The state says what was received: making batches ready early, or never, changes nothing."""
    batches = Batches(two, 2, 8, 5)
    before = batches.export_state()
    for source in (0, 1):
        batches.ready(source, count=3)
    assert same_state(batches.export_state(), before)
    batches.take(0)
    taken = batches.export_state()
    batches.ready(0, count=2)
    assert same_state(batches.export_state(), taken)
    other = Batches(two, 2, 8, 5)
    other.take(0)
    assert same_state(other.export_state(), taken)
    for _ in range(4):
        mine, theirs = batches.take(0), other.take(0)
        assert mine.inputs.tolist() == theirs.inputs.tolist()
        assert mine.targets.tolist() == theirs.targets.tolist()
        assert mine.documents == theirs.documents
        assert batches.drawn.tolist() == other.drawn.tolist()


def test_a_fork_goes_on_by_itself(two):
    """What is taken from a fork is what would have come next, and leaves where it was forked from as it was."""
    batches, other = Batches(two, 2, 8, 5), Batches(two, 2, 8, 5)
    for one in (batches, other):
        one.take(0)
    batches.ready(0, count=2)
    before = batches.export_state()
    fork = batches.fork()
    for source in (0, 1, 0, 0):
        same_batch(fork.take(source), other.take(source))
        assert fork.drawn.tolist() == other.drawn.tolist()
    assert same_state(fork.export_state(), other.export_state())
    assert same_state(batches.export_state(), before)
    for source in (0, 1, 0, 0):
        batches.take(source)
    assert same_state(batches.export_state(), fork.export_state())


@pytest.mark.parametrize("field", ["sources", "seed", "documents", "tokens", "epoch", "index", "offset", "pulls"])
def test_import_is_strict(two, field):
    """A state without a field, or one of other data, is refused and leaves the batches as they were."""
    batches = Batches(two, 2, 8, 5)
    batches.take(0)
    state = batches.export_state()
    with pytest.raises(AndreaError, match="positions"):
        batches.import_state({key: value for key, value in state.items() if key != field})
    if field != "pulls":
        wrong = {"sources": ["a", "c"], "seed": 6}.get(field, state[field] + 1000 if field != "sources" else None)
        if field == "epoch":
            wrong = np.array([0, -1])
        with pytest.raises(AndreaError):
            batches.import_state({**state, field: wrong})
    assert same_state(batches.export_state(), state)


@pytest.mark.parametrize("field", ["epoch", "index", "offset", "pulls"])
def test_every_position_field_matters(two, field):
    """A resume from a state with one field set to another value differs from the uncut run."""
    uncut = Batches(two, 2, 8, 5)
    for _ in range(9):
        uncut.take(0)
    state = uncut.export_state()
    broken = state[field].copy()
    broken[0] = 0 if broken[0] else 1
    resumed = Batches(two, 2, 8, 5)
    resumed.import_state({**state, field: broken})
    expected, got = uncut.take(0), resumed.take(0)
    assert not np.array_equal(expected.inputs, got.inputs) or not np.array_equal(uncut.pulls, resumed.pulls)


def test_arrays_for_plugins(two):
    """Documents and tokens are those of the files, tokens with the bos of each document."""
    batches = Batches(two, 2, 8, 5)
    assert batches.documents.tolist() == [6, 3]
    assert batches.tokens.tolist() == [30 + 5 + 17 + 9 + 40 + 2 + 6, 8 + 3 + 21 + 3]
    assert {getattr(batches, name).dtype for name in ("documents", "tokens", "drawn", "distinct", "pulls")} == {
        np.dtype(np.int64)
    }


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8), context=st.integers(1, 9), limit=st.integers(1, 6))
@settings(max_examples=80, deadline=None)
def test_held_out_rows_are_the_head_of_the_file(folder, lengths, context, limit):
    """Rows are the file's first tokens, padding does not count, and the bytes are those of the counted targets."""
    with TokenWriter(folder / "h.btok", Pairs()) as writer:
        for number, length in enumerate(lengths):
            writer.add(bytes(97 + (number + i // 3) % 5 for i in range(length)))
    file = TokenFile.open(folder / "h.btok")
    inputs, targets, text_bytes = held_out_rows(file, context, limit)
    count = min(file.tokens.size - 1, limit * context)
    assert inputs.shape == targets.shape == (math.ceil(count / context), context)
    assert inputs.ravel()[:count].tolist() == file.tokens[:count].tolist()
    assert targets.ravel()[:count].tolist() == file.tokens[1 : count + 1].tolist()
    assert (inputs.ravel()[count:] == file.bos).all()
    assert (targets.ravel()[count:] == -1).all()
    assert text_bytes == len(Pairs().decode(targets.ravel()[:count]))
    if count == file.tokens.size - 1:
        assert text_bytes == sum(lengths)
