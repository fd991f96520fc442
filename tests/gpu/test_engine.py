"""The CUDA engine computes what its twin computes, repeats itself bit for bit, and keeps to its memory plan."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve

from andrea.engine import EngineConfig, GenerateOptions, launcher
from andrea.engine.benchmark import random_batch
from andrea.engine.device import find_cards
from andrea.engine.model import ModelConfig, initial_weights
from andrea.engine.network import add_gradients, tensors
from andrea.engine.reference import ReferenceEngine
from andrea.engine.schedule import OptimizerConfig, ScheduleConfig
from andrea.errors import AndreaError
from andrea.testing.engines import state_bytes, train
from andrea.types import Precision

FP32 = Precision("fp32")
TF32 = Precision("tf32", multiply="tf32")
BF16 = Precision("bf16", storage="bfloat16", multiply="bfloat16")
FP16 = Precision("fp16", storage="float16", multiply="float16", loss_scale=1024.0)
PRECISIONS = {one.name: one for one in (FP32, TF32, FP16, BF16)}
FAST = ScheduleConfig(steps=1000, warmup_steps=0, peak=1e-3)

# Whole-model gradients against float64, per tensor. float32: sums of some thousand terms in another order. tf32 and
# fp16 keep 10 bits of the operands, bf16 7, and errors of the layers add up on the way back.
GRADIENT_TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 1e-2, "bf16": 3e-2}

SMALL = EngineConfig(ModelConfig(2, 2, 64, context=32), vocabulary=300, batch_size=3, schedule=FAST)
SHAPES = {
    "small": SMALL,
    "odd": evolve(SMALL, model=ModelConfig(2, 3, 96, context=7), vocabulary=131, batch_size=3),
    "one token": evolve(SMALL, model=ModelConfig(1, 1, 32, context=1), vocabulary=5, batch_size=1),
    "head 128": evolve(SMALL, model=ModelConfig(1, 2, 256, context=130), vocabulary=257, batch_size=2),
    "accumulation": evolve(SMALL, batch_size=2, accumulation=3),
    "untied": evolve(SMALL, model=ModelConfig(2, 2, 64, context=32, tie_embeddings=False)),
    "plain norms": evolve(SMALL, model=ModelConfig(2, 2, 64, context=32, norm_affine=False)),
    "wide": evolve(SMALL, model=ModelConfig(1, 12, 768, context=64), vocabulary=1000, batch_size=4),
}


@pytest.fixture(scope="module")
def card():
    """Give the first card, or skip for the one reason there is."""
    cards, _ = find_cards()
    if not cards:
        pytest.skip("no CUDA device")
    with launcher.context(cards[0].index):  # held, so that an engine that closes does not take the context down
        yield cards[0]


@pytest.fixture
def opened(card):
    """Open engines that are closed at the end of the test."""
    from andrea.engine.step import CudaEngine

    engines = []

    def open_one(config, precision=FP32, **options):
        engines.append(CudaEngine(evolve(config, options=dict(config.options) | options), card, precision))
        return engines[-1]

    yield open_one
    for engine in engines:
        engine.close()


def twin_gradients(config, inputs, targets):
    """Gradients and row losses in float64 at the initial weights."""
    weights = initial_weights(config.model, config.vocabulary, config.seed).astype(np.float64)
    total = np.zeros_like(weights)
    views = tensors(weights, config.model, config.vocabulary), tensors(total, config.model, config.vocabulary)
    losses = add_gradients(inputs, targets, *views, config.model, 1 / inputs.size)
    return total, losses


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_the_twins(opened, shape, precision):
    """Every tensor's gradient, the losses and the norm agree with the twin in float64, whatever the shape."""
    config = SHAPES[shape]
    engine = opened(config, PRECISIONS[precision])
    inputs, targets = random_batch(config)
    result = engine.train_step(0, inputs, targets)
    expected, losses = twin_gradients(config, inputs, targets)
    tolerance = GRADIENT_TOLERANCE[precision]
    np.testing.assert_allclose(result.row_losses, losses, rtol=tolerance)
    np.testing.assert_allclose(result.grad_norm, np.linalg.norm(expected), rtol=tolerance)
    errors = {}
    offset = 0
    for name, got in engine.gradients().items():
        want = expected[offset : offset + got.size].reshape(got.shape)
        offset += got.size
        scale = np.linalg.norm(want)
        if scale > 1e-9:  # one token attends to itself alone: queries and keys have no gradient at all
            errors[name] = np.linalg.norm(got - want) / scale
        else:
            assert np.linalg.norm(got) < 1e-6, name
    assert offset == expected.size
    bad = {name: error for name, error in errors.items() if not error <= tolerance}
    assert not bad


