"""Our own matrix products behind the interface of `andrea.engine.gemm`: every precision, without cuBLAS.

How a product is cut depends on its shape alone, so the same shape gives the same bits on every card of one
architecture.
"""

from __future__ import annotations

from attrs import frozen

from andrea.engine.attention import type_macros
from andrea.engine.compiler import capability_of, compile_kernels
from andrea.engine.gemm import WORKSPACE_BYTES, Problem, Scales
from andrea.engine.launcher import Kernel, Kernels
from andrea.types import Precision

#: Of the kernels k_gemm_nn, nt, tn and tt, which a macro writes.
SIGNATURE = "pppppiiiillliii"
TILE = 128
#: Thread blocks below which k is split: a little over two for each multiprocessor of the largest card we know.
ENOUGH_BLOCKS = 264
#: k of a split is a multiple of this, and not less than four times as much.
GRAIN = 64

_EPILOGUES = {"": 0, "gelu": 1, "dgelu": 2}


@frozen
class Split:
    """How k is shared out: parts, and elements of k in each."""

    parts: int
    length: int


def split_of(problem: Problem) -> Split:
    """Return the split of a problem: by shape alone, as far as the workspace reaches; one part with an epilogue."""
    p = problem
    tiles = -(-p.m // TILE) * -(-p.n // TILE)
    parts = min(ENOUGH_BLOCKS // tiles, p.k // (4 * GRAIN), WORKSPACE_BYTES // (4 * p.m * p.n))
    if parts < 2 or p.epilogue:
        return Split(1, p.k)
    length = -(-p.k // (parts * GRAIN)) * GRAIN
    return Split(-(-p.k // length), length)


class OwnProduct:
    """One prepared product."""

    def __init__(self, library: OwnGemms, problem: Problem) -> None:
        self._library, self._problem = library, problem
        self._split = split_of(problem)
        letters = "nt"[problem.transpose_a] + "nt"[problem.transpose_b]
        self._kernel = library.kernel(f"k_gemm_{letters}")
        self._grid = (-(-problem.m // TILE) * -(-problem.n // TILE), self._split.parts)
        library.used[problem.key] = f"k_gemm_{letters} in {self._split.parts} parts of {self._split.length}"

    def __call__(self, a: int, b: int, d: int, stream: int, aux: int = 0, scales: Scales = (0, 0)) -> None:
        """Launch on `stream`; a, b, d, aux are device addresses. Operands of these types have no factors."""
        p, library, split = self._problem, self._library, self._split
        parts = library.workspaces[stream] if split.parts > 1 else 0
        output = (int(p.result == "float32"), int(p.accumulate))
        sizes = (p.m, p.n, p.k, split.length, p.lda, p.ldb, p.ldd)
        arguments = (a, b, d, aux, parts, *sizes, *output, _EPILOGUES[p.epilogue])
        self._kernel(self._grid, library.threads, library.shared, stream, *arguments)
        if parts:
            blocks = -(-p.m * p.n // 256)
            library.reduce(blocks, 256, 0, stream, parts, d, split.parts, p.m, p.n, p.ldd, *output)


class OwnGemms:
    """The kernels of one precision, loaded into the current context.

    Parameters
    ----------
    precision
        Types, and the kernel compiler's definitions.
    architecture
        For instance ``sm_90a``.

    Attributes
    ----------
    workspaces
        Device address of `andrea.engine.gemm.WORKSPACE_BYTES` of each stream that products run on.
    used
        Problem -> how it was cut, of every product that was prepared.
    """

    name = "own"
    version = "1"

    def __init__(self, precision: Precision, architecture: str) -> None:
        self.workspaces: dict[int, int] = {}
        self.used: dict[str, str] = {}
        self._prepared: dict[Problem, OwnProduct] = {}
        self._kernels = Kernels(compile_kernels(["gemm"], type_macros(precision), architecture))
        self.threads, self.shared = launch_of(precision, architecture)
        self.reduce = self._kernels.kernel("k_gemm_reduce")
        self._storage, self._multiply = precision.storage, precision.multiply

    def kernel(self, name: str) -> Kernel:
        """Return a kernel that may use its shared memory."""
        kernel = self._kernels.kernel(name, SIGNATURE)
        kernel.allow_shared(self.shared)
        return kernel

    def prepare(self, problem: Problem) -> OwnProduct:
        """Return the product for a problem, made once.

        Raises
        ------
        ValueError
            When its types are not those that the kernels were compiled for.
        """
        if problem not in self._prepared:
            multiply = "tf32" if problem.tf32 else problem.operand
            if (problem.operand, multiply) != (self._storage, self._multiply):
                raise ValueError(f"the kernels multiply {self._multiply}, not {problem.key}")
            if problem.result not in (self._storage, "float32"):
                raise ValueError(f"the kernels give {self._storage} or float32, not {problem.result}")
            self._prepared[problem] = OwnProduct(self, problem)
        return self._prepared[problem]

    def close(self) -> None:
        """Unload the code."""
        self._kernels.close()


def launch_of(precision: Precision, architecture: str) -> tuple[int, int]:
    """Return threads and dynamic shared bytes of a block: two operands' tiles of 16 KiB a stage on tensor cores."""
    if precision.multiply == "float32":
        return 256, 0
    stages = 3 if capability_of(architecture) >= (8, 0) else 2
    return 128, stages * 2 * TILE * 128
