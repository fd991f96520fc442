"""Products with operands of 8 bits: which, where their codes and scales lie, and what is launched.

A product that `Precision.fp8` names reads 8-bit codes of its operands and gives the storage type: ``w_1.y`` activations
and the transposed weights in E4M3, ``w_1.dx`` the gradient in E5M2 and the weights in E4M3. Gradients of weights,
attention, norms, embedding and head stay in the storage type, and so do evaluation and text.

The scale of an activation or gradient follows the largest magnitudes of the last updates, a buffer of the state. While
nothing is known of them (the first step of a run, or of a fork from another precision) products stay in the storage
type, and the casts only measure.

Axis letters: S tensors that are cast, M matrices.
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
from andrea.engine.operations import E4M3, E5M2, FP8_HISTORY
from andrea.errors import AndreaError, did_you_mean

if TYPE_CHECKING:
    from andrea.engine import EngineConfig
    from andrea.engine.buffers import MemoryPlan
    from andrea.engine.machine import Machine
    from andrea.engine.model import ModelConfig
    from andrea.types import Precision

FILES = ("fp8",)
EACH_BLOCK, TILE = 256 * 4 * 8, 64  # as in kernels/fp8.cu

#: Products of a layer that may take operands of 8 bits: forwards, then gradients of their inputs.
PRODUCTS = tuple(f"{matrix}.{side}" for side in ("y", "dx") for matrix in MATRICES)

#: Mirror of `Matrix` in kernels/fp8.cu.
MATRIX = np.dtype([("source", "<i8"), ("straight", "<i8"), ("turned", "<i8"), ("rows", "<i4"), ("columns", "<i4")])


@frozen
class Plan8:
    """What a model's products in 8 bits need.

    Attributes
    ----------
    products
        For instance ``layer0.w_1.y``: forwards first, then gradients. Each casts one tensor, of the same place in
        history and scales.
    forwards
        How many are forwards.
    matrices
        For instance ``layer0.w_1``, in the order of their scales, which follow those of the tensors.
    codes
        Where a product's weights lie among all codes: transposed for a forward, as they are stored for a gradient.
    size
        Bytes of all codes.
    """

    products: tuple[str, ...]
    forwards: int
    matrices: tuple[str, ...]
    codes: Mapping[str, int]
    size: int


def plan_products(model: ModelConfig, wanted: tuple[str, ...]) -> Plan8:
    """Lay out the products named in `Precision.fp8` for all layers.

    Raises
    ------
    AndreaError
        When one of the names is none of `PRODUCTS`.
    """
    if unknown := [name for name in wanted if name not in PRODUCTS]:
        hint = did_you_mean(unknown[0], PRODUCTS) or f"products: {', '.join(PRODUCTS)}"
        raise AndreaError(f"there is no product {unknown[0]!r} in 8 bits", hint)
    products = [f"layer{i}.{kind}" for kind in PRODUCTS if kind in wanted for i in range(model.n_layer)]
    codes, size = {}, 0
    for product in products:
        codes[product] = size
        inputs, outputs = shape_of(product.split(".")[1], model.d_model)
        size += inputs * outputs
    matrices = tuple(dict.fromkeys(product.rpartition(".")[0] for product in products))
    return Plan8(tuple(products), sum(product.endswith(".y") for product in products), matrices, codes, size)


def products_of(config: EngineConfig, precision: Precision) -> tuple[str, ...]:
    """Return the products in 8 bits of an engine: none where nothing is trained."""
    return precision.fp8_products(config.model.d_model) if config.training else ()


def plan_buffers(memory: MemoryPlan, config: EngineConfig, precision: Precision) -> None:
    """Plan the buffers of all products in 8 bits; none when there are none."""
    model, wanted = config.model, products_of(config, precision)
    if not wanted:
        return
    plan = plan_products(model, wanted)
    S, M = len(plan.products), len(plan.matrices)
    memory.add("fp8_history", "largest magnitudes of the last updates", (S, FP8_HISTORY), "float32")
    memory.add("fp8_amax", "largest magnitudes of a step", (S,), "float32")
    memory.add("fp8_weights_amax", "largest magnitudes of matrices", (M,), "float32")
    memory.add("fp8_scales", "factors of casts and their inverses", (S + M, 2), "float32")
    memory.add("fp8_matrices", "table of matrices in 8 bits", (M * MATRIX.itemsize,), "uint8")
    memory.add("fp8_weights", "working weights in 8 bits", (plan.size,), "uint8")
    memory.add("fp8_operand", "an operand in 8 bits", (config.batch_size * model.context, 4 * model.d_model), "uint8")


def open_linear(machine: Machine) -> Linear:
    """Return a machine's layer products, in 8 bits where its precision says so."""
    wanted = products_of(machine.config, machine.precision)
    return EightBit(machine, plan_products(machine.config.model, wanted)) if wanted else Linear(machine)


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
        self._place = {name: place for place, name in enumerate((*plan.products, *plan.matrices))}
        if not measure:
            upload(machine.at("fp8_matrices"), matrix_table(machine, plan))

    def first(self) -> Linear:
        """Return the same, measuring only."""
        return EightBit(self.m, self.plan, measure=True)

    # -- scales and weights ------------------------------------------------------------------------------------------

    def begin(self, given: Mapping[str, Any]) -> None:
        """Make scales from the history, which is new, and codes from the working weights."""
        self.ready = bool(np.any(given.get("fp8_history", 0)))
        self._make_scales(record=False)
        self._make_weights()

    def follow_update(self) -> None:
        """Take the step's largest magnitudes into the history, unless it was skipped; make scales and codes anew."""
        self._make_scales(record=True)
        self._make_weights()

    def _make_scales(self, record: bool) -> None:
        m, S = self.m, len(self.plan.products)
        addresses = (m.at("fp8_history"), m.at("fp8_amax"), m.at("fp8_scales"), m.at("train_state"))
        m.elementwise.launch("k_fp8_scales", blocks_for(S, 256), 256, *addresses, S, self.plan.forwards, int(record))

    def _make_weights(self) -> None:
        m, matrices = self.m, self.plan.matrices
        shapes = [shape_of(name.split(".")[1], m.C) for name in matrices]
        grid = max(blocks_for(rows, TILE) * blocks_for(columns, TILE) for rows, columns in shapes), len(matrices)
        read = m.at("fp8_matrices"), m.at("working_weights"), m.at("fp8_weights_amax")
        m.zero("fp8_weights_amax")
        m.elementwise.launch("k_fp8_weights_amax", grid, 256, *read)
        m.elementwise.launch("k_fp8_weights", grid, 256, *read, self._scale(matrices[0]), m.at("fp8_weights"))

    # -- products ----------------------------------------------------------------------------------------------------

    def forward(self, name: str, x: int, y: int, N: int, aux: int = 0, cast: bool = True) -> None:
        """Y = x W, see `Linear.forward`; x becomes E4M3."""
        product, (inputs, outputs) = f"{name}.y", self._sizes(name)
        if cast:
            self._cast("k_fp8_e4m3", product, N * inputs, x)
        if self._multiplies(product):
            self._multiply(product, y, (N, outputs, inputs), E4M3.name, "gelu" if aux else "", aux)
        else:
            super().forward(name, x, y, N, aux)

    def backward(self, name: str, dy: int, dx: int, N: int, aux: int = 0, cast: bool = True) -> None:
        """Dx = dy W.T, see `Linear.backward`; dy becomes E5M2."""
        product, (inputs, outputs) = f"{name}.dx", self._sizes(name)
        if cast:
            self._cast("k_fp8_e5m2", product, N * outputs, dy)
        if self._multiplies(product):
            self._multiply(product, dx, (N, inputs, outputs), E5M2.name, "dgelu" if aux else "", aux)
        else:
            super().backward(name, dy, dx, N, aux)

    def gelu(self, name: str, pre: int, hidden: int, N: int) -> None:
        """Hidden = gelu(pre), and its codes in the same pass where the product that follows wants them."""
        if not self._cast("k_fp8_gelu_fwd", f"{name}.y", N * self._sizes(name)[0], pre, hidden):
            super().gelu(name, pre, hidden, N)

    def gelu_gradient(self, name: str, dhidden: int, pre: int, N: int) -> None:
        """Dhidden = dhidden gelu'(pre), and its codes in the same pass where the product that follows wants them."""
        if not self._cast("k_fp8_gelu_bwd", f"{name}.dx", N * self._sizes(name)[1], dhidden, pre, dhidden):
            super().gelu_gradient(name, dhidden, pre, N)

    def _cast(self, kernel: str, product: str, n: int, *tensors: int) -> bool:
        """Launch a kernel that leaves a product's operand in 8 bits; False when the product wants none."""
        if product not in self._place:
            return False
        amax = self.m.at("fp8_amax", self._place[product])
        arguments = (*tensors, self.m.at("fp8_operand"), self._scale(product), amax, n)
        self.m.elementwise.launch(kernel, blocks_for(n, EACH_BLOCK), 256, *arguments)
        return True

    def _multiplies(self, product: str) -> bool:
        return product in self._place and not self.measure

    def _multiply(
        self, product: str, out: int, sizes: tuple[int, int, int], operand: str, epilogue: str, aux: int
    ) -> None:
        """Multiply the operand with the product's own codes of the weights, whose rows are as long as the sums."""
        m, (rows, columns, k) = self.m, sizes
        problem = Problem(
            rows,
            columns,
            k,
            False,
            True,
            k,
            k,
            columns,
            operand,
            m.precision.storage,
            epilogue=epilogue,
            operand_b=E4M3.name,
        )
        weights = m.at("fp8_weights", self.plan.codes[product])
        scales = self._inverse(product), self._inverse(product.rpartition(".")[0])
        m.gemms.prepare(problem)(m.at("fp8_operand"), weights, out, m.stream, aux, scales)

    def _scale(self, name: str) -> int:
        """Return the address of the factor of a tensor or matrix."""
        return self.m.at("fp8_scales", 2 * self._place[name])

    def _inverse(self, name: str) -> int:
        return self.m.at("fp8_scales", 2 * self._place[name] + 1)


def matrix_table(machine: Machine, plan: Plan8) -> npt.NDArray[Any]:
    """Return the table that `k_fp8_weights` walks, `MATRIX` (M,)."""
    rows = []
    for name in plan.matrices:
        straight, turned = (plan.codes.get(f"{name}.{side}", -1) for side in ("dx", "y"))
        rows.append((machine.placement.offsets[name], straight, turned, *shape_of(name.split(".")[1], machine.C)))
    return np.array(rows, dtype=MATRIX)