def test_losses_follow_the_reference(opened):
    """20 steps in float32 stay within 0.1% of the numpy engine: rounding differs, the mathematics does not."""
    engine, reference = opened(SMALL), ReferenceEngine(SMALL, FP32)
    for step in range(20):
        batch = random_batch(SMALL, seed=step % 3)
        got, want = engine.train_step(step, *batch), reference.train_step(step, *batch)
        assert got.learning_rate == want.learning_rate
        np.testing.assert_allclose(got.row_losses, want.row_losses, rtol=1e-3)
        np.testing.assert_allclose(got.grad_norm, want.grad_norm, rtol=1e-2)
    assert got.row_losses.mean() < 5.0  # ln 300 = 5.70: it has learned
    difference = engine.export_state()["weights"] - reference.export_state()["weights"]
    assert np.abs(difference).max() < 2e-3  # two steps of the rate, where a moment's sign is rounding
    reference.close()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_half_precisions_learn_alike(opened, precision):
    """After 20 steps on three batches every precision's loss is within 2% of float32's."""
    engine, plain = opened(SMALL, PRECISIONS[precision]), opened(SMALL)
    for step in range(20):
        batch = random_batch(SMALL, seed=step % 3)
        got, want = engine.train_step(step, *batch), plain.train_step(step, *batch)
    # 16 bits change single weights, not where they go together.
    np.testing.assert_allclose(got.row_losses.mean(), want.row_losses.mean(), rtol=2e-2)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_two_runs_are_equal(opened, precision):
    """Two engines that do the same have the same bytes: losses, weights, moments, counters."""
    config = evolve(SMALL, batch_size=2, accumulation=2)
    first, second = opened(config, PRECISIONS[precision]), opened(config, PRECISIONS[precision])
    assert train(first, 6) == train(second, 6)
    assert state_bytes(first) == state_bytes(second)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_step_is_a_graph_of_kernels(opened, precision):
    """Fills that cuBLASLt asks for are kernels too, so the driver need not launch node by node."""
    engine = opened(SMALL, PRECISIONS[precision])
    assert engine.graph_nodes > 0
    assert engine.other_nodes == 0


@pytest.mark.parametrize("precision", PRECISIONS)
def test_graph_gives_the_same_bits(opened, precision):
    """Launching one by one gives the bytes of the captured graph."""
    config = evolve(SMALL, accumulation=2)
    graph, plain = opened(config, PRECISIONS[precision]), opened(config, PRECISIONS[precision], graph=False)
    assert train(graph, 4) == train(plain, 4)
    assert state_bytes(graph) == state_bytes(plain)
    rows = random_batch(config, 7)
    assert np.array_equal(graph.evaluate(*rows), plain.evaluate(*rows))
    options = GenerateOptions(max_tokens=70, top_p=0.9, seed=3)
    texts = [engine.generate([[1, 2, 3], [4]], options) for engine in (graph, plain)]
    assert [ids.tolist() for ids in texts[0]] == [ids.tolist() for ids in texts[1]]


#: Long enough launches that those of two streams meet.
BUSY = evolve(SMALL, model=ModelConfig(3, 12, 768, context=256), vocabulary=2000, batch_size=16)


