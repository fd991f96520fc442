"""Matrix products as cuBLASLt is asked for them: layouts, descriptors, the choice of an algorithm, and its record."""

from __future__ import annotations

import sys
import types
from enum import IntEnum

import numpy as np
import pytest
from attrs import evolve

from andrea.engine.gemm import REDUCTIONS, CublasLt, Problem, open_gemms, read_table, write_table
from andrea.errors import AndreaError
from andrea.types import Device, Precision

CARD, BF16 = Device("cuda", "Card", (9, 0)), Precision("bf16", "bfloat16", "bfloat16")
WORKSPACES = {4: 4096, 5: 8192, 8: 12288}
PLAIN = Problem(5, 7, 3, False, False, 3, 7, 7, "bfloat16", "bfloat16")


class Library(types.ModuleType):
    """cuBLASLt's bindings, imitated: remembers descriptors and layouts, multiplies nothing."""

    class MatmulDescAttribute(IntEnum):
        """As in the library."""

        TRANSA, TRANSB, EPILOGUE, EPILOGUE_AUX_POINTER, EPILOGUE_AUX_LD = range(5)
        A_SCALE_POINTER, B_SCALE_POINTER, FAST_ACCUM = range(5, 8)

    class MatmulPreferenceAttribute(IntEnum):
        """As in the library."""

        MAX_WORKSPACE_BYTES, REDUCTION_SCHEME_MASK = range(2)

    class Epilogue(IntEnum):
        """As in the library."""

        GELU_AUX, DGELU = 164, 192

    class cuBLASLtError(Exception):  # noqa: N801
        """As in the library."""

    matmul_heuristic_result_dtype = np.dtype([("algo", [("data_", "<u8", (8,))]), ("state", "<i4")])

    def __init__(self):
        super().__init__("nvmath.bindings.cublasLt")
        self.attributes: dict[int, dict[int, int]] = {}
        self.layouts, self.launches, self.offers = [], [], [3, 1, 2]
        self.workspaces: dict[int, int] = {}

    def create(self):
        return 11

    def destroy(self, handle):
        assert handle == 11

    def get_version(self):
        return 130100

    def _new(self, *_):
        self.attributes[len(self.attributes) + 1] = {}
        return len(self.attributes)

    matmul_desc_create = matmul_preference_create = _new

    def matrix_layout_create(self, *layout):
        self.layouts.append(layout)
        return len(self.layouts)

    def _set(self, target, attribute, address, size):
        import ctypes

        self.attributes[target][attribute] = int.from_bytes(ctypes.string_at(address, size), sys.byteorder)

    matmul_desc_set_attribute = matmul_preference_set_attribute = _set

    def matmul_preference_destroy(self, preference):
        assert self.attributes[preference][1] == REDUCTIONS

    def matmul_algo_get_heuristic(self, handle, desc, a, b, c, d, preference, wanted, results, count):
        import ctypes

        found = np.zeros(len(self.offers), dtype=self.matmul_heuristic_result_dtype)
        found["algo"]["data_"][:, 0] = self.offers
        ctypes.memmove(results, found.ctypes.data, found.nbytes)
        ctypes.c_int32.from_address(count).value = len(self.offers)

    def matmul(self, handle, desc, alpha, a, la, b, lb, beta, c, lc, d, ld, algorithm, workspace, size, stream):
        import ctypes

        which = ctypes.c_uint64.from_address(algorithm).value
        if which == 2:
            raise self.cuBLASLtError("refused")
        beta_value = ctypes.c_float.from_address(beta).value
        self.launches.append((desc, a, b, d, beta_value, which, stream))
        self.workspaces[stream] = workspace


def opened(table=None, card="Card"):
    """Return the products, with a workspace for each stream that tests use."""
    gemms = CublasLt(card, table or {})
    gemms.workspaces |= WORKSPACES
    return gemms


@pytest.fixture
def library(monkeypatch):
    """Stand in for the bindings."""
    made = Library()
    package = types.ModuleType("nvmath.bindings")
    package.cublasLt = made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nvmath", types.ModuleType("nvmath"))
    monkeypatch.setitem(sys.modules, "nvmath.bindings", package)
    monkeypatch.setitem(sys.modules, "nvmath.bindings.cublasLt", made)
    return made


