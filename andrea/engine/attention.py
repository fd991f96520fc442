"""Launches of the attention kernels: which tiles a head's width, a precision and a card need, and how many blocks.

Grids depend on shapes alone, so results do not depend on the card's size. Arguments are device addresses (int).

Axis letters: B rows, T tokens, H heads, D width of a head.
"""

from __future__ import annotations

from attrs import asdict, evolve, frozen

from andrea.engine.compiler import capability_of, compile_kernels
from andrea.engine.launcher import Kernels
from andrea.errors import AndreaError
from andrea.types import Precision

#: Files of `kernels/` that this module launches; a precision fills one of the first two.
FILES = ("attention", "attention_fp32", "attention_decode")
HEAD_DIMS = (32, 64, 128)
#: Bytes a query that the backward hands from its first kernel to its second: log-sum-exp and sum of dO * O.
ROW_BYTES = 8

_CUDA_TYPES = {"float32": "float", "float16": "half", "bfloat16": "bf16", "tf32": "tf32"}  # as in types.cuh
_STORAGE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_FLOAT_SIDE = 16


@frozen
class Tiles:
    """How one tensor-core kernel cuts its work; see kernels/attention.cu.

    Attributes
    ----------
    warps, blocks
        A thread block has `warps` warps, each owning `blocks` blocks of 16 rows.
    tile, part
        The other side comes in tiles of `tile` rows, of which a warp multiplies `part` at once.
    keep
        Whether a warp's own rows stay in registers (1) or are read again from shared memory (0).
    resident
        Thread blocks that should fit a multiprocessor: it bounds the registers.
    """

    warps: int
    blocks: int
    tile: int
    part: int
    keep: int
    resident: int

    @property
    def rows(self) -> int:
        """Rows that a thread block owns."""
        return self.warps * self.blocks * 16

    @property
    def threads(self) -> int:
        """Threads of a thread block."""
        return self.warps * 32


#: (bytes of an element, D) -> tiles of the forward, of dQ, and of dK and dV; measured on an H200.
TILES: dict[tuple[int, int], tuple[Tiles, Tiles, Tiles]] = {
    (2, 32): (Tiles(4, 1, 64, 64, 1, 3), Tiles(4, 2, 64, 16, 1, 3), Tiles(4, 2, 64, 32, 1, 2)),
    (2, 64): (Tiles(4, 2, 64, 64, 1, 2), Tiles(4, 2, 64, 16, 1, 2), Tiles(4, 2, 64, 16, 0, 2)),
    (2, 128): (Tiles(4, 1, 64, 64, 1, 2), Tiles(4, 1, 64, 32, 1, 2), Tiles(4, 1, 32, 32, 0, 2)),
    (4, 32): (Tiles(4, 2, 64, 64, 1, 2), Tiles(4, 2, 32, 16, 1, 2), Tiles(4, 1, 32, 16, 1, 2)),
    (4, 64): (Tiles(4, 1, 64, 64, 1, 2), Tiles(4, 1, 32, 16, 1, 2), Tiles(4, 1, 32, 16, 0, 2)),
    (4, 128): (Tiles(4, 1, 32, 32, 1, 1), Tiles(4, 1, 16, 16, 0, 1), Tiles(4, 1, 16, 16, 0, 1)),
}

#: Forward tiles from sm_100 on, where the compiler needs more registers than there are for the measured ones; these
#: have not been timed.
NEWER_FORWARD = {(2, 64): Tiles(4, 2, 64, 64, 0, 2)}


def type_macros(precision: Precision) -> dict[str, str]:
    """Return the definitions that every kernel takes from a precision."""
    macros = {"ANDREA_STORAGE": _CUDA_TYPES[precision.storage], "ANDREA_MULTIPLY": _CUDA_TYPES[precision.multiply]}
    return macros | dict(precision.macros)


def shared_limit(capability: tuple[int, int]) -> int:
    """Return the bytes of shared memory that a thread block can have."""
    known = {(7, 5): 64, (8, 0): 163, (9, 0): 227, (10, 0): 227}
    return known.get(capability, 99) << 10


