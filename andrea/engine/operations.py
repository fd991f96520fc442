"""The numpy twin of every device operation: same name, same mathematics; this file is their specification.

All functions are pure but for what they are told to fill: a backward *adds* into the weight gradients that it is
given and returns the input gradient. They work in the type of their arguments (float32 to train, float64 to test).

Axis letters: B rows, T positions, C width, H heads, D = C / H, F = 4 C, V vocabulary, P parameters.

References
----------
Vaswani et al. (2017), "Attention is all you need". Ba, Kiros, Hinton (2016), "Layer normalization".
Hendrycks, Gimpel (2016), "Gaussian error linear units". Loshchilov, Hutter (2019), "Decoupled weight decay
regularization". Dao et al. (2022), "FlashAttention" (tiles, and the log-sum-exp that the backward recomputes from).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import frozen

Array = npt.NDArray[Any]

NORM_EPSILON = 1e-5
GELU_SLOPE = math.sqrt(2 / math.pi)
GELU_CUBE = 0.044715
NORM_BLOCK = 65536
"""Elements whose squares make one partial sum of the gradient norm."""
MATVEC_PARTS = 4
"""Parts into which a product of few rows cuts its inputs when it leaves the sum to what comes next."""

# Elementwise chains run over pieces of this many elements, so that their temporaries stay in the second-level cache.
_PIECE = 32768
# Queries of one attention tile: keys to the right of a tile are never computed.
_TILE = 64


# -- lookup ----------------------------------------------------------------------------------------------------------


def k_embed_fwd(ids_BT: Array, embed_VC: Array, position_TC: Array) -> Array:
    """Return x_BTC = embed[id] + position[t]; T may be shorter than the position table."""
    x_BTC = embed_VC[ids_BT]
    x_BTC += position_TC[: ids_BT.shape[1]]
    return x_BTC


def k_embed_bwd(dx_BTC: Array, ids_BT: Array, dembed_VC: Array, dposition_TC: Array) -> None:
    """Add the gradients of token and position embeddings, the tokens' one after another in the order of positions."""
    T, C = dx_BTC.shape[1:]
    dposition_TC[:T] += dx_BTC.sum(axis=0)
    for token, dx_C in zip(ids_BT.reshape(-1).tolist(), dx_BTC.reshape(-1, C), strict=True):
        dembed_VC[token] += dx_C


# -- layer norm ------------------------------------------------------------------------------------------------------


def k_layernorm_fwd(x_BTC: Array, gamma_C: Array | None, beta_C: Array | None) -> tuple[Array, Array, Array]:
    """Normalise the last axis: y = (x - mean) rstd gamma + beta, rstd = 1 / sqrt(variance + 1e-5).

    Parameters
    ----------
    x_BTC
        Input.
    gamma_C, beta_C
        Scale and shift; None for a norm without them.

    Returns
    -------
    y_BTC, mean_BT, rstd_BT
        The last two are saved for the backward.
    """
    mean_BT = _row_mean(x_BTC)
    y_BTC = x_BTC - mean_BT[..., None]
    rstd_BT = _row_dot(y_BTC, y_BTC)
    rstd_BT /= x_BTC.shape[-1]
    rstd_BT += NORM_EPSILON
    np.sqrt(rstd_BT, out=rstd_BT)
    np.reciprocal(rstd_BT, out=rstd_BT)
    y_BTC *= rstd_BT[..., None]
    if gamma_C is not None and beta_C is not None:
        y_BTC *= gamma_C
        y_BTC += beta_C
    return y_BTC, mean_BT, rstd_BT


def k_layernorm_bwd(
    dy_BTC: Array,
    x_BTC: Array,
    mean_BT: Array,
    rstd_BT: Array,
    gamma_C: Array | None,
    dgamma_C: Array | None,
    dbeta_C: Array | None,
) -> Array:
    """Return dx = rstd (g - mean(g) - xhat mean(g xhat)) with g = dy gamma; add dgamma and dbeta."""
    C = x_BTC.shape[-1]
    xhat_BTC = x_BTC - mean_BT[..., None]
    xhat_BTC *= rstd_BT[..., None]
    g_BTC = dy_BTC
    if gamma_C is not None and dgamma_C is not None and dbeta_C is not None:
        dbeta_C += np.einsum("btc->c", dy_BTC)
        dgamma_C += np.einsum("btc,btc->c", dy_BTC, xhat_BTC)
        g_BTC = dy_BTC * gamma_C
    slope_BT = _row_dot(g_BTC, xhat_BTC) / C
    xhat_BTC *= slope_BT[..., None]
    dx_BTC: Array = g_BTC - _row_mean(g_BTC)[..., None]
    dx_BTC -= xhat_BTC
    dx_BTC *= rstd_BT[..., None]
    return dx_BTC


