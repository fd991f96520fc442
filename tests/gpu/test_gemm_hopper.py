"""Products with GELU by wgmma against numpy in float64, on inputs as the card holds them, and against themselves.

Outputs are poisoned with NaN before each launch, and what lies behind the last row must keep its poison.
"""

from __future__ import annotations

import numpy as np
import pytest

from andrea.engine import EngineConfig
from andrea.engine import operations as op
from andrea.engine.benchmark import random_batch
from andrea.engine.device import find_cards
from andrea.engine.gemm import Problem
from andrea.engine.gemm_hopper import HopperGemms, has_kernel
from andrea.engine.model import ModelConfig

ROWS = [1, 63, 64, 65, 127, 129, 1000, 8192]
WIDTHS = [384, 768, 1536]
BEHIND = 2  # rows that nobody may write


class Bench:
    """The products of one precision with clusters of one size."""

    def __init__(self, card, precision, conversions, cluster=2):
        self.card, self.type = card, precision.storage
        self.to, self.back = conversions
        self.random = np.random.Generator(np.random.PCG64(11))
        self.gemms = HopperGemms("no card of the table", {}, precision, card.architecture, cluster)

    def problem(self, epilogue, m, n, k, pad=0):
        """Return a problem whose stored rows are `pad` elements longer than their content."""
        gradient = epilogue == "dgelu"
        leads = k + pad, (k if gradient else n) + pad, n + pad
        found = Problem(m, n, k, False, gradient, *leads, self.type, self.type, epilogue=epilogue)
        assert has_kernel(found, self.card.architecture)
        return found

    def draw(self, rows, columns, lead, scale=1.0):
        """Return random numbers as the card holds them, with NaN where rows are longer than their content."""
        values = np.full((rows, lead), np.nan)
        values[:, :columns] = self.random.standard_normal((rows, columns)) * scale
        return self.to(values, self.type)

    def operands(self, p):
        """Return (a, b, aux) as the card holds them; of products with GELU, aux is only room."""
        b = (p.n, p.k) if p.transpose_b else (p.k, p.n)
        return (
            self.draw(p.m, p.k, p.lda),
            self.draw(*b, p.ldb, p.k**-0.5),
            self.draw(p.m, p.n, p.ldd, 2.0) if p.epilogue == "dgelu" else None,
        )

    def place(self, p, a, b, aux):
        """Return addresses (a, b, d, aux), D and room for aux poisoned."""
        size = (p.m + BEHIND) * p.ldd * 2
        return (
            self.card.put(a),
            self.card.put(b),
            self.card.room(size),
            self.card.room(size) if aux is None else self.card.put(aux),
        )

    def read(self, address, p):
        """Return what a product wrote, after a look at what it may not write."""
        found = self.card.get(address, (p.m + BEHIND, p.ldd), self.type)
        assert (found[p.m :].view(np.uint16) == 0xFFFF).all()
        assert (found[:, p.n :].view(np.uint16) == 0xFFFF).all()
        return np.ascontiguousarray(found[: p.m, : p.n])

    def run(self, p, a, b, aux):
        """Return (d, aux) as the card holds them, of a launch into poisoned memory."""
        at = self.place(p, a, b, aux)
        self.gemms.prepare(p)(*at[:3], 0, at[3])
        return self.read(at[2], p), self.read(at[3], p) if aux is None else aux[:, : p.n]

    def twin(self, p, a, b):
        """Return A B in float64."""
        a, b = self.back(a)[:, : p.k], self.back(b)
        return a @ (b[:, : p.k].T if p.transpose_b else b[:, : p.n])


@pytest.fixture(params=[1, 2], ids=["alone", "pairs"])
def bench(request, card, precision, storage):
    """Give the products of bf16 and fp16 with clusters of either size, on Hopper."""
    if card.architecture != "sm_90a" or precision.storage not in ("float16", "bfloat16"):
        pytest.skip(f"no wgmma products for {precision.name} on {card.architecture}")
    made = Bench(card, precision, storage, request.param)
    yield made
    made.gemms.close()


def check(bench, close, name, p, given, results):
    """Compare with the twin: the product, and what follows from the product that was kept. Of many rows, some."""
    assert all((result.view(np.uint16) != 0xFFFF).all() for result in results), "an element was not written"
    rows = np.arange(p.m)
    if p.m > 1000:
        rows = np.unique(np.concatenate([rows[:200], rows[-200:], bench.random.integers(0, p.m, 200)]))
    product, (d, aux) = bench.twin(p, given[0][rows], given[1]), (result[rows] for result in results)
    act, slope = op._gelu_and_slope(bench.back(aux))
    if p.epilogue == "gelu":
        close(aux, product, name)
        close(d, act, name)
    else:
        close(d, product * slope, name)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("epilogue", ["gelu", "dgelu"])
def test_layers_match_the_twin(bench, precision, close, epilogue, width):
    """The products of the three models at every number of rows, whole tiles or not."""
    for m in ROWS:
        p = bench.problem(epilogue, m, 4 * width, width)
        given = bench.operands(p)
        check(bench, close, precision.name, p, given, bench.run(p, *given))


@pytest.mark.parametrize("epilogue", ["gelu", "dgelu"])
def test_smallest_sizes_and_padded_rows_match_the_twin(bench, precision, close, epilogue):
    """One step of k, few stages, odd numbers of tiles, and rows that are longer than their content."""
    for m, n, k in [(1, 192, 64), (300, 192, 128), (129, 576, 192), (700, 960, 320)]:
        for pad in (0, 8, 72):
            p = bench.problem(epilogue, m, n, k, pad)
            given = bench.operands(p)
            check(bench, close, precision.name, p, given, bench.run(p, *given))


