"""The backward pass on the card, in the opposite order of `andrea.engine.forward`.

Weight gradients are added in float32. `dstream` is the gradient of the residual stream; each norm's backward adds what
came back through its branch to what skipped it. The shares of all norms' parameter gradients are added up at the end,
in one launch.

Gradients of matrices may run on the side stream (`andrea.engine.branch`), where they still read the gradient that they
were given: before it is overwritten, it is settled.
"""

from __future__ import annotations

from andrea.engine.linear import Linear
from andrea.engine.machine import Machine


def backward(m: Machine, linear: Linear) -> None:
    """Go from the gradient of the logits, which is in ``logits``, to all parameters but the embeddings.

    Leaves the gradient of the embedding's output in ``dstream``.
    """
    head_backward(m)
    for i in reversed(range(m.layers)):
        mlp_backward(m, i, linear)
        attention_backward(m, i, linear)
    if m.norms:
        shares, places = m.at("norm_shares"), m.at("norm_places")
        m.elementwise.layernorm_bwd_final(shares, m.at("gradients"), places, len(m.norms), m.N, m.C)


def head_backward(m: Machine) -> None:
    """Through the head and the final norm."""
    m.product_gradient(m.at("logits"), m.at("final.y"), m.gradient(m.head), m.N, m.V, m.C)
    m.product(m.at("logits"), m.weight(m.head), m.at("dbranch"), m.N, m.V, m.C)
    norm_backward(m, "final", "final.x", first=True)


def mlp_backward(m: Machine, i: int, linear: Linear) -> None:
    """Through W_2, GELU, W_1 and the second norm."""
    layer, dstream, dhidden = f"layer{i}", m.at("dstream"), m.at("dhidden")
    hidden, pre, fused = m.at(f"{layer}.hidden"), m.at(f"{layer}.preactivation"), m.fused_gelu_gradient
    m.branch.settle(dhidden)
    linear.backward(f"{layer}.w_2", hidden, dstream, dhidden, m.N, aux=pre if fused else 0)
    if not fused:
        linear.gelu_gradient(f"{layer}.w_1", dhidden, pre, m.N)
    linear.backward(f"{layer}.w_1", m.at(f"{layer}.ln2.y"), dhidden, m.at("dbranch"), m.N, cast=fused)
    norm_backward(m, f"{layer}.ln2", f"{layer}.x2")


def attention_backward(m: Machine, i: int, linear: Linear) -> None:
    """Through W_O, attention, W_Q W_K W_V and the first norm."""
    layer, dstream, dheads, dqkv = f"layer{i}", m.at("dstream"), m.at("dbranch"), m.at("dqkv")
    linear.backward(f"{layer}.w_o", m.at(f"{layer}.heads"), dstream, dheads, m.N)
    m.branch.settle(dqkv)
    m.attention.backward(
        m.at(f"{layer}.qkv"),
        m.at(f"{layer}.heads"),
        m.at(f"{layer}.lse"),
        dheads,
        dqkv,
        m.at("attention_rows"),
        m.B,
        m.T,
        m.stream,
    )
    linear.backward(f"{layer}.w_qkv", m.at(f"{layer}.ln1.y"), dqkv, m.at("dbranch"), m.N)
    norm_backward(m, f"{layer}.ln1", f"{layer}.x1")


def norm_backward(m: Machine, name: str, x: str, first: bool = False) -> None:
    """Dstream = dstream + norm backward of dbranch; the first one has nothing to add to."""
    dstream = m.at("dstream")
    m.branch.settle(dstream)
    m.elementwise.layernorm_bwd(
        m.at("dbranch"),
        m.at(x),
        m.at(f"{name}.mean"),
        m.at(f"{name}.rstd"),
        m.affine(name)[0],
        0 if first else dstream,
        dstream,
        m.norm_shares(name),
        m.N,
        m.C,
    )
