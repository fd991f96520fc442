"""Every element-wise kernel against its numpy twin in float64, on inputs as the card holds them.

Outputs are poisoned with NaN before each launch. Axis letters as in the twins.
"""

from __future__ import annotations

import numpy as np
import pytest

from andrea.engine import launcher
from andrea.engine import operations as op
from andrea.engine.elementwise import FILES, STATE, Elementwise, Tensor, chunk_table, initial_state, sorted_positions

SHAPES = [(1, 1, 5), (2, 7, 48), (3, 33, 50), (2, 65, 384), (4, 64, 768), (1, 37, 1536), (1, 3, 9000)]


class Bench:
    """A card, a precision, its kernels, and arrays that are random as far as the storage type can hold them."""

    def __init__(self, card, precision, conversions, macros=None):
        self.card, self.precision = card, precision
        self.to, self.back = conversions
        self.type = precision.storage
        self.random = np.random.Generator(np.random.PCG64(1234))
        macros = dict(precision.macros) | (macros or {})
        self.launch = Elementwise(card.kernels(FILES, macros), precision.storage)

    def draw(self, *shape, scale=1.0, shift=0):
        """Return (address, float64 values) of random numbers in the storage type."""
        raw = self.to(self.random.standard_normal(shape) * scale, self.type)
        return self.card.put(raw, shift), self.back(raw)

    def draw_float(self, *shape, scale=1.0):
        """Return (address, float64 values) of random float32."""
        raw = (self.random.standard_normal(shape) * scale).astype(np.float32)
        return self.card.put(raw), raw.astype(np.float64)

    def room(self, *shape, dtype=None):
        """Return the address of a poisoned array."""
        width = {"float32": 4, "int32": 4}.get(dtype or self.type, 2)
        return self.card.room(int(np.prod(shape)) * width)

    def read(self, address, *shape, dtype=None):
        """Return what stands at an address."""
        return self.card.get(address, shape, dtype or self.type)


@pytest.fixture
def bench(card, precision, storage):
    """Give the kernels of one precision."""
    return Bench(card, precision, storage)


@pytest.fixture
def bench_float(card, storage):
    """Give the kernels in float32, for what is float32 in every precision."""
    from andrea import Precision

    return Bench(card, Precision("fp32"), storage)


# -- lookup ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("B", "T", "C"), SHAPES)
def test_embed_fwd(bench, close, B, T, C):
    """The sum of token and position rows, for any width, with positions that begin anew in each row."""
    V = 37
    embed, embed_VC = bench.draw(V, C)
    position, position_TC = bench.draw(T, C)
    ids_BT = bench.random.integers(0, V, (B, T), dtype=np.int32)
    x = bench.room(B, T, C)
    bench.launch.embed_fwd(bench.card.put(ids_BT), embed, position, x, B * T, T, C)
    close(bench.read(x, B, T, C), op.k_embed_fwd(ids_BT, embed_VC, position_TC), bench.precision.name)


@pytest.mark.parametrize("kind", ["natural", "one", "distinct"])
@pytest.mark.parametrize(("B", "T", "C"), [*SHAPES, (3, 257, 48), (2, 64, 48), (5, 128, 50)])
def test_embed_bwd(bench, close, B, T, C, kind):
    """Gradients are added to what is there; runs of one token may cross any number of chunks."""
    V = max(40, B * T)
    ids_BT = {
        "natural": np.minimum(bench.random.geometric(0.12, (B, T)) - 1, V - 1),
        "one": np.full((B, T), 7),
        "distinct": bench.random.permutation(V)[: B * T].reshape(B, T),
    }[kind].astype(np.int32)
    dx, dx_BTC = bench.draw(B, T, C)
    dembed, dembed_VC = bench.draw_float(V, C)
    dposition, dposition_TC = bench.draw_float(T, C)
    partials = bench.room(bench.launch.embed_partials(B * T, C), dtype="float32")
    order = bench.card.put(sorted_positions(ids_BT))
    bench.launch.embed_bwd(dx, bench.card.put(ids_BT), order, dembed, dposition, partials, B, T, C)
    op.k_embed_bwd(dx_BTC, ids_BT, dembed_VC, dposition_TC)
    close(bench.read(dembed, V, C, dtype="float32"), dembed_VC, "fp32")
    close(bench.read(dposition, T, C, dtype="float32"), dposition_TC, "fp32")


