"""cuDNN's attention: the twin's numbers and our kernels', the same bits every time, and a whole engine that uses it.

Outputs and scratch are poisoned with NaN before each launch. Tolerances: see `close` in conftest, and `near` here.
Axis letters: B rows, T tokens, H heads, D width of a head.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from attrs import evolve

from andrea.engine import EngineConfig, GenerateOptions, launcher
from andrea.engine import operations as op
from andrea.engine.attention import ROW_BYTES, Attention
from andrea.engine.attention_cudnn import CAPABILITY, CudnnAttention, workspace_bytes
from andrea.engine.benchmark import random_batch
from andrea.engine.device import find_cards
from andrea.engine.model import ModelConfig
from andrea.engine.schedule import ScheduleConfig
from andrea.testing.engines import state_bytes, train
from andrea.types import Precision

FP16 = Precision("fp16", "float16", "float16", macros={"ANDREA_STORAGE": "half", "ANDREA_MULTIPLY": "half"})
BF16 = Precision("bf16", "bfloat16", "bfloat16", macros={"ANDREA_STORAGE": "bf16", "ANDREA_MULTIPLY": "bf16"})
PRECISIONS = {one.name: one for one in (FP16, BF16)}
FAST = ScheduleConfig(steps=1000, warmup_steps=0, peak=1e-3)
SMALL = EngineConfig(ModelConfig(2, 2, 64, context=96), vocabulary=300, batch_size=3, accumulation=2, schedule=FAST)


@pytest.fixture(autouse=True)
def _installed(capability):
    if importlib.util.find_spec("cudnn") is None:
        pytest.skip("the extra cudnn is not installed")
    if capability < CAPABILITY:
        pytest.skip(f"cuDNN's attention needs compute capability {CAPABILITY}")


@pytest.fixture(params=sorted(PRECISIONS))
def half(request):
    """Each precision that cuDNN's attention has."""
    return PRECISIONS[request.param]


class Bench:
    """cuDNN's attention and our own of one shape, and numpy's view of their memory."""

    def __init__(self, card, precision, conversions, shape):
        self.card, self.type, (self.B, self.T, self.H, self.D) = card, precision.storage, shape
        self.to, self.back = conversions
        B, T, H, D = shape
        self.cudnn = CudnnAttention(D, H, precision, card.architecture, B, T)
        self.own = Attention(D, H, precision, card.architecture)
        self.scratch = workspace_bytes(B, T, H, True)
        self.cudnn.workspace = card.room(self.scratch)
        random = np.random.Generator(np.random.PCG64(D + T))
        self.qkv, self.dout = (
            self.to(random.standard_normal(one), self.type) for one in ((B, T, 3, H, D), (B, T, H, D))
        )
        self.qkv_at, self.dout_at = card.put(self.qkv), card.put(self.dout)

    def forward(self, attention, B=None):
        """Return addresses of (out, lse) after a launch into poisoned memory."""
        B = B or self.B
        out, lse = self.card.room(2 * B * self.T * self.H * self.D), self.card.room(4 * B * self.H * self.T)
        attention.forward(self.qkv_at, out, lse, B, self.T, 0)
        return out, lse

    def backward(self, attention, out, lse):
        """Return dqkv after a launch into poisoned memory, as the card holds it."""
        dqkv, rows = self.card.room(self.qkv.nbytes), self.card.room(self.B * self.H * self.T * ROW_BYTES)
        attention.backward(self.qkv_at, out, lse, self.dout_at, dqkv, rows, self.B, self.T, 0)
        return self.card.get(dqkv, self.qkv.shape, self.type)

    def poison(self, byte):
        """Fill cuDNN's scratch."""
        launcher.check(launcher.driver().cuMemsetD8(self.cudnn.workspace, byte, self.scratch))

    def twin(self):
        """Return (out, lse, dqkv) in float64."""
        B, T, _, H, D = self.qkv.shape
        packed = np.ascontiguousarray(np.moveaxis(self.back(self.qkv), 2, 0)).reshape(3, B, T, H * D)
        out, lse = op.k_attn_fwd(packed, H)
        dqkv = op.k_attn_bwd(self.back(self.dout).reshape(B, T, H * D), packed, out, lse, H)
        return out.reshape(B, T, H, D), lse, np.moveaxis(dqkv.reshape(3, B, T, H, D), 0, 2)

    def close(self):
        self.cudnn.close()
        self.own.close()


@pytest.fixture
def bench(card, half, storage):
    """Give a function that makes a bench of a shape."""
    made = []

    def make(*shape):
        made.append(Bench(card, half, storage, shape))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def near(storage):
    """Give a check in which the largest error of a head at a position is measured by its own size, or the average's.

    16 bits round operands of products, and the probabilities in between: 1e-2 is what our own kernels are held to.
    """

    def check(result, reference):
        result = storage[1](result)
        assert np.isfinite(result).all(), "an element was not written"
        error = np.abs(result - reference)
        assert np.linalg.norm(error) <= 1e-2 * np.linalg.norm(reference)
        rms = np.sqrt(np.mean(reference**2, axis=-1, keepdims=True))
        assert (error <= 8e-2 * np.maximum(rms, np.sqrt(np.mean(reference**2)))).all()

    return check


