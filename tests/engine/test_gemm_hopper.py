"""Hopper's products with GELU without a card: which problems they take, what the copy engine is told, and the code."""

from __future__ import annotations

import re
import sys
import types
from types import SimpleNamespace

import numpy as np
import pytest
from attrs import evolve
from numpy.lib.stride_tricks import as_strided

from andrea.engine import EngineConfig, gemm_hopper
from andrea.engine.attention import type_macros
from andrea.engine.compiler import compile_kernels
from andrea.engine.gemm import CublasLt, Matmul, Problem, open_gemms
from andrea.engine.gemm_hopper import (
    CLUSTER,
    COLUMNS,
    DEPTH,
    WIDTH_STEP,
    HopperGemms,
    boxes_of,
    has_kernel,
    layer_problems,
)
from andrea.engine.machine import check_support, fused_gelu
from andrea.engine.model import ModelConfig
from andrea.errors import AndreaError
from andrea.resources import kernels_folder
from andrea.types import Device, Precision

H200 = Device("cuda", "H200", (9, 0))
BF16, FP16 = Precision("bf16", "bfloat16", "bfloat16"), Precision("fp16", "float16", "float16")
FORWARD = Problem(8192, 3072, 768, False, False, 768, 3072, 3072, "bfloat16", "bfloat16", epilogue="gelu")
BACKWARD = evolve(FORWARD, transpose_b=True, ldb=768, epilogue="dgelu")


