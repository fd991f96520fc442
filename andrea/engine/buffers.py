"""The memory plan: every buffer has a name, a place in one arena, and is known before anything is allocated.

Axis letters: A micro-batches of a step, B rows of one, T context, N = B T, C = d_model, H heads, F = 4 C, V vocabulary
padded to a multiple of 128. The padding exists here alone: its weights are 0 and stay 0.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import evolve, frozen

from andrea.engine import Buffer, EngineConfig, fp8
from andrea.engine.attention_cudnn import WORKSPACE, workspace_bytes
from andrea.engine.branch import WORKSPACE as SIDE_WORKSPACE
from andrea.engine.branch import overlaps
from andrea.engine.elementwise import CHUNK, STATE, Elementwise, Tensor, chunk_table
from andrea.engine.gemm import WORKSPACE_BYTES
from andrea.engine.model import ModelConfig, layout, parameter_count
from andrea.errors import AndreaError
from andrea.types import Precision

ALIGNMENT = 256
VOCABULARY_MULTIPLE = 128
ORDER_CHUNK = 512  # as in kernels/token_order.cu
DECODE_CAPACITY = 64  # ids of a row that the card chooses before the host looks
BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8, "uint8": 1}


def padded_vocabulary(vocabulary: int) -> int:
    """Return the vocabulary rounded up to what the matrix units like."""
    return -(-vocabulary // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE


def aligned(size: int, to: int = ALIGNMENT) -> int:
    """Return `size` rounded up to a multiple."""
    return -(-size // to) * to


class MemoryPlan:
    """Buffers in the order of their addresses, offsets aligned to 256 bytes; and names of parts of them."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.offsets: dict[str, int] = {}
        self.total = 0
        self._by_name: dict[str, Buffer] = {}

    def add(self, name: str, purpose: str, shape: Sequence[int], dtype: str) -> None:
        """Place one more buffer behind the others."""
        if name in self.offsets:
            raise ValueError(f"buffer {name} is planned twice")
        size = math.prod(shape) * BYTES[dtype]
        self._by_name[name] = Buffer(name, purpose, tuple(shape), dtype, size)
        self.buffers.append(self._by_name[name])
        self.offsets[name] = self.total
        self.total += aligned(max(size, 1))

    def share(self, name: str, shape: Sequence[int], inside: str, element: int = 0) -> None:
        """Give a part of a buffer, from one of its elements on, a name of its own; it takes no further memory."""
        if name in self.offsets:
            raise ValueError(f"buffer {name} is planned twice")
        whole, width = self._by_name[inside], BYTES[self._by_name[inside].dtype]
        part = Buffer(name, whole.purpose, tuple(shape), whole.dtype, math.prod(shape) * width)
        if element * width + part.bytes > whole.bytes:
            raise ValueError(f"{name} does not lie inside {inside}")
        self._by_name[name] = part
        self.offsets[name] = self.offsets[inside] + element * width

    def __getitem__(self, name: str) -> Buffer:
        return self._by_name[name]

    def __iter__(self) -> Iterator[Buffer]:
        return iter(self.buffers)


@frozen
class Segment:
    """Where one parameter lies: in flat arrays in published order, and inside the engine.

    Inside, W_Q, W_K and W_V are columns of one [C, 3C] matrix, the vocabulary is padded, and every tensor is aligned.

    Attributes
    ----------
    name
        As in `andrea.engine.model.layout`.
    rows, columns
        Shape; a vector is one row.
    source
        Offset of the first element in the flat arrays, whose rows follow each other.
    target, stride
        Offset inside the engine, and elements from one row there to the next.
    decay
        Whether weight decay acts on it.
    """

    name: str
    rows: int
    columns: int
    source: int
    target: int
    stride: int
    decay: bool


@frozen
class Placement:
    """The engine's own layout of parameters: segments in published order, tensors by name, elements in all."""

    segments: tuple[Segment, ...]
    offsets: dict[str, int]
    size: int


