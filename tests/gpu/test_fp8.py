"""Operands of 8 bits on the card: casts and scales with `==`, products to the rounding of what they store, whole steps.

Inputs are what bfloat16 holds, and every factor is a power of two, so the codes have one right answer.
"""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve

from andrea.engine import EngineConfig, GenerateOptions, launcher
from andrea.engine import operations as op
from andrea.engine.benchmark import random_batch
from andrea.engine.compiler import SUPPORT
from andrea.engine.device import find_cards
from andrea.engine.elementwise import Elementwise, blocks_for, initial_state
from andrea.engine.fp8 import MATRIX, PRODUCTS, SCALE_FLOATS, tiles
from andrea.engine.gemm import WORKSPACE_BYTES, CublasLt, Problem
from andrea.engine.model import ModelConfig, initial_weights
from andrea.engine.network import add_gradients, tensors
from andrea.engine.operations import E4M3, E5M2
from andrea.engine.schedule import ScheduleConfig
from andrea.errors import AndreaError
from andrea.testing.engines import state_bytes, train
from andrea.types import Precision

MACROS = {"ANDREA_STORAGE": "bf16", "ANDREA_MULTIPLY": "bf16"}
KINDS = {kind.name: kind for kind in (E4M3, E5M2)}
TWINS = {"e4m3": op.k_fp8_e4m3, "e5m2": op.k_fp8_e5m2}


@pytest.fixture
def eight(card, storage):
    """Give the kernels, and arrays as the card holds them."""
    if card.capability < SUPPORT["fp8"]:
        pytest.skip(f"compute capability {card.capability} has no fp8")
    return Bench(card, storage)


class Bench:
    """Launches of the kernels, each beside the arrays that its twin takes."""

    def __init__(self, card, conversions):
        self.card = card
        self.to, self.back = conversions
        self.random = np.random.Generator(np.random.PCG64(11))
        self.launch = Elementwise(card.kernels(["fp8", "gelu"], MACROS), "bfloat16").launch

    def draw(self, *shape, spread=0):
        """Return (address, float32 values) of numbers over `spread` octaves on either side."""
        values = self.random.standard_normal(shape) * np.exp2(self.random.integers(-spread, spread + 1, shape))
        raw = self.to(values, "bfloat16")
        return self.card.put(raw), self.back(raw).astype(np.float32)

    def floats(self, *values):
        """Return the address of some float32."""
        return self.card.put(np.array(values, dtype=np.float32))

    def cast(self, kernel, shape, *arrays, factor, before=0.0, orders=(True, True)):
        """Launch a kernel that casts; return its codes, turned codes (None: not wanted) and the largest magnitude."""
        size = int(np.prod(shape))
        rooms = [self.card.room(size + 8) if wanted else 0 for wanted in orders]
        scale, amax = self.floats(factor, 1 / factor), self.floats(before)
        self.launch(kernel, tiles(*shape), 256, *arrays, *rooms, scale, amax, *shape)
        found = [self.card.get(room, (size + 8,), "uint8") if room else None for room in rooms]
        assert all((codes[size:] == 0xFF).all() for codes in found if codes is not None), "written behind the codes"
        shapes = shape, shape[::-1]
        codes = [None if one is None else one[:size].reshape(s) for one, s in zip(found, shapes, strict=True)]
        return *codes, self.card.get(amax, (1,), "float32")[0]


# -- kernels ---------------------------------------------------------------------------------------------------------

# (rows, columns): tiles cut in either direction, one row, several tiles; turned only where rows are a multiple of 8.
CAST_SHAPES = [(1, 32), (21, 96), (8, 8), (128, 64), (136, 72), (264, 288), (1000, 768)]
ORDERS = [(True, True), (True, False), (False, True), (False, False)]


@pytest.mark.parametrize("kind", TWINS)
@pytest.mark.parametrize("factor", [1.0, 2.0**-7, 2.0**20])
@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize("shape", CAST_SHAPES)
def test_casts_are_the_twins(eight, kind, shape, orders, factor):
    """Codes of normal numbers, of those below, and of what is too large, in both orders, in one, or measured only."""
    orders = orders if shape[0] % 8 == 0 else (orders[0], False)
    x, values = eight.draw(*shape, spread=24)
    *found, amax = eight.cast(f"k_fp8_{kind}", shape, x, factor=factor, orders=orders)
    *expected, top = TWINS[kind](values, factor)
    for codes, twin, wanted in zip(found, expected, orders, strict=True):
        assert (codes is None) == (not wanted)
        assert codes is None or np.array_equal(codes, twin)
    assert amax == np.float32(top)


