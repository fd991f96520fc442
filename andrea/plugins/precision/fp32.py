"""float32 everywhere: the baseline, the safest and the slowest, on every device."""

from __future__ import annotations

from andrea import Device, Precision, hookimpl


@hookimpl
def choose_precision(device: Device) -> Precision:
    """Store and multiply in float32, with no loss scale."""
    return Precision("fp32", storage="float32", multiply="float32")
