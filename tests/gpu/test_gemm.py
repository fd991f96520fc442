"""Our own matrix products against numpy in float64, on inputs as the card holds them.

D is poisoned with NaN before each launch, unless it is added to.
"""

from __future__ import annotations

import numpy as np
import pytest

from andrea import Precision
from andrea.engine.gemm import WORKSPACE_BYTES, Problem
from andrea.engine.own_gemm import OwnGemms, split_of

SIZES = [(1, 1, 1), (3, 5, 7), (33, 130, 65), (128, 128, 64), (200, 96, 1000), (257, 264, 136), (64, 48, 4104)]


class Bench:
    """The products of one precision."""

    def __init__(self, card, precision, conversions):
        self.card, self.precision = card, precision
        self.to, self.back = conversions
        self.random = np.random.Generator(np.random.PCG64(7))
        self.gemms = OwnGemms(precision, card.architecture)
        self.gemms.workspaces[0] = card.room(WORKSPACE_BYTES)

    def problem(self, m, n, k, letters="nn", result="", accumulate=False, epilogue="", pad=0):
        """Return a problem whose stored rows are `pad` elements longer than their content."""
        ta, tb = letters[0] == "t", letters[1] == "t"
        leads = (m if ta else k) + pad, (k if tb else n) + pad, n + pad
        storage = self.precision.storage
        tf32 = self.precision.multiply == "tf32"
        return Problem(m, n, k, ta, tb, *leads, storage, result or storage, tf32, accumulate, epilogue)

    def operands(self, p):
        """Return (a, b) as the card holds them, with everything that is padding NaN."""
        shapes = ((p.k, p.m) if p.transpose_a else (p.m, p.k)), ((p.n, p.k) if p.transpose_b else (p.k, p.n))
        made = []
        for (rows, columns), lead in zip(shapes, (p.lda, p.ldb), strict=True):
            values = np.full((rows, lead), np.nan)
            values[:, :columns] = self.random.standard_normal((rows, columns))
            made.append(self.to(values, p.operand))
        return made

    def twin(self, p, a, b):
        """Return op(A) op(B) in float64."""
        a, b = self.back(a), self.back(b)
        a = a[:, : p.m].T if p.transpose_a else a[:, : p.k]
        return a @ (b[:, : p.k].T if p.transpose_b else b[:, : p.n])

    def read(self, address, p):
        """Return D without its padding, as the card holds it."""
        return self.card.get(address, (p.m, p.ldd), p.result)[:, : p.n]

    def room(self, p):
        """Return the address of a poisoned D."""
        return self.card.room(p.m * p.ldd * (4 if p.result == "float32" else 2))


@pytest.fixture
def bench(card, precision, storage):
    """Give the products of each precision."""
    made = Bench(card, precision, storage)
    yield made
    made.gemms.close()


@pytest.mark.parametrize("pad", [0, 8, 3])
@pytest.mark.parametrize("letters", ["nn", "nt", "tn", "tt"])
def test_products_match_numpy(bench, precision, close, letters, pad):
    """Every transposition at odd, tiny and larger sizes, rows aligned or not, into both types."""
    for m, n, k in SIZES:
        for result in dict.fromkeys((precision.storage, "float32")):
            p = bench.problem(m, n, k, letters, result, pad=pad)
            a, b = bench.operands(p)
            d = bench.room(p)
            bench.gemms.prepare(p)(bench.card.put(a), bench.card.put(b), d, 0)
            close(bench.read(d, p), bench.twin(p, a, b), precision.name)


def test_addresses_need_no_alignment(bench, precision, close):
    """Operands that start between two multiples of 16 bytes give the same product."""
    p = bench.problem(130, 72, 96, "nt")
    a, b = bench.operands(p)
    shift = a.itemsize
    d = bench.room(p)
    bench.gemms.prepare(p)(bench.card.put(a, shift), bench.card.put(b, shift), d, 0)
    close(bench.read(d, p), bench.twin(p, a, b), precision.name)


@pytest.mark.parametrize("k", [96, 5000])
def test_accumulation_adds_to_what_is_there(bench, precision, close, k):
    """D += adds the product to float32 values, whether k is split or not."""
    p = bench.problem(130, 70, k, "tn", "float32", accumulate=True)
    assert (split_of(p).parts > 1) == (k == 5000)
    a, b = bench.operands(p)
    before = bench.random.standard_normal((p.m, p.ldd)).astype(np.float32)
    d = bench.card.put(before)
    bench.gemms.prepare(p)(bench.card.put(a), bench.card.put(b), d, 0)
    close(bench.read(d, p), before[:, : p.n] + bench.twin(p, a, b), precision.name)


@pytest.mark.parametrize("epilogue", ["gelu", "dgelu"])
def test_epilogues_are_gelu_and_its_gradient(bench, precision, close, epilogue):
    """The forward keeps the product beside its GELU; the backward multiplies with GELU's gradient there."""
    p = bench.problem(150, 264, 64, "nn" if epilogue == "gelu" else "nt", epilogue=epilogue)
    a, b = bench.operands(p)
    product = bench.twin(p, a, b)
    d, kept = bench.room(p), bench.to(bench.random.standard_normal((p.m, p.ldd)) * 2, p.result)
    aux = bench.room(p) if epilogue == "gelu" else bench.card.put(kept)
    bench.gemms.prepare(p)(bench.card.put(a), bench.card.put(b), d, 0, aux)
    x = bench.back(bench.read(aux, p)) if epilogue == "gelu" else bench.back(kept)
    slope = np.sqrt(2 / np.pi)
    t = np.tanh(slope * (x + 0.044715 * x**3))
    if epilogue == "gelu":
        close(bench.read(aux, p), product, precision.name)
        close(bench.read(d, p), 0.5 * x * (1 + t), precision.name)
    else:
        gradient = 0.5 * (1 + t) + 0.5 * x * (1 - t**2) * slope * (1 + 3 * 0.044715 * x**2)
        close(bench.read(d, p), product * gradient, precision.name)


@pytest.mark.parametrize(("m", "n", "k", "letters"), [(384, 384, 8192, "tn"), (200, 300, 520, "nn")])
def test_a_thousand_products_give_the_same_bits(bench, m, n, k, letters):
    """A product gives the same bits every time, whether k is split among blocks or not."""
    p = bench.problem(m, n, k, letters, "float32")
    a, b = (bench.card.put(x) for x in bench.operands(p))
    product, d, first = bench.gemms.prepare(p), bench.room(p), None
    for _ in range(1000):
        product(a, b, d, 0)
        result = bench.read(d, p).tobytes()
        first = first or result
        assert result == first


def test_more_elements_than_32_bits_count(card, storage, close):
    """D of more than 2^31 elements: its first, last and sampled rows are right."""
    if card.capability < (8, 0):
        pytest.skip(f"compute capability {card.capability} has no bf16")
    bench = Bench(card, Precision("bf16", "bfloat16", "bfloat16"), storage)
    m, n, k = 270_000, 8_192, 32
    assert m * n > 2**31
    p = bench.problem(m, n, k, "nt")
    a, b = bench.operands(p)
    d = bench.room(p)
    bench.gemms.prepare(p)(card.put(a), card.put(b), d, 0)
    rows = np.unique(np.concatenate([[0, m - 1], bench.random.integers(0, m, 254)]))
    for row in rows:
        result = card.get(d + int(row) * n * 2, (1, n), "bfloat16")
        close(result, bench.back(a[row : row + 1]) @ bench.back(b).T, "bf16")
    bench.gemms.close()
