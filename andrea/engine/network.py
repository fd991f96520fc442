"""The transformer as a composition of numpy twins: weights as views, forward, backward, and one token at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define, frozen

from andrea.engine import operations as op
from andrea.engine.model import ModelConfig, layout

Array = npt.NDArray[Any]


@frozen(eq=False)
class Layer:
    """The tensors of one block, or their gradients; the norms' are None when `norm_affine` is off."""

    gamma_1: Array | None
    beta_1: Array | None
    w_qkv: Array
    w_o: Array
    gamma_2: Array | None
    beta_2: Array | None
    w_1: Array
    w_2: Array


@frozen(eq=False)
class Tensors:
    """All parameter tensors, or all their gradients, as views into one flat array; a tied head *is* the embedding."""

    embed: Array
    position: Array
    layers: tuple[Layer, ...]
    final_gamma: Array | None
    final_beta: Array | None
    head: Array


def tensors(flat_P: Array, model: ModelConfig, vocabulary: int) -> Tensors:
    """Return views of a flat array in the order of `andrea.engine.model.layout`: writing to one writes to the other."""
    parameters = {p.name: p for p in layout(model, vocabulary)}
    views = {name: flat_P[p.offset : p.end].reshape(p.shape) for name, p in parameters.items()}
    C = model.d_model

    def layer(i: int) -> Layer:
        start = parameters[f"layer{i}.w_q"].offset
        return Layer(
            gamma_1=views.get(f"layer{i}.ln1.gamma"),
            beta_1=views.get(f"layer{i}.ln1.beta"),
            w_qkv=flat_P[start : start + 3 * C * C].reshape(3, C, C),
            w_o=views[f"layer{i}.w_o"],
            gamma_2=views.get(f"layer{i}.ln2.gamma"),
            beta_2=views.get(f"layer{i}.ln2.beta"),
            w_1=views[f"layer{i}.w_1"],
            w_2=views[f"layer{i}.w_2"],
        )

    return Tensors(
        embed=views["embed"],
        position=views["position"],
        layers=tuple(layer(i) for i in range(model.n_layer)),
        final_gamma=views.get("final.gamma"),
        final_beta=views.get("final.beta"),
        head=views["embed"] if model.tie_embeddings else views["head"],
    )


@frozen(eq=False)
class SavedNorm:
    """What a layer norm keeps for its backward: input and output (B, T, C), mean and 1 / deviation (B, T)."""

    x: Array
    y: Array
    mean: Array
    rstd: Array


@frozen(eq=False)
class SavedBlock:
    """What one block keeps for its backward.

    `qkv` (3, B, T, C), the attention's output `y` (B, T, C) and log-sum-exp `lse` (B, H, T), the MLP's pre-activation
    `pre` (B, T, F).
    """

    norm_1: SavedNorm
    qkv: Array
    y: Array
    lse: Array
    norm_2: SavedNorm
    pre: Array


def _norm(x_BTC: Array, gamma_C: Array | None, beta_C: Array | None) -> SavedNorm:
    return SavedNorm(x_BTC, *op.k_layernorm_fwd(x_BTC, gamma_C, beta_C))


def _norm_bwd(
    dy_BTC: Array, saved: SavedNorm, gamma_C: Array | None, dgamma_C: Array | None, dbeta_C: Array | None
) -> Array:
    return op.k_layernorm_bwd(dy_BTC, saved.x, saved.mean, saved.rstd, gamma_C, dgamma_C, dbeta_C)


def block_forward(x_BTC: Array, w: Layer, n_head: int, op: Any = op) -> tuple[Array, SavedBlock]:
    """Return x + attn(LN(x)), then that + mlp(LN(that)), and what the backward needs."""
    norm_1 = _norm(x_BTC, w.gamma_1, w.beta_1)
    qkv_3BTC = op.k_attn_qkv_fwd(norm_1.y, w.w_qkv)
    y_BTC, lse_BHT = op.k_attn_fwd(qkv_3BTC, n_head)
    middle_BTC = op.k_residual_add(x_BTC, op.k_attn_out_fwd(y_BTC, w.w_o))
    norm_2 = _norm(middle_BTC, w.gamma_2, w.beta_2)
    out_BTC, pre_BTF = op.k_mlp_fwd(norm_2.y, w.w_1, w.w_2)
    return op.k_residual_add(middle_BTC, out_BTC), SavedBlock(norm_1, qkv_3BTC, y_BTC, lse_BHT, norm_2, pre_BTF)


def block_backward(dout_BTC: Array, saved: SavedBlock, w: Layer, dw: Layer, n_head: int, op: Any = op) -> Array:
    """Return the gradient of the block's input; add the gradients of its tensors to `dw`."""
    dnormed_BTC = op.k_mlp_bwd(dout_BTC, saved.norm_2.y, saved.pre, w.w_1, w.w_2, dw.w_1, dw.w_2)
    dbranch_BTC = _norm_bwd(dnormed_BTC, saved.norm_2, w.gamma_2, dw.gamma_2, dw.beta_2)
    dmiddle_BTC = op.k_residual_add_bwd(dbranch_BTC, dout_BTC)
    dy_BTC = op.k_attn_out_bwd(dmiddle_BTC, saved.y, w.w_o, dw.w_o)
    dqkv_3BTC = op.k_attn_bwd(dy_BTC, saved.qkv, saved.y, saved.lse, n_head)
    dnormed_BTC = op.k_attn_qkv_bwd(dqkv_3BTC, saved.norm_1.y, w.w_qkv, dw.w_qkv)
    dbranch_BTC = _norm_bwd(dnormed_BTC, saved.norm_1, w.gamma_1, dw.gamma_1, dw.beta_1)
    dx_BTC: Array = op.k_residual_add_bwd(dbranch_BTC, dmiddle_BTC)
    return dx_BTC


