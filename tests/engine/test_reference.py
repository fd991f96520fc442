"""The numpy engine: gradients of the whole model, updates, accumulation, state, and text."""

from __future__ import annotations

import math

import numpy as np
import pytest
from attrs import evolve

from andrea.engine import EngineConfig, GenerateOptions, reference, sum_losses
from andrea.engine import operations as op
from andrea.engine.model import ModelConfig, initial_weights, layout
from andrea.engine.network import Reader, add_gradients, row_losses, tensors
from andrea.engine.reference import ReferenceEngine
from andrea.engine.sampling import choose, window_start
from andrea.engine.schedule import OptimizerConfig, ScheduleConfig, learning_rate
from andrea.errors import AndreaError
from andrea.rng import Draws
from andrea.types import Precision

FP32 = Precision("fp32")
V = 11
SCHEDULE = ScheduleConfig(steps=100, warmup_steps=2, peak=1e-2)


def model(**changes):
    """Return a tiny model."""
    return ModelConfig(**{"n_layer": 2, "n_head": 2, "d_model": 8, "context": 7} | changes)


@pytest.fixture
def make():
    """Open engines and close them after the test."""
    engines = []

    def open_one(shape=None, dtype=np.float32, **changes):
        config = {"vocabulary": V, "batch_size": 4, "schedule": SCHEDULE} | changes
        engines.append(ReferenceEngine(EngineConfig(shape or model(), **config), FP32, dtype))
        return engines[-1]

    yield open_one
    for engine in engines:
        engine.close()


def rows(count, T=7, vocabulary=V, name="rows"):
    """Return repeatable inputs and targets, int32 (count, T)."""
    ids = (Draws(5, name).words(count * (T + 1)) % np.uint64(vocabulary)).astype(np.int32).reshape(count, T + 1)
    return ids[:, :-1], ids[:, 1:]


def same(a, b):
    """Say whether two states are equal, bit for bit."""
    return set(a) == set(b) and all((a[key] == b[key]).all() for key in a)


# -- the whole model -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("B", "T", "vocabulary"), [(3, 7, 11), (2, 1, 5)])
def test_model_gradient(tied, affine, B, T, vocabulary):
    """The gradient of the mean loss agrees with central differences, per tensor and along whole directions."""
    shape = model(tie_embeddings=tied, norm_affine=affine)
    inputs, targets = rows(B, T, vocabulary)
    # Weights of size 0.3, so that no part of the model is nearly linear and gammas are not 1.
    count = initial_weights(shape, vocabulary, 0).size
    weights = 0.3 * Draws(2, "weights").normal(count).astype(np.float64)
    gradient = np.zeros_like(weights)
    w, dw = tensors(weights, shape, vocabulary), tensors(gradient, shape, vocabulary)
    losses = add_gradients(inputs, targets, w, dw, shape, 1 / inputs.size)
    assert (losses == row_losses(inputs, targets, w, shape)).all()

    def mean_loss(flat):
        return row_losses(inputs, targets, tensors(flat, shape, vocabulary), shape).mean()

    parts = [slice(p.offset, p.end) for p in layout(shape, vocabulary)] + [slice(0, count)] * 3
    for number, part in enumerate(parts):
        direction = np.zeros(count)
        direction[part] = Draws(3, "direction", number).normal(count)[part]
        step = 1e-5
        measured = (mean_loss(weights + step * direction) - mean_loss(weights - step * direction)) / (2 * step)
        # h^2 = 1e-10 of the third derivative and 1e-16 / h of rounding; the absolute part is for derivatives near 0
        # (with T = 1 nothing flows to queries and keys).
        assert (gradient * direction).sum() == pytest.approx(measured, rel=1e-6, abs=1e-9)


def test_untied_loss_at_the_start(make):
    """A fresh head gives logits of about N(0, 1): the loss is ln V + 1/2."""
    engine = make(model(d_model=64, n_head=4, context=64, tie_embeddings=False), vocabulary=501)
    losses = engine.evaluate(*rows(8, 64, 501))
    # The mean over 512 positions of -logit, deviation 1 each, errs by 1/sqrt(512) = 0.044; three of them.
    assert losses.mean() == pytest.approx(math.log(501) + 0.5, abs=0.13)