def configured(width):
    return EngineConfig(ModelConfig(2, width // 64, width, context=32), 100, options={"gemm": "hopper"})


# -- which problems --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [384, 768, 1536])
def test_layers_of_the_models_have_kernels(width):
    """Both products with GELU of all three models, for any number of rows, in bf16 and fp16."""
    for rows in (1, 127, 65536):
        for kind in ("bfloat16", "float16"):
            assert all(has_kernel(one, "sm_90a") for one in layer_problems(width, rows, kind))
    assert layer_problems(768, 8192, "bfloat16") == (FORWARD, BACKWARD)


def test_widths_with_kernels_are_those_that_are_said():
    """Multiples of 192, for both products."""
    problems = {width: layer_problems(width, 1, "bfloat16") for width in range(8, 2048, 8)}
    for number in (0, 1):
        found = [width for width, both in problems.items() if has_kernel(both[number], "sm_90a")]
        assert found == list(range(192, 2048, WIDTH_STEP))


@pytest.mark.parametrize(
    "change",
    [
        {"epilogue": ""},
        {"transpose_b": True},
        {"transpose_a": True},
        {"epilogue": "dgelu"},
        {"n": 2048},
        {"k": 800},
        {"lda": 769},
        {"ldb": 3076},
        {"ldd": 3073},
        {"result": "float32"},
        {"accumulate": True},
        {"operand": "float32", "result": "float32"},
        {"operand": "e4m3"},
        {"operand_b": "float16"},
    ],
)
def test_other_products_stay_with_cublaslt(change):
    """What the kernels' types, tiles, layouts or 16-byte steps do not fit is not theirs."""
    assert has_kernel(FORWARD, "sm_90a")
    assert not has_kernel(evolve(FORWARD, **change), "sm_90a")


def test_other_cards_have_none():
    """The instructions are Hopper's alone."""
    assert not [card for card in ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120") if has_kernel(BACKWARD, card)]


def test_it_is_refused_before_anything_is_opened():
    """Another card or precision: says where the products are; another width: says which."""
    config = configured(192)
    check_support(config, H200, BF16)
    for device, precision in ((evolve(H200, capability=(8, 0)), BF16), (H200, Precision("fp32"))):
        with pytest.raises(AndreaError, match="hopper has no products for") as caught:
            check_support(config, device, precision)
        assert "leave engine.gemm at auto" in caught.value.hint
    for width, fitting in ((256, 384), (320, 384), (512, 576), (1024, 1152)):
        with pytest.raises(
            AndreaError, match=f"no products for d_model {width}; it has for multiples of 192"
        ) as caught:
            check_support(configured(width), H200, BF16)
        assert caught.value.hint.startswith(f"take d_model {fitting}, or")
        check_support(configured(fitting), H200, BF16)


# -- copies ----------------------------------------------------------------------------------------------------------


def read_box(matrix, boxes, corner):
    """Return a box as the copy engine would bring it: outermost index first, zeros beyond the matrix."""
    strides = [2 * stride for stride in boxes.strides[::-1]]
    view = as_strided(matrix, boxes.sizes[::-1], strides, writeable=False)
    found = np.zeros(boxes.box[::-1], dtype=matrix.dtype)
    part = view[tuple(np.s_[at : at + size] for at, size in zip(corner[::-1], found.shape, strict=True))]
    found[tuple(np.s_[:size] for size in part.shape)] = part
    return found


@pytest.mark.parametrize("cluster", [1, 2])
def test_shares_of_a_cluster_are_the_columns_of_b(cluster):
    """B [k, n]: shares follow along k, each in panels of 64 columns. B [n, k]: shares are columns in their order."""
    forward = evolve(FORWARD, m=100, n=2 * COLUMNS, k=2 * DEPTH, lda=2 * DEPTH, ldb=2 * COLUMNS + 8, ldd=2 * COLUMNS)
    b = np.arange(forward.k * forward.ldb, dtype=np.uint16).reshape(forward.k, forward.ldb)
    boxes = boxes_of(forward, cluster)[1]
    shares = [read_box(b, boxes, (0, DEPTH + rank * DEPTH // cluster, COLUMNS // 64)) for rank in range(cluster)]
    panels = np.concatenate(shares, axis=1)  # [panel, k, column]
    assert np.array_equal(np.moveaxis(panels, 0, 1).reshape(DEPTH, COLUMNS), b[DEPTH:, COLUMNS : 2 * COLUMNS])

    backward = evolve(forward, transpose_b=True, ldb=2 * DEPTH + 8, epilogue="dgelu")
    b = np.arange(backward.n * backward.ldb, dtype=np.uint16).reshape(backward.n, backward.ldb)
    boxes = boxes_of(backward, cluster)[1]
    shares = [read_box(b, boxes, (DEPTH, COLUMNS + rank * COLUMNS // cluster, 0)) for rank in range(cluster)]
    assert np.array_equal(np.concatenate(shares, axis=1)[0], b[COLUMNS:, DEPTH : 2 * DEPTH])


def test_rows_beyond_the_last_are_zeros():
    """The last tile's rows of A that are not there read as zeros; a box of results has 16 rows of 64 columns."""
    problem = evolve(FORWARD, m=130, k=64, lda=72)
    a = np.ones((130, 72), dtype=np.uint16)
    left, _, result = boxes_of(problem)
    assert read_box(a, left, (0, 128)).sum(axis=1).tolist() == [64, 64] + [0] * 126
    assert result == gemm_hopper.Boxes((3072, 130), (1, 3072), (64, 16))


# -- launches --------------------------------------------------------------------------------------------------------


class Library(types.ModuleType):
    """cuBLASLt's bindings as far as opening goes."""

    create, destroy, get_version = (lambda *_: 1), (lambda *_: None), (lambda *_: 130100)


class Kernels:
    """Loaded code, imitated: notes what is launched."""

    def __init__(self, _cubins):
        self.launches, self.closed = [], False

    def kernel(self, name):
        def launch(grid, block, shared, stream, *arguments):
            self.launches.append((name, grid, block, shared, stream, arguments))

        launch.allow_shared = lambda _bytes: None
        return launch

    def close(self):
        self.closed = True


@pytest.fixture
def library(monkeypatch):
    """Imitate cuBLASLt's bindings and a card of 132 multiprocessors."""
    package = types.ModuleType("nvmath.bindings")
    made = package.cublasLt = Library("nvmath.bindings.cublasLt")
    for name, module in (("nvmath", types.ModuleType("nvmath")), ("nvmath.bindings", package)):
        monkeypatch.setitem(sys.modules, name, module)
    attributes = SimpleNamespace(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=0)
    host = SimpleNamespace(
        CUdevice_attribute=attributes, cuCtxGetDevice=lambda: (0, 0), cuDeviceGetAttribute=lambda *_: (0, 132)
    )
    monkeypatch.setattr(gemm_hopper, "driver", lambda: host)
    monkeypatch.setattr(gemm_hopper, "compile_kernels", lambda *_: [])
    monkeypatch.setattr(gemm_hopper, "Kernels", Kernels)
    monkeypatch.setattr(gemm_hopper, "encode", lambda boxes, kind, address: f"{kind} {boxes.box} {address}".encode())
    monkeypatch.setattr(Matmul, "__init__", lambda self, library, problem: None)
    return made


@pytest.fixture
def gemms(library):
    """Open the products."""
    return open_gemms("hopper", H200, BF16, "sm_90a")


def test_products_with_gelu_are_launched_and_others_are_not(gemms):
    """Each has its kernel; the plain product is cuBLASLt's. A run's fingerprint has both names."""
    assert isinstance(gemms.prepare(evolve(FORWARD, epilogue="")), Matmul)
    for problem, kernel in ((FORWARD, "k_gemm_gelu"), (BACKWARD, "k_gemm_gelu_gradient")):
        product = gemms.prepare(problem)
        assert gemms.prepare(problem) is product
        product(16, 32, 48, 7, 64)
        name, grid, block, shared, stream, arguments = gemms.kernels.launches[-1]
        assert (name, grid, block, stream) == (kernel, 132, 384, 7)
        assert shared <= 227 * 1024
        assert arguments[0] == b"bfloat16 (64, 128) 16"
        assert arguments[2:] == (b"bfloat16 (64, 16) 48", b"bfloat16 (64, 16) 64", 8192, 3072, 768)
        assert kernel in gemms.used[problem.key]
    assert (gemms.name, gemms.version) == ("hopper and cuBLASLt", "1 and 130100")
    assert gemms.key == "H200 130100"  # of the table, which knows nothing of these
    gemms.close()
    assert gemms.kernels.closed


def test_the_gradient_of_gelu_is_in_a_product_that_has_a_kernel(gemms):
    """Below a width of 512 cuBLASLt's is slower than a pass of its own: only a kernel here is a reason."""
    for width in (192, 256, 320, 384, 512):
        assert fused_gelu(configured(width), BF16, gemms) == (True, width not in (256, 320))
        assert fused_gelu(configured(width), BF16, CublasLt("H200", {})) == (True, width == 512)


def test_a_failure_of_the_compiler_keeps_its_name(library, monkeypatch):
    """It is not told as a library that is missing, and no handle is left behind."""
    made = []
    monkeypatch.setattr(library, "create", lambda: made.append(1) or 1)

    def fail(*_):
        raise RuntimeError("the compiler's own words")

    monkeypatch.setattr(gemm_hopper, "compile_kernels", fail)
    with pytest.raises(RuntimeError, match="own words"):
        open_gemms("hopper", H200, BF16, "sm_90a")
    assert not made
    monkeypatch.setitem(sys.modules, "nvmath.bindings", None)
    monkeypatch.setattr(gemm_hopper, "compile_kernels", lambda *_: [])
    with pytest.raises(AndreaError, match="cuBLASLt cannot be loaded"):
        open_gemms("hopper", H200, BF16, "sm_90a")


def test_a_matrix_is_described_once(gemms, monkeypatch):
    """The host describes matrices when their addresses are new, not at each launch."""
    made = []
    monkeypatch.setattr(gemm_hopper, "encode", lambda *given: made.append(given) or b"")
    product = gemms.prepare(FORWARD)
    for aux in (64, 80, 64):
        product(16, 32, 48, 0, aux)
    assert [address for *_, address in made] == [16, 32, 48, 64, 16, 32, 48, 80]


def test_few_tiles_take_few_blocks(gemms):
    """A product of one row is one row of clusters, the second block of which has nothing but zeros."""
    gemms.prepare(evolve(FORWARD, m=1))(16, 32, 48, 0, 64)
    assert gemms.kernels.launches[-1][1] == CLUSTER * 3072 // COLUMNS
    assert isinstance(gemms, HopperGemms)


# -- code ------------------------------------------------------------------------------------------------------------


def test_constants_are_the_kernels_own():
    """Tile sizes, stages and boxes stand in two languages."""
    text = (kernels_folder() / "gemm_hopper.cu").read_text(encoding="utf-8")
    for name in ("ROWS", "COLUMNS", "DEPTH", "STAGES", "BOX_ROWS", "BOXES"):
        assert re.search(rf"\b{name} = (\d+)\b", text)[1] == str(getattr(gemm_hopper, name))


NAMES = ("k_gemm_gelu", "k_gemm_gelu_gradient")


@pytest.mark.parametrize(("precision", "cluster"), [(BF16, "1"), (BF16, "2"), (FP16, "2")])
def test_code_for_hopper_does_not_spill(precision, cluster, tmp_path):
    """Sums of 192 numbers a thread stay in registers, with clusters of either size."""
    (cubin,) = compile_kernels(["gemm_hopper"], type_macros(precision) | {"CLUSTER": cluster}, "sm_90a", tmp_path)
    assert {r.name: r.parameters for r in cubin.kernels} == dict.fromkeys(NAMES, "ttttiii")
    assert not [r for r in cubin.kernels if r.stack_frame or r.spill_stores or r.spill_loads]


@pytest.mark.parametrize(
    ("precision", "card"), [(BF16, "sm_80"), (BF16, "sm_100"), (BF16, "sm_120"), (Precision("fp32"), "sm_90a")]
)
def test_elsewhere_the_file_is_empty(precision, card, tmp_path):
    """Other cards and precisions compile it to nothing."""
    (cubin,) = compile_kernels(["gemm_hopper"], type_macros(precision), card, tmp_path)
    assert cubin.kernels == ()
