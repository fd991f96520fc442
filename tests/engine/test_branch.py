"""Two streams of a step: any two launches of which one writes what the other touches are in order, on no card.

A whole step is launched on a machine that writes down what each launch reads and writes, on which stream, and which
events streams record and wait for. Vector clocks then tell what is ordered.
"""

# ruff: noqa: N802 - the driver names its functions

from __future__ import annotations

import bisect
import re
from collections import Counter, defaultdict
from contextlib import contextmanager
from functools import cache

import pytest
from attrs import evolve, field, frozen

from andrea.engine import EngineConfig, branch, fp8
from andrea.engine.benchmark import FAMILY
from andrea.engine.branch import Branch, open_branch, overlaps
from andrea.engine.buffers import Arena, norms_with_parameters, place_parameters, plan_memory
from andrea.engine.compiler import kernels_folder
from andrea.engine.elementwise import Elementwise
from andrea.engine.fp8 import PRODUCTS, open_linear
from andrea.engine.machine import Machine
from andrea.engine.model import ModelConfig
from andrea.engine.optimizer import update
from andrea.engine.step import launch_gradients
from andrea.types import Precision

BF16 = Precision("bf16", storage="bfloat16", multiply="bfloat16")
FP8 = evolve(BF16, name="fp8", fp8={0: PRODUCTS})
FP16 = evolve(BF16, name="fp16", storage="float16", multiply="float16", loss_scale=1024.0)
BASE = 1 << 40  # of the arena; nothing lies there
MAIN, SIDE = 1, 2
SMALL = EngineConfig(ModelConfig(2, 2, 64, context=16), vocabulary=140, batch_size=3, options={"overlap": True})


# -- what launches touch -----------------------------------------------------------------------------------------------


@cache
def signatures():
    """Return of every kernel what its text says of each argument: ``read``, ``write`` (or both), or empty: a number."""
    pattern = r'extern "C" __global__ void\s+(?:__launch_bounds__\([^)]*\)\s*)?(k_\w+)\(([^)]*)\)'

    def kind(parameter):
        if "*" not in parameter:
            return ""
        return "read" if parameter.strip().startswith("const ") else "write"

    text = "".join(path.read_text(encoding="utf-8") for path in kernels_folder().glob("*.cu"))
    return {name: [kind(one) for one in given.split(",")] for name, given in re.findall(pattern, text)}


#: Kernels that walk all gradients from their beginning on.
WALKS = ("k_grad_norm_partial", "k_adamw")


@frozen
class Launch:
    """One launch: on which stream, of what, and the regions of memory that it reads and writes."""

    stream: int
    name: str
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    arguments: tuple = field(default=(), eq=False)


@frozen
class Record:
    """An event that stands for all that a stream was given until now."""

    event: int
    stream: int


@frozen
class Wait:
    """A stream that goes on only behind an event."""

    stream: int
    event: int


class Memory:
    """Names of what lies at an address: a buffer; of the gradients, one tensor."""

    def __init__(self, arena, placement):
        self.arena = arena
        self.starts = sorted((offset + BASE, name) for name, offset in arena.plan.offsets.items())
        self.starts = [(at, name) for at, name in self.starts if name in {one.name for one in arena.plan}]
        self.tensors = sorted(set(placement.offsets.values()))

    def at(self, address, size=1):
        """Return what lies at an address, of gradients in `size` bytes from it on; outside the arena, the address."""
        place = bisect.bisect(self.starts, (address, "~")) - 1
        if place < 0 or address >= BASE + self.arena.plan.total:
            return {str(address)}
        start, name = self.starts[place]
        if name != "gradients":
            return {name}
        first, last = (address - start) // 4, (address - start + size - 1) // 4
        inside = self.tensors[bisect.bisect(self.tensors, first) - 1 : bisect.bisect(self.tensors, last)]
        return {f"gradient {one}" for one in inside}