def test_tied_loss_at_the_start(make):
    """A tied head first predicts its own input: that logit is about |LN(x)| |embed| = sqrt(C), the rest are N(0, 1)."""
    engine = make(model(d_model=64, n_head=4, context=64), vocabulary=501)
    losses = engine.evaluate(*rows(8, 64, 501))
    expected = math.log(501 * math.exp(0.5) + math.exp(8))
    # The length of an embedding row varies by 1/sqrt(2 C) = 9 % of 8, 0.7 a token; averaged over 500 ids, and 0.1
    # for the convexity of the logarithm and for what the blocks add.
    assert losses.mean() == pytest.approx(expected, abs=0.3)


def test_it_learns_one_batch(make):
    """Seen again and again, one batch is known by heart."""
    engine = make(model(d_model=32), schedule=ScheduleConfig(steps=200, warmup_steps=5, peak=1e-2))
    inputs, targets = rows(4)
    for step in range(120):
        result = engine.train_step(step, inputs, targets)
    assert result.row_losses.max() < 0.1


# -- updates ---------------------------------------------------------------------------------------------------------


def test_step_is_clip_and_adamw(make):
    """One step moves every tensor as AdamW does with the clipped gradient of the mean loss, decay on matrices."""
    config = OptimizerConfig(max_grad_norm=0.5, weight_decay=0.2)
    engine = make(dtype=np.float64, optimizer=config, options={"slices": 1})
    before, (inputs, targets) = engine.export_state(), rows(4)
    result = engine.train_step(1, inputs, targets)
    after = engine.export_state()

    gradient = np.zeros_like(before["weights"])
    w, dw = tensors(before["weights"], model(), V), tensors(gradient, model(), V)
    add_gradients(inputs, targets, w, dw, model(), 1 / inputs.size)
    norm = math.sqrt((gradient**2).sum())
    # Sums in another order.
    assert result.grad_norm == pytest.approx(norm, rel=1e-12)
    assert norm > 0.5
    clipped, rate = gradient * 0.5 / norm, learning_rate(SCHEDULE, 1)
    assert result.learning_rate == rate
    for p in layout(model(), V):
        part = slice(p.offset, p.end)
        kept = before["weights"][part] * (1 - rate * 0.2 * p.decay)
        move = rate * clipped[part] / (np.abs(clipped[part]) + config.epsilon)
        np.testing.assert_allclose(after["weights"][part], kept - move, rtol=1e-9, atol=1e-14)
    # The moments are those of the clipped gradient.
    np.testing.assert_allclose(after["first_moments"], 0.1 * clipped, rtol=1e-9)
    np.testing.assert_allclose(after["second_moments"], 0.001 * clipped**2, rtol=1e-9)
    assert after["applied_updates"].tolist() == [1]


