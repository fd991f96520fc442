"""Attention by Hopper's own tensor-core instructions (wgmma): the same methods as `Attention`, other kernels.

Grids depend on shapes alone, so results do not depend on the card's size. Decoding stays with the plain kernels.
"""

from __future__ import annotations

from attrs import asdict, frozen

from andrea.engine.attention import ROW_BYTES, Attention, Cell, Launch
from andrea.errors import AndreaError
from andrea.types import Precision

#: Files of `kernels/` that this module launches.
FILES = ("attention_hopper", "attention_decode")
_TILE_ROWS = 64
_GROUP_THREADS = 128


@frozen
class HopperTiles:
    """How one kernel cuts its work; see kernels/attention_hopper.cu.

    Attributes
    ----------
    groups
        Warpgroups of a thread block, each with 64 rows of its own.
    stages
        Tiles of the other side in shared memory at once.
    resident
        Thread blocks that should fit a multiprocessor: it bounds the registers.
    """

    groups: int
    stages: int
    resident: int


Choice = tuple[HopperTiles, HopperTiles, HopperTiles]

#: D -> tiles of the forward, of dQ, and of dK and dV, as registers and shared memory allow; `benchmarks/attention.py
#: hopper` times others.
TILES: dict[int, Choice] = {
    32: (HopperTiles(2, 4, 2), HopperTiles(2, 4, 2), HopperTiles(1, 3, 3)),
    64: (HopperTiles(2, 4, 2), HopperTiles(2, 4, 2), HopperTiles(1, 3, 3)),
    128: (HopperTiles(3, 3, 1), HopperTiles(2, 2, 1), HopperTiles(1, 2, 2)),
}


def has_kernel(head_dim: int, precision: Precision, architecture: str) -> bool:
    """Return whether there is a kernel of this width, precision and architecture."""
    sixteen = precision.storage == precision.multiply and precision.storage in ("float16", "bfloat16")
    return sixteen and architecture == "sm_90a" and head_dim in TILES


class HopperAttention(Attention):
    """The attention kernels of one width of heads for sm_90a, loaded into the current context.

    Parameters
    ----------
    head_dim, n_head
        D and H.
    precision
        Types, and the kernel compiler's definitions.
    architecture
        ``sm_90a``.
    tiles
        Other tiles than `TILES` has, for tuning.

    Raises
    ------
    AndreaError
        When there is no kernel for these.
    """

    name = "hopper"

    def __init__(
        self, head_dim: int, n_head: int, precision: Precision, architecture: str, tiles: Choice | None = None
    ) -> None:
        self._load(FILES, hopper_cell(head_dim, precision, architecture, tiles), n_head, precision, architecture)


def hopper_cell(head_dim: int, precision: Precision, architecture: str, tiles: Choice | None = None) -> Cell:
    """Return how the kernels are compiled and launched."""
    if not has_kernel(head_dim, precision, architecture):
        raise AndreaError(
            f"heads of {head_dim} in {precision.name} on {architecture} have no wgmma kernel",
            f"it exists for bf16 and fp16 on sm_90a, with heads of {', '.join(map(str, TILES))}; "
            "leave engine.attention at auto: the plain kernels run everywhere",
        )
    macros = {"HEAD_DIM": str(head_dim)}
    launches = []
    # Own tiles of a warpgroup, and what a row of the other side brings beside its two tiles.
    for name, own, extra, choice in zip(
        ("FORWARD", "QUERY", "KEY"), (1, 2, 2), (0, 0, ROW_BYTES), tiles or TILES[head_dim], strict=True
    ):
        macros |= {f"{name}_{key.upper()}": str(value) for key, value in asdict(choice).items()}
        tile = _TILE_ROWS * head_dim * 2
        shared = own * choice.groups * tile + choice.stages * (2 * tile + _TILE_ROWS * extra)
        launches.append(Launch(choice.groups * _TILE_ROWS, choice.groups * _GROUP_THREADS, shared))
    forward, query, key = launches
    return Cell(macros, (forward, query, key), head_dim * 2 // 16)