@pytest.mark.parametrize(
    "shape", [(2, 7, 3, 32), (3, 65, 2, 64), (1, 1024, 3, 64), (2, 130, 3, 128), (1, 1000, 2, 32)], ids=str
)
def test_every_launch_is_the_twins_whoever_made_the_statistics(bench, near, close, half, shape):
    """Out, log-sum-exp and gradients; each backward takes what the other's forward left."""
    one = bench(*shape)
    out, lse, dqkv = one.twin()
    for first, second in ((one.cudnn, one.cudnn), (one.cudnn, one.own), (one.own, one.cudnn)):
        out_at, lse_at = one.forward(first)
        near(one.card.get(out_at, out.shape, one.type), out)
        close(one.card.get(lse_at, lse.shape, "float32"), lse, half.name)
        one.poison(0xFF)
        found = one.backward(second, out_at, lse_at)
        for part in range(3):
            near(found[:, :, part], dqkv[:, :, part])


def test_a_prompt_is_read_in_a_row_of_its_own(bench, near):
    """The forward of a single row, of an object made for more."""
    one = bench(3, 96, 2, 64)
    out, _, _ = one.twin()
    near(one.card.get(one.forward(one.cudnn, B=1)[0], (1, *out.shape[1:]), one.type), out[:1])


@pytest.mark.parametrize("shape", [(4, 129, 3, 32), (4, 1024, 12, 64), (2, 512, 4, 128)], ids=str)
def test_repeats_give_the_same_bits(bench, shape):
    """Also from another object, whatever the scratch held before."""
    results = set()
    for _ in range(2):
        one = bench(*shape)
        for byte in (0xFF, 0x00, 0x3C) * 5:
            one.poison(byte)
            out, lse = one.forward(one.cudnn)
            dqkv = one.backward(one.cudnn, out, lse)
            parts = one.card.get(out, one.dout.shape, one.type), one.card.get(lse, (one.B, one.H, one.T), "float32")
            results.add(b"".join(part.tobytes() for part in (*parts, dqkv)))
    assert len(results) == 1


# -- a whole engine ---------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(capability):
    """Open engines that are closed at the end of the test."""
    from andrea.engine.step import CudaEngine

    engines = []

    def open_one(config, precision=BF16, **options):
        engines.append(CudaEngine(evolve(config, options=options), find_cards()[0][0], precision))
        return engines[-1]

    yield open_one
    for engine in engines:
        engine.close()


def test_a_step_is_that_of_our_kernels(opened, half):
    """Gradients and losses of a first step agree: each is within 3e-2 of the twin's, so within twice that of others."""
    ours, theirs = opened(SMALL, half, attention="mma"), opened(SMALL, half, attention="cudnn")
    results = [engine.train_step(0, *random_batch(SMALL)) for engine in (ours, theirs)]
    np.testing.assert_allclose(results[1].row_losses, results[0].row_losses, rtol=1e-2)
    want = ours.gradients()
    for name, got in theirs.gradients().items():
        assert np.linalg.norm(got - want[name]) <= 6e-2 * np.linalg.norm(want[name]), name


def test_two_runs_are_equal(opened, half):
    """Losses, weights, moments and counters, byte by byte."""
    first, second = opened(SMALL, half, attention="cudnn"), opened(SMALL, half, attention="cudnn")
    assert train(first, 6) == train(second, 6)
    assert state_bytes(first) == state_bytes(second)
    assert first.fingerprint() == second.fingerprint()
    assert first.fingerprint()["attention"].startswith("cudnn ")


def test_graph_gives_the_same_bits(opened, half):
    """Launching one by one gives the bytes of the captured graph: steps, an evaluation, texts."""
    graph, plain = opened(SMALL, half, attention="cudnn"), opened(SMALL, half, attention="cudnn", graph=False)
    assert train(graph, 4) == train(plain, 4)
    assert state_bytes(graph) == state_bytes(plain)
    rows, options = random_batch(SMALL, 7), GenerateOptions(max_tokens=120, top_p=0.9, seed=3)
    assert graph.evaluate(*rows).tobytes() == plain.evaluate(*rows).tobytes()
    texts = [engine.generate([[1, 2, 3], [4]], options) for engine in (graph, plain)]
    assert [ids.tolist() for ids in texts[0]] == [ids.tolist() for ids in texts[1]]


def test_without_training_the_numbers_are_the_same(opened):
    """An engine that only evaluates and writes has the bytes of one that trains."""
    engine = opened(SMALL, attention="cudnn")
    train(engine, 3)
    using = opened(evolve(SMALL, training=False), attention="cudnn")
    using.import_state({"weights": engine.export_state()["weights"]})
    rows, options = random_batch(evolve(SMALL, batch_size=7), seed=3), GenerateOptions(150, top_k=20, seed=4)
    assert using.evaluate(*rows).tobytes() == engine.evaluate(*rows).tobytes()
    texts = [[row.tolist() for row in one.generate([[1], [2, 3]], options)] for one in (using, engine)]
    assert texts[0] == texts[1]


@pytest.mark.alone
def test_nothing_is_allocated_after_the_start(opened):
    """What cuDNN loads, it loads while the engine is opened."""
    engine = opened(evolve(SMALL, model=ModelConfig(2, 4, 256, context=512), batch_size=8), attention="cudnn")
    before = engine.measured_memory()
    train(engine, 10)
    engine.generate([[1, 2]], GenerateOptions(max_tokens=3))
    assert engine.measured_memory() == before