def place_parameters(model: ModelConfig, vocabulary: int) -> Placement:
    """Return where every parameter lies inside the engine; the fused tensors are named ``layerI.w_qkv``."""
    segments: list[Segment] = []
    offsets: dict[str, int] = {}
    end, C = 0, model.d_model
    for p in layout(model, vocabulary):
        rows, columns = (1, p.size) if len(p.shape) == 1 else p.shape
        prefix, _, kind = p.name.rpartition(".")
        stride, target, size = columns, end, rows * columns
        if kind in ("w_q", "w_k", "w_v"):
            stride, fused = 3 * C, f"{prefix}.w_qkv"
            size = 3 * C * C if kind == "w_q" else 0
            target = offsets.setdefault(fused, end) + ("w_q", "w_k", "w_v").index(kind) * C
        elif kind in ("embed", "head"):
            size = padded_vocabulary(rows) * columns
        offsets[p.name] = target
        segments.append(Segment(p.name, rows, columns, p.offset, target, stride, p.decay))
        end += aligned(size, ALIGNMENT // 2)  # 256 bytes of the smallest storage type
    return Placement(tuple(segments), offsets, end)


def plan_memory(config: EngineConfig, precision: Precision) -> MemoryPlan:
    """Return every buffer of the CUDA engine; nothing else is ever allocated on the card."""
    plan = MemoryPlan()
    placement = place_parameters(config.model, config.vocabulary)
    _plan_state(plan, config, placement, precision.storage)
    _plan_batch(plan, config)
    _plan_decoding(plan, config.batch_size, config.vocabulary)
    if config.training:
        _plan_reductions(plan, config, placement)
        _plan_layers(plan, config, precision.storage)
        _plan_gradients(plan, config, precision.storage)
    else:
        _plan_one_layer(plan, config, precision.storage)
    _plan_head(plan, config, precision.storage)
    fp8.plan_buffers(plan, config, precision)
    plan.add("gemm_workspace", "scratch of cuBLASLt", (WORKSPACE_BYTES,), "uint8")
    if overlaps(config):  # as large: which algorithm is taken, and so how much it needs, is not known yet
        plan.add(SIDE_WORKSPACE, "scratch of cuBLASLt on the side stream", (WORKSPACE_BYTES,), "uint8")
    if config.options.get("attention") == "cudnn":
        size = workspace_bytes(config.batch_size, config.model.context, config.model.n_head, config.training)
        plan.add(WORKSPACE, "scratch of cuDNN", (size,), "uint8")
    return plan


def _plan_state(plan: MemoryPlan, config: EngineConfig, placement: Placement, storage: str) -> None:
    count = parameter_count(config.model, config.vocabulary)
    plan.add("weights", "master weights", (count,), "float32")
    if config.training:
        plan.add("first_moments", "moments of AdamW", (count,), "float32")
        plan.add("second_moments", "moments of AdamW", (count,), "float32")
        plan.add("gradients", "gradients of all parameters", (placement.size,), "float32")
    plan.add("working_weights", "working weights, which products read", (placement.size,), storage)
    chunks = len(update_chunks(config.model, config.vocabulary))
    plan.add("chunks", "table of the update", (chunks * CHUNK.itemsize,), "uint8")


def _plan_batch(plan: MemoryPlan, config: EngineConfig) -> None:
    """Plan what goes in and out of a step or an evaluation."""
    model, rows = config.model, config.rows
    plan.add("ids", "inputs of a step", (rows, model.context), "int32")
    plan.add("targets", "ids to predict, -1 not counted", (rows, model.context), "int32")
    plan.add("learning_rate", "of the step", (1,), "float32")
    plan.add("row_losses", "mean of each row", (rows,), "float32")
    plan.add("train_state", "what one update leaves for the next", (STATE.itemsize,), "uint8")
    plan.add("token_losses", "of a micro-batch", (config.batch_size * model.context,), "float32")


def _plan_reductions(plan: MemoryPlan, config: EngineConfig, placement: Placement) -> None:
    """Plan scratch of the sums of a backward and of the norm."""
    model = config.model
    N, C, V = config.batch_size * model.context, model.d_model, padded_vocabulary(config.vocabulary)
    plan.add("order", "positions sorted by id", (N,), "int32")
    plan.add("order_counts", "ids of each chunk of positions", (-(-N // ORDER_CHUNK), V), "int32")
    plan.add("order_starts", "where an id's positions begin", (V,), "int32")
    plan.add("embed_partials", "sums of ids that cross chunks", (Elementwise.embed_partials(N, C),), "float32")
    plan.add("square_sums", "partial sums of the gradient norm", (Elementwise.norm_sums(placement.size),), "float32")
    if norms := len(norms_with_parameters(model)):
        plan.add("norm_shares", "shares of dgamma and dbeta", (norms, Elementwise.norm_partials(N, C)), "float32")
        plan.add("norm_places", "where dgamma and dbeta begin", (norms, 2), "int64")


def _plan_decoding(plan: MemoryPlan, B: int, vocabulary: int) -> None:
    """Plan what the choice of the next ids needs."""
    plan.add("decode_ids", "newest id of each row", (B,), "int32")
    plan.add("decode_positions", "its position; -1: idle", (B,), "int32")
    plan.add("decode_counts", "ids chosen since the host looked", (B,), "int32")
    plan.add("sample_options", "temperature, top-p, penalty, top-k", (4,), "float64")
    plan.add("decode_uniforms", "random numbers", (B, DECODE_CAPACITY), "float64")
    plan.add("decode_seen", "ids already in the row", (B, vocabulary), "uint8")
    plan.add("decode_tokens", "ids chosen", (B, DECODE_CAPACITY), "int32")
    plan.add("sample_weights", "scratch of the choice", (B, vocabulary), "float64")
    plan.add("sample_keys", "scratch of the choice", (B, vocabulary), "int64")


def _layer(config: EngineConfig, storage: str) -> dict[str, tuple[str, tuple[int, ...], str]]:
    """Return what a layer's forward leaves, by name: purpose, shape, type."""
    B, T, C, H = config.batch_size, config.model.context, config.model.d_model, config.model.n_head
    cached = "; keys and values while decoding" if config.training else ""
    statistics = ("means and deviations of norms", (B, T), "float32")
    return {
        "x1": ("residual stream before attention", (B, T, C), storage),
        "ln1.y": ("outputs of norms", (B, T, C), storage),
        "ln1.mean": statistics,
        "ln1.rstd": statistics,
        "qkv": ("queries, keys, values", (B, T, 3 * C), storage),
        "heads": ("output of the heads", (B, T, C), storage),
        "lse": ("log-sum-exp of the scores", (B, H, T), "float32"),
        "x2": ("residual stream before the MLP", (B, T, C), storage),
        "ln2.y": ("outputs of norms", (B, T, C), storage),
        "ln2.mean": statistics,
        "ln2.rstd": statistics,
        "preactivation": (f"before GELU{cached}", (B, T, 4 * C), storage),
        "hidden": ("after GELU", (B, T, 4 * C), storage),
    }


def _plan_layers(plan: MemoryPlan, config: EngineConfig, storage: str) -> None:
    """Plan what all layers leave for the backward.

    While text is written, keys and values lie where training needs nothing between steps: in the pre-activations,
    behind the first row, in which prompts are read; a single row has them where its prompt was.
    """
    model, B, T, C = config.model, config.batch_size, config.model.context, config.model.d_model
    cache, start = (B, model.n_head, T, model.head_dim), 4 * T * C if B > 1 else 0
    for i in range(model.n_layer):
        for name, one in _layer(config, storage).items():
            plan.add(f"layer{i}.{name}", *one)
        plan.share(f"layer{i}.keys", cache, f"layer{i}.preactivation", start)
        plan.share(f"layer{i}.values", cache, f"layer{i}.preactivation", start + B * T * C)


def _plan_one_layer(plan: MemoryPlan, config: EngineConfig, storage: str) -> None:
    """Plan what one layer leaves for the next: without a backward all layers share it.

    Except that each layer's queries, keys and values begin a row behind those of the layer before: a prompt is read in
    one row, so those of all its layers are there when the caches are filled.
    """
    model, B, T, C = config.model, config.batch_size, config.model.context, config.model.d_model
    row = aligned(T * 3 * C, ALIGNMENT // BYTES[storage])
    cache = (B, model.n_head, T, model.head_dim)
    for name, (purpose, shape, dtype) in _layer(config, storage).items():
        behind = row if name == "qkv" else 0
        plan.add(f"layers.{name}", purpose, (math.prod(shape) + (model.n_layer - 1) * behind,), dtype)
        for i in range(model.n_layer):
            plan.share(f"layer{i}.{name}", shape, f"layers.{name}", i * behind)
    for i in range(model.n_layer):
        plan.add(f"layer{i}.keys", "keys and values while decoding", cache, storage)
        plan.add(f"layer{i}.values", "keys and values while decoding", cache, storage)


def _plan_head(plan: MemoryPlan, config: EngineConfig, storage: str) -> None:
    B, T, C = config.batch_size, config.model.context, config.model.d_model
    plan.add("final.x", "residual stream before the head", (B, T, C), storage)
    plan.add("final.y", "outputs of norms", (B, T, C), storage)
    plan.add("final.mean", "means and deviations of norms", (B, T), "float32")
    plan.add("final.rstd", "means and deviations of norms", (B, T), "float32")
    plan.add("logits", "logits, and their gradient in place", (B, T, padded_vocabulary(config.vocabulary)), storage)
    plan.add("branch", "output of a block before it is added", (B, T, C), storage)


def _plan_gradients(plan: MemoryPlan, config: EngineConfig, storage: str) -> None:
    B, T, C = config.batch_size, config.model.context, config.model.d_model
    plan.add("dstream", "gradient of the residual stream", (B, T, C), storage)
    plan.add("dbranch", "gradient of a norm's output, or of the heads", (B, T, C), storage)
    plan.add("dqkv", "gradient of queries, keys, values", (B, T, 3 * C), storage)
    plan.add("dhidden", "gradient inside the MLP", (B, T, 4 * C), storage)
    plan.add("attention_rows", "two numbers a query for the backward", (B, config.model.n_head, T, 2), "float32")


def norms_with_parameters(model: ModelConfig) -> list[str]:
    """Return the names of all norms that have gamma and beta, in their order."""
    names = [f"layer{i}.{norm}" for i in range(model.n_layer) for norm in ("ln1", "ln2")]
    return [*names, "final"] if model.norm_affine else []


def norm_places(model: ModelConfig, placement: Placement) -> npt.NDArray[np.int64]:
    """Return at which elements of the gradients dgamma and dbeta of each norm begin, int64 (norms, 2)."""
    names = norms_with_parameters(model)
    return np.array([[placement.offsets[f"{name}.{kind}"] for kind in ("gamma", "beta")] for name in names], np.int64)


@functools.lru_cache(maxsize=2)
def update_chunks(model: ModelConfig, vocabulary: int) -> Any:
    """Return the table that the update walks: rows of fused matrices one by one, all else as long pieces."""
    return np.concatenate([_chunks(segment) for segment in place_parameters(model, vocabulary).segments])


def _chunks(s: Segment) -> Any:
    if not s.decay:  # norms are read in float32, so they have no working copy
        return chunk_table([Tensor(s.source, s.target, s.columns, s.decay)])
    if s.stride == s.columns:
        return chunk_table([Tensor(s.source, s.target, s.rows * s.columns, s.decay, s.target)])
    first = chunk_table([Tensor(s.source, s.target, s.columns, s.decay, s.target)])
    row = np.repeat(np.arange(s.rows), len(first))
    chunks = np.tile(first, s.rows)
    chunks["parameter"] += row * s.columns
    chunks["gradient"] += row * s.stride
    chunks["copy"] += row * s.stride
    return chunks


def readable(size: int) -> str:
    """Return a size as a person reads it: ``1.25 GiB``."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"


def describe_memory(config: EngineConfig, precision: Precision) -> list[str]:
    """Return what the CUDA engine would allocate, in lines: what takes a hundredth or more, the rest, the total.

    Needs no card, so that a person reads it before anything is allocated.
    """
    plan = plan_memory(config, precision)
    sums: dict[str, int] = {}
    for buffer in plan:
        sums[buffer.purpose] = sums.get(buffer.purpose, 0) + buffer.bytes
    large = {purpose: size for purpose, size in sums.items() if 100 * size >= plan.total}
    ordered = sorted(large.items(), key=lambda item: -item[1])
    lines = [*ordered, ("all else", plan.total - sum(large.values())), ("in all", plan.total)]
    return [f"{readable(size):>12}  {purpose}" for purpose, size in lines]


def largest_batch(config: EngineConfig, limit: int, plan: Callable[[EngineConfig], MemoryPlan]) -> int:
    """Return the most rows of a micro-batch whose plan stays within `limit` bytes; 0 when not even one does."""
    low, high = 0, config.batch_size
    while low < high:
        middle = (low + high + 1) // 2
        if plan(evolve(config, batch_size=middle)).total <= limit:
            low = middle
        else:
            high = middle - 1
    return low


def check_fits(config: EngineConfig, free: int, plan: Callable[[EngineConfig], MemoryPlan]) -> MemoryPlan:
    """Return the plan of a configuration, or refuse it.

    Parameters
    ----------
    free
        Bytes that may be used.
    plan
        Makes the plan of a configuration.

    Raises
    ------
    AndreaError
        When the plan needs more than is free: says what is needed and which batch would fit.
    """
    made = plan(config)
    if made.total <= free:
        return made
    batch = largest_batch(config, free, plan)
    if not config.training:
        raise AndreaError(
            f"{config.batch_size} rows at once need {readable(made.total)} of the card's memory; "
            f"{readable(free)} may be used",
            f"{f'{batch} at once would fit; ' if batch else ''}--device cpu needs none of it",
        )
    hint = (
        f"batch_size {batch} fits: --set batch.batch_size={batch}; batch.accumulation makes up the rows of a step"
        if batch
        else "not even batch_size 1 fits: take a smaller model, a shorter context or a smaller storage type"
    )
    raise AndreaError(
        f"batch_size {config.batch_size} needs {readable(made.total)} of the card's memory; "
        f"{readable(free)} may be used",
        hint,
    )


@frozen
class Arena:
    """One allocation of the card's memory and the address of every buffer in it."""

    base: int
    plan: MemoryPlan

    @classmethod
    def allocate(cls, plan: MemoryPlan) -> Arena:
        """Allocate a plan in the current context, filled with zeros."""
        from andrea.engine.launcher import allocate, check, driver

        base = allocate(plan.total)
        check(driver().cuMemsetD8(base, 0, plan.total), "cuMemsetD8")
        return cls(base, plan)

    def address(self, name: str, element: int = 0) -> int:
        """Return the address of a buffer, or of one of its elements."""
        offset = self.base + self.plan.offsets[name]
        return offset + element * BYTES[self.plan[name].dtype] if element else offset

    def close(self) -> None:
        """Give the memory back."""
        from andrea.engine.launcher import release

        release(self.base)


def free_memory() -> int:
    """Return the bytes that the card of the current context has free."""
    from andrea.engine.launcher import check, driver

    free, _ = check(driver().cuMemGetInfo(), "cuMemGetInfo")
    return int(free)


class Pinned:
    """Memory of the host that the card copies from and to by itself; mirrors a stretch of an arena.

    Parameters
    ----------
    arena, first, last
        Names of the first and last buffer of the stretch.
    """

    def __init__(self, arena: Arena, first: str, last: str) -> None:
        from andrea.engine.launcher import check, driver

        self._arena, self._start = arena, arena.plan.offsets[first]
        self.address = arena.base + self._start
        self.size = arena.plan.offsets[last] + arena.plan[last].bytes - self._start
        self._driver = driver()
        self.host = int(check(self._driver.cuMemHostAlloc(self.size, 0), "cuMemHostAlloc"))
        self._bytes = np.ctypeslib.as_array((ctypes.c_uint8 * self.size).from_address(self.host))

    def view(self, name: str, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
        """Return a buffer's mirror as an array; writing to it writes what will be copied."""
        buffer, start = self._arena.plan[name], self._arena.plan.offsets[name] - self._start
        flat = self._bytes[start : start + buffer.bytes].view(dtype or buffer.dtype)
        return flat if dtype else flat.reshape(buffer.shape)

    def copy_in(self, stream: int) -> None:
        """Copy the mirror to the card, in the order of the stream."""
        from andrea.engine.launcher import check

        check(self._driver.cuMemcpyHtoDAsync(self.address, self.host, self.size, stream), "cuMemcpyHtoDAsync")

    def copy_out(self, stream: int) -> None:
        """Copy from the card to the mirror, in the order of the stream."""
        from andrea.engine.launcher import check

        check(self._driver.cuMemcpyDtoHAsync(self.host, self.address, self.size, stream), "cuMemcpyDtoHAsync")

    def close(self) -> None:
        """Give the memory back."""
        from andrea.engine.launcher import check

        del self._bytes
        check(self._driver.cuMemFreeHost(self.host), "cuMemFreeHost")