@pytest.mark.parametrize("kind", TWINS)
def test_casts_of_every_value_of_16_bits(eight, kind):
    """All 65,536 bfloat16 values, NaN and infinities too; a magnitude is never lost."""
    raw = np.arange(65_536, dtype=np.uint16).reshape(1024, 64)
    codes, turned, amax = eight.cast(f"k_fp8_{kind}", raw.shape, eight.card.put(raw), factor=1.0)
    with np.errstate(invalid="ignore"):
        expected = TWINS[kind](eight.back(raw).astype(np.float32), 1.0)
    assert np.array_equal(codes, expected[0])
    assert np.array_equal(turned, expected[1])
    assert np.isnan(amax)


def test_largest_magnitude_is_over_all_casts(eight):
    """A step's largest magnitude is raised, never lowered; zeros raise nothing."""
    shape = (128, 64)
    x, values = eight.draw(*shape)
    assert eight.cast("k_fp8_e4m3", shape, x, factor=1.0, before=100.0)[2] == 100
    assert eight.cast("k_fp8_e4m3", shape, x, factor=1.0, before=0.5)[2] == np.abs(values).max()
    assert eight.cast("k_fp8_e5m2", (8, 8), eight.card.put(np.zeros(64, np.uint16)), factor=1.0)[2] == 0


@pytest.mark.parametrize("shape", CAST_SHAPES)
def test_gelu_that_casts_is_gelu_and_a_cast(eight, shape):
    """Both passes give the bytes of the two kernels they stand for, in place too, and codes alone where wanted."""
    orders, n = (True, shape[0] % 8 == 0), int(np.prod(shape))
    (pre, _), (dact, _) = eight.draw(*shape, spread=2), eight.draw(*shape)
    plain, fused, grid = eight.card.room(2 * n), eight.card.room(2 * n), blocks_for(n, 8192)

    def compare(kernel, cast, factor, out, *arrays):
        expected = eight.cast(cast, shape, plain, factor=factor, orders=orders)
        alone = eight.cast(kernel, shape, *arrays, 0, factor=factor, orders=orders)
        found = eight.cast(kernel, shape, *arrays, out, factor=factor, orders=orders)
        assert np.array_equal(eight.card.get(out, (n,), "bfloat16"), eight.card.get(plain, (n,), "bfloat16"))
        for one in (alone, found):
            assert all(np.array_equal(a, b) for a, b in zip(one, expected, strict=True))

    eight.launch("k_gelu_fwd", grid, 256, pre, plain, n)
    compare("k_fp8_gelu_fwd", "k_fp8_e4m3", 2.0**5, fused, pre)
    eight.launch("k_gelu_bwd", grid, 256, dact, pre, plain, n)
    compare("k_fp8_gelu_bwd", "k_fp8_e5m2", 2.0**12, dact, dact, pre)


