"""Every backward against central differences of its forward, in float64, along random directions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from andrea.engine import operations as op
from andrea.rng import Draws

# Central differences in float64 with h = 1e-5 err by about h^2 = 1e-10 of the value, and by 1e-16 / h = 1e-11 of
# rounding; 1e-6 leaves room for directions along which the derivative is small.
STEP, RELATIVE = 1e-5, 1e-6
SHAPES = [(1, 1, 4, 1), (2, 7, 12, 3), (3, 5, 8, 2), (1, 70, 4, 2)]


def values(name, *shape):
    """Return repeatable float64 values, about N(0, 1)."""
    return Draws(1, name).normal(math.prod(shape)).astype(np.float64).reshape(shape)


def assert_gradient(function, inputs, gradients):
    """Compare d function / d input along a random direction with the given gradient, for every input."""
    for number, (x, gradient) in enumerate(zip(inputs, gradients, strict=True)):
        direction = values(f"direction{number}", *x.shape)
        ends = []
        for sign in (1, -1):
            moved = list(inputs)
            moved[number] = x + sign * STEP * direction
            ends.append(function(*moved))
        measured = (ends[0] - ends[1]) / (2 * STEP)
        computed = float((gradient * direction).sum())
        # The absolute part is for derivatives near 0, where the rounding of the two ends is all that is left.
        assert computed == pytest.approx(measured, rel=RELATIVE, abs=1e-8), f"input {number}"


def test_embed_gradients():
    """Rows of repeated ids collect all their positions; the unused tail of the position table gets nothing."""
    ids, embed, position = np.array([[0, 2, 2], [2, 4, 0]]), values("e", 5, 4), values("p", 6, 4)
    dx = values("dx", 2, 3, 4)
    dembed, dposition = np.zeros_like(embed), np.zeros_like(position)
    op.k_embed_bwd(dx, ids, dembed, dposition)
    assert_gradient(lambda e, p: (op.k_embed_fwd(ids, e, p) * dx).sum(), [embed, position], [dembed, dposition])
    assert (dposition[3:] == 0).all()
    assert (dembed[[1, 3]] == 0).all()


def test_embed_adds_in_the_order_of_positions():
    """The sum over equal ids is the left-to-right sum: fixed, bit for bit."""
    dx = values("order", 1, 50, 3).astype(np.float32)
    dembed, dposition = np.zeros((2, 3), np.float32), np.zeros((50, 3), np.float32)
    op.k_embed_bwd(dx, np.ones((1, 50), np.int32), dembed, dposition)
    total = dx[0, 0].copy()
    for row in dx[0, 1:]:
        total += row
    assert (dembed[1] == total).all()


@pytest.mark.parametrize(("B", "T", "C", "H"), SHAPES)
@pytest.mark.parametrize("affine", [True, False])
def test_layernorm_gradients(B, T, C, H, affine):
    """Input, gamma and beta gradients are those of the formula."""
    x, dy = values("x", B, T, C), values("dy", B, T, C)
    gamma, beta = (1 + 0.3 * values("g", C), values("b", C)) if affine else (None, None)
    dgamma, dbeta = (np.zeros(C), np.zeros(C)) if affine else (None, None)
    _, mean, rstd = op.k_layernorm_fwd(x, gamma, beta)
    dx = op.k_layernorm_bwd(dy, x, mean, rstd, gamma, dgamma, dbeta)
    if affine:
        loss = lambda *a: (op.k_layernorm_fwd(*a)[0] * dy).sum()  # noqa: E731
        assert_gradient(loss, [x, gamma, beta], [dx, dgamma, dbeta])
    else:
        assert_gradient(lambda x: (op.k_layernorm_fwd(x, None, None)[0] * dy).sum(), [x], [dx])


def test_layernorm_normalises():
    """Without gamma and beta every position has mean 0 and variance var / (var + 1e-5)."""
    x = 3 + 2 * values("x", 2, 3, 64)
    y, _, _ = op.k_layernorm_fwd(x, None, None)
    # Rounding of 64 float64 terms.
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-14)
    np.testing.assert_allclose(y.var(-1), x.var(-1) / (x.var(-1) + 1e-5), rtol=1e-13)


@pytest.mark.parametrize(("B", "T", "C", "H"), SHAPES)
def test_qkv_gradients(B, T, C, H):
    """The three projections share their input, whose gradient is the sum of three."""
    x, w, dy = values("x", B, T, C), values("w", 3, C, C), values("dy", 3, B, T, C)
    dw = np.zeros_like(w)
    dx = op.k_attn_qkv_bwd(dy, x, w, dw)
    assert_gradient(lambda x, w: (op.k_attn_qkv_fwd(x, w) * dy).sum(), [x, w], [dx, dw])


@pytest.mark.parametrize(("B", "T", "C", "H"), SHAPES)
def test_attention_gradients(B, T, C, H):
    """Gradients of queries, keys and values, also where a row spans more than one tile."""
    qkv, dy = values("qkv", 3, B, T, C), values("dy", B, T, C)
    y, lse = op.k_attn_fwd(qkv, H)
    dqkv = op.k_attn_bwd(dy, qkv, y, lse, H)
    assert_gradient(lambda qkv: (op.k_attn_fwd(qkv, H)[0] * dy).sum(), [qkv], [dqkv])


@pytest.mark.parametrize(("B", "T", "C", "H"), SHAPES)
def test_attention_is_the_formula(B, T, C, H):
    """Tiles give what the formula gives, written down plainly for every row, head and query."""
    qkv = values("qkv", 3, B, T, C)
    y, lse = op.k_attn_fwd(qkv, H)
    D = C // H
    for b, h, t in np.ndindex(B, H, T):
        q, k, v = (x[b, :, h * D : (h + 1) * D] for x in qkv)
        scores = np.exp([q[t] @ k[s] / math.sqrt(D) for s in range(t + 1)])
        # Two orders of summation in float64 differ by some 1e-16 a term.
        np.testing.assert_allclose(y[b, t, h * D : (h + 1) * D], scores @ v[: t + 1] / scores.sum(), atol=1e-13)
        assert lse[b, h, t] == pytest.approx(math.log(scores.sum()), abs=1e-13)


def test_attention_sees_no_future():
    """Changing a position changes no output before it, bit for bit."""
    qkv = values("qkv", 3, 1, 9, 4)
    before, _ = op.k_attn_fwd(qkv, 2)
    qkv[:, :, 6] += 1
    after, _ = op.k_attn_fwd(qkv, 2)
    assert (before[:, :6] == after[:, :6]).all()
    assert (before[:, 6:] != after[:, 6:]).any()


def test_attention_survives_large_scores():
    """Scores far beyond the range of exp give finite outputs: the row's maximum is taken off first."""
    qkv = 100 * values("qkv", 3, 1, 6, 4).astype(np.float32)
    y, lse = op.k_attn_fwd(qkv, 1)
    assert np.isfinite(y).all()
    assert np.isfinite(op.k_attn_bwd(y, qkv, y, lse, 1)).all()