class Log:
    """A driver, kernels, attention and products that only write down what they are asked for."""

    name, version = "log", "0"

    def __init__(self, memory, norms):
        self.memory, self.norms = memory, norms  # addresses of the gradients of norms
        self.entries, self.workspaces, self.used, self.events = [], {}, {}, 0

    def touch(self, stream, name, reads=(), writes=(), arguments=(), size=1):
        regions = (frozenset().union(*(self.memory.at(one, size) for one in given if one)) for given in (reads, writes))
        self.entries.append(Launch(stream, name, *regions, arguments))

    # -- kernels

    def kernel(self, name):
        def launch(_grid, _block, _shared, stream, *arguments):
            kinds = signatures()[name]
            assert len(kinds) == len(arguments), name
            touched = {kind: [a for k, a in zip(kinds, arguments, strict=True) if k == kind] for kind in set(kinds)}
            reads, writes = touched.get("read", []), touched.get("write", [])
            if name == "k_layernorm_bwd_final":  # finds its places by a table
                writes = self.norms
            walked = self.memory.arena.plan["gradients"].bytes if name in WALKS else 1
            self.touch(stream, name, reads, writes, arguments, arguments[1] if name == "k_zero" else walked)

        return launch

    # -- attention

    def forward(self, qkv, out, lse, _B, _T, stream):
        self.touch(stream, "attention", [qkv], [out, lse])

    def backward(self, qkv, out, lse, dout, dqkv, rows, _B, _T, stream):
        self.touch(stream, "attention backward", [qkv, out, lse, dout], [dqkv, rows])

    # -- products

    def prepare(self, problem):
        def run(a, b, d, stream, aux=0, scales=(0, 0)):
            reads = [a, b, *scales, d if problem.accumulate else 0, aux if problem.epilogue == "dgelu" else 0]
            writes = [d, self.workspaces[stream], aux if problem.epilogue == "gelu" else 0]
            self.touch(stream, problem.key, reads, writes, (a, b, d, aux))

        return run

    # -- the driver

    def cuEventCreate(self, _flags):
        self.events += 1
        return 0, self.events

    def cuEventRecord(self, event, stream):
        self.entries.append(Record(event, stream))
        return (0,)

    def cuStreamWaitEvent(self, stream, event, _flags):
        self.entries.append(Wait(stream, event))
        return (0,)


class Unordered(Branch):
    """As if launches of the side had no order: main waits for what it says that it waits for, and for no more."""

    def __init__(self, log):
        super().__init__(MAIN)
        self.side, self.log = SIDE, log
        self.pending, self.settled = {}, Counter()
        self.streams = 0

    @contextmanager
    def beside(self, *addresses):
        self.streams += 1
        stream = SIDE + self.streams
        self.log.workspaces[stream] = stream  # in truth they share one, and run one behind the other
        self.log.cuEventRecord(0, MAIN)
        self.log.cuStreamWaitEvent(stream, 0, 0)
        yield stream
        self.log.cuEventRecord(stream, stream)
        self.pending[stream] = addresses

    def settle(self, address):
        for stream in [one for one, touched in self.pending.items() if address in touched]:
            self.log.cuStreamWaitEvent(MAIN, stream, 0)
            self.settled |= Counter(self.log.memory.at(address))
            del self.pending[stream]

    def join(self):
        for stream in self.pending:
            self.log.cuStreamWaitEvent(MAIN, stream, 0)
        self.pending.clear()


def record(monkeypatch, config, precision=BF16, fused=True, first=False, kind=Branch):
    """Launch two steps and return the machine and the log."""
    plan, placement = plan_memory(config, precision), place_parameters(config.model, config.vocabulary)
    arena = Arena(BASE, plan)
    names = [f"{norm}.{one}" for norm in norms_with_parameters(config.model) for one in ("gamma", "beta")]
    log = Log(Memory(arena, placement), [arena.address("gradients", placement.offsets[name]) for name in names])
    log.workspaces[MAIN] = arena.address("gemm_workspace")
    monkeypatch.setattr(branch, "driver", lambda: log)
    monkeypatch.setattr(fp8, "upload", lambda *_: None)
    streams = Unordered(log) if kind is Unordered else Branch(MAIN, SIDE if overlaps(config) else None)
    if overlaps(config):
        log.workspaces[SIDE] = arena.address(branch.WORKSPACE)
    elementwise = Elementwise(log, precision.storage, MAIN)
    m = Machine(config, precision, arena, placement, log, elementwise, log, log, streams, fused, fused)
    linear = open_linear(m)
    for _ in range(2):
        log.touch(MAIN, "inputs", (), [m.at(name) for name in ("ids", "targets", "learning_rate")])
        launch_gradients(m, linear.first() if first else linear)
        log.touch(MAIN, "results", [m.at("row_losses"), m.at("train_state")])
        update(m)
        linear.follow_update()
    return m, log.entries