def test_accumulation_is_one_large_batch(make):
    """Two micro-batches of 2 rows do what one batch of 4 does."""
    whole = make(dtype=np.float64, batch_size=4)
    halves = make(dtype=np.float64, batch_size=2, accumulation=2)
    inputs, targets = rows(4)
    for step in range(3):
        one, two = (engine.train_step(step, inputs, targets) for engine in (whole, halves))
        # Only the order of sums differs: some 1e-15 a step, which AdamW's division enlarges where a gradient is small.
        np.testing.assert_allclose(one.row_losses, two.row_losses, rtol=1e-10)
        assert one.grad_norm == pytest.approx(two.grad_norm, rel=1e-10)
    np.testing.assert_allclose(whole.export_state()["weights"], halves.export_state()["weights"], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("B", [1, 3, 4, 5])
def test_threads_never_change_the_numbers(make, B):
    """With the same slices, one worker and four give the same bits, also for rows that slices do not divide."""
    states = []
    for threads in (1, 4):
        engine = make(batch_size=B, options={"slices": 4, "threads": threads})
        for step in range(3):
            engine.train_step(step, *rows(B))
        states.append(engine.export_state())
    assert same(*states)


def test_gradients_start_at_zero_every_step(make):
    """The second step's gradient does not contain the first's: with a rate of almost 0 the norms agree."""
    engine = make(dtype=np.float64, schedule=ScheduleConfig(peak=1e-300))
    norms = [engine.train_step(step, *rows(4)).grad_norm for step in range(2)]
    assert norms[0] == norms[1]


def test_not_finite_gradient_changes_nothing(make, monkeypatch):
    """The step is skipped, says so, and leaves weights, moments and the counter as they were, bit for bit."""
    engine, undisturbed = make(), make()
    for step in (0, 1):
        engine.train_step(step, *rows(4))
        undisturbed.train_step(step, *rows(4))
    before = engine.export_state()
    backward = op.k_embed_bwd

    def broken(dx, ids, dembed, dposition):
        backward(dx, ids, dembed, dposition)
        dembed[3, 1] = np.inf

    with monkeypatch.context() as patch:
        patch.setattr(op, "k_embed_bwd", broken)
        result = engine.train_step(2, *rows(4))
    assert result.skipped
    assert not math.isfinite(result.grad_norm)
    assert np.isfinite(result.row_losses).all()
    assert same(engine.export_state(), before)
    # The rate follows the step, the bias correction the applied updates; nothing of the bad gradient is left.
    one, two = engine.train_step(3, *rows(4)), undisturbed.train_step(3, *rows(4))
    assert not one.skipped
    assert same(engine.export_state(), undisturbed.export_state())
    assert one.grad_norm == two.grad_norm


def test_probes_are_measured_around_the_update(make):
    """A probe's first loss is that of the weights before the step, its second that of the weights after it."""
    engine = make()
    probe = rows(3, name="probe")
    before = float(engine.evaluate(*probe).mean(dtype=np.float64))
    result = engine.train_step(1, *rows(4), probes={"held": probe})
    after = float(engine.evaluate(*probe).mean(dtype=np.float64))
    assert result.probe_losses == {"held": (before, after)}
    assert before != after


# -- looking ---------------------------------------------------------------------------------------------------------


def test_evaluate_and_generate_change_nothing(make):
    """The state is the same after both, and the next step too."""
    engine, other = make(), make()
    engine.train_step(0, *rows(4))
    other.train_step(0, *rows(4))
    before = engine.export_state()
    engine.evaluate(*rows(3))
    engine.generate([[1, 2]], GenerateOptions(max_tokens=9))
    assert same(engine.export_state(), before)
    engine.train_step(1, *rows(4))
    other.train_step(1, *rows(4))
    assert same(engine.export_state(), other.export_state())


@pytest.mark.parametrize(("count", "T"), [(1, 1), (5, 7), (9, 3), (0, 7)])
def test_evaluate_any_shape(make, count, T):
    """Any number of rows, any length; each row's loss is that of the row alone."""
    engine = make(dtype=np.float64)
    inputs, targets = rows(count, T)
    losses = engine.evaluate(inputs, targets)
    assert losses.shape == (count,)
    for i in range(count):
        alone = engine.evaluate(inputs[i : i + 1], targets[i : i + 1])
        # Matrix products of other shapes sum in another order.
        assert losses[i] == pytest.approx(alone[0], rel=1e-12)


def test_evaluate_counts_valid_targets_only(make):
    """A row padded with -1 has the loss of the row without padding."""
    engine = make(dtype=np.float64)
    inputs, targets = rows(2)
    short = engine.evaluate(inputs[:, :4], targets[:, :4])
    targets = targets.copy()
    targets[:, 4:] = -1
    # Matrix products of other shapes sum in another order.
    np.testing.assert_allclose(engine.evaluate(inputs, targets), short, rtol=1e-12)


def naive_generate(state, shape, prompt, row, options):
    """Generate without a cache: the whole window is read again for every id."""
    w = tensors(state["weights"], shape, V)
    ids = list(prompt)
    draws = Draws(options.seed, "generate", row)
    for _ in range(options.max_tokens):
        window = np.array(ids[window_start(len(ids), shape.context) :])
        logits = Reader.empty(w, shape).restart(window)
        ids.append(choose(logits, options, ids, float(draws.uniform(1)[0])))
    return ids[len(prompt) :]


@pytest.mark.parametrize("context", [1, 2, 7])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generate_with_cache_is_generate_without(make, context, temperature):
    """Keys and values kept from before give the ids that a full recomputation gives, past the end of the context."""
    shape = model(context=context)
    engine = make(shape)
    prompts = [[3], [1, 2, 3], [4] * 9]
    options = GenerateOptions(max_tokens=20, temperature=temperature, seed=4)
    texts = engine.generate(prompts, options)
    for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        assert text.dtype == np.int32
        assert text.tolist() == naive_generate(engine.export_state(), shape, prompt, row, options)


def test_reading_one_by_one_is_reading_at_once():
    """The logits after each id are those that the whole model computes for that position."""
    shape = model()
    w = tensors(initial_weights(shape, V, 0).astype(np.float64), shape, V)
    ids = rows(1)[0][0]
    reader = Reader.empty(w, shape)
    step = [reader.restart(ids[:2]), *[reader.read(int(token)) for token in ids[2:]]]
    for end, logits in enumerate(step, start=2):
        # A vector product instead of a matrix product: another order of sums.
        np.testing.assert_allclose(logits, Reader.empty(w, shape).restart(ids[:end]), rtol=1e-10, atol=1e-13)


def test_generated_rows_are_independent(make):
    """A row's text does not change with what else is generated, bit for bit; another row number draws anew."""
    engine = make()
    options = GenerateOptions(max_tokens=15, seed=2)
    alone = engine.generate([[1, 2]], options)[0]
    among = engine.generate([[1, 2], [5], [1, 2]], options)
    assert (among[0] == alone).all()
    assert (among[2] != alone).any()


def test_generate_stops_at_a_stop_id(make):
    """The row ends with the first stop id, which is kept."""
    engine = make()
    free = engine.generate([[1, 2]], GenerateOptions(max_tokens=30, seed=1))[0].tolist()
    stop = free[12]
    cut = engine.generate([[1, 2]], GenerateOptions(max_tokens=30, seed=1, stop=(stop,)))[0].tolist()
    assert cut == free[: free.index(stop) + 1]


def test_a_watcher_sees_every_id_and_may_end_a_row(make):
    """Watching changes no id; of each row all ids are told in order; a true answer makes one the row's last."""
    engine, options = make(), GenerateOptions(max_tokens=12, seed=3)
    prompts = [[1, 2], [5], [7, 7]]
    free = [row.tolist() for row in engine.generate(prompts, options)]
    seen = [[], [], []]
    engine.generate(prompts, options, lambda row, one: seen[row].append(one))
    assert seen == free

    last = []
    cut = engine.generate(prompts, options, lambda row, one: row == 1 and (last.append(one) or len(last) == 4))
    assert [row.tolist() for row in cut] == [free[0], free[1][:4], free[2]]


def test_prompts_in_parts_are_drawn_as_all_at_once(make):
    """`first` numbers the rows on: two halves give the rows of the whole."""
    engine, options = make(), GenerateOptions(max_tokens=9, seed=2)
    whole = engine.generate([[1]] * 4, options)
    halves = [*engine.generate([[1]] * 2, options), *engine.generate([[1]] * 2, evolve(options, first=2))]
    assert [row.tolist() for row in halves] == [row.tolist() for row in whole]
    assert len({tuple(row.tolist()) for row in whole}) == 4


@pytest.mark.parametrize("prompt", [[], [V], [-1]])
def test_generate_refuses_bad_prompts(make, prompt):
    """Empty prompts and unknown ids are errors, not wrapped indices."""
    with pytest.raises(ValueError, match="at least one id"):
        make().generate([prompt], GenerateOptions())


# -- state -----------------------------------------------------------------------------------------------------------


def test_export_import_continues_exactly(make):
    """An engine that takes over the state goes on as the first would have, bit for bit, also after a skipped step."""
    engine = make(accumulation=2)
    for step in range(3):
        engine.train_step(step, *rows(8, name=f"step{step}"))
    state = engine.export_state()
    other = make(accumulation=2, seed=77)
    other.import_state(state)
    for step in range(3, 6):
        one = engine.train_step(step, *rows(8, name=f"step{step}"))
        two = other.train_step(step, *rows(8, name=f"step{step}"))
        assert (one.row_losses == two.row_losses).all()
        assert one.grad_norm == two.grad_norm
    assert same(engine.export_state(), other.export_state())


def test_a_broken_resume_differs(make):
    """Leaving the moments or the counter out shows: the test above can fail."""
    engine = make()
    for step in range(3):
        engine.train_step(step, *rows(4))
    state = engine.export_state()
    engine.train_step(3, *rows(4))
    for key in ("first_moments", "second_moments", "applied_updates"):
        other = make()
        other.import_state(state | {key: np.zeros_like(state[key]) + (key == "applied_updates")})
        other.train_step(3, *rows(4))
        assert not same(engine.export_state(), other.export_state())


def test_exported_state_is_a_copy(make):
    """What was exported does not move with the engine."""
    engine = make()
    state = engine.export_state()
    kept = {key: value.copy() for key, value in state.items()}
    engine.train_step(0, *rows(4))
    assert same(state, kept)
    assert {key: str(value.dtype) for key, value in state.items()} == {
        "weights": "float32",
        "first_moments": "float32",
        "second_moments": "float32",
        "applied_updates": "int64",
    }


def test_import_is_strict(make):
    """A missing or further key, a wrong shape or type is refused, and nothing has moved."""
    engine = make()
    state = engine.export_state()
    wrong = [
        {key: value for key, value in state.items() if key != "weights"},
        state | {"more": np.zeros(1)},
        state | {"weights": state["weights"][:-1]},
        state | {"second_moments": state["second_moments"].astype(np.float64)},
        state | {"first_moments": state["first_moments"] + 1, "applied_updates": np.zeros(2, np.int64)},
    ]
    for bad in wrong:
        with pytest.raises(ValueError, match="this engine wants"):
            engine.import_state(bad)
    assert same(engine.export_state(), state)


def test_fresh_engine_has_the_initial_weights(make):
    """Weights are those of the seed, moments and counter are zero."""
    state = make(seed=9).export_state()
    assert (state["weights"] == initial_weights(model(), V, 9)).all()
    assert not state["first_moments"].any()
    assert not state["second_moments"].any()
    assert state["applied_updates"].tolist() == [0]


# -- borders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (np.zeros((3, 7), int), np.zeros((3, 7), int), "has 4 rows, not 3"),
        (np.zeros((4, 8), int), np.zeros((4, 8), int), "at most 7"),
        (np.zeros((4, 7), int), np.zeros((4, 6), int), "must be"),
        (np.full((4, 7), V), np.zeros((4, 7), int), "inputs has ids outside"),
        (np.zeros((4, 7), int), np.full((4, 7), -1), "targets has ids outside"),
    ],
)
def test_train_step_refuses_bad_rows(make, inputs, targets, message):
    """Shapes and ids are checked before anything is computed."""
    with pytest.raises(ValueError, match=message):
        make().train_step(0, inputs.astype(np.int32), targets.astype(np.int32))