@pytest.mark.parametrize(("B", "T", "C", "H"), SHAPES)
def test_output_projection_gradients(B, T, C, H):
    """Gradients of the input and of W_O."""
    y, w, dout = values("y", B, T, C), values("w", C, C), values("dout", B, T, C)
    dw = np.zeros_like(w)
    dy = op.k_attn_out_bwd(dout, y, w, dw)
    assert_gradient(lambda y, w: (op.k_attn_out_fwd(y, w) * dout).sum(), [y, w], [dy, dw])


@pytest.mark.parametrize(("B", "T", "C", "H"), SHAPES)
def test_mlp_gradients(B, T, C, H):
    """Gradients through W_2, GELU and W_1."""
    x, w_1, w_2 = values("x", B, T, C), values("w_1", C, 4 * C), values("w_2", 4 * C, C)
    dout = values("dout", B, T, C)
    dw_1, dw_2 = np.zeros_like(w_1), np.zeros_like(w_2)
    dx = op.k_mlp_bwd(dout, x, op.k_mlp_fwd(x, w_1, w_2)[1], w_1, w_2, dw_1, dw_2)
    assert_gradient(lambda *a: (op.k_mlp_fwd(*a)[0] * dout).sum(), [x, w_1, w_2], [dx, dw_1, dw_2])


def test_gelu_is_the_tanh_form():
    """The activation between two identity-like matrices is u (1 + tanh(sqrt(2/pi)(u + 0.044715 u^3))) / 2."""
    u = np.linspace(-6, 6, 101).reshape(1, 101, 1)
    y, pre = op.k_mlp_fwd(u, np.array([[1.0, 0, 0, 0]]), np.array([[1.0], [0], [0], [0]]))
    expected = [0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) for x in u.ravel().tolist()]
    # numpy's tanh and math's may differ in the last bits.
    np.testing.assert_allclose(y.ravel(), expected, rtol=1e-12, atol=1e-15)
    assert (pre[..., 0] == u[..., 0]).all()


def test_residual():
    """The forward adds, and the gradient in front is the branch's plus the skipping one."""
    x, branch = values("x", 2, 3, 4), values("branch", 2, 3, 4)
    assert (op.k_residual_add(x, branch) == x + branch).all()
    dout = values("dout", 2, 3, 4)
    dx = op.k_residual_add_bwd(3 * dout, dout)
    assert_gradient(lambda x: (op.k_residual_add(x, 3 * x) * dout).sum(), [x], [dx])