def row_losses(inputs_BT: Array, targets_BT: Array, w: Tensors, model: ModelConfig) -> Array:
    """Return the mean loss of each row over its valid targets, (B,)."""
    x_BTC = op.k_embed_fwd(inputs_BT, w.embed, w.position)
    for layer in w.layers:
        x_BTC, _ = block_forward(x_BTC, layer, model.n_head)
    normed_BTC = _norm(x_BTC, w.final_gamma, w.final_beta).y
    return op.k_loss_fwd(op.k_head_fwd(normed_BTC, w.head), targets_BT)[0]


def add_gradients(
    inputs_BT: Array,
    targets_BT: Array,
    w: Tensors,
    dw: Tensors,
    model: ModelConfig,
    scale: float,
    op: Any = op,
) -> Array:
    """Return the mean loss of each row, (B,), and add the gradient of `scale` x (sum of all losses) to `dw`.

    `op` has the operations; `andrea.engine.operations8` has some that round their operands.
    """
    x_BTC = op.k_embed_fwd(inputs_BT, w.embed, w.position)
    saved = []
    for layer in w.layers:
        x_BTC, kept = block_forward(x_BTC, layer, model.n_head, op)
        saved.append(kept)
    final = _norm(x_BTC, w.final_gamma, w.final_beta)
    logits_BTV = op.k_head_fwd(final.y, w.head)
    losses_B: Array
    losses_B, lse_BT = op.k_loss_fwd(logits_BTV, targets_BT)

    dlogits_BTV = op.k_loss_bwd(logits_BTV, targets_BT, lse_BT, scale)
    dnormed_BTC = op.k_head_bwd(dlogits_BTV, final.y, w.head, dw.head)
    dx_BTC = _norm_bwd(dnormed_BTC, final, w.final_gamma, dw.final_gamma, dw.final_beta)
    for layer, dlayer in zip(reversed(w.layers), reversed(dw.layers), strict=True):
        dx_BTC = block_backward(dx_BTC, saved.pop(), layer, dlayer, model.n_head, op)
    op.k_embed_bwd(dx_BTC, inputs_BT, dw.embed, dw.position)
    return losses_B


@define(eq=False)
class Reader:
    """One row being read: keys and values of the window so far, so that a further id costs one position.

    Attributes
    ----------
    w, model
        The weights and their shapes.
    keys, values
        One (context, C) array a layer, filled up to `length`.
    length
        Ids read.
    """

    w: Tensors
    model: ModelConfig
    keys: list[Array]
    values: list[Array]
    length: int = 0

    @classmethod
    def empty(cls, w: Tensors, model: ModelConfig) -> Reader:
        """Return a reader that has read nothing."""
        shape = (model.context, model.d_model)
        keys, values = ([np.empty(shape, w.embed.dtype) for _ in w.layers] for _ in range(2))
        return cls(w, model, keys, values)

    def restart(self, window_T: Array) -> Array:
        """Forget what was read, read a whole window, and return the logits after its last id, (V,)."""
        self.length = len(window_T)
        x_1TC = op.k_embed_fwd(window_T[None], self.w.embed, self.w.position)
        for layer, keys, values in zip(self.w.layers, self.keys, self.values, strict=True):
            x_1TC, saved = block_forward(x_1TC, layer, self.model.n_head)
            keys[: self.length], values[: self.length] = saved.qkv[1, 0], saved.qkv[2, 0]
        return self._logits(x_1TC[:, -1:])

    def read(self, token: int) -> Array:
        """Read one further id and return the logits after it, (V,)."""
        position = self.length
        self.length += 1
        x_11C = (self.w.embed[token] + self.w.position[position])[None, None]
        for layer, keys, values in zip(self.w.layers, self.keys, self.values, strict=True):
            qkv_311C = op.k_attn_qkv_fwd(_norm(x_11C, layer.gamma_1, layer.beta_1).y, layer.w_qkv)
            keys[position], values[position] = qkv_311C[1, 0, 0], qkv_311C[2, 0, 0]
            y_C = self._attend(qkv_311C[0, 0, 0], keys[: self.length], values[: self.length])
            x_11C = op.k_residual_add(x_11C, op.k_attn_out_fwd(y_C[None, None], layer.w_o))
            normed_11C = _norm(x_11C, layer.gamma_2, layer.beta_2).y
            x_11C = op.k_residual_add(x_11C, op.k_mlp_fwd(normed_11C, layer.w_1, layer.w_2)[0])
        return self._logits(x_11C)

    def _attend(self, q_C: Array, k_TC: Array, v_TC: Array) -> Array:
        """Return the attention of the newest position to all: no mask, as nothing lies ahead of it."""
        H, D = self.model.n_head, self.model.head_dim
        q_H1D = (q_C * (1 / math.sqrt(D))).reshape(H, 1, D)
        p_H1T = np.matmul(q_H1D, k_TC.reshape(-1, H, D).transpose(1, 2, 0))
        p_H1T -= p_H1T.max(axis=-1, keepdims=True)
        np.exp(p_H1T, out=p_H1T)
        p_H1T /= p_H1T.sum(axis=-1, keepdims=True)
        y_H1D: Array = np.matmul(p_H1T, v_TC.reshape(-1, H, D).transpose(1, 0, 2))
        return y_H1D.reshape(-1)

    def _logits(self, x_11C: Array) -> Array:
        normed_11C = _norm(x_11C, self.w.final_gamma, self.w.final_beta).y
        logits_V: Array = op.k_head_fwd(normed_11C, self.w.head)[0, 0]
        return logits_V
