"""Products of the layers' matrices, as forward and backward ask for them: by name, in the storage type.

`andrea.engine.fp8` answers the same questions with operands of 8 bits.

Axis letters: N rows, C width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from andrea.engine.machine import Machine

MATRICES = ("w_qkv", "w_o", "w_1", "w_2")


def shape_of(name: str, C: int) -> tuple[int, int]:
    """Return (inputs, outputs) of one of a layer's matrices, for instance of ``layer0.w_1``."""
    return {"w_qkv": (C, 3 * C), "w_o": (C, C), "w_1": (C, 4 * C), "w_2": (4 * C, C)}[name.rpartition(".")[2]]


class Linear:
    """A layer's products; a matrix is named ``layer0.w_1``.

    Attributes
    ----------
    state
        Names of buffers, float32, that training needs beside weights and moments.
    ready
        Whether a step may be computed as `self` does; if not, then as `first` does.
    """

    state: tuple[str, ...] = ()
    ready = True

    def __init__(self, machine: Machine) -> None:
        self.m = machine

    def first(self) -> Linear:
        """Return what computes the steps after which `ready` is true."""
        return self

    def begin(self, given: Mapping[str, Any]) -> None:
        """Follow new working weights, and what was given as `state`: all of it, or nothing."""

    def follow_update(self) -> None:
        """Launch what comes after an update of the weights."""

    def forward(self, name: str, x: int, y: int, N: int, aux: int = 0, cast: bool = True) -> None:
        """Y = x W; with `aux`, that is aux and y = gelu(aux). Not `cast`: `gelu` has made x."""
        self.m.product(x, self.m.weight(name), y, N, *shape_of(name, self.m.C), aux=aux)

    def backward(self, name: str, x: int, dy: int, dx: int, N: int, aux: int = 0, cast: bool = True) -> None:
        """Dx = dy W', with `aux` times gelu'(aux), and dW += x' dy. Not `cast`: `gelu_gradient` has made dy."""
        inputs, outputs = shape_of(name, self.m.C)
        self.m.product_gradient(x, dy, self.m.gradient(name), N, inputs, outputs)
        self.m.product_transposed(dy, self.m.weight(name), dx, N, outputs, inputs, aux=aux)

    def gelu(self, name: str, pre: int, hidden: int, N: int) -> None:
        """Hidden = gelu(pre), the input of the matrix `name`."""
        self.m.elementwise.gelu_fwd(pre, hidden, N * shape_of(name, self.m.C)[0])

    def gelu_gradient(self, name: str, dhidden: int, pre: int, N: int) -> None:
        """Dhidden = dhidden gelu'(pre), in place, the gradient of what the matrix `name` gave."""
        self.m.elementwise.gelu_bwd(dhidden, pre, dhidden, N * shape_of(name, self.m.C)[1])