@pytest.mark.parametrize("gemm", ["auto", "own"])
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_two_streams_give_the_same_bits(opened, precision, accumulation, gemm):
    """Gradients of weights beside the rest, with and without a graph, leave the bytes of one stream."""
    config = evolve(BUSY, accumulation=accumulation)
    plain = opened(config, PRECISIONS[precision], gemm=gemm)
    losses, state = train(plain, 3), state_bytes(plain)
    for graph in (True, False):
        engine = opened(config, PRECISIONS[precision], gemm=gemm, overlap=True, graph=graph)
        assert train(engine, 3) == losses
        assert state_bytes(engine) == state
        if graph:  # to fork and to wait are edges of a graph, no nodes
            assert (engine.graph_nodes, engine.other_nodes) == (plain.graph_nodes, 0)
        engine.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_two_streams_take_every_shape(opened, shape):
    """Tied or not, with parameters of norms or without, of one token: the bytes of one stream."""
    plain, engine = opened(SHAPES[shape], BF16), opened(SHAPES[shape], BF16, overlap=True)
    assert train(engine, 3) == train(plain, 3)
    assert state_bytes(engine) == state_bytes(plain)


def test_two_streams_are_tuned_and_timed(opened):
    """Algorithms are timed on the stream of the clock, and so are launches; steps go on by two streams after both."""
    engine = opened(SMALL, BF16, overlap=True)
    train(engine, 2)
    assert engine.tune()
    assert all(group.milliseconds > 0 for group in engine.time_kernels())
    plain = opened(SMALL, BF16)
    for problem, product in plain._machine.gemms._prepared.items():
        product.algorithm = engine._machine.gemms._prepared[problem].algorithm
    plain._record_graphs()
    plain.import_state(engine.export_state())
    assert train(engine, 3) == train(plain, 3)
    assert state_bytes(engine) == state_bytes(plain)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_without_training_the_numbers_are_the_same(opened, precision):
    """An engine that only evaluates and generates has the bytes of one that trains, from less memory."""
    engine = opened(SMALL, PRECISIONS[precision])
    train(engine, 3)
    using = opened(evolve(SMALL, training=False), PRECISIONS[precision])
    using.import_state({"weights": engine.export_state()["weights"]})
    rows = random_batch(evolve(SMALL, batch_size=7), seed=3)
    prompts = [[1], list(range(5)), list(range(40)), [7, 7], [299]]
    options = GenerateOptions(100, top_k=20, repetition_penalty=1.3, seed=4, stop=(3,))
    for _ in range(2):  # one does not disturb the other
        assert using.evaluate(*rows).tobytes() == engine.evaluate(*rows).tobytes()
        texts = [[row.tolist() for row in one.generate(prompts, options)] for one in (using, engine)]
        assert texts[0] == texts[1]
    assert sum(b.bytes for b in using.memory_plan()) < sum(b.bytes for b in engine.memory_plan())
    with pytest.raises(RuntimeError, match="without training"):
        using.train_step(0, *random_batch(SMALL))


def test_graphs_hold_the_tuned_algorithms(opened):
    """After tuning, graphs give the bytes of single launches: a step, an evaluation, a text."""
    engine = opened(SMALL, BF16)
    train(engine, 2)
    engine.tune()
    saved = engine.export_state()

    def numbers():
        engine.import_state(saved)
        text = engine.generate([[1, 2, 3], [4]], GenerateOptions(70, top_p=0.9, seed=3))
        rows = engine.evaluate(*random_batch(SMALL, 7)).tobytes()
        return [ids.tolist() for ids in text], rows, train(engine, 3), state_bytes(engine)

    by_graph = numbers()
    engine._close_graphs()
    assert numbers() == by_graph


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("batch_size", [4, 64])
def test_resume_is_bit_exact(opened, precision, batch_size):
    """A run cut at step 3 goes on as the uninterrupted one; with moments, or the count, left out it does not."""
    config = evolve(SMALL, batch_size=batch_size)
    whole, fresh = opened(config, PRECISIONS[precision]), opened(evolve(config, seed=9), PRECISIONS[precision])
    train(whole, 3)
    saved = whole.export_state()
    losses = train(whole, 3, first=3)
    fresh.import_state(saved)
    assert train(fresh, 3, first=3) == losses
    assert state_bytes(fresh) == state_bytes(whole)
    for broken in ("first_moments", "second_moments", "applied_updates"):
        fresh.import_state(saved | {broken: np.zeros_like(saved[broken])})
        assert train(fresh, 3, first=3) != losses