# -- attention -------------------------------------------------------------------------------------------------------


def k_attn_qkv_fwd(x_BTC: Array, w_3CC: Array) -> Array:
    """Return qkv_3BTC = x @ (W_Q, W_K, W_V), which lie next to each other in the flat parameters."""
    B, T, C = x_BTC.shape
    qkv_3NC: Array = np.matmul(x_BTC.reshape(-1, C), w_3CC)
    return qkv_3NC.reshape(3, B, T, C)


def k_attn_qkv_bwd(dqkv_3BTC: Array, x_BTC: Array, w_3CC: Array, dw_3CC: Array) -> Array:
    """Return dx_BTC = sum of dq @ W_Q.T, dk @ W_K.T, dv @ W_V.T; add the gradients of the three matrices."""
    C = x_BTC.shape[-1]
    dqkv_3NC = dqkv_3BTC.reshape(3, -1, C)
    dw_3CC += np.matmul(x_BTC.reshape(-1, C).T, dqkv_3NC)
    parts_3NC = np.matmul(dqkv_3NC, w_3CC.transpose(0, 2, 1))
    dx_NC: Array = parts_3NC[0]
    dx_NC += parts_3NC[1]
    dx_NC += parts_3NC[2]
    return dx_NC.reshape(x_BTC.shape)


def k_attn_fwd(qkv_3BTC: Array, n_head: int) -> tuple[Array, Array]:
    """Causal scaled dot-product attention: y = softmax(q k.T / sqrt(D), keys up to the query) v.

    Parameters
    ----------
    qkv_3BTC
        Queries, keys and values; head h owns columns h D to (h + 1) D.
    n_head
        Heads (H).

    Returns
    -------
    y_BTC, lse_BHT
        `lse` is the log of the softmax's denominator, from which the backward recomputes the probabilities.
    """
    B, T = qkv_3BTC.shape[1:3]
    q, k, v = _scaled_heads(qkv_3BTC, n_head)
    y_BTC = np.empty_like(qkv_3BTC[0])
    y = _heads(y_BTC, n_head)
    lse_BHT = np.empty((B, n_head, T), dtype=qkv_3BTC.dtype)
    for tile in _tiles(T):
        p = _tile_scores(q, k, tile)
        top_BHT = p.max(axis=-2)
        p -= top_BHT[:, :, None]
        np.exp(p, out=p)
        total_BHT = np.einsum("bhst->bht", p)
        part = np.matmul(p.swapaxes(-1, -2), v[:, :, : tile.stop])
        np.divide(part, total_BHT[..., None], out=y[:, :, tile])
        np.add(top_BHT, np.log(total_BHT), out=lse_BHT[:, :, tile])
    return y_BTC, lse_BHT


def k_attn_bwd(dy_BTC: Array, qkv_3BTC: Array, y_BTC: Array, lse_BHT: Array, n_head: int) -> Array:
    """Return dqkv_3BTC of causal attention, with probabilities recomputed as exp(score - lse)."""
    dqkv_3BTC = np.zeros_like(qkv_3BTC)
    q, k, v = _scaled_heads(qkv_3BTC, n_head)
    dq, dk, dv = (_heads(dx_BTC, n_head) for dx_BTC in dqkv_3BTC)
    dy = _heads(dy_BTC, n_head)
    delta_BHT = np.einsum("bhtd,bhtd->bht", dy, _heads(y_BTC, n_head))
    for tile in _tiles(qkv_3BTC.shape[2]):
        p = _tile_scores(q, k, tile)
        p -= lse_BHT[:, :, None, tile]
        np.exp(p, out=p)
        dv[:, :, : tile.stop] += np.matmul(p, dy[:, :, tile])
        ds = np.matmul(v[:, :, : tile.stop], dy[:, :, tile].swapaxes(-1, -2))
        ds -= delta_BHT[:, :, None, tile]
        ds *= p
        dk[:, :, : tile.stop] += np.matmul(ds, q[:, :, tile])
        np.matmul(ds.swapaxes(-1, -2), k[:, :, : tile.stop], out=dq[:, :, tile])
    dq *= 1 / math.sqrt(q.shape[-1])
    return dqkv_3BTC