@pytest.mark.parametrize("precision", [Precision("bf16", "bfloat16", "bfloat16"), Precision("tf32", multiply="tf32")])
def test_other_precisions_need_a_card(precision):
    """The error says what was asked and what to take."""
    with pytest.raises(AndreaError, match=f"precision {precision.name} needs a CUDA card") as caught:
        ReferenceEngine(EngineConfig(model(), V), precision)
    assert "precision.fp32" in caught.value.hint


WRONG = [
    ("attention", "cudn", "did you mean cudnn? it may be auto, mma, hopper, cudnn"),
    ("attention", "flash", "it may be auto, mma, hopper, cudnn"),
    ("gemm", "magic", "it may be auto, cublaslt, own"),
    ("graph", 1, "it may be true, false"),
    ("overlap", 1, "it may be true, false"),
    ("overlap", "yes", "it may be true, false"),
    ("fused_gelu", None, "it may be true, false"),
    ("slices", 0, "it may be a whole number from 1"),
    ("threads", "two", "it may be a whole number from 1"),
    ("arena_limit", True, "it may be a whole number from 1"),
]


@pytest.mark.parametrize(("name", "value", "hint"), WRONG)
def test_values_of_options_are_checked(name, value, hint):
    """Of either engine, wherever it is to run: before there is one."""
    with pytest.raises(AndreaError, match=rf"engine\.{name} is {value!r}") as caught:
        EngineConfig(model(), V, options={name: value})
    assert caught.value.hint == hint