@pytest.mark.parametrize(("B", "T", "C", "V"), [(1, 1, 4, 3), (3, 7, 8, 11)])
def test_head_gradients(B, T, C, V):
    """Gradients of the input and of the head."""
    x, head, dlogits = values("x", B, T, C), values("head", V, C), values("dlogits", B, T, V)
    dhead = np.zeros_like(head)
    dx = op.k_head_bwd(dlogits, x, head, dhead)
    assert_gradient(lambda x, h: (op.k_head_fwd(x, h) * dlogits).sum(), [x, head], [dx, dhead])


def test_loss_gradient():
    """The gradient of scale x the sum of all valid positions' losses; ignored positions get exactly 0."""
    logits, targets = values("logits", 2, 3, 7), np.array([[0, -1, 6], [3, 3, -1]])
    scale = 0.25

    def total(logits):
        row_losses, _ = op.k_loss_fwd(logits, targets)
        return scale * float((row_losses * (targets >= 0).sum(axis=1)).sum())

    _, lse = op.k_loss_fwd(logits, targets)
    gradient = op.k_loss_bwd(logits.copy(), targets, lse, scale)
    assert_gradient(total, [logits], [gradient])
    assert (gradient[targets < 0] == 0).all()


def test_loss_is_the_formula():
    """Each row's loss is the mean of -log softmax over its valid targets, and 0 where there is none."""
    logits, targets = values("logits", 3, 4, 9), np.array([[1, 2, 3, 4], [0, -1, 8, -1], [-1, -1, -1, -1]])
    row_losses, _ = op.k_loss_fwd(logits, targets)
    for b in range(2):
        terms = [
            math.log(np.exp(logits[b, t]).sum()) - logits[b, t, targets[b, t]] for t in range(4) if targets[b, t] >= 0
        ]
        # Two orders of summation in float64.
        assert row_losses[b] == pytest.approx(sum(terms) / len(terms), rel=1e-13)
    assert row_losses[2] == 0


def test_loss_survives_large_logits():
    """Logits of thousands neither overflow nor warn."""
    logits = 3000 * values("logits", 1, 2, 5).astype(np.float32)
    row_losses, lse = op.k_loss_fwd(logits, np.zeros((1, 2), np.int32))
    assert np.isfinite(row_losses).all()
    assert np.isfinite(op.k_loss_bwd(logits, np.zeros((1, 2), np.int32), lse, 1.0)).all()


def test_backward_adds():
    """Every weight gradient that a backward is given keeps what was in it."""
    B, T, C, V = 2, 3, 4, 5
    x, dy = values("x", B, T, C), values("dy", B, T, C)
    w, w_3, w_1, w_2 = values("w", C, C), values("w3", 3, C, C), values("w1", C, 4 * C), values("w2", 4 * C, C)
    _, mean, rstd = op.k_layernorm_fwd(x, np.ones(C), np.zeros(C))
    pre = op.k_mlp_fwd(x, w_1, w_2)[1]
    dlogits = values("dlogits", B, T, V)
    ids = np.array([[0, 1, 1], [4, 1, 0]])
    calls = [
        ([(V, C), (T, C)], lambda a, b: op.k_embed_bwd(dy, ids, a, b)),
        ([(C,), (C,)], lambda a, b: op.k_layernorm_bwd(dy, x, mean, rstd, np.ones(C), a, b)),
        ([(3, C, C)], lambda a: op.k_attn_qkv_bwd(values("d3", 3, B, T, C), x, w_3, a)),
        ([(C, C)], lambda a: op.k_attn_out_bwd(dy, x, w, a)),
        ([(C, 4 * C), (4 * C, C)], lambda a, b: op.k_mlp_bwd(dy, x, pre, w_1, w_2, a, b)),
        ([(V, C)], lambda a: op.k_head_bwd(dlogits, x, values("head", V, C), a)),
    ]
    for shapes, backward in calls:
        fresh, used = [np.zeros(s) for s in shapes], [np.full(s, 2.0) for s in shapes]
        backward(*fresh)
        backward(*used)
        for a, b in zip(fresh, used, strict=True):
            assert (a != 0).any()
            # 2 is in the buffer before many terms are added to it: rounding of float64 in another order.
            np.testing.assert_allclose(b, 2.0 + a, rtol=1e-13, atol=1e-14)


