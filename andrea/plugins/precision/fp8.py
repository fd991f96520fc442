"""bfloat16 with operands of 8 bits in the products of wide models: E4M3 forward, E5M2 for gradients."""

from __future__ import annotations

from andrea import AndreaError, Device, Precision, hookimpl, option, plugin

#: Products by matrix and result: output, gradient of the input, gradient of the matrix.
PRODUCTS = tuple(f"{matrix}.{result}" for result in ("y", "dx", "dw") for matrix in ("w_qkv", "w_o", "w_1", "w_2"))

#: Those in 8 bits by the least width of a model: where they save more than the casts cost (benchmarks/NOTES.md).
TABLE = {768: tuple(name for name in PRODUCTS if not name.startswith("w_o")), 1536: PRODUCTS}


@plugin
class Float8:
    """bfloat16, and from a width of 768 products with operands of 8 bits: E4M3 forward, E5M2 for gradients."""

    products: list[str] = option(factory=list, help="products in 8 bits at any width, such as w_1.y; else a table's")

    @hookimpl
    def choose_precision(self, device: Device) -> Precision:
        """Store in bfloat16 and round operands to 8 bits; needs a card of capability 8.9."""
        if device.kind != "cuda" or device.capability < (8, 9):
            raise AndreaError(
                f"precision.fp8 needs a card of compute capability 8.9 or higher, not {device.name or device.kind}",
                "use --plugin precision.bf16 on a card of 8.0 or higher, or precision.fp32, which runs everywhere",
            )
        if unknown := [name for name in self.products if name not in PRODUCTS]:
            raise AndreaError(f"precision.fp8 has no product {unknown[0]!r}", f"products: {', '.join(PRODUCTS)}")
        return Precision(
            "fp8",
            storage="bfloat16",
            multiply="bfloat16",
            macros={"ANDREA_STORAGE": "bf16", "ANDREA_MULTIPLY": "bf16"},
            fp8={0: tuple(self.products)} if self.products else TABLE,
        )