# -- layer norm ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("B", "T", "C"), SHAPES)
def test_layernorm_fwd(bench, close, B, T, C, affine):
    """Output, mean and reciprocal deviation, with and without parameters, of rows that are not centred."""
    x, x_BTC = bench.draw(B, T, C, scale=2.0)
    gamma, gamma_C = bench.draw_float(C)
    beta, beta_C = bench.draw_float(C)
    y, mean, rstd = bench.room(B, T, C), bench.room(B, T, dtype="float32"), bench.room(B, T, dtype="float32")
    bench.launch.layernorm_fwd(x, gamma * affine, beta * affine, y, mean, rstd, B * T, C)
    expected = op.k_layernorm_fwd(x_BTC, *((gamma_C, beta_C) if affine else (None, None)))
    close(bench.read(y, B, T, C), expected[0], bench.precision.name)
    # The mean of values around 0 is small against them: its error is measured against theirs.
    assert np.abs(bench.read(mean, B, T, dtype="float32") - expected[1]).max() <= 1e-5 * np.sqrt(np.mean(x_BTC**2))
    close(bench.read(rstd, B, T, dtype="float32"), expected[2], "fp32")


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(("B", "T", "C"), SHAPES)
def test_residual_layernorm_fwd(bench, close, B, T, C, in_place):
    """The new residual stream and its norm; the stream may be updated where it lies."""
    x, x_BTC = bench.draw(B, T, C)
    branch, branch_BTC = bench.draw(B, T, C)
    gamma, gamma_C = bench.draw_float(C)
    beta, beta_C = bench.draw_float(C)
    total = x if in_place else bench.room(B, T, C)
    y, mean, rstd = bench.room(B, T, C), bench.room(B, T, dtype="float32"), bench.room(B, T, dtype="float32")
    bench.launch.residual_layernorm_fwd(x, branch, gamma, beta, total, y, mean, rstd, B * T, C)
    total_BTC = op.k_residual_add(x_BTC, branch_BTC)
    close(bench.read(total, B, T, C), total_BTC, bench.precision.name)
    stored_BTC = bench.back(bench.read(total, B, T, C))
    close(bench.read(y, B, T, C), op.k_layernorm_fwd(stored_BTC, gamma_C, beta_C)[0], bench.precision.name)
    close(bench.read(rstd, B, T, dtype="float32"), op.k_layernorm_fwd(stored_BTC, None, None)[2], "fp32")


@pytest.mark.parametrize("skip", ["none", "apart", "in place"])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("B", "T", "C"), [*SHAPES, (2, 1300, 48), (1, 2113, 384), (3, 1057, 768), (1, 1061, 4096)])
def test_layernorm_bwd(bench, close, B, T, C, affine, skip):
    """The input's gradient on top of what skipped the branch, and parameter gradients added to what is there."""
    N = B * T
    x, x_BTC = bench.draw(B, T, C)
    dy, dy_BTC = bench.draw(B, T, C)
    dskip, dskip_BTC = bench.draw(B, T, C)
    gamma, gamma_C = bench.draw_float(C)
    gradients, gradients_2C = bench.draw_float(2, C)
    _, mean_BT, rstd_BT = op.k_layernorm_fwd(x_BTC, None, None)
    mean, rstd = (bench.card.put(a.astype(np.float32)) for a in (mean_BT, rstd_BT))
    dx = dskip if skip == "in place" else bench.room(N, C)
    shares = bench.room(bench.launch.norm_partials(N, C), dtype="float32")
    bench.launch.layernorm_bwd(dy, x, mean, rstd, gamma * affine, dskip * (skip != "none"), dx, shares * affine, N, C)
    if affine:
        bench.launch.layernorm_bwd_final(shares, gradients, bench.card.put(np.array([0, C], np.int64)), 1, N, C)
    before = gradients_2C.copy()
    parameters = (gamma_C, *gradients_2C) if affine else (None, None, None)
    expected_BTC = op.k_layernorm_bwd(dy_BTC, x_BTC, mean_BT, rstd_BT, *parameters)
    if skip != "none":
        expected_BTC = op.k_residual_add_bwd(expected_BTC, dskip_BTC)
    close(bench.read(dx, B, T, C), expected_BTC, bench.precision.name)
    for got_C, wanted_C in zip(bench.read(gradients, 2, C, dtype="float32"), gradients_2C, strict=True):
        close(got_C, wanted_C, "fp32")
    assert affine != np.array_equal(before, gradients_2C)


