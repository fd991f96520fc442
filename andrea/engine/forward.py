"""The forward pass on the card, a launch a line; the twin is `andrea.engine.network`.

Every activation that the backward needs has a buffer of its own in each layer: nothing is computed twice.
"""

from __future__ import annotations

from andrea.engine.linear import Linear
from andrea.engine.machine import Machine


def forward(m: Machine, ids: int, B: int, linear: Linear | None = None) -> None:
    """Run the model on B rows of ids at an address; leaves all activations in their buffers and ``logits``.

    Without `linear`, what computes the layers' products, they are in the storage type.
    """
    linear = linear or Linear(m)
    embed, position, N = m.weight("embed"), m.weight("position"), B * m.T
    m.elementwise.embed_fwd(ids, embed, position, m.at("layer0.x1"), N, m.T, m.C)
    for i in range(m.layers):
        attention_forward(m, i, B, linear)
        mlp_forward(m, i, N, linear)
    add_and_norm(m, "final", f"layer{m.layers - 1}.x2", "final.x", N)
    m.product_transposed(m.at("final.y"), m.weight(m.head), m.at("logits"), N, m.C, m.V)


def attention_forward(m: Machine, i: int, B: int, linear: Linear) -> None:
    """x1 = x2 of the layer before + its branch; branch = attention(norm(x1)) W_O."""
    layer, N = f"layer{i}", B * m.T
    if i:
        add_and_norm(m, f"{layer}.ln1", f"layer{i - 1}.x2", f"{layer}.x1", N)
    else:
        outputs = m.at(f"{layer}.ln1.y"), m.at(f"{layer}.ln1.mean"), m.at(f"{layer}.ln1.rstd")
        m.elementwise.layernorm_fwd(m.at(f"{layer}.x1"), *m.affine(f"{layer}.ln1"), *outputs, N, m.C)
    qkv, heads = m.at(f"{layer}.qkv"), m.at(f"{layer}.heads")
    linear.forward(f"{layer}.w_qkv", m.at(f"{layer}.ln1.y"), qkv, N)
    m.attention.forward(qkv, heads, m.at(f"{layer}.lse"), B, m.T, m.stream)
    linear.forward(f"{layer}.w_o", heads, m.at("branch"), N)


def mlp_forward(m: Machine, i: int, N: int, linear: Linear) -> None:
    """x2 = x1 + the attention's branch; branch = gelu(norm(x2) W_1) W_2."""
    layer = f"layer{i}"
    add_and_norm(m, f"{layer}.ln2", f"{layer}.x1", f"{layer}.x2", N)
    x, pre, hidden = m.at(f"{layer}.ln2.y"), m.at(f"{layer}.preactivation"), m.at(f"{layer}.hidden")
    if m.fused_gelu:
        linear.forward(f"{layer}.w_1", x, hidden, N, aux=pre)
    else:
        linear.forward(f"{layer}.w_1", x, pre, N)
        linear.gelu(f"{layer}.w_2", pre, hidden, N)
    linear.forward(f"{layer}.w_2", hidden, m.at("branch"), N, cast=m.fused_gelu)


def add_and_norm(m: Machine, name: str, x: str, total: str, N: int) -> None:
    """Total = x + branch; ``name.y`` = its layer norm."""
    outputs = m.at(f"{name}.y"), m.at(f"{name}.mean"), m.at(f"{name}.rstd")
    m.elementwise.residual_layernorm_fwd(m.at(x), m.at("branch"), *m.affine(name), m.at(total), *outputs, N, m.C)