def k_attn_out_fwd(y_BTC: Array, w_CC: Array) -> Array:
    """Return y @ W_O."""
    return _project(y_BTC, w_CC)


def k_attn_out_bwd(dout_BTC: Array, y_BTC: Array, w_CC: Array, dw_CC: Array) -> Array:
    """Return dy_BTC = dout @ W_O.T; add the gradient of W_O."""
    return _project_bwd(dout_BTC, y_BTC, w_CC, dw_CC)


# -- MLP -------------------------------------------------------------------------------------------------------------


def k_mlp_fwd(x_BTC: Array, w_1_CF: Array, w_2_FC: Array) -> tuple[Array, Array]:
    """Return (gelu(x @ W_1) @ W_2, x @ W_1); the second, the pre-activation, is saved for the backward.

    gelu(u) = u (1 + tanh(sqrt(2 / pi) (u + 0.044715 u^3))) / 2, the tanh form.
    """
    pre_BTF = _project(x_BTC, w_1_CF)
    return _project(_gelu(pre_BTF), w_2_FC), pre_BTF


def k_mlp_bwd(
    dout_BTC: Array, x_BTC: Array, pre_BTF: Array, w_1_CF: Array, w_2_FC: Array, dw_1_CF: Array, dw_2_FC: Array
) -> Array:
    """Return dx_BTC; add the gradients of W_1 and W_2."""
    act_BTF, slope_BTF = _gelu_and_slope(pre_BTF)
    dpre_BTF = _project_bwd(dout_BTC, act_BTF, w_2_FC, dw_2_FC)
    dpre_BTF *= slope_BTF
    return _project_bwd(dpre_BTF, x_BTC, w_1_CF, dw_1_CF)


# -- residual --------------------------------------------------------------------------------------------------------


def k_residual_add(x_BTC: Array, branch_BTC: Array) -> Array:
    """Return x + branch."""
    return np.add(x_BTC, branch_BTC)


def k_residual_add_bwd(dbranch_BTC: Array, dx_BTC: Array) -> Array:
    """Return the gradient before a residual block: what came back through the branch plus what skipped it.

    The sum x + branch(x) hands its gradient to both; `dbranch_BTC` is what the branch made of its share.
    """
    return np.add(dx_BTC, dbranch_BTC)


# -- products of a few rows ------------------------------------------------------------------------------------------


def k_norm_matvec(
    x_BC: Array,
    parts_PBC: Array | None,
    gamma_C: Array | None,
    beta_C: Array | None,
    w_CO: Array,
    gelu: bool = False,
) -> tuple[Array, Array]:
    """Return norm(total) @ w, or its GELU, and total = x + the sum of the parts that `k_matvec_parts` left."""
    total_BC = x_BC if parts_PBC is None else k_residual_add(x_BC, parts_PBC.sum(axis=0))
    y_BO: Array = k_layernorm_fwd(total_BC[None], gamma_C, beta_C)[0][0] @ w_CO
    return _gelu(y_BO) if gelu else y_BO, total_BC


def k_norm_matvec_head(
    x_BC: Array, parts_PBC: Array | None, gamma_C: Array | None, beta_C: Array | None, w_OC: Array
) -> tuple[Array, Array]:
    """Return norm(total) @ w.T and total, as `k_norm_matvec` does."""
    return k_norm_matvec(x_BC, parts_PBC, gamma_C, beta_C, w_OC.T)