def column_major(matrix, layout):
    """Read flat memory as cuBLASLt does: (type, rows, columns, leading dimension)."""
    _, rows, columns, lead = layout
    return np.array([[matrix[row + column * lead] for column in range(columns)] for row in range(rows)])


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_column_major_request_is_the_row_major_product(library, transpose_a, transpose_b):
    """What the library is asked for, worked out in columns, is A B in rows, whichever operand is stored transposed."""
    random = np.random.Generator(np.random.PCG64(1))
    A, B = random.integers(0, 9, (5, 3)), random.integers(0, 9, (3, 7))
    stored_a, stored_b = (A.T if transpose_a else A).ravel(), (B.T if transpose_b else B).ravel()
    problem = evolve(
        PLAIN,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        lda=5 if transpose_a else 3,
        ldb=3 if transpose_b else 7,
    )
    product = opened().prepare(problem)
    first, second, result = library.layouts[-3:]
    asked = library.attributes[product.descriptor()]
    left, right = column_major(stored_b, first), column_major(stored_a, second)  # operands change places
    left, right = left.T if asked[0] else left, right.T if asked[1] else right
    found = left @ right
    assert found.shape == (result[1], result[2]) == (7, 5)
    assert np.array_equal(found.T, A @ B)


def test_launch_passes_addresses_and_beta(library):
    """B comes first, D is also C, and += is beta 1; the same problem is prepared once."""
    gemms = opened()
    plain, adding = gemms.prepare(PLAIN), gemms.prepare(evolve(PLAIN, accumulate=True))
    assert gemms.prepare(PLAIN) is plain
    plain(1, 2, 3, 4)
    adding(1, 2, 3, 4)
    assert [launch[1:] for launch in library.launches] == [(2, 1, 3, 0.0, 3, 4), (2, 1, 3, 1.0, 3, 4)]


def test_streams_have_workspaces_of_their_own(library):
    """One product on two streams, at the same time perhaps: same descriptor, same algorithm, two workspaces."""
    product = opened().prepare(PLAIN)
    for stream in (4, 5):
        product(1, 2, 3, stream)
    assert library.workspaces == {stream: WORKSPACES[stream] for stream in (4, 5)}
    assert len({launch[:-1] for launch in library.launches}) == 1


def test_epilogue_has_a_descriptor_for_each_second_matrix(library):
    """GELU keeps the product at the address that is given, once for each address."""
    product = opened().prepare(evolve(PLAIN, epilogue="gelu"))
    for aux in (640, 1280, 640):
        product(1, 2, 3, 4, aux)
    one, two, three = (launch[0] for launch in library.launches)
    assert one == three != two
    assert [library.attributes[desc][3] for desc in (one, two)] == [640, 1280]
    assert library.attributes[one][2] == Library.Epilogue.GELU_AUX


@pytest.mark.parametrize(("one", "two", "fast"), [("e4m3", "e4m3", 1), ("e5m2", "e4m3", 0), ("e4m3", "e5m2", 0)])
def test_operands_of_8_bits_lie_along_k_and_have_factors(library, one, two, fast):
    """The library takes nothing but T N: rows of both are as long as k. Factors change places as their operands do."""
    types = {"e4m3": 28, "e5m2": 29}
    problem = Problem(5, 32, 16, False, True, 16, 16, 32, one, "bfloat16", operand_b=two)
    product = opened().prepare(problem)
    weights, rows, result = library.layouts[-3:]
    assert weights == (types[two], 16, 32, 16)
    assert rows == (types[one], 16, 5, 16)
    assert result == (14, 32, 5, 32)
    for scales in ((800, 900), (804, 900), (800, 900)):
        product(1, 2, 3, 4, scales=scales)
    first, second, third = (launch[0] for launch in library.launches)
    assert first == third != second
    asked = library.attributes[first]
    kind = Library.MatmulDescAttribute
    assert (asked[kind.TRANSA], asked[kind.TRANSB]) == (1, 0)
    assert (asked[kind.A_SCALE_POINTER], asked[kind.B_SCALE_POINTER]) == (900, 800)
    assert asked[kind.FAST_ACCUM] == fast


def test_other_operands_have_no_factors(library):
    """Nothing of 8 bits is asked for where there are none: the library would refuse it."""
    product = opened().prepare(PLAIN)
    product(1, 2, 3, 4)
    assert set(library.attributes[library.launches[-1][0]]) == {0, 1}


def test_first_proposal_is_taken_and_recorded(library):
    """Without a table the first proposal is used, and the record says which."""
    gemms = opened()
    product = gemms.prepare(PLAIN)
    assert int(product.algorithm[0]) == 3
    assert gemms.used == {PLAIN.key: product.algorithm.tobytes().hex()}


