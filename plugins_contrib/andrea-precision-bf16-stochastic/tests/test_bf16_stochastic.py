"""The precision, and that the kernels honour its macro: no card is needed to see both."""

import andrea_precision_bf16_stochastic as stochastic
import pytest

from andrea import AndreaError, Device

CARD = Device("cuda", "card", (9, 0))


def test_it_is_bfloat16_with_a_macro():
    """The types are those of bfloat16; the rounding is what differs."""
    precision = stochastic.choose_precision(device=CARD)
    assert (precision.storage, precision.multiply) == ("bfloat16", "bfloat16")
    assert precision.macros["ANDREA_ROUNDING"] == "stochastic"


@pytest.mark.parametrize("device", [Device("cpu"), Device("cuda", "old", (7, 5))])
def test_other_devices_are_refused(device):
    """The error names the precision and one that runs everywhere."""
    with pytest.raises(AndreaError, match="bf16_stochastic") as caught:
        stochastic.choose_precision(device=device)
    assert "precision.fp32" in caught.value.hint


def test_the_macro_changes_the_code_of_the_update(tmp_path):
    """The update kernel with the macro is other machine code than without, and needs no stack."""
    from andrea.engine.compiler import compile_kernels

    macros = dict(stochastic.choose_precision(device=CARD).macros)
    (by_chance,) = compile_kernels(["adamw"], macros, "sm_90a", cache=tmp_path)
    (nearest,) = compile_kernels(["adamw"], macros | {"ANDREA_ROUNDING": "nearest"}, "sm_90a", cache=tmp_path)
    assert by_chance.image != nearest.image
    assert all(kernel.stack_frame == 0 for kernel in by_chance.kernels)
