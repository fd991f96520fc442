"""precision.tf32, fp16, bf16 and fp8: what they store and multiply, and which cards they refuse."""

from __future__ import annotations

import pytest

from andrea import AndreaError, Device
from andrea.engine import fp8 as engine
from andrea.engine.compiler import SUPPORT
from andrea.plugins.precision import bf16, tf32
from andrea.plugins.precision.fp8 import PRODUCTS, TABLE, Float8
from andrea.plugins.precision.fp16 import Float16

CHOOSE = {
    "tf32": tf32.choose_precision,
    "bf16": bf16.choose_precision,
    "fp16": Float16().choose_precision,
    "fp8": Float8().choose_precision,
}
STORED = {
    "tf32": ("float32", "tf32"),
    "bf16": ("bfloat16", "bfloat16"),
    "fp16": ("float16", "float16"),
    "fp8": ("bfloat16", "bfloat16"),
}


@pytest.mark.parametrize("name", sorted(CHOOSE))
def test_storage_and_product_types_on_the_oldest_card_that_has_them(name):
    """A card of the support table's capability gets the types that the name promises."""
    precision = CHOOSE[name](device=Device("cuda", "card", SUPPORT[name]))
    assert (precision.name, precision.storage, precision.multiply) == (name, *STORED[name])
    assert set(precision.macros) == {"ANDREA_STORAGE", "ANDREA_MULTIPLY"}


@pytest.mark.parametrize("name", sorted(CHOOSE))
@pytest.mark.parametrize("device", [Device("cpu"), Device("cuda", "old card", (7, 0))])
def test_a_device_without_it_is_refused_with_what_to_use(name, device):
    """A CPU or an older card is an error that names the precision and fp32."""
    with pytest.raises(AndreaError, match=f"precision.{name} needs") as caught:
        CHOOSE[name](device=device)
    assert "precision.fp32" in caught.value.hint


def test_only_float16_scales_the_loss_and_its_options_say_how():
    """The loss scale of fp16 comes from its options; the others have none."""
    card = Device("cuda", "card", (9, 0))
    precision = Float16(loss_scale=1024.0, window=50).choose_precision(device=card)
    assert (precision.loss_scale, precision.loss_scale_window) == (1024.0, 50)
    assert CHOOSE["bf16"](device=card).loss_scale == CHOOSE["tf32"](device=card).loss_scale == 1.0


@pytest.mark.parametrize("options", [{"loss_scale": 0.5}, {"window": 0}])
def test_a_loss_scale_that_cannot_work_is_refused(options):
    """Factors below 1 and windows below 1 are the user's error."""
    with pytest.raises(AndreaError, match="must be at least 1"):
        Float16(**options).choose_precision(device=Device("cuda", "card", (9, 0)))


def test_products_in_8_bits_are_those_of_the_table_or_of_the_option():
    """The table goes by width; an option names products for any width, and a name that the engine lacks is refused."""
    card = Device("cuda", "card", (9, 0))
    assert CHOOSE["bf16"](device=card).fp8_products(4096) == ()
    precision = CHOOSE["fp8"](device=card)
    assert [precision.fp8_products(width) for width in (767, 768, 1535, 1536)] == [(), TABLE[768], TABLE[768], PRODUCTS]
    assert set(TABLE[768]) < set(PRODUCTS)
    assert Float8(products=["w_1.dx"]).choose_precision(device=card).fp8_products(32) == ("w_1.dx",)
    assert PRODUCTS == engine.PRODUCTS
    with pytest.raises(AndreaError, match=r"no product 'w_3\.y'") as caught:
        Float8(products=["w_3.y"]).choose_precision(device=card)
    assert "w_2.dw" in caught.value.hint