def test_closed_engine_refuses(make):
    """After close every call is an error, and a second close is none."""
    engine = make()
    engine.close()
    engine.close()
    for call in (lambda: engine.train_step(0, *rows(4)), lambda: engine.evaluate(*rows(1)), engine.export_state):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_memory_plan_counts_what_is_held(make):
    """Weights, moments and gradient buffers have their real sizes."""
    engine = make(options={"slices": 2})
    plan = {buffer.name: buffer for buffer in engine.memory_plan()}
    size = initial_weights(model(), V, 0).nbytes
    assert plan["weights"].bytes == plan["first_moments"].bytes == plan["second_moments"].bytes == size
    assert plan["gradients"].bytes == 2 * size
    assert all(buffer.bytes == 4 * math.prod(buffer.shape) for buffer in plan.values())


def test_without_training_only_weights_are_held(make):
    """No moments and gradients, the same losses and texts, and no step."""
    engine = make(options={"slices": 2})
    using = make(options={"slices": 2}, training=False)
    assert not using.export_state()["weights"].any()
    using.import_state({"weights": engine.export_state()["weights"]})
    inputs, targets = rows(5)
    assert using.evaluate(inputs, targets).tobytes() == engine.evaluate(inputs, targets).tobytes()
    options = GenerateOptions(9, seed=1)
    assert using.generate([[1, 2]], options)[0].tolist() == engine.generate([[1, 2]], options)[0].tolist()
    assert set(using.export_state()) == {"weights"}
    with pytest.raises(RuntimeError, match="without training"):
        using.train_step(0, *rows(4))
    with pytest.raises(ValueError, match="wants"):
        using.import_state(engine.export_state())
    plan = {buffer.name for buffer in using.memory_plan()}
    assert not plan & {"first_moments", "second_moments", "gradients"}
    held = [value for value in vars(using).values() if isinstance(value, np.ndarray)]
    assert sum(array.nbytes for array in held) == engine.export_state()["weights"].nbytes


