"""Launches of the element-wise kernels, and of products of a few rows.

It says how many blocks a shape needs, and what the kernels expect in memory. One method a kernel or a pair that belongs
together. Every grid depends on shapes alone, never on the card, so that the order of every sum is the same everywhere.
Arguments are device addresses (int) and sizes; 0 is the null pointer.

Axis letters: N = B T positions, C width, V vocabulary, P parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import frozen

from andrea.engine.launcher import Dimensions, Kernels
from andrea.engine.operations import MATVEC_PARTS, NORM_EPSILON

#: Files of `kernels/` that this module launches.
FILES = ("adamw", "embed", "gelu", "grad_norm", "layernorm", "loss", "matvec", "residual", "zero")

#: Mirror of `TrainState` in kernels/include/state.cuh.
STATE = np.dtype(
    [
        ("applied", "<i8"),
        ("skipped", "<i4"),
        ("skips", "<i4"),
        ("growth", "<i4"),
        ("loss_scale", "<f4"),
        ("grad_norm", "<f4"),
        ("factor", "<f4"),
        ("correction1", "<f4"),
        ("correction2", "<f4"),
    ]
)

#: Mirror of `Chunk` in kernels/adamw.cu.
CHUNK = np.dtype(
    [
        ("parameter", "<i8"),
        ("gradient", "<i8"),
        ("copy", "<i8"),
        ("size", "<i4"),
        ("decay", "<i4"),
        ("column", "<i4"),
        ("row", "<i4"),
        ("stride", "<i4"),
        ("reserved", "<i4"),
    ]
)

STORAGE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

_EACH = 256 * 4  # threads x wide accesses of a thread; the same constants stand in the kernels' text
_GRADIENTS = 256 * 8 * 4
_EMBED_CHUNK, _EMBED_THREADS, _POSITION_THREADS = 64, 128, 128
_NORM_ROWS, _NORM_THREADS = 2, 512
_NORM_BLOCKS = 528  # shares of dgamma and dbeta at most: enough blocks to fill a card, few enough to add quickly
_NORM_GROUPED = 192  # threads that groups of a row each fill in the backward: 4 such blocks fit a multiprocessor
_NORM_STAGES = 2  # steps of rows on their way from memory at once, where shared memory holds them
_RING_BYTES = 3 * _NORM_ROWS * 16  # of a thread and step: its share of dy, x and dskip
_RING_SHARED = 60 * 1024  # of the 64 KiB that a block of the oldest card can have
_ADAM_CHUNK = 4096
_MATVEC_THREADS, _MATVEC_ROWS, _MATVEC_CHUNKS, _MATVEC_OF_WARP = 512, 8, 4, 4
_MATVEC_SHARED = 60 * 1024  # of the 64 KiB that a block of the oldest card can have
_ROW_SHARED = 40 * 1024  # a row of logits up to this size waits in shared memory for its gradient


def blocks_for(count: int, of_block: int) -> int:
    """Return how many blocks of `of_block` items `count` items need."""
    return -(-count // of_block)


def initial_state(loss_scale: float = 1.0) -> npt.NDArray[Any]:
    """Return the state before the first update, `STATE` (1,)."""
    state = np.zeros(1, dtype=STATE)
    state["loss_scale"] = loss_scale
    return state


@frozen
class Tensor:
    """Where one tensor lies, for the table of chunks.

    Attributes
    ----------
    parameter, gradient
        Offsets of its first element in weights and moments, and in the gradients.
    size
        Elements.
    decay
        Whether weight decay acts on it.
    copy
        Offset of its first element in the working copies; None: it has none.
    row, stride
        Elements of a row of the tensor, and from one row of the working copy to the next; 0: one long row.
    """

    parameter: int
    gradient: int
    size: int
    decay: bool
    copy: int | None = None
    row: int = 0
    stride: int = 0


def chunk_table(tensors: Iterable[Tensor]) -> npt.NDArray[Any]:
    """Return the table that `k_adamw` and `k_working_copy` walk, `CHUNK` (chunks,): 4,096 elements at most each."""
    chunks: list[tuple[int, ...]] = []
    for t in tensors:
        for start in range(0, t.size, _ADAM_CHUNK):
            size = min(_ADAM_CHUNK, t.size - start)
            row = t.row or _ADAM_CHUNK
            line, column = divmod(start, row)
            copy = -1 if t.copy is None else t.copy + line * (t.stride or row)
            place = (t.parameter + start, t.gradient + start, copy)
            chunks.append((*place, size, int(t.decay), column, row, t.stride or row, 0))
    return np.array(chunks, dtype=CHUNK)


def sorted_positions(ids_BT: npt.ArrayLike) -> npt.NDArray[np.int32]:
    """Return the positions of a batch sorted by id, equal ids in their order, int32 (N,)."""
    return np.argsort(np.asarray(ids_BT).reshape(-1), kind="stable").astype(np.int32)


class Elementwise:
    """Launches of the kernels of `FILES` on one stream.

    Parameters
    ----------
    kernels
        That hold the files' kernels, compiled with the precision's macros.
    storage
        Storage type of the precision, as in `Precision.storage`.
    stream
        Where everything is launched.
    """

    def __init__(self, kernels: Kernels, storage: str, stream: Any = 0) -> None:
        self.kernels, self.storage, self.stream = kernels, storage, stream
        self.wide = 16 // STORAGE_BYTES[storage]
        self._storage_bytes = STORAGE_BYTES[storage]

    def on(self, stream: Any) -> Elementwise:
        """Return the same launches on another stream."""
        return Elementwise(self.kernels, self.storage, stream)

    def launch(self, name: str, grid: Dimensions, block: Dimensions, *arguments: Any, shared_bytes: int = 0) -> None:
        """Launch a kernel, unless the grid is empty."""
        if grid:
            self.kernels.kernel(name)(grid, block, shared_bytes, self.stream, *arguments)

    # -- lookup ------------------------------------------------------------------------------------------------------

    def embed_fwd(self, ids: int, embed: int, position: int, x: int, N: int, T: int, C: int) -> None:
        """Store x[n] = embed[ids[n]] + position[n % T]."""
        self.launch("k_embed_fwd", blocks_for(N, 8), (32, 8), ids, embed, position, x, N, T, C)

    @staticmethod
    def embed_partials(N: int, C: int) -> int:
        """Return how many float32 of scratch `embed_bwd` needs."""
        return blocks_for(N, _EMBED_CHUNK) * 2 * C

    def embed_bwd(
        self, dx: int, ids: int, order: int, dembed: int, dposition: int, partials: int, B: int, T: int, C: int
    ) -> None:
        """Add the gradients of tokens and positions; `order` is `sorted_positions` of the ids."""
        N = B * T
        chunks = blocks_for(N, _EMBED_CHUNK)
        self.launch("k_embed_bwd", chunks, _EMBED_THREADS, dx, ids, order, dembed, partials, N, C)
        borders = (chunks, blocks_for(C, _EMBED_THREADS))
        self.launch("k_embed_bwd_borders", borders, _EMBED_THREADS, partials, ids, order, dembed, N, C)
        grid = blocks_for(T * C, _POSITION_THREADS * self.wide)
        self.launch("k_embed_bwd_position", grid, _POSITION_THREADS, dx, dposition, B, T * C)

    # -- layer norm --------------------------------------------------------------------------------------------------

    def _norm_threads(self, C: int) -> int:
        """Return the threads of a block: one a group of columns, in whole warps, or the most for the plain path."""
        columns = blocks_for(C, self.wide)
        return min(_NORM_THREADS, blocks_for(columns, 32) * 32)

    def layernorm_fwd(self, x: int, gamma: int, beta: int, y: int, mean: int, rstd: int, N: int, C: int) -> None:
        """Store y = (x - mean) rstd gamma + beta; gamma and beta are float32, or 0."""
        arguments = (x, gamma, beta, y, mean, rstd, N, C, NORM_EPSILON)
        self.launch("k_layernorm_fwd", blocks_for(N, _NORM_ROWS), self._norm_threads(C), *arguments)

    def residual_layernorm_fwd(
        self, x: int, branch: int, gamma: int, beta: int, total: int, y: int, mean: int, rstd: int, N: int, C: int
    ) -> None:
        """Store total = x + branch and y = norm(total); `total` may be `x`."""
        arguments = (x, branch, gamma, beta, total, y, mean, rstd, N, C, NORM_EPSILON)
        self.launch("k_residual_layernorm_fwd", blocks_for(N, _NORM_ROWS), self._norm_threads(C), *arguments)

    @staticmethod
    def norm_shares(N: int) -> int:
        """Return how many blocks the layer norm's backward has, each of which leaves a share."""
        return min(_NORM_BLOCKS, blocks_for(N, _NORM_ROWS))

    @classmethod
    def norm_partials(cls, N: int, C: int) -> int:
        """Return how many float32 `layernorm_bwd` leaves of one norm."""
        return cls.norm_shares(N) * 2 * C

    def layernorm_bwd(
        self,
        dy: int,
        x: int,
        mean: int,
        rstd: int,
        gamma: int,
        dskip: int,
        dx: int,
        shares: int,
        N: int,
        C: int,
    ) -> None:
        """Store dx = dskip + the gradient through the norm, and each block's shares of dgamma and dbeta.

        `dskip` 0: nothing skipped the branch. `shares` 0: a norm without parameters. `dx` may be `dy` or `dskip`.
        """
        of_row = self._norm_threads(C)
        threads = max(1, _NORM_GROUPED // of_row) * of_row
        stages = max(1, min(_NORM_STAGES, _RING_SHARED // (threads * _RING_BYTES)))
        arguments = (dy, x, mean, rstd, gamma, dskip, dx, shares, N, C, of_row, stages)
        shared_bytes = stages * threads * _RING_BYTES + (threads - of_row) * self.wide * 2 * 4
        self.launch("k_layernorm_bwd", self.norm_shares(N), threads, *arguments, shared_bytes=shared_bytes)

    def layernorm_bwd_final(self, shares: int, gradients: int, places: int, norms: int, N: int, C: int) -> None:
        """Add the shares of all norms, which lie one behind the other, to their dgamma and dbeta.

        `places` is the address of int64 [norms, 2]: at which elements of the gradients the two of each norm begin.
        """
        grid = blocks_for(2 * C, 32), norms
        self.launch("k_layernorm_bwd_final", grid, (32, 32), shares, self.norm_shares(N), gradients, places, C)

    # -- products of a few rows --------------------------------------------------------------------------------------

    def takes_few_rows(self, rows: int, C: int) -> bool:
        """Say whether the next three methods take so many rows of a model of this width."""
        return rows <= _MATVEC_ROWS and self._matvec_shared(rows, C) <= _MATVEC_SHARED

    def _matvec_shared(self, rows: int, inputs: int, norm: bool = True) -> int:
        """Return the bytes of a block: its rows and the norm's parameters, or shares of sums, whichever are more."""
        lanes, padded = self._matvec_lanes(rows), blocks_for(inputs, self.wide) * self.wide
        held = padded * (lanes * self._storage_bytes + 8 * norm)
        return max(held, _MATVEC_THREADS // 32 * lanes * _MATVEC_CHUNKS * self.wide * 4)

    @staticmethod
    def _matvec_lanes(rows: int) -> int:
        return 1 if rows == 1 else _MATVEC_ROWS

    def _matvec(self, name: str, grid: Dimensions, rows: int, shared_bytes: int, *arguments: Any) -> None:
        full = name if rows == 1 else f"{name}_rows"
        self.launch(full, grid, _MATVEC_THREADS, *arguments, shared_bytes=shared_bytes)

    def norm_matvec(self, *arrays: int, rows: int, C: int, outputs: int, gelu: bool = False) -> None:
        """Store total = x + the sum of the parts and y = norm(total) weight[C, outputs], with `gelu` its GELU.

        `arrays` are x, parts, gamma, beta, total, weight and y; parts is the address of what `matvec_parts` left, or 0.
        total must not be x.
        """
        grid = blocks_for(outputs, _MATVEC_CHUNKS * self.wide)
        arguments = (*arrays, rows, C, outputs, NORM_EPSILON, int(gelu))
        self._matvec("k_norm_matvec", grid, rows, self._matvec_shared(rows, C), *arguments)

    def norm_matvec_head(self, *arrays: int, rows: int, C: int, outputs: int) -> None:
        """Store the same total and y = norm(total) weight[outputs, C].T; `arrays` as `norm_matvec` has them."""
        grid = blocks_for(outputs, _MATVEC_THREADS // 32 * _MATVEC_OF_WARP)
        arguments = (*arrays, rows, C, outputs, NORM_EPSILON)
        self._matvec("k_norm_matvec_head", grid, rows, self._matvec_shared(rows, C), *arguments)

    def matvec_parts(self, x: int, weight: int, parts: int, rows: int, inputs: int, outputs: int) -> None:
        """Store parts[4, rows, outputs], float32, each x weight[inputs, outputs] over its quarter of the inputs."""
        grid = blocks_for(outputs, _MATVEC_CHUNKS * self.wide), MATVEC_PARTS
        shared_bytes = self._matvec_shared(rows, blocks_for(inputs, MATVEC_PARTS), norm=False)
        self._matvec("k_matvec_parts", grid, rows, shared_bytes, x, weight, parts, rows, inputs, outputs)

    # -- residual, GELU, zeros ---------------------------------------------------------------------------------------

    def _each(self, name: str, n: int, *addresses: int) -> None:
        self.launch(name, blocks_for(n, _EACH * self.wide), 256, *addresses, n)

    def residual_add(self, x: int, branch: int, out: int, n: int) -> None:
        """Store x + branch in `out`, which may be either."""
        self._each("k_residual_add", n, x, branch, out)

    def residual_add_bwd(self, dbranch: int, dx: int, out: int, n: int) -> None:
        """Store dx + dbranch in `out`, which may be either."""
        self._each("k_residual_add_bwd", n, dbranch, dx, out)

    def gelu_fwd(self, pre: int, out: int, n: int) -> None:
        """Store gelu(pre) in `out`."""
        self._each("k_gelu_fwd", n, pre, out)

    def gelu_bwd(self, dact: int, pre: int, out: int, n: int) -> None:
        """Store dact gelu'(pre) in `out`, which may be `dact`."""
        self._each("k_gelu_bwd", n, dact, pre, out)

    def zero(self, out: int, size: int) -> None:
        """Fill `size` bytes with zeros."""
        self.launch("k_zero", blocks_for(size, _EACH * 16), 256, out, size)

    def zero_node(self, graph: Any, behind: Sequence[Any], out: int, size: int) -> Any:
        """Add `zero` to a graph behind some of its nodes, and return its node."""
        return self.kernels.kernel("k_zero").node(graph, behind, blocks_for(size, _EACH * 16), 256, out, size)

    # -- loss --------------------------------------------------------------------------------------------------------

    def loss_fwd(self, logits: int, targets: int, losses: int, N: int, V: int, stride: int) -> None:
        """Store losses[n] = lse(logits[n, :V]) - logits[n, target]; rows are `stride` logits apart."""
        self.launch("k_loss_fwd", N, 256, logits, targets, losses, V, stride)

    def loss_bwd(
        self, logits: int, targets: int, losses: int, loss_scale: int, share: float, N: int, V: int, stride: int
    ) -> None:
        """Store the same losses, and turn logits into loss_scale x share x (softmax - onehot), in place.

        `loss_scale` is the address of a float32, usually of the state's; `share` is 1 / (R T).
        """
        size = stride * self._storage_bytes
        keep = size <= _ROW_SHARED
        arguments = (logits, targets, losses, loss_scale, share, V, stride, int(keep))
        self.launch("k_loss_bwd", N, 256, *arguments, shared_bytes=blocks_for(size, 16) * 16 if keep else 0)

    def loss_rows(self, losses: int, targets: int, row_losses: int, B: int, T: int) -> None:
        """Store row_losses[b] = mean over the valid targets of the row."""
        self.launch("k_loss_rows", B, 256, losses, targets, row_losses, T)

    # -- update ------------------------------------------------------------------------------------------------------

    @staticmethod
    def norm_sums(n: int) -> int:
        """Return how many float32 of scratch `grad_norm` needs."""
        return blocks_for(n, _GRADIENTS)

    def grad_norm(
        self, gradients: int, partials: int, state: int, n: int, max_norm: float, beta1: float, beta2: float
    ) -> None:
        """Fill the state: norm, clipping factor, skipped or applied, bias corrections."""
        count = self.norm_sums(n)
        self.launch("k_grad_norm_partial", count, 256, gradients, partials, n)
        self.launch("k_grad_norm_final", 1, 1024, partials, count, state, max_norm, beta1, beta2)

    def grad_scale(self, gradients: int, state: int, n: int) -> None:
        """Multiply gradients by the state's factor; `adamw` does this by itself."""
        self.launch("k_grad_scale", self.norm_sums(n), 256, gradients, state, n)

    def adamw(
        self,
        chunks: int,
        count: int,
        weights: int,
        gradients: int,
        first: int,
        second: int,
        copies: int,
        state: int,
        learning_rate: int,
        *,
        beta1: float,
        beta2: float,
        epsilon: float,
        weight_decay: float,
    ) -> None:
        """Update weights, moments and working copies; `chunks` is the address of a `chunk_table` of `count` rows."""
        addresses = (chunks, weights, gradients, first, second, copies, state, learning_rate)
        self.launch("k_adamw", count, 256, *addresses, beta1, beta2, epsilon, weight_decay)

    def working_copy(self, chunks: int, count: int, weights: int, copies: int, state: int) -> None:
        """Make the working copies anew from the weights, rounded as the last applied update rounded them."""
        self.launch("k_working_copy", count, 256, chunks, weights, copies, state)

    def loss_scale(self, state: int, window: int) -> None:
        """Move the dynamic loss scale; the last launch of a step. A window of 0 leaves it alone."""
        self.launch("k_loss_scale", 1, 1, state, window)