@pytest.mark.parametrize("C", [5, 48, 768])
def test_layernorm_bwd_final(bench_float, close, C):
    """The shares of several norms go where their gradients begin and nowhere else, as if each had its own launch."""
    bench, norms, N = bench_float, 3, 5000
    shares, shares_nb2C = bench.draw_float(norms, bench.launch.norm_shares(N), 2, C)
    gradients, gradients_P = bench.draw_float(6 * C + 9)
    places = np.array([[5 * C + 9, 0], [C, 2 * C + 4], [4 * C + 4, 3 * C + 4]], dtype=np.int64)
    apart = bench.card.put(bench.read(gradients, 6 * C + 9, dtype="float32"))
    bench.launch.layernorm_bwd_final(shares, gradients, bench.card.put(places), norms, N, C)
    for place, total_C in zip(places.reshape(-1), shares_nb2C.sum(axis=1).reshape(-1, C), strict=True):
        gradients_P[place : place + C] += total_C
    got = bench.read(gradients, 6 * C + 9, dtype="float32")
    close(got, gradients_P, "fp32")
    for norm in range(norms):
        mine = shares + 4 * norm * bench.launch.norm_partials(N, C)
        bench.launch.layernorm_bwd_final(mine, apart, bench.card.put(places[norm]), 1, N, C)
    assert bench.read(apart, 6 * C + 9, dtype="float32").tobytes() == got.tobytes()


# -- residual, GELU, zeros -------------------------------------------------------------------------------------------

COUNTS = [1, 7, 1024, 8191, 8192, 50_003]


@pytest.mark.parametrize("shift", [0, 4])
@pytest.mark.parametrize("n", COUNTS)
def test_residual_add_and_bwd(bench, close, n, shift):
    """Sums of streams and of gradients; addresses that are not multiples of 16 bytes take the plain path."""
    x, x_n = bench.draw(n, shift=shift)
    branch, branch_n = bench.draw(n)
    for launch, twin in (
        (bench.launch.residual_add, op.k_residual_add),
        (bench.launch.residual_add_bwd, op.k_residual_add_bwd),
    ):
        out = bench.room(n)
        launch(x, branch, out, n)
        close(bench.read(out, n), twin(x_n, branch_n), bench.precision.name)


@pytest.mark.parametrize("shift", [0, 4])
@pytest.mark.parametrize("n", COUNTS)
def test_gelu_fwd_and_bwd(bench, close, n, shift):
    """The tanh form and its slope, over the range that activations have, far tails included."""
    pre, pre_n = bench.draw(n, scale=3.0, shift=shift)
    dact, dact_n = bench.draw(n)
    act_n, slope_n = op._gelu_and_slope(pre_n)
    out = bench.room(n)
    bench.launch.gelu_fwd(pre, out, n)
    close(bench.read(out, n), act_n, bench.precision.name)
    bench.launch.gelu_bwd(dact, pre, dact, n)
    close(bench.read(dact, n), dact_n * slope_n, bench.precision.name)


def test_gelu_of_extreme_values(bench):
    """Very large values pass, very negative ones vanish, and the slope there is 1 and 0, never NaN."""
    values = np.array([60.0, -60.0, 1e4, -1e4, 0.0])
    pre, ones, out = (
        bench.card.put(bench.to(values, bench.type)),
        bench.card.put(bench.to(values * 0 + 1, bench.type)),
        0,
    )
    out = bench.room(5)
    bench.launch.gelu_fwd(pre, out, 5)
    stored = bench.back(bench.to(values, bench.type))
    # tf32 rounds what a matrix product will read to 11 bits.
    assert np.allclose(bench.back(bench.read(out, 5)), np.maximum(stored, 0), rtol=1e-3, atol=0)
    bench.launch.gelu_bwd(ones, pre, ones, 5)
    assert np.array_equal(bench.back(bench.read(ones, 5)), [1, 0, 1, 0, 0.5])


@pytest.mark.parametrize(("size", "shift"), [(1, 0), (16_384, 0), (16_384, 3), (100_001, 0)])
def test_zero_fills_exactly_what_it_is_told(bench_float, size, shift):
    """Every byte of the range is 0, and the byte before and after is not touched."""
    address = bench_float.card.room(size + shift + 17)
    bench_float.launch.zero(address + shift + 1, size)
    found = bench_float.card.get(address, (size + shift + 17,), "uint8")
    assert not found[shift + 1 : shift + 1 + size].any()
    assert (found[: shift + 1] == 0xFF).all()
    assert (found[shift + 1 + size :] == 0xFF).all()