def k_matvec_parts(x_BK: Array, w_KO: Array) -> Array:
    """Return x @ w in parts_PBO, the p-th of which is the sum over the p-th quarter of the inputs."""
    length = -(-len(w_KO) // MATVEC_PARTS)
    pieces = [slice(p * length, (p + 1) * length) for p in range(MATVEC_PARTS)]
    return np.stack([x_BK[:, piece] @ w_KO[piece] for piece in pieces])


# -- head and loss ---------------------------------------------------------------------------------------------------


def k_head_fwd(x_BTC: Array, head_VC: Array) -> Array:
    """Return logits_BTV = x @ head.T."""
    return _project(x_BTC, head_VC.T)


def k_head_bwd(dlogits_BTV: Array, x_BTC: Array, head_VC: Array, dhead_VC: Array) -> Array:
    """Return dx_BTC = dlogits @ head; add the gradient of the head."""
    V, C = head_VC.shape
    dlogits_NV = dlogits_BTV.reshape(-1, V)
    dhead_VC += np.matmul(dlogits_NV.T, x_BTC.reshape(-1, C))
    dx_NC: Array = np.matmul(dlogits_NV, head_VC)
    return dx_NC.reshape(x_BTC.shape)


def k_loss_fwd(logits_BTV: Array, targets_BT: Array) -> tuple[Array, Array]:
    """Cross-entropy in nats: lse(logits) - logits[target], averaged over the valid targets of each row.

    Parameters
    ----------
    logits_BTV
        Scores of every id.
    targets_BT
        Ids; -1 is not counted. A row without any valid target has loss 0.

    Returns
    -------
    row_losses_B, lse_BT
        `lse` is the log of the softmax's denominator, saved for the backward.
    """
    B, T, V = logits_BTV.shape
    top_BT = logits_BTV.max(axis=-1)
    lse_BT = np.empty_like(top_BT)
    logits_NV, top_N, lse_N = logits_BTV.reshape(-1, V), top_BT.reshape(-1), lse_BT.reshape(-1)
    for rows in _pieces(B * T, V):
        part = logits_NV[rows] - top_N[rows, None]
        np.exp(part, out=part)
        np.einsum("nv->n", part, out=lse_N[rows])
    np.log(lse_BT, out=lse_BT)
    lse_BT += top_BT
    valid_BT = targets_BT >= 0
    picked_BT = np.take_along_axis(logits_BTV, np.where(valid_BT, targets_BT, 0)[..., None], axis=-1)[..., 0]
    losses_BT = np.where(valid_BT, lse_BT - picked_BT, 0)
    mean_B = losses_BT.sum(axis=1, dtype=np.float64) / np.maximum(valid_BT.sum(axis=1), 1)
    return mean_B.astype(logits_BTV.dtype), lse_BT


def k_loss_bwd(logits_BTV: Array, targets_BT: Array, lse_BT: Array, scale: float) -> Array:
    """Return dlogits = scale (softmax(logits) - onehot(target)), 0 where the target is -1; it replaces the logits.

    Parameters
    ----------
    logits_BTV
        Overwritten with the gradient and returned: the largest buffer of a step exists once.
    targets_BT, lse_BT
        As in and from the forward.
    scale
        1 / (rows x positions) of the whole step, when all targets are valid.
    """
    V = logits_BTV.shape[-1]
    logits_NV, lse_N, targets_N = logits_BTV.reshape(-1, V), lse_BT.reshape(-1), targets_BT.reshape(-1)
    for rows in _pieces(len(logits_NV), V):
        part = logits_NV[rows]
        part -= lse_N[rows, None]
        np.exp(part, out=part)
        part *= scale
    valid = np.flatnonzero(targets_N >= 0)
    logits_NV[valid, targets_N[valid]] -= logits_NV.dtype.type(scale)
    logits_NV[targets_N < 0] = 0
    return logits_BTV


# -- gradient norm, clipping, update ---------------------------------------------------------------------------------


def k_grad_norm_partial(gradients_P: Array) -> npt.NDArray[np.float64]:
    """Return the sum of squares of every block of 65,536 gradients, float64, in order."""
    starts = range(0, gradients_P.size, NORM_BLOCK)
    partials = np.empty(len(starts), dtype=np.float64)
    for i, start in enumerate(starts):
        block = gradients_P[start : start + NORM_BLOCK].astype(np.float64)
        partials[i] = np.square(block, out=block).sum()
    return partials


def k_grad_norm_final(partials: npt.NDArray[np.float64]) -> float:
    """Return the 2-norm from the partial sums; not finite when any gradient is not."""
    return math.sqrt(float(partials.sum()))


def k_grad_scale(gradients_P: Array, scale: float) -> None:
    """Multiply all gradients by a factor, in place."""
    gradients_P *= scale


def clip_scale(norm: float, max_norm: float) -> float:
    """Return min(1, max_norm / norm); 1 when `max_norm` is 0, which clips nothing."""
    return max_norm / norm if 0 < max_norm < norm else 1.0


def k_adamw(
    weights_P: Array,
    gradients_P: Array,
    first_P: Array,
    second_P: Array,
    *,
    rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    decay: float,
    update: int,
) -> None:
    """Do one AdamW update of weights and moments, in place.

    m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
    mhat = m / (1 - beta1^update);  vhat = v / (1 - beta2^update);
    w = w - rate decay w - rate mhat / (sqrt(vhat) + epsilon).

    Parameters
    ----------
    weights_P, gradients_P, first_P, second_P
        Slices of the flat arrays.
    rate
        Learning rate of the step.
    beta1, beta2, epsilon
        Constants of the optimizer.
    decay
        Weight decay of these weights; 0 for norms.
    update
        Number of this update among the applied ones, from 1.
    """
    step_size = rate / (1 - beta1**update)
    root = 1 / math.sqrt(1 - beta2**update)
    for piece in _pieces(weights_P.size, 1):
        w, g, m, v = weights_P[piece], gradients_P[piece], first_P[piece], second_P[piece]
        m *= beta1
        m += g * (1 - beta1)
        v *= beta2
        square = g * g
        square *= 1 - beta2
        v += square
        denominator = np.sqrt(v, out=square)
        denominator *= root
        denominator += epsilon
        move = np.divide(m, denominator, out=denominator)
        move *= step_size
        if decay:
            w *= 1 - rate * decay
        w -= move


# -- operands of 8 bits ----------------------------------------------------------------------------------------------


@frozen
class Float8:
    """A float of 8 bits: sign, exponent and `fraction` bits of fraction; the largest value is 1.75 x 2^top.

    E4M3 has one NaN a sign and no infinity, E5M2 has both as IEEE floats do (Micikevicius et al. 2022, "FP8 formats for
    deep learning").
    """

    name: str
    fraction: int
    bias: int
    top: int

    @property
    def largest(self) -> float:
        """The largest finite value."""
        return math.ldexp(1.75, self.top)


E4M3, E5M2 = Float8("e4m3", 3, 7, 8), Float8("e5m2", 2, 15, 15)
FP8_HISTORY = 16
"""Updates whose largest magnitudes decide a scale."""


def round_float8(x: Array, kind: Float8) -> Array:
    """Return the nearest values of 8 bits, of two equally near the even one; what is too large becomes the largest."""
    x = np.clip(x, -kind.largest, kind.largest)
    _, exponent = np.frexp(x)  # |x| lies in [2^(exponent - 1), 2^exponent); below the normal numbers the step stays
    step = np.ldexp(np.ones((), dtype=x.dtype), np.maximum(exponent, 2 - kind.bias) - 1 - kind.fraction)
    rounded: Array = np.rint(x / step) * step
    return rounded


def decode_float8(codes: npt.NDArray[np.uint8], kind: Float8) -> npt.NDArray[np.float32]:
    """Return the values of codes."""
    fraction = (codes & ((1 << kind.fraction) - 1)).astype(np.float32) / (1 << kind.fraction)
    exponent = (codes & 0x7F).astype(np.int32) >> kind.fraction
    values = np.ldexp(fraction + (exponent > 0), np.maximum(exponent, 1) - kind.bias).astype(np.float32)
    if kind.bias == E5M2.bias:
        values[exponent == 31] = np.where(fraction[exponent == 31] == 0, np.inf, np.nan)
    else:
        values[(codes & 0x7F) == 0x7F] = np.nan
    signed: npt.NDArray[np.float32] = np.where(codes & 0x80, -values, values)
    return signed


def encode_float8(x: Array, kind: Float8) -> npt.NDArray[np.uint8]:
    """Return the codes of `round_float8`; NaN is 0x7F."""
    finite = decode_float8(np.arange(128, dtype=np.uint8), kind)
    finite = finite[np.isfinite(finite)]  # ascending, as codes without their sign are
    rounded = round_float8(x, kind)
    codes = np.searchsorted(finite, np.abs(rounded)) + 0x80 * np.signbit(rounded)
    return np.where(np.isnan(x), 0x7F, codes).astype(np.uint8)


def fp8_scale(amax: float, top: int) -> float:
    """Return the largest power of two by which `amax` may be multiplied and be at most 1.75 x 2^top; 1 for 0."""
    if amax == 0:
        return 1.0
    fraction, exponent = math.frexp(amax)
    return math.ldexp(1.0, min(max(top + 1 - exponent - (fraction > 0.875), -100), 100))


def k_fp8_e4m3(x_NC: Array, factor: float) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], float]:
    """Return the codes of x factor, as x lies and turned (C, N), and the largest magnitude of x."""
    return _cast(x_NC, factor, E4M3)