def test_table_wins_for_its_card_and_version(library, tmp_path):
    """An entry for this card and library is used; for another it is not."""
    wanted = np.array([7, 0, 0, 0, 0, 0, 0, 0], dtype=np.uint64)
    path = tmp_path / "table.json"
    write_table(path, {"Card 130100": {PLAIN.key: wanted.tobytes().hex()}})
    assert int(opened(read_table(path)).prepare(PLAIN).algorithm[0]) == 7
    assert int(opened(read_table(path), "Other").prepare(PLAIN).algorithm[0]) == 3
    write_table(path, {"Card 130100": {"another": "00"}})
    assert set(read_table(path)["Card 130100"]) == {PLAIN.key, "another"}
    assert read_table(tmp_path / "missing.json") == {}


def test_tuning_takes_the_fastest_that_runs(library):
    """Every proposal is timed where it was last used, on the stream of the clock; a refused one is left out."""
    gemms = opened()
    product = gemms.prepare(PLAIN)
    gemms.prepare(evolve(PLAIN, m=6))  # never called: nothing to time it on
    product(10, 20, 30, 4)

    def time_on_card(run):
        run()
        return {3: 5.0, 1: 2.0}[library.launches[-1][5]]

    table = gemms.tune(time_on_card, 8)
    assert {launch[1:4] + launch[6:] for launch in library.launches[1:]} == {(20, 10, 30, 8)}
    assert int(product.algorithm[0]) == 1
    assert table == {"Card 130100": {PLAIN.key: product.algorithm.tobytes().hex()}}
    assert gemms.used[PLAIN.key] == table["Card 130100"][PLAIN.key]


def test_problem_without_an_algorithm_is_an_error(library):
    """When nothing is proposed the message names the problem and the way out."""
    library.offers = []
    with pytest.raises(AndreaError, match="no algorithm for 5x7x3") as error:
        opened().prepare(PLAIN)
    assert "engine.gemm=own" in error.value.hint
    with pytest.raises(AndreaError, match="no algorithm for 5x7x3 nt 3,7,7 e5m2xe4m3") as error:
        opened().prepare(evolve(PLAIN, transpose_b=True, operand="e5m2", operand_b="e4m3"))
    assert "precision.bf16" in error.value.hint  # our own products take no 8 bits


def test_problems_have_names_of_their_own():
    """Whatever changes the product changes its key in the table."""
    changes = [{"m": 6}, {"transpose_a": True}, {"lda": 9}, {"tf32": True}, {"accumulate": True}, {"epilogue": "gelu"}]
    changes += [{"result": "float32"}, {"operand": "float16"}, {"operand": "e5m2", "operand_b": "e4m3"}]
    changes += [{"operand": "e4m3", "operand_b": "e4m3"}]
    keys = {PLAIN.key} | {evolve(PLAIN, **change).key for change in changes}
    assert len(keys) == len(changes) + 1


def test_missing_library_falls_back_unless_it_was_asked_for(monkeypatch):
    """`auto` takes our own products where cuBLASLt is missing; `cublaslt` says what to install."""
    monkeypatch.setitem(sys.modules, "nvmath", None)
    monkeypatch.setitem(sys.modules, "nvmath.bindings", None)
    monkeypatch.setattr("andrea.engine.own_gemm.OwnGemms", lambda *_: "own")
    assert open_gemms("auto", CARD, BF16, "sm_90a") == "own"
    with pytest.raises(AndreaError, match="cannot be loaded") as error:
        open_gemms("cublaslt", CARD, BF16, "sm_90a")
    assert "pip install" in error.value.hint


def test_operands_of_8_bits_need_cublaslt(monkeypatch):
    """Our own products have none, so they are neither taken on request nor where the library is missing."""
    monkeypatch.setitem(sys.modules, "nvmath", None)
    monkeypatch.setitem(sys.modules, "nvmath.bindings", None)
    precision = evolve(BF16, name="fp8", fp8={0: ("w_1.y",)})
    with pytest.raises(AndreaError, match="own has no products for precision fp8") as error:
        open_gemms("own", CARD, precision, "sm_90a")
    assert "auto" in error.value.hint
    with pytest.raises(AndreaError, match="cannot be loaded"):
        open_gemms("auto", CARD, precision, "sm_90a")