# -- what is in order --------------------------------------------------------------------------------------------------


def races(entries, without=None):
    """Return pairs of launches that are not in order and of which one writes what the other touches.

    A clock of a stream says how many launches of each stream are done before what it is given next. Of what touched a
    region before, the last launch of each stream that read it and that wrote it are remembered: who comes after these
    comes after all.
    """
    clocks = defaultdict(Counter)
    events, found = {}, []
    touched = defaultdict(dict)  # region -> (stream, whether it wrote) -> (number of the launch, its name)
    for place, one in enumerate(entries):
        if place == without:
            continue
        if isinstance(one, Record):
            events[one.event] = Counter(clocks[one.stream])
        elif isinstance(one, Wait):
            clocks[one.stream] |= events[one.event]
        else:
            clock = clocks[one.stream]
            clock[one.stream] += 1
            for region in one.reads | one.writes:
                for (stream, wrote), (number, name) in touched[region].items():
                    if (wrote or region in one.writes) and clock[stream] < number:
                        found.append((name, one.name, region))
                touched[region][one.stream, region in one.writes] = clock[one.stream], one.name
    return found


def waits_of(entries, stream):
    return [place for place, one in enumerate(entries) if isinstance(one, Wait) and one.stream == stream]


MODELS = [
    pytest.param(layers, accumulation, tied, affine, fused, id=f"{layers} x{accumulation} {tied} {affine} {fused}")
    for layers in (1, 2, 3)
    for accumulation in (1, 2)
    for tied in (True, False)
    for affine in (True, False)
    for fused in (True, False)
]


def configured(layers=2, accumulation=1, tied=True, affine=True, overlap=True):
    model = ModelConfig(layers, 2, 64, context=16, tie_embeddings=tied, norm_affine=affine)
    return evolve(SMALL, model=model, accumulation=accumulation, options={"overlap": overlap})


@pytest.mark.parametrize(("layers", "accumulation", "tied", "affine", "fused"), MODELS)
def test_launches_of_a_step_are_in_order(monkeypatch, layers, accumulation, tied, affine, fused):
    """What one writes and another touches has an order, and without any one of the edges something has none."""
    config = configured(layers, accumulation, tied, affine)
    _, entries = record(monkeypatch, config, FP16, fused)
    assert races(entries) == []
    settles, forks = waits_of(entries, MAIN), waits_of(entries, SIDE)
    assert len(forks) == 2 * accumulation * (4 * layers + 2)  # four matrices a layer, the head, the order
    assert len(settles) == 2 * accumulation * (2 * layers + 1)  # before each norm of a layer, and at the end
    for place in (*settles, *forks):
        assert races(entries, without=place)


@pytest.mark.parametrize(("layers", "accumulation", "tied", "affine", "fused"), MODELS)
def test_every_place_says_what_it_waits_for(monkeypatch, layers, accumulation, tied, affine, fused):
    """Even if launches of the side ran in any order, what main says it waits for would do; and no less would."""
    config = configured(layers, accumulation, tied, affine)
    m, entries = record(monkeypatch, config, BF16, fused, kind=Unordered)
    assert races(entries) == []
    for place in waits_of(entries, MAIN):
        assert races(entries, without=place)
    named = {"dstream", "order"} | ({"dhidden", "dqkv"} if layers > 1 else set())
    assert named <= set(m.branch.settled)
    assert any(one.startswith("gradient") for one in m.branch.settled) == tied


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("products", [PRODUCTS, ("w_2.dw", "w_1.dx"), ("w_1.y", "w_qkv.dw"), ("w_o.dw", "w_1.dw")])
@pytest.mark.parametrize("kind", [Branch, Unordered])
def test_launches_of_8_bits_are_in_order(monkeypatch, products, fused, first, kind):
    """Codes that a gradient still reads are not written over."""
    precision = evolve(FP8, fp8={0: products})
    _, entries = record(monkeypatch, configured(accumulation=2), precision, fused, first, kind)
    assert [one for one in entries if isinstance(one, Launch) and one.name.startswith("k_fp8")]
    assert races(entries) == []
    for place in waits_of(entries, MAIN):
        assert races(entries, without=place)