def test_state_of_another_shape_is_refused(opened):
    """A missing key, an unknown key and a wrong shape are ValueErrors and change nothing."""
    engine = opened(SMALL)
    saved, before = engine.export_state(), state_bytes(engine)
    for wrong in (
        {name: value for name, value in saved.items() if name != "weights"},
        saved | {"other": np.zeros(1)},
        saved | {"weights": saved["weights"][:-1]},
        saved | {"weights": saved["weights"].astype(np.float64)},
    ):
        with pytest.raises(ValueError, match="wants"):
            engine.import_state(wrong)
    assert state_bytes(engine) == before


@pytest.mark.parametrize("precision", PRECISIONS)
def test_update_without_finite_gradient_is_skipped(opened, precision):
    """A weight that is not a number makes the update a no-op; the loss scale halves, and the counter stays."""
    engine = opened(SMALL, PRECISIONS[precision])
    train(engine, 2)
    saved = engine.export_state()
    saved["weights"][SMALL.vocabulary * 64 + 5] = np.nan
    engine.import_state(saved)
    result = engine.train_step(2, *random_batch(SMALL))
    assert result.skipped
    assert not np.isfinite(result.grad_norm)
    after = engine.export_state()
    for name in ("weights", "first_moments", "second_moments", "applied_updates"):
        assert after[name].tobytes() == saved[name].tobytes()
    if precision == "fp16":
        assert after["loss_scale"][0] == saved["loss_scale"][0] / 2


def test_loss_scale_grows_and_is_saved(opened):
    """After a window without overflow the scale doubles; growth survives export and import."""
    precision = Precision("fp16", storage="float16", multiply="float16", loss_scale=1024.0, loss_scale_window=3)
    engine = opened(SMALL, precision)
    scales = []
    for step in range(7):
        engine.train_step(step, *random_batch(SMALL))
        scales.append(float(engine.export_state()["loss_scale"][0]))
    assert scales == [1024, 1024, 2048, 2048, 2048, 4096, 4096]
    assert engine.export_state()["loss_scale_growth"][0] == 1


@pytest.mark.parametrize("precision", PRECISIONS)
def test_evaluation_is_the_references(opened, precision):
    """Any number of rows, any length, targets that do not count: the losses of the numpy engine; nothing changes."""
    engine, reference = opened(SMALL, PRECISIONS[precision]), ReferenceEngine(SMALL, FP32)
    before = state_bytes(engine)
    wide = evolve(SMALL, batch_size=7)
    inputs, targets = random_batch(wide)
    inputs, targets = inputs[:, :19].copy(), targets[:, :19].copy()
    targets[1, 5:] = -1
    targets[2] = -1
    got, want = engine.evaluate(inputs, targets), reference.evaluate(inputs, targets)
    assert got.shape == (7,)
    assert got[2] == 0
    # The loss near ln V hardly feels the rounding of 16 bits.
    np.testing.assert_allclose(got, want, rtol=1e-5 if precision == "fp32" else 5e-3)
    assert state_bytes(engine) == before
    reference.close()


def test_probes_are_measured_around_the_update(opened):
    """A probe's two losses are those of `evaluate` before and after, and leave the step as it is."""
    engine, plain = opened(SMALL), opened(SMALL)
    probe = random_batch(evolve(SMALL, batch_size=5), seed=8)
    before = float(engine.evaluate(*probe).mean(dtype=np.float64))
    result = engine.train_step(0, *random_batch(SMALL), {"held": probe})
    after = float(engine.evaluate(*probe).mean(dtype=np.float64))
    assert result.probe_losses == {"held": (before, after)}
    assert before != after
    assert result.row_losses.tobytes() == plain.train_step(0, *random_batch(SMALL)).row_losses.tobytes()
    assert state_bytes(engine) == state_bytes(plain)


