"""Every cell of attention and of our own products compiles, without spills where speed matters. Needs no GPU."""

from __future__ import annotations

import pytest

from andrea import AndreaError, Precision
from andrea.engine.attention import FILES, HEAD_DIMS, cell_of, shared_limit, type_macros
from andrea.engine.compiler import SUPPORT, capability_of, compile_kernels, compiler_version
from andrea.engine.own_gemm import launch_of

PRECISIONS = {
    "fp32": Precision("fp32"),
    "tf32": Precision("tf32", multiply="tf32"),
    "fp16": Precision("fp16", "float16", "float16"),
    "bf16": Precision("bf16", "bfloat16", "bfloat16"),
}
KERNELS = {"k_attn_fwd", "k_attn_bwd", "k_attn_bwd_query", "k_attn_decode", "k_attn_cache"}
CARDS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")
CELLS = [(n, D, card) for n in PRECISIONS for D in HEAD_DIMS for card in CARDS if capability_of(card) >= SUPPORT[n]]


@pytest.fixture(scope="module", autouse=True)
def _compiler():
    """Fail, never skip, where the compiler of the test extra is missing."""
    compiler_version()


@pytest.mark.parametrize(("name", "head_dim", "card"), CELLS)
def test_tiles_fit_the_card(name, head_dim, card):
    """Each kernel's shared memory fits a block of the card, and its tiles stay whole."""
    cell = cell_of(head_dim, PRECISIONS[name], card)
    for launch in cell.launches:
        assert 0 < launch.shared <= shared_limit(capability_of(card))
    for kind in ("FORWARD", "QUERY", "KEY"):
        if name != "fp32":
            tile, part = int(cell.macros[f"{kind}_TILE"]), int(cell.macros[f"{kind}_PART"])
            assert part >= 16
            assert tile % part == 0


@pytest.mark.parametrize(("name", "head_dim"), [("fp32", 64), ("bf16", 32), ("bf16", 64), ("fp16", 128)])
def test_hopper_kernels_do_not_spill(name, head_dim, tmp_path):
    """On sm_90a no attention kernel uses local memory; all are there, whatever the precision."""
    macros = type_macros(PRECISIONS[name]) | cell_of(head_dim, PRECISIONS[name], "sm_90a").macros
    reports = [report for cubin in compile_kernels(FILES, macros, "sm_90a", tmp_path) for report in cubin.kernels]
    assert {report.name for report in reports} == KERNELS
    assert not [r for r in reports if r.stack_frame or r.spill_stores or r.spill_loads]


@pytest.mark.parametrize(("name", "card"), [("fp16", "sm_75"), ("bf16", "sm_120")])
def test_oldest_and_newest_cards_compile(name, card, tmp_path):
    """The ends of the range of cards compile; `andrea kernels --compile` has every cell."""
    macros = type_macros(PRECISIONS[name]) | cell_of(64, PRECISIONS[name], card).macros
    reports = [report for cubin in compile_kernels(FILES, macros, card, tmp_path) for report in cubin.kernels]
    assert {report.name for report in reports} == KERNELS


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_products_do_not_spill(name, tmp_path):
    """Our own products keep everything in registers on sm_90a."""
    (cubin,) = compile_kernels(["gemm"], type_macros(PRECISIONS[name]), "sm_90a", tmp_path)
    assert {r.name for r in cubin.kernels} == {"k_gemm_nn", "k_gemm_nt", "k_gemm_tn", "k_gemm_tt", "k_gemm_reduce"}
    assert not [r for r in cubin.kernels if r.stack_frame or r.spill_stores or r.spill_loads]


@pytest.mark.parametrize("name", PRECISIONS)
def test_tiles_of_products_fit_every_card(name):
    """A product's stages fit a block's shared memory on every card that has the precision."""
    for card in CARDS:
        if capability_of(card) >= SUPPORT[name]:
            assert launch_of(PRECISIONS[name], card)[1] <= shared_limit(capability_of(card))


def test_other_widths_are_refused():
    """A width without a kernel is refused, with those that exist."""
    with pytest.raises(AndreaError, match="heads of 48 have no kernel; there are kernels for 32, 64, 128"):
        cell_of(48, PRECISIONS["bf16"], "sm_90a")