def k_fp8_e5m2(x_NC: Array, factor: float) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], float]:
    """Return the codes of x factor, as x lies and turned (C, N), and the largest magnitude of x."""
    return _cast(x_NC, factor, E5M2)


def k_fp8_gelu_fwd(pre_NF: Array, factor: float) -> tuple[Array, npt.NDArray[np.uint8], npt.NDArray[np.uint8], float]:
    """Return gelu(pre), and what `k_fp8_e4m3` makes of it."""
    act_NF = _gelu(pre_NF)
    return act_NF, *_cast(act_NF, factor, E4M3)


def k_fp8_gelu_bwd(
    dact_NF: Array, pre_NF: Array, factor: float
) -> tuple[Array, npt.NDArray[np.uint8], npt.NDArray[np.uint8], float]:
    """Return dact gelu'(pre), and what `k_fp8_e5m2` makes of it."""
    dpre_NF = dact_NF * _gelu_and_slope(pre_NF)[1]
    return dpre_NF, *_cast(dpre_NF, factor, E5M2)


def k_fp8_scales(history_SH: Array, amax_S: Array, forwards: int, applied: int, record: bool) -> Array:
    """Return the scales (S, 2), factor and inverse, of the next step.

    Parameters
    ----------
    history_SH
        Largest magnitudes of the last H = 16 updates; update number n lies in column n % 16.
    amax_S
        Those of this step, over all its micro-batches; left at 0. What is not finite does not enter.
    forwards
        The first so many tensors are E4M3, the others E5M2. Both stay an octave below what would just fit.
    applied
        Number of the update.
    record
        Whether this step enters the history: not when its update was skipped, nor when a history was just loaded.
    """
    if record:
        place = applied % FP8_HISTORY
        history_SH[:, place] = np.where(np.isfinite(amax_S), amax_S, history_SH[:, place])
    amax_S[:] = 0
    tops = [E4M3.top if s < forwards else E5M2.top for s in range(len(amax_S))]
    factors_S = [fp8_scale(float(row.max()), top - 1) for row, top in zip(history_SH, tops, strict=True)]
    return np.array([(one, 1 / one) for one in factors_S], dtype=np.float32).reshape(-1, 2)