# -- loss ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("B", "T", "V", "stride"),
    [(1, 1, 2, 2), (2, 5, 17, 17), (3, 7, 257, 384), (2, 33, 4353, 4480), (2, 17, 8449, 8576), (1, 3, 50257, 50304)],
)
def test_loss_and_gradient_in_place(bench, close, B, T, V, stride):
    """Losses, means of rows over valid targets, and logits that became their gradient; padding has none."""
    N, share = B * T, 1 / (B * T)
    logits, padded_NV = bench.draw(N, stride)
    logits_BTV = padded_NV[:, :V].reshape(B, T, V).copy()
    targets_BT = bench.random.integers(0, V, (B, T), dtype=np.int32)
    if N > 1:
        targets_BT[0, T // 2], targets_BT[-1, -1] = -1, V - 1
    targets = bench.card.put(targets_BT)
    only, both, rows = (bench.room(size, dtype="float32") for size in (N, N, B))
    scale = bench.card.put(np.array([bench.precision.loss_scale], dtype=np.float32))
    bench.launch.loss_fwd(logits, targets, only, N, V, stride)
    untouched = bench.back(bench.read(logits, N, stride))
    bench.launch.loss_bwd(logits, targets, both, scale, share, N, V, stride)
    bench.launch.loss_rows(both, targets, rows, B, T)

    row_losses_B, lse_BT = op.k_loss_fwd(logits_BTV, targets_BT)
    picked_BT = np.take_along_axis(logits_BTV, np.maximum(targets_BT, 0)[..., None], axis=-1)[..., 0]
    losses_BT = np.where(targets_BT >= 0, lse_BT - picked_BT, 0)
    gradient = op.k_loss_bwd(logits_BTV, targets_BT, lse_BT, bench.precision.loss_scale * share)
    assert np.array_equal(untouched, padded_NV), "the forward alone must not touch the logits"
    close(bench.read(only, B, T, dtype="float32"), losses_BT, "fp32")
    assert np.array_equal(bench.read(only, N, dtype="float32"), bench.read(both, N, dtype="float32"))
    close(bench.read(rows, B, dtype="float32"), row_losses_B, "fp32")
    found = bench.back(bench.read(logits, N, stride))
    close(found[:, :V], gradient.reshape(N, V), bench.precision.name)
    assert not found[:, V:].any()
    assert not found[targets_BT.reshape(-1) < 0].any()


def test_loss_of_a_row_without_valid_targets_is_zero(bench):
    """All targets -1: losses, mean and gradient are exactly 0."""
    logits, _ = bench.draw(4, 64)
    targets = bench.card.put(np.full(4, -1, dtype=np.int32))
    losses, rows = bench.room(4, dtype="float32"), bench.room(2, dtype="float32")
    scale = bench.card.put(np.ones(1, dtype=np.float32))
    bench.launch.loss_bwd(logits, targets, losses, scale, 1.0, 4, 50, 64)
    bench.launch.loss_rows(losses, targets, rows, 2, 2)
    assert not bench.read(losses, 4, dtype="float32").any()
    assert not bench.read(rows, 2, dtype="float32").any()
    assert not bench.back(bench.read(logits, 4, 64)).any()


def test_a_logit_that_is_not_finite_gives_a_loss_that_is_not(bench):
    """NaN and infinity among the logits reach the loss: an overflow must not go unseen."""
    values = bench.random.standard_normal((2, 300))
    values[0, 5], values[1, 299] = np.nan, np.inf
    logits = bench.card.put(bench.to(values, bench.type))
    losses = bench.card.put(np.zeros(2, dtype=np.float32))
    bench.launch.loss_fwd(logits, bench.card.put(np.array([1, 2], dtype=np.int32)), losses, 2, 300, 300)
    assert not np.isfinite(bench.read(losses, 2, dtype="float32")).any()


# -- clipping and update ---------------------------------------------------------------------------------------------


def read_state(bench, address):
    return bench.card.get(address, (STATE.itemsize,), "uint8").view(STATE)[0]


@pytest.mark.parametrize("max_norm", [1.0, 0.0, 1e9])
@pytest.mark.parametrize("n", [1, 8191, 8192, 300_001])
def test_grad_norm_and_scale(bench_float, close, n, max_norm):
    """Norm and clipping see gradients without the loss scale; the state says what the update must multiply by."""
    bench, loss_scale = bench_float, 256.0
    gradients, gradients_P = bench.draw_float(n, scale=3.0 * loss_scale)
    state = bench.card.put(initial_state(loss_scale))
    partials = bench.room(bench.launch.norm_sums(n), dtype="float32")
    bench.launch.grad_norm(gradients, partials, state, n, max_norm, 0.9, 0.999)
    bench.launch.grad_scale(gradients, state, n)
    found = read_state(bench, state)
    norm = op.k_grad_norm_final(op.k_grad_norm_partial(gradients_P / loss_scale))
    assert found["grad_norm"] == pytest.approx(norm, rel=1e-5)  # float32 sums of 8,192 squares
    assert (found["skipped"], found["skips"], found["applied"]) == (0, 0, 1)
    assert found["correction1"] == pytest.approx(1 / (1 - 0.9), rel=1e-6)  # one rounding to float32
    assert found["correction2"] == pytest.approx((1 - 0.999) ** -0.5, rel=1e-6)
    op.k_grad_scale(gradients_P, op.clip_scale(norm, max_norm) / loss_scale)
    close(bench.read(gradients, n, dtype="float32"), gradients_P, "fp32")


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 8192, 20_000])
def test_one_gradient_that_is_not_finite_skips_the_update(bench_float, place, poison):
    """Nothing moves: not weights, moments, copies or counters; the state says skipped."""
    bench, n = bench_float, 20_001
    values = bench.random.standard_normal(n).astype(np.float32)
    values[place] = poison
    arrays = [bench.draw_float(n) for _ in range(4)]
    (weights, _), (first, _), (second, _), (copies, _) = arrays
    state, rate = bench.card.put(initial_state()), bench.card.put(np.array([0.1], dtype=np.float32))
    gradients, table = bench.card.put(values), chunk_table([Tensor(0, 0, n, True, copy=0)])
    chunks = bench.card.put(table)
    partials = bench.room(bench.launch.norm_sums(n), dtype="float32")
    bench.launch.grad_norm(gradients, partials, state, n, 1.0, 0.9, 0.999)
    bench.launch.adamw(chunks, len(table), weights, gradients, first, second, copies, state, rate, **ADAM)
    found = read_state(bench, state)
    assert (found["skipped"], found["skips"], found["applied"]) == (1, 1, 0)
    assert not np.isfinite(found["grad_norm"])
    for address, before in arrays:
        assert np.array_equal(bench.read(address, n, dtype="float32"), before)


