"""precision.fp32: float32 on every device."""

from __future__ import annotations

import pytest

from andrea import Device, Precision
from andrea.plugins.precision import fp32


@pytest.mark.parametrize("device", [Device("cpu"), Device("cuda", "old", (7, 5)), Device("cuda", "new", (9, 0))])
def test_float32_without_loss_scale_on_every_device(device):
    """The baseline stores and multiplies in float32, scales no loss and needs no macro."""
    expected = Precision("fp32", storage="float32", multiply="float32", macros={}, loss_scale=1.0)
    assert fp32.choose_precision(device=device) == expected
