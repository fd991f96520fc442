"""Twins of a layer's products whose operands are rounded to 8 bits: the specification of `andrea.engine.fp8`.

A pass over the network casts the same tensors in the same order every time. So what one pass measured gives the scales
of the next, tensor by tensor, as on the card, where the history lies between them. A micro-batch is one pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        Largest magnitudes of what is cast, for instance of all ``w_1.x``, in order; empty: they are measured, and
        nothing is rounded.
    amax
        Those of this pass.
    """

    products: Sequence[str]
    known: Mapping[str, Sequence[float]] = field(factory=dict)
    amax: dict[str, list[float]] = field(factory=dict)
    _inputs: dict[str, list[Array]] = field(factory=dict)  # what gradients of matrices will take, last first

    def __getattr__(self, name: str) -> Any:
        return getattr(operations, name)

    def _eight(self, product: str) -> bool:
        return product in self.products and bool(self.known)

    def _cast(self, tensor: str, x: Array, kind: Float8) -> Array:
        """Measure a tensor and round it; where no product takes it rounded, the result is not used."""
        seen = self.amax.setdefault(tensor, [])
        seen.append(float(np.abs(x).max()))
        factor = fp8_scale(self.known[tensor][len(seen) - 1], kind.top - 1) if self.known else 1.0
        return rounded(x, factor, kind)

    def _weights(self, product: str, w: Array) -> Array:
        factor = fp8_scale(operations.k_fp8_weights_amax(w), E4M3.top)
        return rounded(w, factor, E4M3) if self._eight(product) else w

    def _operands(self, matrix: str, x: Array, w: Array) -> tuple[Array, Array]:
        """Return what the forward multiplies."""
        cast = self._cast(f"{matrix}.x", x, E4M3)
        self._inputs.setdefault(matrix, []).append(cast if self._eight(f"{matrix}.dw") else x)
        return cast if self._eight(f"{matrix}.y") else x, self._weights(f"{matrix}.y", w)

    def _gradients(self, matrix: str, dy: Array, w: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Return what the gradient of the matrix multiplies, and that of its input."""
        cast, x = self._cast(f"{matrix}.dy", dy, E5M2), self._inputs[matrix].pop()
        of_matrix = cast if self._eight(f"{matrix}.dw") else dy, x
        return of_matrix, (cast if self._eight(f"{matrix}.dx") else dy, self._weights(f"{matrix}.dx", w))

    def _forward(self, matrix: str, x: Array, w: Array) -> Array:
        return operations._project(*self._operands(matrix, x, w))

    def _backward(self, matrix: str, dy: Array, w: Array, dw: Array) -> Array:
        of_matrix, (dy, w) = self._gradients(matrix, dy, w)
        operations._project_bwd(*of_matrix, w, dw)
        return operations._project(dy, w.T)

    def k_attn_qkv_fwd(self, x_BTC: Array, w_3CC: Array) -> Array:
        """As in `andrea.engine.operations`."""
        return operations.k_attn_qkv_fwd(*self._operands("w_qkv", x_BTC, w_3CC))

    def k_attn_qkv_bwd(self, dqkv_3BTC: Array, x_BTC: Array, w_3CC: Array, dw_3CC: Array) -> Array:
        """As in `andrea.engine.operations`."""
        of_matrix, (dqkv_3BTC, w_3CC) = self._gradients("w_qkv", dqkv_3BTC, w_3CC)
        operations.k_attn_qkv_bwd(*of_matrix, w_3CC, dw_3CC)
        return operations.k_attn_qkv_bwd(dqkv_3BTC, x_BTC, w_3CC, np.zeros_like(dw_3CC))

    def k_attn_out_fwd(self, y_BTC: Array, w_CC: Array) -> Array:
        """As in `andrea.engine.operations`."""
        return self._forward("w_o", y_BTC, w_CC)

    def k_attn_out_bwd(self, dout_BTC: Array, y_BTC: Array, w_CC: Array, dw_CC: Array) -> Array:
        """As in `andrea.engine.operations`."""
        return self._backward("w_o", dout_BTC, w_CC, dw_CC)

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
        slope_BTF = operations._gelu_and_slope(pre_BTF)[1]
        dpre_BTF = self._backward("w_2", dout_BTC, w_2_FC, dw_2_FC) * slope_BTF
        return self._backward("w_1", dpre_BTF, w_1_CF, dw_1_CF)