class Attention:
    """The attention kernels of one width of heads, loaded into the current context.

    Parameters
    ----------
    head_dim, n_head
        D and H.
    precision
        Types, and the kernel compiler's definitions.
    architecture
        For instance ``sm_90a``.
    tiles
        Other tiles than `TILES` has, for tuning.

    Raises
    ------
    AndreaError
        When no kernel has this width.
    """

    name = "mma"
    version = ""  # our own kernels are in the digest of all kernels

    def __init__(
        self,
        head_dim: int,
        n_head: int,
        precision: Precision,
        architecture: str,
        tiles: tuple[Tiles, Tiles, Tiles] | None = None,
    ) -> None:
        self._load(FILES, cell_of(head_dim, precision, architecture, tiles), n_head, precision, architecture)

    def _load(self, files: tuple[str, ...], cell: Cell, n_head: int, precision: Precision, architecture: str) -> None:
        """Compile some files for a cell and take their kernels."""
        self.heads, self._cell = n_head, cell
        self._kernels = Kernels(compile_kernels(files, type_macros(precision) | cell.macros, architecture))
        self._forward = self._kernels.kernel("k_attn_fwd")
        self._query = self._kernels.kernel("k_attn_bwd_query")
        self._key = self._kernels.kernel("k_attn_bwd")
        self._decode = self._kernels.kernel("k_attn_decode")
        self._cache = self._kernels.kernel("k_attn_cache")
        for kernel, launch in zip((self._forward, self._query, self._key), cell.launches, strict=True):
            kernel.allow_shared(launch.shared)

    def forward(self, qkv: int, out: int, lse: int, B: int, T: int, stream: int) -> None:
        """out[B, T, H, D], lse[B, H, T] = attention of qkv[B, T, 3, H, D]."""
        launch = self._cell.launches[0]
        grid = launch.grid(B * self.heads, T)
        self._forward(grid, launch.threads, launch.shared, stream, qkv, out, lse, B, T, self.heads)

    def backward(
        self, qkv: int, out: int, lse: int, dout: int, dqkv: int, rows: int, B: int, T: int, stream: int
    ) -> None:
        """dqkv[B, T, 3, H, D] from dout[B, T, H, D]; `rows` is scratch of B H T `ROW_BYTES` bytes."""
        _, query, key = self._cell.launches
        sizes = (B, T, self.heads)
        grid = query.grid(B * self.heads, T)
        self._query(grid, query.threads, query.shared, stream, qkv, out, lse, dout, dqkv, rows, *sizes)
        grid = key.grid(B * self.heads, T)
        self._key(grid, key.threads, key.shared, stream, qkv, dout, rows, dqkv, *sizes)

    def decode(
        self, qkv: int, keys: int, values: int, positions: int, out: int, rows: int, context: int, stream: int
    ) -> None:
        """Attend from one new token a row, and append its key and value to the caches.

        qkv[rows, 3, H, D], out[rows, H, D], caches [rows, H, context, D]; positions int32 [rows] is where each new
        token stands, which is how many the cache holds. A row at -1 takes no part and gets zeros.
        """
        self._decode(rows * self.heads, 128, 0, stream, qkv, keys, values, positions, out, self.heads, context)

    def cache(
        self, qkv: int, keys: int, values: int, B: int, T: int, first_row: int, context: int, stream: int
    ) -> None:
        """Copy keys and values of qkv[B, T, 3, H, D] into rows `first_row`.. of the caches, from position 0."""
        pieces = B * T * self.heads * self._cell.pieces
        self._cache(-(-pieces // 256), 256, 0, stream, qkv, keys, values, B, T, self.heads, first_row, context)

    def close(self) -> None:
        """Unload the code."""
        self._kernels.close()


@frozen
class Launch:
    """Geometry of one kernel: rows that a block owns, its threads, and its bytes of dynamic shared memory."""

    rows: int
    threads: int
    shared: int

    def grid(self, heads: int, T: int) -> int:
        """Return the blocks for so many (row, head) pairs."""
        return heads * -(-T // self.rows)


@frozen
class Cell:
    """What one (D, precision, card) needs: the compiler's definitions, and launches of forward, dQ, dK and dV.

    `pieces` is the number of 16-byte pieces of a head's row.
    """

    macros: dict[str, str]
    launches: tuple[Launch, Launch, Launch]
    pieces: int


def cell_of(
    head_dim: int, precision: Precision, architecture: str, tiles: tuple[Tiles, Tiles, Tiles] | None = None
) -> Cell:
    """Return how the kernels are compiled and launched, with tiles that fit the card's shared memory."""
    if head_dim not in HEAD_DIMS:
        raise AndreaError(
            f"heads of {head_dim} have no kernel; there are kernels for {', '.join(map(str, HEAD_DIMS))}",
            "choose model.d_model and model.n_head so that d_model / n_head is one of them",
        )
    limit = shared_limit(capability_of(architecture))
    size = _STORAGE_BYTES[precision.storage]
    if precision.multiply == "float32":
        macros, launches = _float_cell(head_dim, limit)
    else:
        macros, launches = _tensor_cell(tiles or _tiles(size, head_dim, architecture), head_dim * size, limit)
    return Cell({"HEAD_DIM": str(head_dim)} | macros, launches, head_dim * size // 16)


def _tiles(size: int, head_dim: int, architecture: str) -> tuple[Tiles, Tiles, Tiles]:
    forward, query, key = TILES[size, head_dim]
    if capability_of(architecture) >= (10, 0):
        forward = NEWER_FORWARD.get((size, head_dim), forward)
    return forward, query, key


def _tensor_cell(
    tiles: tuple[Tiles, Tiles, Tiles], row: int, limit: int
) -> tuple[dict[str, str], tuple[Launch, Launch, Launch]]:
    """Return tiles that fit: a block holds its own rows (the backward two of them) and two stages of the other side."""
    macros: dict[str, str] = {}
    launches = []
    for name, own, extra, choice in zip(("FORWARD", "QUERY", "KEY"), (1, 2, 2), (0, 0, ROW_BYTES), tiles, strict=True):

        def shared(t: Tiles, own: int = own, extra: int = extra) -> int:
            return own * t.rows * row + 2 * t.tile * (2 * row + extra)

        fitting = choice
        while shared(fitting) > limit:
            smaller = fitting.tile // 2
            fitting = evolve(fitting, tile=smaller, part=min(fitting.part, smaller))
        macros |= {f"{name}_{key.upper()}": str(value) for key, value in asdict(fitting).items()}
        launches.append(Launch(fitting.rows, fitting.threads, shared(fitting)))
    forward, query, key = launches
    return macros, (forward, query, key)


def _float_cell(D: int, limit: int) -> tuple[dict[str, str], tuple[Launch, Launch, Launch]]:
    """Return the largest square tile whose operands and scores fit; rows are 4 floats longer than their content."""

    def shared(tile: int, operands: int) -> int:
        return 4 * (operands * tile * (D + 4) + tile * (tile + 4))

    tile = next(t for t in (64, 32, 16) if shared(t, 4) <= limit and t * D <= 64 * 64)
    threads = _FLOAT_SIDE**2
    forward, backward = Launch(tile, threads, shared(tile, 3)), Launch(tile, threads, shared(tile, 4))
    return {"FLOAT_TILE": str(tile)}, (forward, backward, backward)
