"""float16 storage and products: half the memory, more digits than bfloat16, and a loss scale for its small range."""

from __future__ import annotations

from andrea import AndreaError, Device, Precision, hookimpl, option, plugin


@plugin
class Float16:
    """float16 with a dynamic loss scale: halved and the update skipped at an overflow, doubled after calm updates."""

    loss_scale: float = option(65536.0, help="initial factor on the loss")
    window: int = option(2000, help="applied updates without overflow after which the factor doubles")

    @hookimpl
    def choose_precision(self, device: Device) -> Precision:
        """Store and multiply in float16; needs a card of capability 7.5."""
        if device.kind != "cuda" or device.capability < (7, 5):
            raise AndreaError(
                f"precision.fp16 needs a card of compute capability 7.5 or higher, not {device.name or device.kind}",
                "use --plugin precision.fp32, which runs everywhere",
            )
        if not (self.loss_scale >= 1 and self.window >= 1):
            raise AndreaError(
                f"precision.fp16: loss_scale {self.loss_scale} and window {self.window} must be at least 1",
                "leave them at 65536 and 2000, or set precision.fp16.loss_scale and precision.fp16.window",
            )
        macros = {"ANDREA_STORAGE": "half", "ANDREA_MULTIPLY": "half"}
        return Precision(
            "fp16",
            storage="float16",
            multiply="float16",
            macros=macros,
            loss_scale=self.loss_scale,
            loss_scale_window=self.window,
        )
