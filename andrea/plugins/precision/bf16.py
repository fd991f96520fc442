"""bfloat16 storage and products: half the memory, float32's range, the default on a card that has it."""

from __future__ import annotations

from andrea import AndreaError, Device, Precision, hookimpl


@hookimpl
def choose_precision(device: Device) -> Precision:
    """Store and multiply in bfloat16, without a loss scale; needs a card of capability 8.0."""
    if device.kind != "cuda" or device.capability < (8, 0):
        raise AndreaError(
            f"precision.bf16 needs a card of compute capability 8.0 or higher, not {device.name or device.kind}",
            "use --plugin precision.fp32, which runs everywhere",
        )
    macros = {"ANDREA_STORAGE": "bf16", "ANDREA_MULTIPLY": "bf16"}
    return Precision("bf16", storage="bfloat16", multiply="bfloat16", macros=macros)