ADAM = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.1}


def test_adamw_over_tensors_of_every_kind(bench, close):
    """Five updates of matrices, norms, odd sizes and interleaved copies, all in one launch each, as the twin does."""
    C, V = 48, 101
    sizes = {"embed": V * C, "gamma": 51, "odd": 4097, "w_q": C * C, "w_k": C * C}
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist()[:-1], strict=True))
    P, padding = sum(sizes.values()), 128 * C
    table = chunk_table(
        [
            Tensor(starts["embed"], starts["embed"], sizes["embed"], True, copy=0),
            Tensor(starts["gamma"], starts["gamma"], sizes["gamma"], False),
            Tensor(starts["odd"], starts["odd"], sizes["odd"], True, copy=padding),
            Tensor(starts["w_q"], starts["w_q"], C * C, True, copy=padding + 4100, row=C, stride=2 * C),
            Tensor(starts["w_k"], starts["w_k"], C * C, True, copy=padding + 4100 + C, row=C, stride=2 * C),
        ]
    )
    decays = np.ones(P)
    decays[starts["gamma"] : starts["odd"]] = 0
    weights, weights_P = bench.draw_float(P)
    first_P, second_P = np.zeros(P), np.zeros(P)
    first, second = bench.card.put(first_P.astype(np.float32)), bench.card.put(second_P.astype(np.float32))
    size = padding + 4100 + 2 * C * C
    copies = bench.card.put(bench.to(np.zeros(size), bench.type))
    state, rate = bench.card.put(initial_state()), bench.card.put(np.array([0.01], dtype=np.float32))
    chunks, partials = bench.card.put(table), bench.room(bench.launch.norm_sums(P), dtype="float32")
    for update in range(1, 6):
        gradients, gradients_P = bench.draw_float(P, scale=10.0**-update)
        bench.launch.grad_norm(gradients, partials, state, P, 1.0, ADAM["beta1"], ADAM["beta2"])
        bench.launch.adamw(chunks, len(table), weights, gradients, first, second, copies, state, rate, **ADAM)
        op.k_grad_scale(gradients_P, op.clip_scale(float(np.linalg.norm(gradients_P)), 1.0))
        for decay in (0.0, 1.0):
            where = decays == decay
            parts = [a[where] for a in (weights_P, gradients_P, first_P, second_P)]
            rates = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "decay": decay * ADAM["weight_decay"]}
            op.k_adamw(*parts, rate=0.01, update=update, **rates)
            for whole, part in zip((weights_P, gradients_P, first_P, second_P), parts, strict=True):
                whole[where] = part
    assert read_state(bench, state)["applied"] == 5
    found_P = bench.read(weights, P, dtype="float32")
    for address, reference in ((weights, weights_P), (first, first_P), (second, second_P)):
        close(bench.read(address, P, dtype="float32"), reference, "fp32")
    check_copies(bench, bench.read(copies, size), found_P, starts, padding, C, V)


