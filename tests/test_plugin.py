"""What a plugin is made of: options, state, and the copy that a checkpoint takes."""

from __future__ import annotations

import copy
import math

import attrs
import numpy as np
import pytest

from andrea import AndreaError, hookimpl, option, plugin, state
from andrea.checkpoint import Snapshot, read_checkpoint, write_checkpoint
from andrea.plugin import get_state, option_fields, option_help, set_state, state_fields
from andrea.testing.compare import moved, own_memory, same, shared_memory


@plugin
class Whole:
    """Has everything that a plugin may have."""

    rate: float = option(0.5, help="a number")
    names: list[str] = option(factory=list, help="texts")
    plain: int = 3
    counts: np.ndarray = state()
    best: float | None = state(None)
    seen: list = state(factory=list)
    table: dict = state(factory=dict)
    _cache: int = attrs.field(init=False, default=0)
    derived: int = attrs.field(init=False, default=0)

    @hookimpl
    def on_start(self, run):
        pass


def test_public_fields_are_options_and_state_fields_are_state():
    """Private fields and fields that cannot be set are neither."""
    assert [field.name for field in option_fields(Whole)] == ["rate", "names", "plain"]
    assert state_fields(Whole()) == ["counts", "best", "seen", "table"]
    assert [option_help(field) for field in option_fields(Whole)] == ["a number", "texts", ""]


def test_a_class_that_is_no_attrs_class_has_neither():
    """A bare class with hooks is a plugin without options and memory."""
    assert option_fields(int) == []
    assert state_fields(object()) == []
    assert get_state(object()) == {}


def test_options_are_keywords_and_state_is_not_settable():
    """Positions would break when an option is added; state comes from steps and checkpoints."""
    with pytest.raises(TypeError):
        Whole(0.5)
    with pytest.raises(TypeError):
        Whole(best=1.0)


def test_plugins_are_compared_by_identity():
    """Pluggy compares them with ==, which arrays would break; so they can be hashed, too."""
    first, second = Whole(), Whole()
    first.counts = second.counts = np.zeros(3)
    assert first != second
    assert first == first
    assert len({first, second}) == 2


def test_factories_are_not_shared():
    """Two plugins never share a list."""
    first, second = Whole(), Whole()
    first.seen.append(1)
    first.names.append("a")
    assert (second.seen, second.names) == ([], [])


def filled():
    made = Whole()
    made.counts, made.best = np.array([1, 2, 3]), math.inf
    made.seen, made.table = [1, "a", None, True, [2.5]], {"x": np.array([0.1]), "y": {"z": np.float64(2.0)}}
    return made


def test_state_is_a_deep_copy():
    """What moves afterwards moves nothing that was taken, and the other way round."""
    made = filled()
    taken = get_state(made)
    kept = copy.deepcopy(taken)
    made.counts[0], made.seen[4][0], made.table["x"][0] = 9, 9, 9
    assert same(taken, kept)
    set_state(made, taken, "test.whole")
    made.counts[0] = 7
    assert same(taken, kept)


def test_state_survives_a_checkpoint_file(tmp_path):
    """Every allowed kind of value, with odd floats, bit for bit."""
    made = filled()
    made.table["nan"], made.table["minus"] = math.nan, -math.inf
    engine = {name: np.zeros(2, dtype=np.float32) for name in ("weights", "first_moments", "second_moments")}
    path = write_checkpoint(tmp_path, Snapshot(3, engine, {}, {"test.whole": get_state(made)}, {}))
    assert same(dict(read_checkpoint(path).plugins["test.whole"]), get_state(made))


@pytest.mark.parametrize("value", [{1, 2}, object(), {1: "a"}, 1j, b"bytes", [object()]])
def test_state_holds_only_what_a_checkpoint_can_hold(value):
    """Anything else is the author's error, told with the name of the field."""
    made = Whole()
    made.best = value
    with pytest.raises(TypeError, match="state field 'best' holds"):
        get_state(made)


@pytest.mark.parametrize("change", [{"best": None}, {"newer": 1}])
def test_state_is_restored_strictly(change):
    """A field too few or too many means that the plugin has changed since."""
    saved = get_state(filled())
    saved = {**saved, **change} if "newer" in change else {k: v for k, v in saved.items() if k not in change}
    with pytest.raises(AndreaError, match=r"the saved state of test\.whole does not fit") as caught:
        set_state(Whole(), saved, "test.whole")
    assert "install the version named in the checkpoint" in caught.value.hint


# -- what the kit compares with ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, True),
        (1, 1.0),
        (0.0, "0.0"),
        (np.zeros(2), np.zeros(3)),
        (np.zeros(2), np.zeros(2, dtype=np.float32)),
        (np.array([0.1]), np.array([0.1 + 2**-56])),
        ([1], (1,)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (Whole(rate=0.5), Whole(rate=0.25)),
    ],
)
def test_what_is_not_the_same(first, second):
    """Type, shape, order and the last bit count."""
    assert not same(first, second)
    assert same(first, copy.deepcopy(first))


def test_what_is_the_same():
    """NaN is itself, also within arrays, and objects are their values."""
    assert same({"a": [math.nan, np.array([np.nan, np.inf])]}, {"a": [math.nan, np.array([np.nan, np.inf])]})
    assert same(Whole(rate=0.5), Whole(rate=0.5))


def test_memory_is_what_moves():
    """The kit sees public attributes of the object, and the data of its class and module."""
    made = filled()
    before, shared = own_memory(made), shared_memory(made)
    made.counts[1] = 5
    made._cache = 5
    assert moved(before, own_memory(made)) == ["counts"]
    assert "_cache" not in before
    assert moved(shared, shared_memory(made)) == []