@pytest.mark.parametrize("skipped", [0, 1])
@pytest.mark.parametrize("record", [0, 1])
@pytest.mark.parametrize(("tensors", "forwards"), [(1, 1), (1, 0), (300, 170)])
def test_scales_are_the_twins(eight, tensors, forwards, record, skipped):
    """History and scales to the bit, whatever the magnitude, 0 and what no scale reaches included."""
    random, state = eight.random, initial_state()
    state["applied"], state["skipped"] = 21, skipped
    history = np.exp2(random.uniform(-90, 90, (tensors, 16))).astype(np.float32)
    amax = np.exp2(random.uniform(-90, 90, tensors)).astype(np.float32)
    history[0], amax[0] = 0, 0
    history[tensors // 2], amax[-1] = 1.75 * 2.0 ** random.integers(-9, 9), 2.0**-120
    amax[tensors // 3], amax[tensors // 4] = np.inf, np.nan
    at = [eight.card.put(one) for one in (history, amax)]
    scales = eight.card.room(32 * tensors)
    eight.launch(
        "k_fp8_scales", blocks_for(tensors, 256), 256, *at, scales, eight.card.put(state), tensors, forwards, record
    )
    expected = op.k_fp8_scales(history, amax, forwards, 21, bool(record and not skipped))
    assert np.array_equal(eight.card.get(scales, (tensors, 2, SCALE_FLOATS), "float32")[:, :, 0], expected)
    assert np.array_equal(eight.card.get(at[0], history.shape, "float32"), history)
    assert not eight.card.get(at[1], (tensors,), "float32").any()


def test_weights_are_the_twins(eight):
    """Matrices of several shapes in one launch, in one order, the other, or both; nothing else is written."""
    shapes = [(32, 96), (64, 64), (96, 288), (768, 2304), (3072, 768)]
    wanted = [(True, True), (True, False), (False, True), (True, True), (False, True)]
    table, weights, end, codes_end = np.zeros(len(shapes), MATRIX), [], 128, 256
    for row, (rows, columns), orders in zip(table, shapes, wanted, strict=True):
        row["source"], row["rows"], row["columns"] = end, rows, columns
        end += rows * columns
        for name, order in zip(("straight", "turned"), orders, strict=True):
            row[name] = codes_end if order else -1
            codes_end += order * rows * columns
        scale = 2.0 ** eight.random.integers(-12, 12)
        weights.append(eight.to(eight.random.standard_normal((rows, columns)) * scale, "bfloat16"))
    memory = np.concatenate([np.full(128, 0x7FC0, np.uint16), *(one.reshape(-1) for one in weights)])
    read = eight.card.put(table), eight.card.put(memory), eight.card.put(np.zeros(len(shapes), np.float32))
    scales, codes = eight.card.room(32 * len(shapes)), eight.card.room(codes_end)
    grid = max(tiles(*shape) for shape in shapes), len(shapes)
    eight.launch("k_fp8_weights_amax", grid, 256, *read)
    eight.launch("k_fp8_weights", grid, 256, *read, scales, codes)
    found = eight.card.get(codes, (codes_end,), "uint8")
    expected = np.full(codes_end, 0xFF, np.uint8)
    for m, (row, raw) in enumerate(zip(table, weights, strict=True)):
        values = eight.back(raw).astype(np.float32)
        amax = op.k_fp8_weights_amax(values)
        straight, turned, factor = op.k_fp8_weights(values, amax)
        assert eight.card.get(read[2] + 4 * m, (1,), "float32")[0] == np.float32(amax)
        assert eight.card.get(scales + 32 * m, (2, SCALE_FLOATS), "float32")[:, 0].tolist() == [factor, 1 / factor]
        for place, made in ((row["straight"], straight), (row["turned"], turned)):
            if place >= 0:
                expected[place : place + made.size] = made.reshape(-1)
    assert np.array_equal(found, expected)


# -- products --------------------------------------------------------------------------------------------------------


class Product:
    """A product of codes on the card, and the same in float64."""

    def __init__(self, eight, m, n, k, kinds, epilogue="", result="bfloat16"):
        self.eight, self.result, self.scales = eight, result, (eight.floats(1 / 16), eight.floats(1 / 32))
        adds = result == "float32"
        leads = (k, k, n)
        self.problem = Problem(
            m, n, k, False, True, *leads, kinds[0], result, accumulate=adds, epilogue=epilogue, operand_b=kinds[1]
        )
        given = eight.random.standard_normal((m, k)) * 16, eight.random.standard_normal((n, k)) * 32
        codes = [op.encode_float8(x, KINDS[kind]) for x, kind in zip(given, kinds, strict=True)]
        self.addresses = [eight.card.put(one) for one in codes]
        left, right = (op.decode_float8(one, KINDS[kind]) for one, kind in zip(codes, kinds, strict=True))
        self.expected = (left.astype(np.float64) / 16) @ (right.astype(np.float64) / 32).T
        self.out = eight.card.put(np.full((m, n), 3.0, np.float32)) if adds else eight.card.room(2 * m * n)

    def run(self, gemms, aux=0):
        gemms.prepare(self.problem)(*self.addresses, self.out, 0, aux, self.scales)
        return self.eight.card.get(self.out, (self.problem.m, self.problem.n), self.result)


@pytest.fixture
def gemms(eight):
    """Give cuBLASLt with its workspace."""
    made = CublasLt("no card of the table", {})
    made.workspaces[0] = eight.card.room(WORKSPACE_BYTES)
    yield made
    made.close()


KIND_PAIRS = [("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e4m3", "e5m2")]
SIZES = [(1, 32, 32), (21, 288, 96), (21, 96, 288), (130, 128, 512), (4096, 2304, 768)]


@pytest.mark.parametrize("kinds", KIND_PAIRS)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_products_match_numpy(eight, gemms, close, kinds, m, n, k):
    """Any number of rows; factors of both operands; sums as exact as bfloat16 shows."""
    product = Product(eight, m, n, k, kinds)
    close(product.run(gemms), product.expected, "bf16")


@pytest.mark.parametrize(("m", "n", "k"), [(96, 288, 48), (768, 2304, 16_384)])
def test_gradients_of_matrices_are_added(eight, gemms, close, m, n, k):
    """D += in float32 over many positions, with the 11 bits that tf32's tolerance asks for."""
    product = Product(eight, m, n, k, ("e4m3", "e5m2"), result="float32")
    close(product.run(gemms), 3 + product.expected, "tf32")
    close(product.run(gemms), 3 + 2 * product.expected, "tf32")


@pytest.mark.parametrize("kinds", KIND_PAIRS)
def test_products_repeat_their_bits(eight, gemms, kinds):
    """A hundred times the same bytes; with half the factor half the values."""
    product = Product(eight, 512, 768, 3072, kinds)
    first = product.run(gemms)
    assert all(product.run(gemms).tobytes() == first.tobytes() for _ in range(100))
    product.scales = product.scales[0], eight.floats(1 / 64)
    assert np.array_equal(eight.back(product.run(gemms)), eight.back(first) / 2)


@pytest.mark.parametrize("epilogue", ["gelu", "dgelu"])
def test_epilogues_are_right_where_the_library_has_them(eight, gemms, close, epilogue):
    """GELU inside a product of codes is an experiment, `fused_gelu`, which a library need not have."""
    product = Product(eight, 256, 3072, 768, ("e4m3" if epilogue == "gelu" else "e5m2", "e4m3"), epilogue)
    aux, kept = eight.draw(256, 3072, spread=1)
    try:
        found = product.run(gemms, aux)
    except AndreaError:
        pytest.skip("this cuBLASLt has no such epilogue for operands of 8 bits")
    if epilogue == "gelu":
        close(eight.card.get(aux, (256, 3072), "bfloat16"), product.expected, "bf16")
        close(found, op._gelu(product.expected), "bf16")
    else:
        close(found, product.expected * op._gelu_and_slope(kept.astype(np.float64))[1], "bf16")


# -- the engine ------------------------------------------------------------------------------------------------------

FAST = ScheduleConfig(steps=1000, warmup_steps=0, peak=1e-3)
STILL = ScheduleConfig(steps=10**9, warmup_steps=0, peak=1e-60)  # a rate of 0 in float32
SMALL = EngineConfig(ModelConfig(2, 2, 64, context=32), vocabulary=300, batch_size=3, schedule=FAST)
SHAPES = {
    "small": SMALL,
    "odd": evolve(SMALL, model=ModelConfig(2, 3, 96, context=7), vocabulary=131),
    "accumulation": evolve(SMALL, batch_size=2, accumulation=3),
    "wide": evolve(SMALL, model=ModelConfig(1, 12, 768, context=64), vocabulary=1000, batch_size=4),
}
BF16 = Precision("bf16", storage="bfloat16", multiply="bfloat16")
FP8 = evolve(BF16, name="fp8", fp8={0: PRODUCTS})
TABLES = [PRODUCTS, ("w_qkv.y", "w_1.y", "w_2.y"), ("w_1.dx",), ("w_2.dw",), ("w_o.y", "w_o.dx"), ("w_1.dw", "w_2.dx")]


@pytest.fixture
def opened(eight):
    """Open engines that are closed at the end of the test."""
    from andrea.engine.step import CudaEngine

    device, engines = find_cards()[0][0], []

    def open_one(config, precision=FP8, **options):
        engines.append(CudaEngine(evolve(config, options=options), device, precision))
        return engines[-1]

    yield open_one
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_first_step_is_that_of_bf16(opened, shape):
    """While nothing is known of magnitudes, products are bfloat16's, to the bit."""
    config = SHAPES[shape]
    engine, plain = opened(config), opened(config, BF16, fused_gelu=False)
    assert train(engine, 1) == train(plain, 1)
    for (name, ours), theirs in zip(engine.gradients().items(), plain.gradients().values(), strict=True):
        assert ours.tobytes() == theirs.tobytes(), name
    assert train(engine, 1, first=1) != train(plain, 1, first=1)


@pytest.mark.parametrize("products", TABLES, ids=" ".join)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_near_the_twins(opened, shape, products):
    """From the second step on every tensor's gradient is the exact one but for the rounding of operands.

    E4M3 keeps four bits of a number, E5M2 three: in numpy the same rounding moves single tensors of these models by up
    to 13% of their norm. An operand in the wrong order, or a wrong factor, moves them by all of it.
    """
    config = evolve(SHAPES[shape], schedule=STILL)
    engine, batch = opened(config, evolve(FP8, fp8={0: products})), random_batch(config)
    engine.train_step(0, *batch)
    result = engine.train_step(1, *batch)
    weights = initial_weights(config.model, config.vocabulary, config.seed).astype(np.float64)
    total = np.zeros_like(weights)
    views = tensors(weights, config.model, config.vocabulary), tensors(total, config.model, config.vocabulary)
    losses = add_gradients(*batch, *views, config.model, 1 / batch[0].size)
    np.testing.assert_allclose(result.row_losses, losses, rtol=1e-2)
    errors, offset = {}, 0
    for name, got in engine.gradients().items():
        want = total[offset : offset + got.size].reshape(got.shape)
        offset += got.size
        errors[name] = float(np.linalg.norm(got - want) / np.linalg.norm(want))
    assert not {name: error for name, error in errors.items() if not error <= 0.25}


def test_products_of_a_step_are_those_of_its_buffers(opened, eight, close):
    """Operands of a real step, rounded by the scales that lay there before it, give what the step stored."""
    config = evolve(SHAPES["wide"], schedule=STILL)
    engine, batch = opened(config), random_batch(config)
    m, plan = engine._machine, engine._linear.plan
    for step in range(2):
        engine.train_step(step, *batch)
    S = len(plan.tensors)
    scales = np.empty((S + len(plan.matrices), 2, SCALE_FLOATS), np.float32)
    launcher.download(m.at("fp8_scales"), scales)
    engine.train_step(2, *batch)
    N, C = m.N, m.C

    def stored(address, *shape):
        return eight.back(eight.card.get(address, shape, "bfloat16"))

    def rounded(values, name, kind):
        factor = float(scales[(*plan.tensors, *plan.matrices).index(name), 0, 0])
        return op.round_float8(values * factor, kind) / factor

    for name, x, y in (("w_qkv", "ln1.y", "qkv"), ("w_1", "ln2.y", "preactivation")):
        width = 3 * C if name == "w_qkv" else 4 * C
        weights = rounded(stored(m.weight(f"layer0.{name}"), C, width), f"layer0.{name}", E4M3)
        operand = rounded(stored(m.at(f"layer0.{x}"), N, C), f"layer0.{name}.x", E4M3)
        close(eight.card.get(m.at(f"layer0.{y}"), (N, width), "bfloat16"), operand @ weights, "bf16")
    weights = rounded(stored(m.weight("layer0.w_qkv"), C, 3 * C), "layer0.w_qkv", E4M3)
    gradient = rounded(stored(m.at("dqkv"), N, 3 * C), "layer0.w_qkv.dy", E5M2)
    close(eight.card.get(m.at("dbranch"), (N, C), "bfloat16"), gradient @ weights.T, "bf16")
    operand = rounded(stored(m.at("layer0.ln1.y"), N, C), "layer0.w_qkv.x", E4M3)
    close(eight.card.get(m.gradient("layer0.w_qkv"), (C, 3 * C), "float32"), operand.T @ gradient, "tf32")


def test_it_learns_like_float32(opened):
    """After 20 steps on three batches the loss is within 2% of float32's, and the model has learned."""
    engine, plain = opened(SMALL), opened(SMALL, Precision("fp32"))
    for step in range(20):
        batch = random_batch(SMALL, seed=step % 3)
        got, want = engine.train_step(step, *batch), plain.train_step(step, *batch)
    np.testing.assert_allclose(got.row_losses.mean(), want.row_losses.mean(), rtol=2e-2)
    assert got.row_losses.mean() < 5.0  # ln 300 = 5.70


def test_two_runs_and_single_launches_are_equal(opened):
    """Losses and state to the bit, history too; launching one by one gives the bytes of the graphs."""
    config = evolve(SMALL, batch_size=2, accumulation=2)
    first, second, plain = opened(config), opened(config), opened(config, graph=False)
    assert train(first, 6) == train(second, 6) == train(plain, 6)
    assert state_bytes(first) == state_bytes(second) == state_bytes(plain)


@pytest.mark.parametrize("products", TABLES[:1] + TABLES[3:4])
@pytest.mark.parametrize("graph", [True, False])
def test_two_streams_give_the_same_bits(opened, graph, products):
    """Codes are written anew only when the gradient that reads them is there: the first step, and those after it."""
    model = ModelConfig(3, 12, 768, context=256)
    config = evolve(SMALL, model=model, vocabulary=2000, batch_size=16, accumulation=2)
    precision = evolve(FP8, fp8={0: products})
    plain, engine = opened(config, precision), opened(config, precision, overlap=True, graph=graph)
    assert train(engine, 4) == train(plain, 4)
    assert state_bytes(engine) == state_bytes(plain)


@pytest.mark.parametrize("batch_size", [4, 64])
def test_resume_is_bit_exact(opened, batch_size):
    """A run cut at step 3 goes on as the uninterrupted one, whatever that looked at; without its history not."""
    config = evolve(SMALL, batch_size=batch_size)
    whole, fresh = opened(config), opened(evolve(config, seed=9))
    train(whole, 3)
    saved = whole.export_state()
    whole.evaluate(*random_batch(config, 7))
    whole.generate([[1, 2]], GenerateOptions(max_tokens=3))
    losses = train(whole, 3, first=3)
    fresh.import_state(saved)
    assert train(fresh, 3, first=3) == losses
    assert state_bytes(fresh) == state_bytes(whole)
    fresh.import_state(saved | {"fp8_history": np.zeros_like(saved["fp8_history"])})
    assert train(fresh, 3, first=3) != losses


def test_hundred_repeats_are_equal(opened):
    """The same step from the same state: loss, norm and history always, all gradients every tenth time."""
    config = EngineConfig(ModelConfig(1, 12, 384, context=256), 1000, batch_size=16, schedule=FAST)
    engine, batch, seen, gradients = opened(config), random_batch(config), set(), set()
    train(engine, 2)
    saved = engine.export_state()
    for repeat in range(100):
        engine.import_state(saved)
        result = engine.train_step(2, *batch)
        seen.add((result.row_losses.tobytes(), result.grad_norm, engine.export_state()["fp8_history"].tobytes()))
        if repeat % 10 == 0:
            gradients.add(b"".join(one.tobytes() for one in engine.gradients().values()))
    assert len(seen) == len(gradients) == 1


def test_update_without_finite_gradient_is_skipped(opened):
    """A weight that is not a number makes the update a no-op, and the history stays."""
    engine = opened(SMALL)
    train(engine, 2)
    saved = engine.export_state()
    broken = saved["weights"].copy()
    broken[SMALL.vocabulary * 64 + 3] = np.nan
    engine.import_state(saved | {"weights": broken})
    assert engine.train_step(2, *random_batch(SMALL)).skipped
    assert engine.export_state()["fp8_history"].tobytes() == saved["fp8_history"].tobytes()
    engine.import_state(saved)
    assert not engine.train_step(2, *random_batch(SMALL)).skipped


def test_own_products_are_refused(opened):
    """Only cuBLASLt multiplies 8 bits."""
    with pytest.raises(AndreaError, match="own has no products"):
        opened(SMALL, gemm="own")