def test_greedy_text_is_the_references(opened):
    """At temperature 0 in float32 the ids are those of the numpy engine, past the end of the context too."""
    config = evolve(SMALL, model=ModelConfig(2, 2, 64, context=16), batch_size=3)
    engine, reference = opened(config), ReferenceEngine(config, FP32)
    for step in range(30):
        batch = random_batch(config, seed=0)
        engine.train_step(step, *batch)
    reference.import_state(engine.export_state())
    prompts = [[1], list(range(5)), list(range(40)), [7, 7], [299]]
    options = GenerateOptions(max_tokens=24, temperature=0)
    got, want = engine.generate(prompts, options), reference.generate(prompts, options)
    assert [row.tolist() for row in got] == [row.tolist() for row in want]
    before = state_bytes(engine)
    drawn = engine.generate(prompts, GenerateOptions(max_tokens=9, top_p=0.9, seed=3, stop=(int(got[0][2]),)))
    assert [row.tolist() for row in drawn] == [
        row.tolist()
        for row in reference.generate(prompts, GenerateOptions(9, top_p=0.9, seed=3, stop=(int(got[0][2]),)))
    ]
    assert state_bytes(engine) == before
    reference.close()


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_rows_of_text_do_not_depend_on_each_other(opened, precision):
    """A prompt gives the same ids alone and among others."""
    engine = opened(SMALL, PRECISIONS[precision])
    prompts = [[3, 4, 5], [6], list(range(30))]
    options = GenerateOptions(max_tokens=12, temperature=0)
    together = engine.generate(prompts, options)
    assert together[0].tolist() == engine.generate(prompts[:1], options)[0].tolist()
    assert together[1].tolist() == engine.generate([prompts[0], prompts[1]], options)[1].tolist()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_text_is_watched_and_numbered_on(opened, precision):
    """Watching changes no id, a true answer is a row's last, and prompts in parts are drawn as all at once.

    The rows pass the 64 ids that the card chooses between two looks of the host, and the end of the context.
    """
    engine = opened(evolve(SMALL, batch_size=2), PRECISIONS[precision])
    options = GenerateOptions(150, temperature=0.9, top_k=50, top_p=0.9, repetition_penalty=1.2, seed=4)
    prompts = [[1], [7, 7], list(range(5)), [39]]
    free = [row.tolist() for row in engine.generate(prompts, options)]
    seen = [[] for _ in prompts]
    cut = engine.generate(prompts, options, lambda row, one: seen[row].append(one) or len(seen[row]) == 3 + 40 * row)
    assert [row.tolist() for row in cut] == seen == [row[: 3 + 40 * n] for n, row in enumerate(free)]
    second = engine.generate(prompts[2:], evolve(options, first=2))
    assert [row.tolist() for row in second] == free[2:]


def test_wrong_tokens_are_refused(opened):
    """Shapes and ids that do not fit are ValueErrors before anything runs."""
    engine = opened(SMALL)
    inputs, targets = random_batch(SMALL)
    with pytest.raises(ValueError, match="a step takes"):
        engine.train_step(0, inputs[:2], targets[:2])
    for wrong in (-1, 300):
        bad = inputs.copy()
        bad[0, 3] = wrong
        with pytest.raises(ValueError, match="outside"):
            engine.train_step(0, bad, targets)
        with pytest.raises(ValueError, match="outside"):
            engine.evaluate(bad, targets)
    with pytest.raises(ValueError, match="at least one id"):
        engine.generate([[]], GenerateOptions())


def test_head_without_a_kernel_is_refused(opened):
    """A head of 48 names the sizes that exist and heads that would fit."""
    with pytest.raises(AndreaError, match="heads of 48") as error:
        opened(evolve(SMALL, model=ModelConfig(1, 2, 96)))
    assert "32, 64, 128" in error.value.message
    assert "n_head may be 3" in error.value.hint


def test_old_card_is_refused(card):
    """bf16 on a card without it names what the card can."""
    from andrea.engine.machine import check_support

    with pytest.raises(AndreaError, match=r"compute capability 8\.0") as error:
        check_support(SMALL, evolve(card, capability=(7, 5)), BF16)
    assert "fp16" in error.value.hint