def k_fp8_weights_amax(weights_CF: Array) -> float:
    """Return the largest magnitude of a matrix."""
    return float(np.abs(weights_CF).max())


def k_fp8_weights(weights_CF: Array, amax: float) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], float]:
    """Return the codes of a matrix, those of its transpose (F, C), and their factor."""
    factor = fp8_scale(amax, E4M3.top)
    return *_cast(weights_CF, factor, E4M3)[:2], factor


def _cast(x_NC: Array, factor: float, kind: Float8) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], float]:
    codes_NC = encode_float8(x_NC * x_NC.dtype.type(factor), kind)
    return codes_NC, np.ascontiguousarray(codes_NC.T), float(np.abs(x_NC).max())


# -- pieces of the above ---------------------------------------------------------------------------------------------


def _project(x_BTC: Array, w_CF: Array) -> Array:
    """Return x @ w as one matrix product over all positions."""
    y_NF: Array = np.matmul(x_BTC.reshape(-1, x_BTC.shape[-1]), w_CF)
    return y_NF.reshape(*x_BTC.shape[:-1], -1)


def _project_bwd(dy_BTF: Array, x_BTC: Array, w_CF: Array, dw_CF: Array) -> Array:
    C, F = w_CF.shape
    dy_NF = dy_BTF.reshape(-1, F)
    dw_CF += np.matmul(x_BTC.reshape(-1, C).T, dy_NF)
    dx_NC: Array = np.matmul(dy_NF, w_CF.T)
    return dx_NC.reshape(x_BTC.shape)


