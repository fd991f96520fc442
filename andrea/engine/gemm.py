"""Matrix products: D = op(A) op(B) or D += op(A) op(B), by cuBLASLt, or by our own kernel where it is missing.

Everything is row-major. cuBLASLt thinks in columns, where a row-major matrix is its own transpose, so it is asked for
D^T = op(B)^T op(A)^T: operands change places, shapes change places, nothing is copied.

An algorithm comes from a table that was measured before (keyed by card, library version and problem), else it is the
library's first proposal that does not add split parts with atomics. What was used is recorded, since it decides bits.
"""

from __future__ import annotations

import ctypes
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from attrs import frozen

from andrea.engine.import_alone import import_alone
from andrea.errors import AndreaError
from andrea.types import Device, Precision

TABLE = Path(__file__).with_name("gemm_table.json")
WORKSPACE_BYTES = 64 << 20
PROPOSALS = 48
# Split-K may add its parts in the compute type (2) or the output type (4), out of place; in place (1) means atomics.
REDUCTIONS = 2 | 4

DATA_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14, "e4m3": 28, "e5m2": 29}  # cudaDataType
COMPUTE_FLOAT32, COMPUTE_TF32 = 68, 77  # cublasComputeType
SUPPORTED = 15  # CUBLAS_STATUS_NOT_SUPPORTED


@frozen
class Problem:
    """One shape of product: D[m, n] = op(A)[m, k] op(B)[k, n], all row-major.

    Attributes
    ----------
    m, n, k
        Sizes after transposing.
    transpose_a, transpose_b
        A is stored [k, m], B is stored [n, k].
    lda, ldb, ldd
        Elements from one stored row to the next.
    operand, result
        Storage types of A and B, and of D. Operands of 8 bits, ``e4m3`` or ``e5m2``, are multiplied by a factor each.
    tf32
        Multiply float32 operands in tf32.
    accumulate
        D += instead of D =.
    epilogue
        ``""``; ``gelu``: D = gelu(product), and the product itself goes to `aux`; ``dgelu``: D = product x gelu'(aux).
    operand_b
        Storage type of B where it is not that of A.
    """

    m: int
    n: int
    k: int
    transpose_a: bool
    transpose_b: bool
    lda: int
    ldb: int
    ldd: int
    operand: str
    result: str
    tf32: bool = False
    accumulate: bool = False
    epilogue: str = ""
    operand_b: str = ""

    @property
    def eight_bit(self) -> bool:
        """Whether operands have 8 bits, and factors."""
        return self.operand in ("e4m3", "e5m2")

    @property
    def key(self) -> str:
        """Name of the problem in tables, for instance ``65536x2304x768 nn bfloat16->bfloat16``."""
        letters = "nt"[self.transpose_a] + "nt"[self.transpose_b]
        leads = f"{self.lda},{self.ldb},{self.ldd}"
        multiply = "tf32" if self.tf32 else "x".join(filter(None, (self.operand, self.operand_b)))
        tail = (" +=" if self.accumulate else "") + (f" {self.epilogue}" if self.epilogue else "")
        return f"{self.m}x{self.n}x{self.k} {letters} {leads} {multiply}->{self.result}{tail}"

    @property
    def operations(self) -> int:
        """Floating-point operations."""
        return 2 * self.m * self.n * self.k


Scales = tuple[int, int]  # addresses of what codes of A and of B are multiplied by
Table = dict[str, dict[str, str]]  # card and library -> problem -> algorithm as hexadecimal text


def read_table(path: Path = TABLE) -> Table:
    """Return a table of algorithms; empty when the file is not there."""
    if not path.is_file():
        return {}
    table: Table = json.loads(path.read_text(encoding="utf-8"))
    return table


def write_table(path: Path, new: Table) -> None:
    """Merge new entries into a table on disk."""
    table = read_table(path)
    for key, entries in new.items():
        table[key] = dict(sorted((table.get(key, {}) | entries).items()))
    path.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")


