"""Which division of a step is fastest: all are tried that fit, and the answer is the one with the best figure."""

from __future__ import annotations

import pytest

from andrea.engine import EngineConfig, suggestion
from andrea.engine.buffers import plan_memory
from andrea.engine.model import ModelConfig
from andrea.engine.reference import ReferenceEngine
from andrea.engine.reference import plan_memory as reference_plan
from andrea.engine.suggestion import divide, fastest, planned_memory, room, suggest
from andrea.errors import AndreaError
from andrea.types import Device, Precision

FP32 = Precision("fp32")
CPU, CARD = Device("cpu", "cpu"), Device("cuda", "card", (9, 0))
TINY = EngineConfig(ModelConfig(1, 1, 16, context=8), vocabulary=20)


def test_every_division_of_the_rows_is_one():
    """The largest batch first; batch times accumulation is always the step."""
    found = divide(TINY, 12 * 8)
    assert [(one.batch_size, one.accumulation) for one in found] == [(12, 1), (6, 2), (4, 3), (3, 4), (2, 6), (1, 12)]
    assert {one.rows * one.model.context for one in found} == {12 * 8}


@pytest.mark.parametrize(("tokens", "near"), [(97, 96), (0, 8), (5, 8), (-3, 8), (103, 104)])
def test_a_step_is_whole_rows(tokens, near):
    """Anything else is refused with a number that would do."""
    with pytest.raises(AndreaError, match="not one row of 8 or several whole ones") as error:
        divide(TINY, tokens)
    assert f"{near}," in error.value.hint


def test_the_cpu_is_measured():
    """Each division has a time, memory is the engine's own plan, and the fastest is the one with most tokens."""
    told = []
    found = list(suggest(TINY, 6 * 8, CPU, FP32, steps=1, warmup=0, tell=lambda *what: told.append(what)))
    assert [row["batch_size"] for row in found] == [6, 3, 2, 1]
    assert all(row["tokens_per_second"] == pytest.approx(48 / row["median_ms"] * 1e3) for row in found)  # rounding
    assert fastest(found)["tokens_per_second"] == max(row["tokens_per_second"] for row in found)
    assert told == [(f"batch size {size} of 6 rows", number, 4) for number, size in enumerate((6, 3, 2, 1))]
    engine = ReferenceEngine(divide(TINY, 48)[1], FP32)
    assert found[1]["memory_planned"] == sum(buffer.bytes for buffer in engine.memory_plan())
    assert engine.memory_plan() == reference_plan(divide(TINY, 48)[1])
    engine.close()


def test_what_does_not_fit_is_not_tried(monkeypatch):
    """On a card the plan says what fits; when not even one row does, that is an error."""
    sizes = {one.batch_size: plan_memory(one, FP32).total for one in divide(TINY, 64)}
    assert [planned_memory(one, CARD, FP32) for one in divide(TINY, 64)] == list(sizes.values())
    tried = []

    def measure(config, *_):
        tried.append(config.batch_size)
        return {"median_ms": 1.0, "tokens_per_second": {4: 10.0, 2: 30.0, 1: 20.0}[config.batch_size], "other": 0}

    monkeypatch.setattr(suggestion, "measure", measure)
    monkeypatch.setattr(suggestion, "room", lambda *_: sizes[4])
    found = list(suggest(TINY, 64, CARD, FP32, 1, 0))
    assert [row["fits"] for row in found] == [False, True, True, True]
    assert tried == [4, 2, 1]
    assert fastest(found)["batch_size"] == 2
    monkeypatch.setattr(suggestion, "room", lambda *_: sizes[1] - 1)
    with pytest.raises(AndreaError, match="one row at a time needs"):
        list(suggest(TINY, 64, CARD, FP32, 1, 0))
    assert tried == [4, 2, 1]


def test_each_is_given_as_soon_as_it_is_measured(monkeypatch):
    """Who stops listening has what was measured before; of nothing, nothing is fastest."""
    tried = []
    monkeypatch.setattr(
        suggestion, "measure", lambda one, *_: tried.append(one) or {"median_ms": 1.0, "tokens_per_second": 5.0}
    )
    found = suggest(TINY, 64, CPU, FP32, 1, 0)
    assert next(found)["batch_size"] == 8
    assert len(tried) == 1
    assert fastest([]) is None


def test_the_memory_of_this_machine_is_known_or_not(monkeypatch):
    """A number of bytes where the system tells it, None elsewhere."""
    known = room(TINY, CPU)
    assert known is None or known > 0
    monkeypatch.setattr(suggestion.os, "sysconf_names", {}, raising=False)
    assert room(TINY, CPU) is None