def check_copies(bench, copies, weights_P, starts, padding, C, V):
    """Working copies are the rounded weights, where the table says, and nothing else was written."""

    def rounded(name, count):
        return bench.to(weights_P[starts[name] : starts[name] + count], bench.type)

    def same(found, expected):
        if bench.precision.name == "tf32":  # rounded to 11 bits, ties away from zero
            bits = expected.view(np.uint32) + np.uint32(0x1000)
            expected = (bits & np.uint32(0xFFFFE000)).view(np.float32)
        return np.array_equal(found, expected)

    assert same(copies[: V * C], rounded("embed", V * C))
    assert not copies[V * C : padding].any(), "rows of the padding must stay 0"
    assert same(copies[padding : padding + 4097], rounded("odd", 4097))
    pair = copies[padding + 4100 :].reshape(C, 2, C)
    assert same(np.ascontiguousarray(pair[:, 0]).reshape(-1), rounded("w_q", C * C))
    assert same(np.ascontiguousarray(pair[:, 1]).reshape(-1), rounded("w_k", C * C))


def test_working_copy_is_what_the_update_left(bench):
    """Copies made anew from the weights have the bits that the last update wrote."""
    n = 5003
    weights, _ = bench.draw_float(n)
    gradients, _ = bench.draw_float(n)
    first, second, copies, again = (bench.card.put(np.zeros(n, dtype=np.float32)) for _ in range(4))
    state, rate = bench.card.put(initial_state()), bench.card.put(np.array([0.1], dtype=np.float32))
    table = chunk_table([Tensor(0, 0, n, True, copy=0)])
    chunks, partials = bench.card.put(table), bench.room(bench.launch.norm_sums(n), dtype="float32")
    bench.launch.grad_norm(gradients, partials, state, n, 1.0, 0.9, 0.999)
    bench.launch.adamw(chunks, len(table), weights, gradients, first, second, copies, state, rate, **ADAM)
    bench.launch.working_copy(chunks, len(table), weights, again, state)
    assert np.array_equal(bench.read(copies, n), bench.read(again, n))
    assert bench.read(copies, n).any()


def test_stochastic_rounding_keeps_the_mean_and_repeats_itself(card, storage):
    """Each copy is one of the two neighbours, their mean is the weight, and (update, element) alone decides."""
    from andrea import Precision

    macros = {"ANDREA_STORAGE": "bf16", "ANDREA_MULTIPLY": "bf16", "ANDREA_ROUNDING": "stochastic"}
    if card.capability < (8, 0):
        pytest.skip(f"compute capability {card.capability} has no bf16")
    bench = Bench(card, Precision("bf16_stochastic", "bfloat16", "bfloat16", macros=macros), storage)
    n = 200_001
    value = np.float32(1.0 + 0.3 * 2**-7)  # three tenths of the way from 1 to its neighbour
    weights, copies = card.put(np.full(n, value)), bench.room(n)
    chunks = chunk_table([Tensor(0, 0, n, True, copy=0)])
    table = card.put(chunks)

    def copied(applied):
        state = initial_state()
        state["applied"] = applied
        bench.launch.working_copy(table, len(chunks), weights, copies, card.put(state))
        return bench.back(bench.read(copies, n))

    found = copied(3)
    assert set(np.unique(found)) == {1.0, 1.0 + 2**-7}
    share = np.mean(found > 1.0)
    assert abs(share - 0.3) < 5 * np.sqrt(0.3 * 0.7 / n)  # five standard deviations of a binomial share
    assert np.array_equal(found, copied(3))
    other = copied(4)
    assert abs(np.mean(other != found) - 2 * 0.3 * 0.7) < 0.01  # independent draws differ this often; 10 deviations


