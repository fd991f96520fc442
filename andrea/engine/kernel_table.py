"""Every kernel for every precision and architecture, compiled without a GPU: what each needs, and what must not be.

A cell is a precision on an architecture. Attention is compiled for every width of heads that it supports.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from andrea.engine import attention, attention_hopper, fp8
from andrea.engine.attention import HEAD_DIMS
from andrea.engine.compiler import KernelReport, compile_kernels, kernel_files
from andrea.types import Precision

#: Kernels off the hot path may use local memory: the exact float32 attention trades it for width.
HOT_FILES = (
    "attention",
    "attention_hopper",
    "layernorm",
    "loss",
    "adamw",
    "embed",
    "gelu",
    "residual",
    "gemm",
    "matvec",
    "fp8",
)


@frozen
class Row:
    """One kernel of a cell: precision, architecture, file, width of heads (0: any), and what it needs."""

    precision: str
    architecture: str
    file: str
    head_dim: int
    kernel: KernelReport

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @property
    def spills(self) -> bool:
        """True when a hot kernel uses local memory."""
        local = self.kernel.stack_frame + self.kernel.spill_stores + self.kernel.spill_loads
        return self.file in HOT_FILES and local > 0


def compile_cell(precision: Precision, architecture: str, cache: Path | None = None) -> Iterator[Row]:
    """Compile all kernels of a cell and yield a row for each.

    Parameters
    ----------
    precision
        Types and macros.
    architecture
        For instance ``sm_90a``.
    cache
        Folder of the cache; the user's by default.

    Raises
    ------
    AndreaError
        When a file does not compile.
    """
    types = attention.type_macros(precision)
    elsewhere = {*attention.FILES, *attention_hopper.FILES, *(() if precision.fp8 else fp8.FILES)}
    names = [name for name in kernel_files() if name not in elsewhere]
    parts = [(0, names, types)]
    parts += [
        (D, list(attention.FILES), types | attention.cell_of(D, precision, architecture).macros) for D in HEAD_DIMS
    ]
    parts += [
        (D, ["attention_hopper"], types | attention_hopper.hopper_cell(D, precision, architecture).macros)
        for D in HEAD_DIMS
        if attention_hopper.has_kernel(D, precision, architecture)
    ]
    for head_dim, files, macros in parts:
        for cubin in compile_kernels(files, macros, architecture, cache):
            for kernel in cubin.kernels:
                yield Row(precision.name, architecture, Path(cubin.file).stem, head_dim, kernel)