class Matmul:
    """One prepared product: descriptors and algorithm exist, only addresses are missing."""

    def __init__(self, library: CublasLt, problem: Problem) -> None:
        self.problem = problem
        self._library = library
        lt = library.lt
        layouts = _column_layouts(problem)
        self._layouts = [lt.matrix_layout_create(*layout) for layout in layouts]
        self._descriptors: dict[tuple[int, Scales], int] = {}
        self._alpha = ctypes.c_float(1)
        self._beta = ctypes.c_float(1 if problem.accumulate else 0)
        self.last: tuple[int, int, int, int, int, Scales] | None = None
        self.algorithm = library.choose(self)

    def descriptor(self, aux: int = 0, scales: Scales = (0, 0)) -> int:
        """Return the operation's descriptor; the epilogue's second matrix and the factors of A and B are part of it."""
        if (aux, scales) not in self._descriptors:
            self._descriptors[aux, scales] = self._library.describe(self.problem, aux, scales)
        return self._descriptors[aux, scales]

    def __call__(self, a: int, b: int, d: int, stream: int, aux: int = 0, scales: Scales = (0, 0)) -> None:
        """Launch on `stream`; a, b, d, aux and the factors of A and B, float32, are device addresses."""
        self.last = (a, b, d, stream, aux, scales)
        self.launch(self.algorithm.ctypes.data, a, b, d, stream, aux, scales)

    def launch(
        self, algorithm: int, a: int, b: int, d: int, stream: int, aux: int = 0, scales: Scales = (0, 0)
    ) -> None:
        """Launch with the algorithm at an address, for tuning."""
        first, second, result = self._layouts
        self._library.lt.matmul(
            self._library.handle,
            self.descriptor(aux, scales),
            ctypes.addressof(self._alpha),
            b,
            first,
            a,
            second,
            ctypes.addressof(self._beta),
            d,
            result,
            d,
            result,
            algorithm,
            self._library.workspaces[stream],
            WORKSPACE_BYTES,
            stream,
        )

    def proposals(self) -> Any:
        """Return the library's proposals, best guess first, as an array of its result records."""
        somewhere = next(iter(self._library.workspaces.values()))
        return self._library.proposals(self.descriptor(somewhere, (somewhere, somewhere)), self._layouts)


def _column_layouts(problem: Problem) -> list[tuple[int, int, int, int]]:
    """Return (type, rows, columns, leading dimension) of cuBLASLt's A, B and D."""
    p = problem
    operand_a, operand_b, result = (DATA_TYPES[one] for one in (p.operand, p.operand_b or p.operand, p.result))
    return [
        (operand_b, *((p.k, p.n) if p.transpose_b else (p.n, p.k)), p.ldb),
        (operand_a, *((p.m, p.k) if p.transpose_a else (p.k, p.m)), p.lda),
        (result, p.n, p.m, p.ldd),
    ]


class Product(Protocol):
    """A prepared product: launches on a stream; addresses of A, B, D, the epilogue's second matrix, and factors."""

    def __call__(self, a: int, b: int, d: int, stream: int, aux: int = 0, scales: Scales = (0, 0)) -> None:
        """Launch."""


class Gemms(Protocol):
    """A library of matrix products."""

    name: str
    version: str
    workspaces: dict[int, int]
    used: dict[str, str]

    def prepare(self, problem: Problem) -> Product:
        """Return the product for a problem, made once."""

    def close(self) -> None:
        """Give everything back."""


