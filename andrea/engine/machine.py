"""What every launch needs: sizes, addresses, kernels, prepared matrix products and the streams they run on.

Axis letters: B rows of a micro-batch, T context, N = B T, C width, H heads, D = C / H, F = 4 C, V vocabulary padded.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from attrs import define, field

from andrea.engine import EngineConfig, fp8
from andrea.engine.attention import HEAD_DIMS, type_macros
from andrea.engine.attention_choice import AttentionKernels, check_attention, open_attention
from andrea.engine.attention_cudnn import WORKSPACE, CudnnAttention
from andrea.engine.branch import WORKSPACE as SIDE_WORKSPACE
from andrea.engine.branch import Branch, open_branch, overlaps
from andrea.engine.buffers import (
    Arena,
    Placement,
    check_fits,
    free_memory,
    norm_places,
    norms_with_parameters,
    padded_vocabulary,
    place_parameters,
    plan_memory,
    update_chunks,
)
from andrea.engine.compiler import architecture_of, compile_kernels
from andrea.engine.elementwise import FILES, Elementwise
from andrea.engine.gemm import CublasLt, Gemms, Problem, open_gemms
from andrea.engine.graph import Graph
from andrea.engine.launcher import Kernels, check, driver, upload
from andrea.errors import AndreaError
from andrea.types import Device, Precision

OWN_FILES = ("decode", "sample", "token_order")
RESERVE = 256 << 20  # bytes left to the driver and to libraries that load code when it is first used


@define(eq=False)
class Machine:
    """A card that is set up: its memory is placed, its kernels are loaded, nothing more will be allocated."""

    config: EngineConfig
    precision: Precision
    arena: Arena
    placement: Placement
    kernels: Kernels
    elementwise: Elementwise
    attention: AttentionKernels
    gemms: Gemms
    branch: Branch
    fused_gelu: bool
    fused_gelu_gradient: bool
    B: int = field(init=False)
    T: int = field(init=False)
    N: int = field(init=False)
    C: int = field(init=False)
    F: int = field(init=False)
    V: int = field(init=False)
    layers: int = field(init=False)
    chunks: int = field(init=False)
    norms: list[str] = field(init=False)
    free_before: int = 0
    _flat: dict[str, int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        model = self.config.model
        self.B, self.T, self.C, self.layers = self.config.batch_size, model.context, model.d_model, model.n_layer
        self.N, self.F, self.V = self.B * self.T, 4 * self.C, padded_vocabulary(self.config.vocabulary)
        self.chunks = len(update_chunks(model, self.config.vocabulary))
        self.norms = norms_with_parameters(model)
        self._flat = {segment.name: segment.source for segment in self.placement.segments}

    @property
    def stream(self) -> int:
        """The main stream."""
        return self.branch.main

    # -- addresses ---------------------------------------------------------------------------------------------------

    def at(self, name: str, element: int = 0) -> int:
        """Return the address of a buffer, or of one of its elements."""
        return self.arena.address(name, element)

    def weight(self, name: str) -> int:
        """Return the address of a matrix in the storage type."""
        return self.arena.address("working_weights", self.placement.offsets[name])

    def gradient(self, name: str) -> int:
        """Return the address of a parameter's gradient."""
        return self.arena.address("gradients", self.placement.offsets[name])

    def affine(self, norm: str) -> tuple[int, int]:
        """Return the addresses of a norm's gamma and beta, float32, or (0, 0) when norms have none."""
        if not self.config.model.norm_affine:
            return 0, 0
        return self.at("weights", self._flat[f"{norm}.gamma"]), self.at("weights", self._flat[f"{norm}.beta"])

    def norm_shares(self, norm: str) -> int:
        """Return the address of the shares of a norm's parameter gradients, or 0."""
        if not self.norms:
            return 0
        return self.at("norm_shares", self.norms.index(norm) * self.arena.plan["norm_shares"].shape[1])

    @property
    def head(self) -> str:
        """Name of the head's matrix."""
        return "embed" if self.config.model.tie_embeddings else "head"

    def zero(self, name: str) -> None:
        """Fill a buffer with zeros, by a kernel: a graph of nothing but kernels in a row is launched faster."""
        self.elementwise.zero(self.at(name), self.arena.plan[name].bytes)

    def record(self, launches: Callable[[], None]) -> Graph:
        """Return what `launches` does on the streams as one graph."""
        return Graph(self.stream, launches, self.elementwise.zero_node, self.branch.side is not None)

    # -- matrix products, all row-major --------------------------------------------------------------------------------

    def product(self, x: int, weight: int, y: int, rows: int, inputs: int, outputs: int, aux: int = 0) -> None:
        """y[rows, outputs] = x[rows, inputs] @ weight[inputs, outputs]; with `aux`, that is aux and y = gelu(aux)."""
        problem = self._problem(rows, outputs, inputs, epilogue="gelu" if aux else "")
        self.gemms.prepare(problem)(x, weight, y, self.stream, aux)

    def product_transposed(
        self, x: int, weight: int, y: int, rows: int, inputs: int, outputs: int, aux: int = 0
    ) -> None:
        """y[rows, outputs] = x[rows, inputs] @ weight[outputs, inputs].T; with `aux`, times gelu'(aux)."""
        problem = self._problem(rows, outputs, inputs, transpose_b=True, epilogue="dgelu" if aux else "")
        self.gemms.prepare(problem)(x, weight, y, self.stream, aux)

    def product_gradient(self, x: int, dy: int, dweight: int, rows: int, inputs: int, outputs: int) -> None:
        """dweight[inputs, outputs] += x[rows, inputs].T @ dy[rows, outputs], float32, beside what follows."""
        problem = self._problem(inputs, outputs, rows, transpose_a=True, result="float32", accumulate=True)
        with self.branch.beside(x, dy, dweight) as stream:
            self.gemms.prepare(problem)(x, dy, dweight, stream)

    def _problem(
        self,
        m: int,
        n: int,
        k: int,
        *,
        transpose_a: bool = False,
        transpose_b: bool = False,
        result: str = "",
        accumulate: bool = False,
        epilogue: str = "",
    ) -> Problem:
        return Problem(
            m,
            n,
            k,
            transpose_a,
            transpose_b,
            m if transpose_a else k,
            k if transpose_b else n,
            n,
            self.precision.storage,
            result or self.precision.storage,
            self.precision.multiply == "tf32",
            accumulate,
            epilogue,
        )

    def close(self) -> None:
        """Give memory, code and streams back."""
        self.gemms.close()
        self.attention.close()
        self.kernels.close()
        self.arena.close()
        self.branch.close()


