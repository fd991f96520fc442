"""Matrix products with GELU or its gradient by kernels for Hopper's own instructions, and all others by cuBLASLt.

The kernels stay on the card's multiprocessors and take one tile after another. No sum crosses a tile, so bits do not
depend on how many multiprocessors there are, nor on the other rows of a product.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping

from attrs import evolve, frozen

from andrea.engine.attention import type_macros
from andrea.engine.compiler import compile_kernels
from andrea.engine.gemm import CublasLt, Problem, Product, Scales
from andrea.engine.launcher import TENSOR_MAP_BYTES, Kernels, check, driver
from andrea.errors import AndreaError
from andrea.types import Precision

VERSION = "1"
TYPES = {"bfloat16": "BFLOAT16", "float16": "FLOAT16"}
#: Of the epilogues that there are kernels for: whether B is stored [n, k], and the kernel.
KERNELS = {"gelu": (False, "k_gemm_gelu"), "dgelu": (True, "k_gemm_gelu_gradient")}

# As in kernels/gemm_hopper.cu.
CLUSTER = 2
ROWS, COLUMNS, DEPTH, STAGES = 128, 192, 64, 4
THREADS, WARPS, BOXES = 384, 8, 4
BOX_ROWS, LINE = 16, 64  # elements
SHARED_BYTES = 2 * (STAGES * (ROWS + COLUMNS) * DEPTH + WARPS * BOXES * BOX_ROWS * LINE)
SHARED_BYTES += 8 * (2 * STAGES + WARPS * BOXES)  # barriers

#: A layer's width must be a multiple of it: four times the width are whole tiles of columns, the width whole stages.
WIDTH_STEP = math.lcm(COLUMNS // math.gcd(COLUMNS, 4), DEPTH)


def layer_problems(width: int, rows: int, kind: str) -> tuple[Problem, Problem]:
    """Return a layer's product with GELU in its forward, and that with GELU's gradient in its backward."""
    wide = 4 * width
    forward = Problem(rows, wide, width, False, False, width, wide, wide, kind, kind, epilogue="gelu")
    return forward, evolve(forward, transpose_b=True, ldb=width, epilogue="dgelu")


def has_kernel(problem: Problem, architecture: str) -> bool:
    """Return whether a kernel here can compute a problem, whatever its rows."""
    p = problem
    if architecture != "sm_90a" or p.operand not in TYPES or p.epilogue not in KERNELS:
        return False
    plain = p.result == p.operand and p.operand_b in ("", p.operand) and not (p.accumulate or p.transpose_a)
    fitting = p.n % COLUMNS == 0 and p.k % DEPTH == 0 and all(lead % 8 == 0 for lead in (p.lda, p.ldb, p.ldd))
    return plain and fitting and p.transpose_b == KERNELS[p.epilogue][0]


def check_hopper(width: int, precision: Precision, architecture: str) -> None:
    """Refuse a card, a precision or a model's width that has no such kernels.

    Raises
    ------
    AndreaError
        Says where they are.
    """
    if architecture != "sm_90a" or precision.storage not in TYPES or precision.multiply != precision.storage:
        raise AndreaError(
            f"engine.gemm hopper has no products for {precision.name} on {architecture}",
            "it is for 16 bits on sm_90a (H100, H200); leave engine.gemm at auto",
        )
    if not all(has_kernel(one, architecture) for one in layer_problems(width, 1, precision.storage)):
        raise AndreaError(
            f"engine.gemm hopper has no products for d_model {width}; it has for multiples of {WIDTH_STEP}",
            f"take d_model {-(-width // WIDTH_STEP) * WIDTH_STEP}, or leave engine.gemm at auto",
        )


# -- what the copy engine is told ------------------------------------------------------------------------------------


@frozen
class Boxes:
    """A matrix as boxes of it are copied: sizes, elements from one to the next, and a box; the innermost first."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]


