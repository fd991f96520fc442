"""Products with operands of 8 bits: which, where their codes and scales lie, and what is launched.

`Precision.fp8` names products by matrix and result. Each takes codes of both operands, whose sums lie side by side, and
gives the storage type, or adds to float32:

=========  ==============  ============================  ==========================
product    computes        first operand                 second operand
=========  ==============  ============================  ==========================
``w_1.y``  y = x W         x, E4M3                       W transposed, E4M3
``w_1.dx`` dx = dy W'      dy, E5M2                      W, E4M3
``w_1.dw`` dW += x' dy     x transposed, E4M3            dy transposed, E5M2
=========  ==============  ============================  ==========================

Attention, norms, embedding and head stay in the storage type, and so do evaluation and text.

The scale of an x or dy follows its largest magnitudes in the last updates, a buffer of the state. While nothing is
known of one of them (the first step of a run, or of a fork from other products) all products stay in the storage type,
and the casts only measure.

Axis letters: N = B T positions, S tensors that may be cast, M matrices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from attrs import frozen

from andrea.engine.elementwise import blocks_for
from andrea.engine.gemm import Problem
from andrea.engine.launcher import upload
from andrea.engine.linear import MATRICES, Linear, shape_of
from andrea.engine.operations import E4M3, E5M2, FP8_HISTORY, Float8
from andrea.errors import AndreaError, did_you_mean

if TYPE_CHECKING:
    from andrea.engine import EngineConfig
    from andrea.engine.buffers import MemoryPlan
    from andrea.engine.machine import Machine
    from andrea.types import Precision

FILES = ("fp8",)
TILE_ROWS, TILE_COLUMNS = 128, 64  # as in kernels/fp8.cu
ROWS_OF_16_BYTES = 16  # what the rows of an operand must be a multiple of
SCALE_FLOATS = 4  # from one factor to the next: cuBLASLt takes them at multiples of 16 bytes only

#: Products of a layer that may take operands of 8 bits: outputs, gradients of inputs, gradients of matrices.
PRODUCTS = tuple(f"{matrix}.{result}" for result in ("y", "dx", "dw") for matrix in MATRICES)

#: Mirror of `Matrix` in kernels/fp8.cu.
MATRIX = np.dtype([("source", "<i8"), ("straight", "<i8"), ("turned", "<i8"), ("rows", "<i4"), ("columns", "<i4")])


def products_of(config: EngineConfig, precision: Precision) -> tuple[str, ...]:
    """Return the products in 8 bits of an engine: none where nothing is trained.

    Gradients of matrices add up over positions, whose number decides whether they can.

    Raises
    ------
    AndreaError
        When one of the names is none of `PRODUCTS`.
    """
    wanted = precision.fp8_products(config.model.d_model)
    if unknown := [name for name in wanted if name not in PRODUCTS]:
        hint = did_you_mean(unknown[0], PRODUCTS) or f"products: {', '.join(PRODUCTS)}"
        raise AndreaError(f"there is no product {unknown[0]!r} in 8 bits", hint)
    fits = config.batch_size * config.model.context % ROWS_OF_16_BYTES == 0
    return tuple(name for name in wanted if config.training and (fits or not name.endswith(".dw")))


@frozen
class Plan8:
    """What an engine's products in 8 bits need.

    Attributes
    ----------
    products
        For instance ``layer0.w_1.y``.
    tensors
        For instance ``layer0.w_1.x`` and ``layer0.w_1.dy``: what may be cast, in the order of history and scales, the
        first half every x. All of them, so that the state's shape does not depend on the products.
    cast
        Those that are.
    matrices
        For instance ``layer0.w_1``, in the order of their scales, which follow those of the tensors.
    codes
        Where the weights of a product lie among all codes: transposed for y, as they are stored for dx.
    kept
        Where an x, transposed, waits among all of them for the gradient of its matrix.
    """

    products: frozenset[str]
    tensors: tuple[str, ...]
    cast: frozenset[str]
    matrices: tuple[str, ...]
    codes: Mapping[str, int]
    kept: Mapping[str, int]


def plan_products(config: EngineConfig, precision: Precision) -> Plan8:
    """Lay out the products in 8 bits of all layers."""
    C, layers, wanted = config.model.d_model, range(config.model.n_layer), products_of(config, precision)

    def layers_with(*results: str) -> list[str]:
        kinds = [matrix for matrix in MATRICES if any(f"{matrix}.{result}" in wanted for result in results)]
        return [f"layer{i}.{matrix}" for matrix in kinds for i in layers]

    def places(names: list[str], sizes: list[int]) -> dict[str, int]:
        return dict(zip(names, np.cumsum([0, *sizes]).tolist(), strict=False))

    weights = [f"{name}.{result}" for result in ("y", "dx") for name in layers_with(result)]
    inputs, gradients = layers_with("y", "dw"), layers_with("dx", "dw")
    sides = [f"layer{i}.{matrix}.{side}" for side in ("x", "dy") for matrix in MATRICES for i in layers]
    N = config.batch_size * config.model.context
    return Plan8(
        products=frozenset(f"layer{i}.{product}" for product in wanted for i in layers),
        tensors=tuple(sides),
        cast=frozenset((*(f"{name}.x" for name in inputs), *(f"{name}.dy" for name in gradients))),
        matrices=tuple(layers_with("y", "dx")),
        codes=places(weights, [int(np.prod(shape_of(name.rpartition(".")[0], C))) for name in weights]),
        kept=places(layers_with("dw"), [N * shape_of(name, C)[0] for name in layers_with("dw")]),
    )


def plan_buffers(memory: MemoryPlan, config: EngineConfig, precision: Precision) -> None:
    """Plan the buffers of all products in 8 bits; none when there are none."""
    plan, N, C = plan_products(config, precision), config.batch_size * config.model.context, config.model.d_model
    if not plan.products:
        return
    S, M = len(plan.tensors), len(plan.matrices)
    weights = sum(int(np.prod(shape_of(name.rpartition(".")[0], C))) for name in plan.codes)
    memory.add("fp8_history", "largest magnitudes of the last updates", (S, FP8_HISTORY), "float32")
    memory.add("fp8_amax", "largest magnitudes of a step", (S,), "float32")
    memory.add("fp8_weights_amax", "largest magnitudes of matrices", (M,), "float32")
    memory.add("fp8_scales", "factors of casts and their inverses", (S + M, 2, SCALE_FLOATS), "float32")
    memory.add("fp8_matrices", "table of matrices in 8 bits", (M * MATRIX.itemsize,), "uint8")
    memory.add("fp8_weights", "working weights in 8 bits", (weights,), "uint8")
    memory.add("fp8_operand", "an operand in 8 bits", (N, 4 * C), "uint8")
    memory.add("fp8_turned", "an operand in 8 bits", (4 * C, N if plan.kept else 0), "uint8")
    kept = sum(N * shape_of(name, C)[0] for name in plan.kept)
    memory.add("fp8_inputs", "inputs in 8 bits, until gradients of matrices need them", (kept,), "uint8")


def open_linear(machine: Machine) -> Linear:
    """Return a machine's layer products, in 8 bits where its precision says so."""
    plan = plan_products(machine.config, machine.precision)
    return EightBit(machine, plan) if plan.products else Linear(machine)