def test_float32_stays_float32():
    """No operation widens: a float64 temporary would halve the speed and hide what the card computes."""
    B, T, C, V = 2, 3, 4, 5
    x = values("x", B, T, C).astype(np.float32)
    w_3, w = np.ones((3, C, C), np.float32), np.ones((C, C), np.float32)
    w_1, w_2 = np.ones((C, 4 * C), np.float32), np.ones((4 * C, C), np.float32)
    gamma, targets = np.ones(C, np.float32), np.zeros((B, T), np.int32)
    y, mean, rstd = op.k_layernorm_fwd(x, gamma, gamma)
    qkv = op.k_attn_qkv_fwd(x, w_3)
    attended, lse = op.k_attn_fwd(qkv, 2)
    out, pre = op.k_mlp_fwd(x, w_1, w_2)
    logits = op.k_head_fwd(x, np.ones((V, C), np.float32))
    losses, lse_logits = op.k_loss_fwd(logits, targets)
    results = [y, mean, rstd, qkv, attended, lse, out, pre, logits, losses, lse_logits]
    results += [
        op.k_layernorm_bwd(x, x, mean, rstd, gamma, gamma.copy(), gamma.copy()),
        op.k_attn_bwd(x, qkv, attended, lse, 2),
        op.k_attn_qkv_bwd(qkv, x, w_3, w_3.copy()),
        op.k_mlp_bwd(x, x, pre, w_1, w_2, w_1.copy(), w_2.copy()),
        op.k_attn_out_bwd(x, x, w, w.copy()),
        op.k_loss_bwd(logits, targets, lse_logits, 1 / 6),
    ]
    assert {str(result.dtype) for result in results} == {"float32"}


def test_gradient_norm():
    """Partial sums are per 65,536 elements; the norm is that of float64, and not finite when one gradient is not."""
    gradients = values("g", 150_000).astype(np.float32)
    partials = op.k_grad_norm_partial(gradients)
    assert partials.shape == (3,)
    assert partials.dtype == np.float64
    # math.fsum is exact; the pairwise sum in float64 errs by some 1e-15.
    exact = math.sqrt(math.fsum(float(g) ** 2 for g in gradients))
    assert op.k_grad_norm_final(partials) == pytest.approx(exact, rel=1e-13)
    for bad in (np.nan, np.inf):
        gradients[100_000] = bad
        assert not math.isfinite(op.k_grad_norm_final(op.k_grad_norm_partial(gradients)))


def test_gradient_norm_of_huge_values():
    """Squares that overflow float32 do not make the norm infinite."""
    gradients = np.full(4, 1e30, dtype=np.float32)
    assert op.k_grad_norm_final(op.k_grad_norm_partial(gradients)) == pytest.approx(2e30, rel=1e-6)


@pytest.mark.parametrize(("norm", "limit", "scale"), [(4.0, 1.0, 0.25), (0.5, 1.0, 1.0), (4.0, 0.0, 1.0), (0, 1, 1)])
def test_clip_scale(norm, limit, scale):
    """min(1, limit / norm); a limit of 0 clips nothing."""
    assert op.clip_scale(norm, limit) == scale
    gradients = np.array([2.0, -6.0], np.float32)
    op.k_grad_scale(gradients, op.clip_scale(norm, limit))
    assert gradients.tolist() == [2 * scale, -6 * scale]


def test_adamw_by_hand():
    """Two updates of one weight, computed with the formulas in plain Python."""
    w, m, v = np.array([0.5]), np.zeros(1), np.zeros(1)
    rate, beta1, beta2, epsilon, decay = 0.01, 0.9, 0.99, 1e-8, 0.1
    hand, first, second = 0.5, 0.0, 0.0
    for update, gradient in enumerate([2.0, -0.5], start=1):
        constants = {"rate": rate, "beta1": beta1, "beta2": beta2, "epsilon": epsilon, "decay": decay}
        op.k_adamw(w, np.array([gradient]), m, v, update=update, **constants)
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        mhat, vhat = first / (1 - beta1**update), second / (1 - beta2**update)
        hand = hand - rate * decay * hand - rate * mhat / (math.sqrt(vhat) + epsilon)
        # The same operations in another order.
        assert w[0] == pytest.approx(hand, rel=1e-13)
    assert (m[0], v[0]) == pytest.approx((first, second), rel=1e-13)


def test_adamw_first_update_is_the_rate():
    """Bias correction makes the first move rate x sign(gradient), whatever the gradient's size."""
    for gradient in (1e-3, -40.0):
        w, constants = np.zeros(1), {"beta1": 0.9, "beta2": 0.999, "epsilon": 0.0, "decay": 0.0}
        op.k_adamw(w, np.array([gradient]), np.zeros(1), np.zeros(1), rate=0.01, update=1, **constants)
        # Exact but for the roundings of the corrections.
        assert w[0] == pytest.approx(-0.01 * np.sign(gradient), rel=1e-12)
