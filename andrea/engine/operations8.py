"""Twins of a layer's products whose operands are rounded to 8 bits: the specification of `andrea.engine.fp8`.

A pass over the network casts the same tensors in the same order every time. So what one pass measured are the scales of
the next, tensor by tensor, as on the card, where the history lies between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import define, field

from andrea.engine import operations
from andrea.engine.operations import E4M3, E5M2, Array, Float8, fp8_scale, round_float8


def rounded(x: Array, factor: float, kind: Float8) -> Array:
    """Return what is left of values whose codes are those of x factor."""
    unit = x.dtype.type(factor)
    left: Array = round_float8(x * unit, kind) / unit
    return left


@define
class Operations8:
    """Operations of one pass; those that are not here are those of `andrea.engine.operations`.

    Attributes
    ----------
    products
        As in `Precision.fp8`.
    known
        Largest magnitudes of the tensors that are cast, in order; None: they are measured, and nothing is rounded.
    amax
        Those of this pass.
    """

    products: Sequence[str]
    known: Sequence[float] | None = None
    amax: list[float] = field(factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(operations, name)

    def _cast(self, product: str, x: Array) -> Array:
        if product not in self.products:
            return x
        self.amax.append(float(np.abs(x).max()))
        if self.known is None:
            return x
        kind = E4M3 if product.endswith(".y") else E5M2
        return rounded(x, fp8_scale(self.known[len(self.amax) - 1], kind.top - 1), kind)

    def _weights(self, product: str, w: Array) -> Array:
        if product not in self.products or self.known is None:
            return w
        return rounded(w, fp8_scale(operations.k_fp8_weights_amax(w), E4M3.top), E4M3)

    def _forward(self, matrix: str, x: Array, w: Array) -> Array:
        return operations._project(self._cast(f"{matrix}.y", x), self._weights(f"{matrix}.y", w))

    def _backward(self, matrix: str, dy: Array, x: Array, w: Array, dw: Array) -> Array:
        operations._project_bwd(dy, x, w, dw)  # gradients of weights see what was not rounded
        return operations._project(self._cast(f"{matrix}.dx", dy), self._weights(f"{matrix}.dx", w).T)

    def k_attn_qkv_fwd(self, x_BTC: Array, w_3CC: Array) -> Array:
        """As in `andrea.engine.operations`."""
        return operations.k_attn_qkv_fwd(self._cast("w_qkv.y", x_BTC), self._weights("w_qkv.y", w_3CC))

    def k_attn_qkv_bwd(self, dqkv_3BTC: Array, x_BTC: Array, w_3CC: Array, dw_3CC: Array) -> Array:
        """As in `andrea.engine.operations`."""
        operations.k_attn_qkv_bwd(dqkv_3BTC, x_BTC, w_3CC, dw_3CC)
        dqkv_3BTC, w_3CC = self._cast("w_qkv.dx", dqkv_3BTC), self._weights("w_qkv.dx", w_3CC)
        return operations.k_attn_qkv_bwd(dqkv_3BTC, x_BTC, w_3CC, np.zeros_like(dw_3CC))

    def k_attn_out_fwd(self, y_BTC: Array, w_CC: Array) -> Array:
        """As in `andrea.engine.operations`."""
        return self._forward("w_o", y_BTC, w_CC)

    def k_attn_out_bwd(self, dout_BTC: Array, y_BTC: Array, w_CC: Array, dw_CC: Array) -> Array:
        """As in `andrea.engine.operations`."""
        return self._backward("w_o", dout_BTC, y_BTC, w_CC, dw_CC)

    def k_mlp_fwd(self, x_BTC: Array, w_1_CF: Array, w_2_FC: Array) -> tuple[Array, Array]:
        """As in `andrea.engine.operations`."""
        pre_BTF = self._forward("w_1", x_BTC, w_1_CF)
        return self._forward("w_2", operations._gelu(pre_BTF), w_2_FC), pre_BTF

    def k_mlp_bwd(
        self,
        dout_BTC: Array,
        x_BTC: Array,
        pre_BTF: Array,
        w_1_CF: Array,
        w_2_FC: Array,
        dw_1_CF: Array,
        dw_2_FC: Array,
    ) -> Array:
        """As in `andrea.engine.operations`."""
        act_BTF, slope_BTF = operations._gelu_and_slope(pre_BTF)
        dpre_BTF = self._backward("w_2", dout_BTC, act_BTF, w_2_FC, dw_2_FC) * slope_BTF
        return self._backward("w_1", dpre_BTF, x_BTC, w_1_CF, dw_1_CF)
