"""bfloat16 whose working weights are rounded up or down by chance, so that their mean is the master weight."""

from __future__ import annotations

from andrea import AndreaError, Device, Precision, hookimpl


@hookimpl
def choose_precision(device: Device) -> Precision:
    """Store and multiply in bfloat16, and round working weights stochastically; needs a card of capability 8.0."""
    if device.kind != "cuda" or device.capability < (8, 0):
        raise AndreaError(
            "precision.bf16_stochastic needs a card of compute capability 8.0 or higher, "
            f"not {device.name or device.kind}",
            "use --plugin precision.fp32, which runs everywhere",
        )
    macros = {"ANDREA_STORAGE": "bf16", "ANDREA_MULTIPLY": "bf16", "ANDREA_ROUNDING": "stochastic"}
    return Precision("bf16_stochastic", storage="bfloat16", multiply="bfloat16", macros=macros)