def boxes_of(problem: Problem, cluster: int = CLUSTER) -> tuple[Boxes, Boxes, Boxes]:
    """Return how A, B, and both D and the epilogue's second matrix are copied; of B, a block's share in a cluster."""
    p = problem
    a = Boxes((p.k, p.m), (1, p.lda), (DEPTH, ROWS))
    d = Boxes((p.n, p.m), (1, p.ldd), (LINE, BOX_ROWS))
    if p.transpose_b:
        return a, Boxes((p.k, p.n, 1), (1, p.ldb, p.ldb), (DEPTH, COLUMNS // cluster, 1)), d
    panels = Boxes((LINE, p.k, p.n // LINE), (1, p.ldb, LINE), (LINE, DEPTH // cluster, COLUMNS // LINE))
    return a, panels, d


def encode(boxes: Boxes, kind: str, address: int) -> bytes:
    """Return the copy engine's own record of a matrix of 16-bit elements at an address."""
    cuda = driver()
    answer = cuda.cuTensorMapEncodeTiled(
        getattr(cuda.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{TYPES[kind]}"),
        len(boxes.sizes),
        address,
        [cuda.cuuint64_t(size) for size in boxes.sizes],
        [cuda.cuuint64_t(2 * stride) for stride in boxes.strides[1:]],
        [cuda.cuuint32_t(size) for size in boxes.box],
        [cuda.cuuint32_t(1) for _ in boxes.box],
        cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    record = check(answer, f"cuTensorMapEncodeTiled of {boxes} at {address:#x}")
    return ctypes.string_at(int(record.getPtr()), TENSOR_MAP_BYTES)


# -- products --------------------------------------------------------------------------------------------------------


class HopperProduct:
    """One prepared product. Records of matrices are made once for each set of addresses."""

    def __init__(self, library: HopperGemms, problem: Problem) -> None:
        self._problem = problem
        name = KERNELS[problem.epilogue][1]
        self._kernel = library.kernels.kernel(name)
        self._kernel.allow_shared(SHARED_BYTES)
        tiles = -(-problem.m // (ROWS * library.cluster)) * (problem.n // COLUMNS)
        self._grid = min(tiles, library.multiprocessors // library.cluster) * library.cluster
        self._boxes = boxes_of(problem, library.cluster)
        self._records: dict[tuple[int, int, int, int], tuple[bytes, ...]] = {}

    def __call__(self, a: int, b: int, d: int, stream: int, aux: int = 0, scales: Scales = (0, 0)) -> None:
        """Launch on `stream`; a, b, d, aux are device addresses. Operands of these types have no factors."""
        p, addresses = self._problem, (a, b, d, aux)
        if addresses not in self._records:
            left, right, result = self._boxes
            pairs = zip((left, right, result, result), addresses, strict=True)
            self._records[addresses] = tuple(encode(boxes, p.operand, address) for boxes, address in pairs)
        self._kernel(self._grid, THREADS, SHARED_BYTES, stream, *self._records[addresses], p.m, p.n, p.k)


class HopperGemms(CublasLt):
    """cuBLASLt, but for the products that the kernels here can compute.

    Parameters
    ----------
    card, table
        Of cuBLASLt.
    precision, architecture
        Types, and the kernel compiler's definitions; what `check_hopper` accepts.
    cluster
        Thread blocks that share what they read of B, 1 or 2: for tuning.
    """

    name = "hopper and cuBLASLt"

    def __init__(
        self,
        card: str,
        table: Mapping[str, Mapping[str, str]],
        precision: Precision,
        architecture: str,
        cluster: int = CLUSTER,
    ) -> None:
        self.cluster = cluster
        macros = type_macros(precision) | {"CLUSTER": str(cluster)}
        self.kernels = Kernels(compile_kernels(["gemm_hopper"], macros, architecture))
        cuda = driver()
        attribute = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        device = check(cuda.cuCtxGetDevice(), "cuCtxGetDevice")
        self.multiprocessors = int(check(cuda.cuDeviceGetAttribute(attribute, device), "multiprocessors"))
        self._architecture = architecture
        self._own: dict[Problem, HopperProduct] = {}
        super().__init__(card, table)  # last: it makes a handle, which no failure of the above may leave behind
        self.version = f"{VERSION} and {self.version}"

    def has_kernel(self, problem: Problem) -> bool:
        """Return whether a problem is not left to cuBLASLt."""
        return has_kernel(problem, self._architecture)

    def prepare(self, problem: Problem) -> Product:
        """Return the product for a problem, made once."""
        if not self.has_kernel(problem):
            return super().prepare(problem)
        if problem not in self._own:
            self._own[problem] = HopperProduct(self, problem)
            self.used[problem.key] = f"{KERNELS[problem.epilogue][1]}, tiles of {ROWS} x {COLUMNS}"
        return self._own[problem]

    def close(self) -> None:
        """Unload the code, and give the library's handle back."""
        self.kernels.close()
        super().close()