def test_cap_refuses_and_names_the_batch(opened):
    """A cap on the arena refuses a batch that does not fit, and the batch it names fits."""
    config = evolve(SMALL, model=ModelConfig(2, 2, 64, context=512), batch_size=64)
    with pytest.raises(AndreaError, match="batch_size 64 needs") as error:
        opened(config, BF16, arena_limit=150 << 20)
    batch = int(error.value.hint.split()[1])
    assert 0 < batch < 64
    opened(evolve(config, batch_size=batch), BF16, arena_limit=150 << 20)


@pytest.mark.alone
def test_memory_is_what_was_planned_and_stays(opened):
    """The driver's account is within 3% of the plan, and nothing is allocated after the first step."""
    config = evolve(SMALL, model=ModelConfig(4, 4, 256, context=512), vocabulary=5000, batch_size=32)
    engine = opened(config, BF16)
    train(engine, 1)
    planned, measured = sum(b.bytes for b in engine.memory_plan()), engine.measured_memory()
    assert abs(measured - planned) < 0.03 * planned
    train(engine, 20, first=1)
    engine.generate([[1, 2]], GenerateOptions(max_tokens=3))
    assert engine.measured_memory() == measured


@pytest.mark.alone
@pytest.mark.parametrize(
    ("model", "vocabulary", "precision", "limit"),
    [(ModelConfig(6, 12, 384), 4353, "fp32", 8e9), (ModelConfig(12, 12, 768), 8449, "fp16", 12e9)],
)
def test_family_trains_under_the_promised_cap(opened, model, vocabulary, precision, limit):
    """12M in fp32 trains in 8 GB at batch 8, and 120M in fp16 in 12 GB."""
    config = EngineConfig(model, vocabulary, batch_size=8, schedule=FAST)
    engine = opened(config, PRECISIONS[precision], arena_limit=int(limit))
    losses = [engine.train_step(step, *random_batch(config)).row_losses.mean() for step in range(3)]
    assert losses[2] < losses[0]
    assert engine.measured_memory() < limit


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_thousand_repeats_are_equal(opened, precision):
    """The same step at a rate of zero, 1000 times: loss and norm always, all gradients every 100th time."""
    still = ScheduleConfig(steps=10**9, warmup_steps=0, peak=1e-60)  # 0 in float32
    config = EngineConfig(ModelConfig(1, 12, 384, context=256), 1000, batch_size=16, schedule=still)
    engine = opened(config, PRECISIONS[precision])
    batch, seen = random_batch(config), set()
    for step in range(1000):
        result = engine.train_step(step, *batch)
        gradients = b"".join(g.tobytes() for g in engine.gradients().values()) if step % 100 == 0 else b""
        seen.add((result.row_losses.tobytes(), result.grad_norm))
        if step == 0:
            first = gradients
        assert gradients in (b"", first)
    assert len(seen) == 1


def test_rate_moves_inside_the_graph(opened):
    """The rate of a step is the schedule's, and moves inside the captured graph."""
    config = evolve(SMALL, schedule=ScheduleConfig(steps=10, warmup_steps=4, peak=1e-2), optimizer=OptimizerConfig())
    engine, reference = opened(config), ReferenceEngine(config, FP32)
    for step in range(6):
        batch = random_batch(config, seed=step)
        assert engine.train_step(step, *batch).learning_rate == reference.train_step(step, *batch).learning_rate
    difference = engine.export_state()["weights"] - reference.export_state()["weights"]
    moved = reference.export_state()["weights"] - initial_weights(config.model, config.vocabulary, config.seed)
    # Adam turns rounding of a tiny gradient into a step of the full rate for single weights, so norms are compared.
    assert np.linalg.norm(difference) < 0.02 * np.linalg.norm(moved)
    reference.close()


def test_closed_engine_says_so(opened):
    """After `close` every call is an error."""
    engine = opened(SMALL)
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        engine.export_state()


def test_fingerprint_names_what_decides_bits(opened):
    """Device, compiler, kernels, algorithms are there; the algorithms differ with the shape."""
    first, second = opened(SMALL).fingerprint(), opened(SHAPES["odd"]).fingerprint()
    assert {"device", "architecture", "compiler", "kernels", "gemm", "gemm_algorithms"} <= set(first)
    assert first["kernels"] == second["kernels"]
    assert first["gemm_algorithms"] != second["gemm_algorithms"]