def test_loss_scale_halves_at_an_overflow_and_doubles_after_calm_updates(bench_float):
    """The dynamic scale follows its window, stays between 1 and 2^24, and a window of 0 leaves it alone."""
    bench = bench_float

    def after(window, **fields):
        state = initial_state()
        for name, value in fields.items():
            state[name] = value
        address = bench.card.put(state)
        bench.launch.loss_scale(address, window)
        found = read_state(bench, address)
        return float(found["loss_scale"]), int(found["growth"])

    assert after(10, loss_scale=64.0, growth=3) == (64.0, 4)
    assert after(10, loss_scale=64.0, growth=9) == (128.0, 0)
    assert after(10, loss_scale=64.0, growth=5, skipped=1) == (32.0, 0)
    assert after(10, loss_scale=1.0, growth=5, skipped=1) == (1.0, 0)
    assert after(1, loss_scale=2.0**24) == (2.0**24, 0)
    assert after(0, loss_scale=64.0, growth=9, skipped=1) == (64.0, 9)


# -- bits and sizes --------------------------------------------------------------------------------------------------


def test_a_thousand_repeats_give_identical_bits(bench):
    """Sums across blocks and warps have one order: embedding, norm and loss gradients and the global norm repeat."""
    B, T, C, V = 4, 100, 96, 50
    N = B * T
    ids_BT = np.minimum(bench.random.geometric(0.1, (B, T)) - 1, V - 1).astype(np.int32)
    x, x_BTC = bench.draw(B, T, C)
    dy, _ = bench.draw(B, T, C)
    gamma, _ = bench.draw_float(C)
    _, mean_BT, rstd_BT = op.k_layernorm_fwd(x_BTC, None, None)
    mean, rstd = (bench.card.put(a.astype(np.float32)) for a in (mean_BT, rstd_BT))
    ids, order = bench.card.put(ids_BT), bench.card.put(sorted_positions(ids_BT))
    sizes = {"dembed": V * C, "dposition": T * C, "dgamma": C, "dbeta": C}
    sums = bench.room(sum(sizes.values()), dtype="float32")
    begin = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist()[:-1], strict=True))
    address = {name: sums + 4 * place for name, place in begin.items()}
    places = bench.card.put(np.array([begin["dgamma"], begin["dbeta"]], dtype=np.int64))
    total = sum(sizes.values())
    one = bench.room(max(bench.launch.embed_partials(N, C), bench.launch.norm_partials(N, C)), dtype="float32")
    dx, state = bench.room(N, C), bench.card.put(initial_state())
    seen = set()
    for _ in range(1000):
        bench.launch.zero(sums, 4 * total)
        bench.launch.layernorm_bwd(dy, x, mean, rstd, gamma, 0, dx, one, N, C)
        bench.launch.layernorm_bwd_final(one, sums, places, 1, N, C)
        bench.launch.embed_bwd(dx, ids, order, address["dembed"], address["dposition"], one, B, T, C)
        bench.launch.grad_norm(sums, one, state, total, 1.0, 0.9, 0.999)
        seen.add((bench.read(sums, total, dtype="float32").tobytes(), float(read_state(bench, state)["grad_norm"])))
    assert len(seen) == 1


@pytest.fixture
def bench_large(card, storage):
    """Give the kernels in float16 on a card with room for a few tensors of more than 2^31 elements."""
    from andrea import Precision

    free, _ = launcher.check(launcher.driver().cuMemGetInfo())
    if free < 16 << 30:
        pytest.skip(f"{free >> 30} GiB free, 16 GiB wanted")
    macros = {"ANDREA_STORAGE": "half", "ANDREA_MULTIPLY": "half"}
    return Bench(card, Precision("fp16", "float16", "float16", macros=macros), storage)


def repeat(bench, raw, rows):
    """Return the address of `rows` rows, made of copies of `raw` one after the other."""
    size = raw[0].nbytes
    address = bench.card.room(rows * size)
    launcher.upload(address, raw)
    done = len(raw)
    while done < rows:
        count = min(done, rows - done)
        launcher.check(launcher.driver().cuMemcpyDtoD(address + done * size, address, count * size))
        done += count
    return address


def sampled(bench, address, rows, width):
    """Return 256 rows, the first and the last among them, and which they are."""
    picked = np.unique(np.concatenate([[0, rows - 1], bench.random.integers(0, rows, 254)]))
    raw = [bench.card.get(address + int(row) * width * 2, (width,), "float16") for row in picked]
    return picked, np.array(raw)