def test_fingerprint_names_the_libraries(make):
    """What the bits depend on is there; how many workers there are is not, since nothing depends on it."""
    one, two = (make(options={"threads": threads}).fingerprint() for threads in (1, 2))
    assert one == two
    assert one["device"] == "cpu"
    assert one["numpy"] == np.__version__
    assert one["slices"] == "4"
    assert make(options={"slices": 2}).fingerprint() != one


def test_blas_is_given_back(make):
    """The process's BLAS threads are as before, after a step."""
    threads = [one["num_threads"] for one in reference._controller().info()]
    make().train_step(0, *rows(4))
    assert [one["num_threads"] for one in reference._controller().info()] == threads


def test_an_unknown_switch_is_refused_with_the_nearest():
    """A misspelt option is answered; those of the CUDA engine are accepted, so that one experiment fits both."""
    model = ModelConfig(1, 1, 4, 8)
    with pytest.raises(AndreaError, match="the engine has no option slicez") as caught:
        EngineConfig(model, 16, options={"slicez": 9})
    assert "slices" in caught.value.hint
    ReferenceEngine(EngineConfig(model, 16, options={"graph": False, "gemm": "own"}), Precision("fp32")).close()


def test_a_probe_is_a_mean_over_tokens():
    """A row that is mostly padding counts by its targets, as in an evaluation."""
    engine = ReferenceEngine(EngineConfig(ModelConfig(1, 1, 4, 8), 16, batch_size=2), Precision("fp32"))
    rng = np.random.default_rng(0)
    inputs, targets = rng.integers(0, 16, (2, 2, 8)).astype(np.int32)
    padded = targets.copy()
    padded[1, 1:] = -1
    rows = engine.evaluate(inputs, padded).astype(np.float64)
    before, _ = engine.train_step(0, inputs, targets, {"one": (inputs, padded)}).probe_losses["one"]

    assert before == (rows[0] * 8 + rows[1]) / 9
    assert before != rows.mean()
    assert sum_losses(rows, padded) == (rows[0] * 8 + rows[1], 9)
    engine.close()