def current_context(index: int) -> Any:
    """Take hold of a card's primary context and make it current."""
    device = check(driver().cuDeviceGet(index), f"cuDeviceGet({index})")
    context = check(driver().cuDevicePrimaryCtxRetain(device), "cuDevicePrimaryCtxRetain")
    check(driver().cuCtxSetCurrent(context), "cuCtxSetCurrent")
    return context


def check_support(config: EngineConfig, device: Device, precision: Precision) -> None:
    """Refuse what no kernel can do.

    Raises
    ------
    AndreaError
        Naming what the card, or the kernels, can.
    """
    model = config.model
    if model.head_dim not in HEAD_DIMS:
        fitting = [str(model.d_model // D) for D in HEAD_DIMS if model.d_model % D == 0]
        raise AndreaError(
            f"heads of {model.head_dim} have no kernel; there are kernels for {', '.join(map(str, HEAD_DIMS))}",
            f"for d_model {model.d_model}, n_head may be {' or '.join(fitting)}"
            if fitting
            else f"d_model must be a multiple of {HEAD_DIMS[0]}",
        )
    needed = (8, 0) if "bfloat16" in (precision.storage, precision.multiply) or precision.multiply == "tf32" else (7, 5)
    if precision.fp8:
        needed = (8, 9)
    if device.capability < needed:
        raise AndreaError(
            f"precision {precision.name} needs a card of compute capability {needed[0]}.{needed[1]}; "
            f"{device.name} has {device.capability[0]}.{device.capability[1]}",
            "take --plugin precision.fp16 or --plugin precision.fp32",
        )
    check_attention(config, device, precision)


def usable_memory(config: EngineConfig) -> int:
    """Return the bytes that an arena may take now, on the card of the current context."""
    free = free_memory() - RESERVE
    limit = config.options.get("arena_limit")
    return free if limit is None else min(free, int(limit))


def build_machine(config: EngineConfig, device: Device, precision: Precision) -> Machine:
    """Compile, load, plan and allocate in the current context."""
    architecture = architecture_of(device.capability)
    plan = check_fits(config, usable_memory(config), lambda one: plan_memory(one, precision))
    files = [*FILES, *OWN_FILES, *(fp8.FILES if fp8.products_of(config, precision) else ())]
    branch = open_branch(overlaps(config))
    with ThreadPoolExecutor(1) as beside:  # attention and products compile or load meanwhile
        compiled = beside.submit(compile_kernels, files, type_macros(precision), architecture)
        attention = open_attention(config, precision, architecture)
        gemms = open_gemms(str(config.options.get("gemm", "auto")), device, precision, architecture)
    kernels = Kernels(compiled.result())
    free_before = free_memory()
    arena = Arena.allocate(plan)
    gemms.workspaces[branch.main] = arena.address("gemm_workspace")
    if branch.side is not None:
        gemms.workspaces[branch.side] = arena.address(SIDE_WORKSPACE)
    if isinstance(attention, CudnnAttention):
        attention.workspace = arena.address(WORKSPACE)
    placement = place_parameters(config.model, config.vocabulary)
    upload(arena.address("chunks"), update_chunks(config.model, config.vocabulary))
    if config.training and config.model.norm_affine:
        upload(arena.address("norm_places"), norm_places(config.model, placement))
    elementwise = Elementwise(kernels, precision.storage, branch.main)
    forward, gradient = fused_gelu(config, precision, gemms)
    machine = Machine(
        config, precision, arena, placement, kernels, elementwise, attention, gemms, branch, forward, gradient
    )
    machine.free_before = free_before
    return machine


def fused_gelu(config: EngineConfig, precision: Precision, gemms: Gemms) -> tuple[bool, bool]:
    """Return whether GELU runs inside the product before it, and its gradient inside the product of the backward.

    Where a separate pass costs more than the epilogue, by measurement: in 16 bits always in the forward, and in the
    backward from a width of 512 up. In float32 and tf32 the separate kernels are exact, and rounding the operands is
    part of them; with operands of 8 bits they make the next product's operand as well.
    """
    wanted = config.options.get("fused_gelu")
    if wanted is not None:
        return bool(wanted), bool(wanted)
    half = precision.storage != "float32" and isinstance(gemms, CublasLt)
    eight_bit = fp8.products_of(config, precision)
    forward = half and not {"w_1.y", "w_2.y", "w_2.dw"} & set(eight_bit)
    backward = half and not {"w_2.dx", "w_1.dx", "w_1.dw"} & set(eight_bit)
    return forward, backward and config.model.d_model >= 512
