"""float32 storage, matrix products with 10 bits of fraction: float32's memory at a multiple of its speed."""

from __future__ import annotations

from andrea import AndreaError, Device, Precision, hookimpl


@hookimpl
def choose_precision(device: Device) -> Precision:
    """Store in float32 and round the operands of matrix products to tf32; needs a card of capability 8.0."""
    if device.kind != "cuda" or device.capability < (8, 0):
        raise AndreaError(
            f"precision.tf32 needs a card of compute capability 8.0 or higher, not {device.name or device.kind}",
            "use --plugin precision.fp32, which runs everywhere",
        )
    macros = {"ANDREA_STORAGE": "float", "ANDREA_MULTIPLY": "tf32"}
    return Precision("tf32", storage="float32", multiply="tf32", macros=macros)