class EightBit(Linear):
    """A layer's products, some with operands of 8 bits.

    Parameters
    ----------
    machine
        With the buffers of `plan_buffers`.
    plan
        As `plan_products` makes it.
    measure
        Cast, to know the largest magnitudes, but multiply in the storage type.
    """

    state = ("fp8_history",)

    def __init__(self, machine: Machine, plan: Plan8, measure: bool = False) -> None:
        super().__init__(machine)
        self.plan, self.measure, self.ready = plan, measure, False
        self._place = {name: place for place, name in enumerate((*plan.tensors, *plan.matrices))}
        if not measure:
            upload(machine.at("fp8_matrices"), matrix_table(machine, plan))

    def first(self) -> Linear:
        """Return the same, measuring only."""
        return EightBit(self.m, self.plan, measure=True)

    # -- scales and weights ------------------------------------------------------------------------------------------

    def begin(self, given: Mapping[str, Any]) -> None:
        """Make scales from the history, which is new, and codes from the working weights."""
        known = given.get("fp8_history")
        self.ready = known is not None and all(known[self._place[name]].any() for name in self.plan.cast)
        self._make_scales(record=False)
        self._make_weights()

    def follow_update(self) -> None:
        """Take the step's largest magnitudes into the history, unless it was skipped; make scales and codes anew."""
        self._make_scales(record=True)
        self._make_weights()

    def _make_scales(self, record: bool) -> None:
        m, S = self.m, len(self.plan.tensors)
        addresses = (m.at("fp8_history"), m.at("fp8_amax"), m.at("fp8_scales"), m.at("train_state"))
        m.elementwise.launch("k_fp8_scales", blocks_for(S, 256), 256, *addresses, S, S // 2, int(record))

    def _make_weights(self) -> None:
        m, matrices = self.m, self.plan.matrices
        if not matrices:
            return
        grid = max(tiles(*shape_of(name, m.C)) for name in matrices), len(matrices)
        read = m.at("fp8_matrices"), m.at("working_weights"), m.at("fp8_weights_amax")
        m.zero("fp8_weights_amax")
        m.elementwise.launch("k_fp8_weights_amax", grid, 256, *read)
        m.elementwise.launch("k_fp8_weights", grid, 256, *read, self._scale(matrices[0]), m.at("fp8_weights"))

    # -- products ----------------------------------------------------------------------------------------------------

    def forward(self, name: str, x: int, y: int, N: int, aux: int = 0, cast: bool = True) -> None:
        """Y = x W, see `Linear.forward`."""
        inputs, outputs = shape_of(name, self.m.C)
        if cast:
            self._cast_input("k_fp8_e4m3", name, N, x)
        if self._eight(f"{name}.y"):
            operands = self._codes(f"{name}.x", E4M3, "fp8_operand"), self._weights(name, "y")
            self._multiply(*operands, y, (N, outputs, inputs), "gelu" if aux else "", aux)
        else:
            super().forward(name, x, y, N, aux)

    def backward(self, name: str, x: int, dy: int, dx: int, N: int, aux: int = 0, cast: bool = True) -> None:
        """Dx = dy W' and dW += x' dy, see `Linear.backward`."""
        m, (inputs, outputs) = self.m, shape_of(name, self.m.C)
        if cast:
            self._cast_gradient("k_fp8_e5m2", name, N, dy)
        if self._eight(f"{name}.dw"):
            operands = (
                self._codes(f"{name}.x", E4M3, "fp8_inputs", self.plan.kept[name]),
                self._codes(f"{name}.dy", E5M2, "fp8_turned"),
            )
            with m.branch.beside(m.at("fp8_turned")) as stream:
                self._multiply(*operands, m.gradient(name), (inputs, outputs, N), accumulate=True, stream=stream)
        else:
            m.product_gradient(x, dy, m.gradient(name), N, inputs, outputs)
        if self._eight(f"{name}.dx"):
            operands = self._codes(f"{name}.dy", E5M2, "fp8_operand"), self._weights(name, "dx")
            self._multiply(*operands, dx, (N, inputs, outputs), "dgelu" if aux else "", aux)
        else:
            m.product_transposed(dy, m.weight(name), dx, N, outputs, inputs, aux=aux)

    def gelu(self, name: str, pre: int, hidden: int, N: int) -> None:
        """Hidden = gelu(pre), and its codes in the same pass; only codes where nobody reads more."""
        codes_alone = self._eight(f"{name}.y") and self._eight(f"{name}.dw")
        if not self._cast_input("k_fp8_gelu_fwd", name, N, pre, 0 if codes_alone else hidden):
            super().gelu(name, pre, hidden, N)

    def gelu_gradient(self, name: str, dhidden: int, pre: int, N: int) -> None:
        """Dhidden = dhidden gelu'(pre), and its codes in the same pass; only codes where nobody reads more."""
        codes_alone = self._eight(f"{name}.dx") and self._eight(f"{name}.dw")
        if not self._cast_gradient("k_fp8_gelu_bwd", name, N, dhidden, pre, 0 if codes_alone else dhidden):
            super().gelu_gradient(name, dhidden, pre, N)

    def _eight(self, product: str) -> bool:
        """Return whether a product takes codes."""
        return product in self.plan.products and not self.measure

    def _cast_input(self, kernel: str, name: str, N: int, *arrays: int) -> bool:
        """Launch what casts the x of a matrix, see `_cast`."""
        straight = self.m.at("fp8_operand") if self._eight(f"{name}.y") else 0
        turned = self.m.at("fp8_inputs", self.plan.kept[name]) if self._eight(f"{name}.dw") else 0
        return self._cast(kernel, f"{name}.x", arrays, straight, turned, N, shape_of(name, self.m.C)[0])

    def _cast_gradient(self, kernel: str, name: str, N: int, *arrays: int) -> bool:
        """Launch what casts the dy of a matrix, see `_cast`."""
        straight = self.m.at("fp8_operand") if self._eight(f"{name}.dx") else 0
        turned = self.m.at("fp8_turned") if self._eight(f"{name}.dw") else 0
        self.m.branch.settle(turned)  # one buffer for all: the matrix before may be reading it
        return self._cast(kernel, f"{name}.dy", arrays, straight, turned, N, shape_of(name, self.m.C)[1])

    def _cast(
        self, kernel: str, tensor: str, arrays: tuple[int, ...], straight: int, turned: int, rows: int, columns: int
    ) -> bool:
        """Launch a kernel that casts and measures; False when no product wants codes of the tensor."""
        if tensor not in self.plan.cast:
            return False
        scale, amax = self._scale(tensor), self.m.at("fp8_amax", self._place[tensor])
        arguments = (*arrays, straight, turned, scale, amax, rows, columns)
        self.m.elementwise.launch(kernel, tiles(rows, columns), 256, *arguments)
        return True

    def _codes(self, tensor: str, kind: Float8, buffer: str, element: int = 0) -> Operand:
        return Operand(self.m.at(buffer, element), kind, self._scale(tensor) + 4 * SCALE_FLOATS)

    def _weights(self, name: str, result: str) -> Operand:
        return self._codes(name, E4M3, "fp8_weights", self.plan.codes[f"{name}.{result}"])

    def _scale(self, name: str) -> int:
        """Return the address of the factor of a tensor or matrix; its inverse lies behind it."""
        return self.m.at("fp8_scales", 2 * SCALE_FLOATS * self._place[name])

    def _multiply(
        self,
        a: Operand,
        b: Operand,
        d: int,
        sizes: tuple[int, int, int],
        epilogue: str = "",
        aux: int = 0,
        accumulate: bool = False,
        stream: int | None = None,
    ) -> None:
        """D[m, n] = A[m, k] B[n, k]', in the storage type; or D += that, in float32."""
        rows, columns, k = sizes
        problem = Problem(
            rows,
            columns,
            k,
            False,
            True,
            k,
            k,
            columns,
            a.kind.name,
            "float32" if accumulate else self.m.precision.storage,
            accumulate=accumulate,
            epilogue=epilogue,
            operand_b=b.kind.name,
        )
        on = self.m.stream if stream is None else stream
        self.m.gemms.prepare(problem)(a.address, b.address, d, on, aux, (a.inverse, b.inverse))


@frozen
class Operand:
    """Codes on the card: where they lie, what they are, and where the factor lies that makes them values."""

    address: int
    kind: Float8
    inverse: int


def tiles(rows: int, columns: int) -> int:
    """Return the blocks of a kernel that casts."""
    return blocks_for(rows, TILE_ROWS) * blocks_for(columns, TILE_COLUMNS)


def matrix_table(machine: Machine, plan: Plan8) -> npt.NDArray[Any]:
    """Return the table that `k_fp8_weights` walks, `MATRIX` (M,)."""
    rows = []
    for name in plan.matrices:
        straight, turned = (plan.codes.get(f"{name}.{result}", -1) for result in ("dx", "y"))
        rows.append((machine.placement.offsets[name], straight, turned, *shape_of(name, machine.C)))
    return np.array(rows, dtype=MATRIX)