@pytest.mark.parametrize("precision", [BF16, FP8], ids=["bf16", "fp8"])
def test_without_the_option_there_is_one_stream(monkeypatch, precision):
    """No event, everything on main, the order of positions before each forward; the same launches as with it."""
    _, plain = record(monkeypatch, configured(accumulation=2, overlap=False), precision)
    assert {(type(one), one.stream) for one in plain} == {(Launch, MAIN)}
    names = [one.name for one in plain]
    places = [place for place, name in enumerate(names) if name == "k_order_count"]
    sort = ["k_zero", "k_order_count", "k_order_chunks", "k_order_starts", "k_order_place"]
    assert [names[place - 1 : place + 5] for place in places] == [[*sort, "k_embed_fwd"]] * 4
    _, both = record(monkeypatch, configured(accumulation=2), precision)
    done = [Counter((one.name, one.arguments) for one in log if isinstance(one, Launch)) for log in (plain, both)]
    assert done[0] == done[1]
    beside = {one.name for one in both if isinstance(one, Launch) and one.stream == SIDE}
    assert beside == {name for name in names if name.endswith("+=")} | set(sort)


def test_an_engine_that_only_looks_has_one_stream():
    """It has no gradients, so the option gives it neither a stream nor a workspace."""
    assert overlaps(SMALL)
    assert not overlaps(evolve(SMALL, training=False))
    names = [[one.name for one in plan_memory(evolve(SMALL, training=t), BF16)] for t in (True, False)]
    assert [branch.WORKSPACE in one for one in names] == [True, False]


@pytest.mark.parametrize(
    ("name", "batch_size", "expected"),
    [("12M", 8, True), ("12M", 16, True), ("12M", 17, False), ("12M", 64, False), ("120M", 64, True)],
)
def test_a_side_stream_is_used_where_it_was_measured_to_gain(name, batch_size, expected):
    """With few tokens and in wide models; the option says so otherwise, both ways."""
    model, vocabulary = FAMILY[name]
    config = EngineConfig(model, vocabulary, batch_size=batch_size)
    assert overlaps(config) == expected
    for wanted in (True, False):
        assert overlaps(evolve(config, options={"overlap": wanted})) == wanted


def test_main_goes_first_on_the_card(monkeypatch):
    """The main stream has the greatest priority that there is, which is the least number, and the side the least."""
    made, gone = {}, []

    class Driver(Log):
        def cuCtxGetStreamPriorityRange(self):
            return 0, 0, -5

        def cuStreamCreateWithPriority(self, flags, priority):
            assert flags == branch.STREAM_NON_BLOCKING
            made[len(made) + 1] = priority
            return 0, len(made)

        def cuStreamDestroy(self, stream):
            gone.append(stream)
            return (0,)

        def cuEventDestroy(self, event):
            gone.append(f"event {event}")
            return (0,)

    log = Driver(None, [])
    monkeypatch.setattr(branch, "driver", lambda: log)
    streams = open_branch(True)
    assert made == {streams.main: -5, streams.side: 0}
    for _ in range(2):  # events are used again
        with streams.beside(4096):
            pass
        streams.settle(8192)
        assert not waits_of(log.entries, streams.main)
        streams.settle(4096)
        streams.settle(4096)
        streams.join()
        assert len(waits_of(log.entries, streams.main)) == 1
        log.entries.clear()
    streams.close()
    assert gone == ["event 1", "event 2", streams.main, streams.side]