def test_loss_past_two_to_the_31_logits(bench_large, close):
    """Rows beyond the reach of 32-bit offsets get their own loss and gradient."""
    bench, V, stride, period = bench_large, 8449, 8576, 61
    N = 2**31 // stride + 1000
    raw = bench.to(bench.random.standard_normal((period, stride)), "float16")
    logits, targets_N = repeat(bench, raw, N), bench.random.integers(0, V, N).astype(np.int32)
    losses, scale = bench.room(N, dtype="float32"), bench.card.put(np.ones(1, dtype=np.float32))
    bench.launch.loss_bwd(logits, bench.card.put(targets_N), losses, scale, 1.0, N, V, stride)
    rows, found = sampled(bench, logits, N, stride)
    logits_RV, targets_R = raw[rows % period, :V].astype(np.float64), targets_N[rows]
    _, lse_R = op.k_loss_fwd(logits_RV[None], targets_R[None])
    expected = lse_R[0] - logits_RV[np.arange(len(rows)), targets_R]
    close(bench.read(losses, N, dtype="float32")[rows], expected, "fp32")
    close(found[:, :V], op.k_loss_bwd(logits_RV[None], targets_R[None], lse_R, 1.0)[0], "fp16")


def test_norm_and_gelu_past_two_to_the_31_elements(bench_large, close):
    """Forward and backward of the norm and GELU reach every row of tensors of more than 2^31 elements."""
    bench, C, period = bench_large, 768, 1021
    N = 2**31 // C + 1001
    raw = bench.to(bench.random.standard_normal((period, C)), "float16")
    x_RC = raw.astype(np.float64)
    x, y = repeat(bench, raw, N), bench.card.room(N * C * 2)
    mean, rstd = bench.room(N, dtype="float32"), bench.room(N, dtype="float32")
    bench.launch.layernorm_fwd(x, 0, 0, y, mean, rstd, N, C)
    rows, found = sampled(bench, y, N, C)
    normed, mean_R, rstd_R = (a[0] for a in op.k_layernorm_fwd(x_RC[None], None, None))
    close(found, normed[rows % period], "fp16")
    bench.launch.layernorm_bwd(y, x, mean, rstd, 0, x, y, 0, N, C)
    rows, found = sampled(bench, y, N, C)
    stored = normed.astype(np.float16).astype(np.float64)
    branch = op.k_layernorm_bwd(stored[None], x_RC[None], mean_R[None], rstd_R[None], None, None, None)
    expected = branch[0] + x_RC
    close(found, expected[rows % period], "fp16")
    bench.launch.gelu_fwd(x, y, N * C)
    rows, found = sampled(bench, y, N, C)
    close(found, op._gelu(x_RC)[rows % period], "fp16")


def test_embed_and_update_past_two_to_the_31_elements(bench_large, close):
    """A lookup writes rows beyond 2^31 elements, and a chunk that begins beyond them is updated."""
    bench, C, T, V = bench_large, 768, 1000, 3000
    N = (2**31 // C // T + 1) * T
    embed, embed_VC = bench.draw(V, C)
    position, position_TC = bench.draw(T, C)
    ids_N = bench.random.integers(0, V, N).astype(np.int32)
    x = bench.card.room(N * C * 2)
    bench.launch.embed_fwd(bench.card.put(ids_N), embed, position, x, N, T, C)
    rows, found = sampled(bench, x, N, C)
    close(found, embed_VC[ids_N[rows]] + position_TC[rows % T], "fp16")

    far, n = 2**31 + 64, 1000
    weights, gradients = bench.card.room(4 * (far + n), 0), bench.card.put(np.ones(n, dtype=np.float32))
    moments, state = bench.card.put(np.zeros(n, dtype=np.float32)), initial_state()
    state["factor"] = state["correction1"] = state["correction2"] = 1.0
    table = chunk_table([Tensor(far, far, n, False)])
    shifted = [weights, gradients - 4 * far, moments - 4 * far, bench.card.put(np.ones(n, np.float32)) - 4 * far]
    rate = bench.card.put(np.array([0.5], dtype=np.float32))
    bench.launch.adamw(bench.card.put(table), 1, *shifted, 0, bench.card.put(state), rate, **ADAM)
    expected = -0.5 * 0.1 / (np.sqrt(0.999 + 0.001) + 1e-8)
    found = bench.card.get(weights + 4 * far, (n,), "float32")
    close(found, np.full(n, expected), "fp32")