def _row_mean(x_BTC: Array) -> Array:
    """Return the mean of the last axis; einsum adds short rows three times faster than `mean`."""
    mean_BT: Array = np.einsum("btc->bt", x_BTC)
    mean_BT /= x_BTC.shape[-1]
    return mean_BT


def _row_dot(a_BTC: Array, b_BTC: Array) -> Array:
    dot_BT: Array = np.einsum("btc,btc->bt", a_BTC, b_BTC)
    return dot_BT


def _heads(x_BTC: Array, n_head: int) -> Array:
    """View (B, T, C) as (B, H, T, D)."""
    B, T, C = x_BTC.shape
    return x_BTC.reshape(B, T, n_head, C // n_head).transpose(0, 2, 1, 3)


def _tiles(T: int) -> Iterator[slice]:
    for start in range(0, T, _TILE):
        yield slice(start, min(start + _TILE, T))


def _scaled_heads(qkv_3BTC: Array, n_head: int) -> tuple[Array, Array, Array]:
    """Return q / sqrt(D), k and v as (B, H, T, D)."""
    q, k, v = (_heads(x_BTC, n_head) for x_BTC in qkv_3BTC)
    return q * (1 / math.sqrt(q.shape[-1])), k, v


def _tile_scores(q: Array, k: Array, tile: slice) -> Array:
    """Return the scores (B, H, S, t) of a tile's t queries with all S keys that any of them may see.

    Keys lie along the rows: numpy then takes maxima and sums of whole rows at once. -inf where a key is hidden.
    """
    scores: Array = np.matmul(k[:, :, : tile.stop], q[:, :, tile].swapaxes(-1, -2))
    size = tile.stop - tile.start
    scores[:, :, tile] += np.tril(np.full((size, size), -np.inf, dtype=scores.dtype), k=-1)
    return scores


def _pieces(count: int, width: int) -> Iterator[slice]:
    """Cut `count` rows of `width` elements into slices that fit the cache."""
    step = max(1, _PIECE // width)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def _gelu(u_BTF: Array) -> Array:
    result = np.empty_like(u_BTF)
    flat_u, flat_result = u_BTF.reshape(-1), result.reshape(-1)
    for piece in _pieces(flat_u.size, 1):
        u, out = flat_u[piece], flat_result[piece]
        np.multiply(u, u, out=out)
        out *= GELU_SLOPE * GELU_CUBE
        out += GELU_SLOPE
        out *= u
        np.tanh(out, out=out)
        out += 1
        out *= u
        out *= 0.5
    return result


def _gelu_and_slope(u_BTF: Array) -> tuple[Array, Array]:
    """Return gelu(u) and its derivative (1 + t)/2 + u/2 (1 - t^2) sqrt(2/pi) (1 + 3 x 0.044715 u^2)."""
    result, slope = np.empty_like(u_BTF), np.empty_like(u_BTF)
    flat_u, flat_result, flat_slope = u_BTF.reshape(-1), result.reshape(-1), slope.reshape(-1)
    for piece in _pieces(flat_u.size, 1):
        u, out, rise = flat_u[piece], flat_result[piece], flat_slope[piece]
        square = u * u
        np.multiply(square, GELU_SLOPE * GELU_CUBE, out=out)
        out += GELU_SLOPE
        out *= u
        t = np.tanh(out, out=out)
        square *= 1.5 * GELU_SLOPE * GELU_CUBE
        square += 0.5 * GELU_SLOPE
        square *= u
        np.multiply(t, t, out=rise)
        np.subtract(1, rise, out=rise)
        rise *= square
        t += 1
        t *= 0.5
        rise += t
        out *= u
    return result, slope