class CublasLt:
    """cuBLASLt with raw pointers, a workspace a stream, and one prepared product for each problem.

    Parameters
    ----------
    card
        Name of the card, the table's key.
    table
        As `read_table` gives it.

    Raises
    ------
    AndreaError
        When the library is not there.

    Attributes
    ----------
    workspaces
        Device address of WORKSPACE_BYTES of each stream that products run on; set before the first is prepared.
    used
        Problem -> algorithm, of every product that was prepared.
    """

    name = "cuBLASLt"

    def __init__(self, card: str, table: Mapping[str, Mapping[str, str]]) -> None:
        try:
            self.lt: Any = import_alone("nvmath.bindings.cublasLt")
            self.version, self.handle = str(self.lt.get_version()), self.lt.create()
        except (ImportError, RuntimeError) as error:
            raise AndreaError(f"cuBLASLt cannot be loaded: {error}", "pip install 'andrea[cuda]'") from error
        self.workspaces: dict[int, int] = {}
        self.key = f"{card} {self.version}"
        self.used: dict[str, str] = {}
        self._table = table.get(self.key, {})
        self._prepared: dict[Problem, Matmul] = {}
        self._kept: list[Any] = []

    def prepare(self, problem: Problem) -> Product:
        """Return the product for a problem, made once."""
        if problem not in self._prepared:
            self._prepared[problem] = Matmul(self, problem)
        return self._prepared[problem]

    def describe(self, problem: Problem, aux: int, scales: Scales = (0, 0)) -> int:
        """Make an operation descriptor.

        Sums of a forward in 8 bits are left to the tensor cores, which keep some 14 bits of them; those of a gradient
        are carried on in float32 at every few steps of k.
        """
        attributes, epilogues = self.lt.MatmulDescAttribute, self.lt.Epilogue
        descriptor: int = self.lt.matmul_desc_create(COMPUTE_TF32 if problem.tf32 else COMPUTE_FLOAT32, 0)
        set_attribute = functools.partial(self._set, self.lt.matmul_desc_set_attribute, descriptor)
        set_attribute(attributes.TRANSA, problem.transpose_b, np.int32)
        set_attribute(attributes.TRANSB, problem.transpose_a, np.int32)
        if problem.epilogue:
            kind = {"gelu": epilogues.GELU_AUX, "dgelu": epilogues.DGELU}[problem.epilogue]
            set_attribute(attributes.EPILOGUE, kind, np.int32)
            set_attribute(attributes.EPILOGUE_AUX_POINTER, aux, np.uint64)
            set_attribute(attributes.EPILOGUE_AUX_LD, problem.ldd, np.int64)
        if problem.eight_bit:
            of_a, of_b = scales
            set_attribute(attributes.A_SCALE_POINTER, of_b, np.uint64)
            set_attribute(attributes.B_SCALE_POINTER, of_a, np.uint64)
            set_attribute(attributes.FAST_ACCUM, "e5m2" not in (problem.operand, problem.operand_b), np.int8)
        return descriptor

    def proposals(self, descriptor: int, layouts: list[int]) -> Any:
        """Ask for algorithms that stay inside our workspace and add split parts in a fixed order."""
        preference = self.lt.matmul_preference_create()
        attributes = self.lt.MatmulPreferenceAttribute
        set_attribute = functools.partial(self._set, self.lt.matmul_preference_set_attribute, preference)
        set_attribute(attributes.MAX_WORKSPACE_BYTES, WORKSPACE_BYTES, np.uint64)
        set_attribute(attributes.REDUCTION_SCHEME_MASK, REDUCTIONS, np.uint32)
        found = np.zeros(PROPOSALS, dtype=self.lt.matmul_heuristic_result_dtype)
        count = np.zeros(1, dtype=np.int32)
        first, second, result = layouts
        self.lt.matmul_algo_get_heuristic(
            self.handle,
            descriptor,
            first,
            second,
            result,
            result,
            preference,
            PROPOSALS,
            found.ctypes.data,
            count.ctypes.data,
        )
        self.lt.matmul_preference_destroy(preference)
        return found[: int(count[0])]

    def choose(self, matmul: Matmul) -> Any:
        """Return the algorithm of the table, else the first proposal, uint64 (8,); and record it."""
        key = matmul.problem.key
        if key in self._table:
            algorithm = np.frombuffer(bytes.fromhex(self._table[key]), dtype=np.uint64).copy()
        else:
            proposals = matmul.proposals()
            if not len(proposals):
                cure = "--plugin precision.bf16" if matmul.problem.eight_bit else "--set engine.gemm=own"
                raise AndreaError(f"cuBLASLt {self.version} has no algorithm for {key}", cure)
            algorithm = proposals[0]["algo"]["data_"].copy()
        self.used[key] = algorithm.tobytes().hex()
        return algorithm

    def tune(self, time_on_card: Callable[[Callable[[], None]], float], stream: int) -> Table:
        """Time every proposal of every product at the addresses of its last call; take and return the fastest.

        What the products write is destroyed. `time_on_card` runs something some times and returns milliseconds between
        events on `stream`, where all are launched, whatever stream their last call was on.
        """
        found = {}
        for matmul in self._prepared.values():
            if matmul.last is None:
                continue
            a, b, d, _, aux, scales = matmul.last
            times = []
            for proposal in matmul.proposals():
                algorithm = np.ascontiguousarray(proposal["algo"]["data_"])
                run = functools.partial(matmul.launch, algorithm.ctypes.data, a, b, d, stream, aux, scales)
                try:
                    times.append((time_on_card(run), algorithm))
                except self.lt.cuBLASLtError:  # a proposal that the library itself then refuses
                    continue
            matmul.algorithm = min(times, key=lambda pair: pair[0])[1].copy()
            self.used[matmul.problem.key] = found[matmul.problem.key] = matmul.algorithm.tobytes().hex()
        return {self.key: found}

    def _set(self, setter: Callable[..., None], target: int, attribute: Any, value: Any, dtype: Any) -> None:
        buffer = np.array([int(value)], dtype=dtype)
        self._kept.append(buffer)  # the library may keep the address, so the memory stays
        setter(target, int(attribute), buffer.ctypes.data, buffer.nbytes)

    def close(self) -> None:
        """Give the handle back."""
        if self.handle:
            self.lt.destroy(self.handle)
            self.handle = 0


def open_gemms(wanted: str, device: Device, precision: Precision, architecture: str) -> Gemms:
    """Return the library of products: ``cublaslt``, ``own``, or ``auto``, which takes cuBLASLt where it is installed.

    Raises
    ------
    AndreaError
        When cuBLASLt was asked for, or is needed, and is not there.
    """
    if precision.fp8:
        if wanted == "own":
            raise AndreaError(f"engine.gemm own has no products for precision {precision.name}", "leave it at auto")
        if wanted == "auto":
            wanted = "cublaslt"
    if wanted != "own":
        try:
            return CublasLt(device.name, read_table())
        except AndreaError:
            if wanted != "auto":
                raise
    from andrea.engine.own_gemm import OwnGemms

    return OwnGemms(precision, architecture)