@pytest.mark.parametrize("epilogue", ["gelu", "dgelu"])
def test_numbers_far_from_zero(bench, precision, close, epilogue):
    """Where GELU is flat its gradient is 0 or 1 exactly, and nothing turns into NaN."""
    p = bench.problem(epilogue, 130, 192, 64)
    a, b, aux = bench.operands(p)
    largest = 1e4 if precision.name == "fp16" else 1e30
    if epilogue == "gelu":
        a = bench.to(np.full((p.m, p.k), 1.0), bench.type)
        b = bench.to(np.where(np.arange(p.n) % 2, largest, -largest) / p.k * np.ones((p.k, 1)), bench.type)
        d, kept = bench.run(p, a, b, None)
        expected = np.maximum(bench.back(kept), 0)
    else:
        aux = bench.to(np.where(np.arange(p.n) % 2, largest, -largest) * np.ones((p.m, 1)), bench.type)
        d, _ = bench.run(p, a, b, aux)
        expected = bench.twin(p, a, b) * (bench.back(aux) > 0)
    close(d, expected, precision.name)
    assert (bench.back(d)[expected == 0] == 0).all()


@pytest.mark.parametrize("epilogue", ["gelu", "dgelu"])
@pytest.mark.parametrize("m", [5000, 1000])
def test_a_thousand_products_give_the_same_bits(bench, epilogue, m):
    """Whichever block is first, and whatever is still on its way: 1,000 launches, every 20th and the last compared."""
    p = bench.problem(epilogue, m, 3072 if m == 1000 else 1536, 384)
    given = bench.operands(p)
    a, b, d, aux = bench.place(p, *given)
    product, first = bench.gemms.prepare(p), None
    for launch in range(1000):
        product(a, b, d, 0, aux)
        if launch % 20 == 0 or launch == 999:  # all would be 15 GB over the bus
            result = bench.card.get(d, (p.m, p.n), bench.type)
            first = result if first is None else first
            assert np.array_equal(result.view(np.uint16), first.view(np.uint16))


@pytest.mark.parametrize("epilogue", ["gelu", "dgelu"])
def test_rows_do_not_depend_on_the_others(bench, epilogue):
    """A row has the same bits alone, in another tile, and with either size of cluster."""
    p = bench.problem(epilogue, 1000, 1536, 384)
    a, b, aux = bench.operands(p)
    whole, _ = bench.run(p, a, b, aux)
    for rows in (slice(0, 1), slice(130, 331), slice(999, 1000)):
        part, _ = bench.run(
            bench.problem(epilogue, rows.stop - rows.start, 1536, 384), a[rows], b, None if aux is None else aux[rows]
        )
        assert np.array_equal(part.view(np.uint16), whole[rows].view(np.uint16))


@pytest.mark.parametrize("epilogue", ["gelu", "dgelu"])
def test_more_elements_than_32_bits_count(bench, precision, close, epilogue):
    """D of more than 2^31 elements: its first, last and sampled rows are right."""
    m, n, k = 360_001, 6_144, 64
    assert m * n > 2**31
    p = bench.problem(epilogue, m, n, k)
    block = bench.draw(5000, k, k)
    a, b = np.resize(block, (m, k)), bench.operands(bench.problem(epilogue, 1, n, k))[1]
    d, aux = bench.card.room(m * n * 2), bench.card.room(m * n * 2, 0x3C)  # 0x3C3C: 0.011 in bf16, 1.06 in fp16
    bench.gemms.prepare(p)(bench.card.put(a), bench.card.put(b), d, 0, aux)
    for row in np.unique(np.concatenate([[0, m - 1], bench.random.integers(0, m, 126)])):
        one = bench.problem(epilogue, 1, n, k)
        kept, result = (bench.card.get(at + int(row) * n * 2, (1, n), bench.type) for at in (aux, d))
        check(bench, close, precision.name, one, (a[row : row + 1], b), (result, kept))


@pytest.mark.parametrize("width", [192, 768])
def test_an_engine_trains_with_them(card, precision, width):
    """Losses and gradients are near those of cuBLASLt's products, and a graph gives the same bits as launches."""
    from andrea.engine.step import CudaEngine

    if card.architecture != "sm_90a" or precision.storage not in ("float16", "bfloat16"):
        pytest.skip(f"no wgmma products for {precision.name} on {card.architecture}")
    device, results = find_cards()[0][0], {}
    for name, options in {"ours": {}, "launches": {"graph": False}, "theirs": {"gemm": "cublaslt"}}.items():
        model = ModelConfig(2, width // 64, width, context=64)
        config = EngineConfig(
            model, vocabulary=300, batch_size=3, options={"gemm": "hopper", "fused_gelu": True} | options
        )
        engine = CudaEngine(config, device, precision)
        losses = [engine.train_step(step, *random_batch(config, seed=step)).row_losses for step in range(3)]
        results[name] = np.concatenate(losses), np.concatenate([one.ravel() for one in engine.gradients().values()])
        assert engine.fingerprint()["gemm"].startswith("cuBLASLt" if name == "theirs" else "hopper and cuBLASLt 1 and")
        used = [key for key, how in engine._machine.gemms.used.items() if how.startswith("k_gemm_gelu")]
        assert bool(used) == (name != "theirs")
        engine.close()
    (losses, gradient), (expected, reference) = results["ours"], results["theirs"]
    assert losses.tobytes() == results["launches"][0].tobytes()
    assert gradient.tobytes() == results["launches"][1].tobytes()
    # cuBLASLt takes GELU of the sum, ours of what is stored of it: the difference is rounding to 16 bits.
    np.testing.assert_allclose(losses, expected, rtol=1e-2)
    assert np.linalg.norm(gradient - reference) <= 3e-2 * np.linalg.norm(reference)
