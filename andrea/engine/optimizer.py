"""What follows the backward on the card: the gradient of the embedding, clipping, AdamW, the loss scale."""

from __future__ import annotations

from andrea.engine.buffers import ORDER_CHUNK
from andrea.engine.elementwise import STATE, blocks_for
from andrea.engine.machine import Machine

ORDER_THREADS = 256  # as in kernels/token_order.cu
LOSS_SCALE_OFFSET = int(STATE.fields["loss_scale"][1])  # type: ignore[index]


def loss_gradient(m: Machine, targets: int, row_losses: int) -> None:
    """Turn logits into their gradient, in place; leaves the loss of each row of the micro-batch."""
    share = 1 / (m.config.rows * m.T)
    scale = m.at("train_state") + LOSS_SCALE_OFFSET
    losses = m.at("token_losses")
    m.elementwise.loss_bwd(m.at("logits"), targets, losses, scale, share, m.N, m.config.vocabulary, m.V)
    m.elementwise.loss_rows(losses, targets, row_losses, m.B, m.T)


def embedding_gradient(m: Machine, ids: int) -> None:
    """Add the gradients of token and position embeddings, after the head's when it is tied.

    `sort_positions` has been launched before.
    """
    m.branch.settle(m.at("order"))
    m.branch.settle(m.gradient("embed"))
    m.elementwise.embed_bwd(
        m.at("dstream"),
        ids,
        m.at("order"),
        m.gradient("embed"),
        m.gradient("position"),
        m.at("embed_partials"),
        m.B,
        m.T,
        m.C,
    )


def sort_positions(m: Machine, ids: int) -> None:
    """Sort the positions of a micro-batch by id, equal ids in their order, beside what follows: it needs ids alone."""
    counts, starts, order = m.at("order_counts"), m.at("order_starts"), m.at("order")
    chunks = blocks_for(m.N, ORDER_CHUNK)
    with m.branch.beside(order) as stream:
        side = m.elementwise.on(stream)
        side.zero(counts, m.arena.plan["order_counts"].bytes)
        side.launch("k_order_count", chunks, ORDER_THREADS, ids, counts, m.N, m.V)
        side.launch("k_order_chunks", blocks_for(m.V, ORDER_THREADS), ORDER_THREADS, counts, starts, chunks, m.V)
        side.launch("k_order_starts", 1, 1024, starts, m.V)
        side.launch("k_order_place", chunks, 32, ids, counts, starts, order, m.N, m.V)


def clip(m: Machine) -> None:
    """Work out the global norm and what follows from it: clipping factor, and whether the update happens at all."""
    optimizer = m.config.optimizer
    sums, state, betas = m.at("square_sums"), m.at("train_state"), (optimizer.beta1, optimizer.beta2)
    m.elementwise.grad_norm(m.at("gradients"), sums, state, m.placement.size, optimizer.max_grad_norm, *betas)


def update(m: Machine) -> None:
    """Do one AdamW update, or nothing when the norm is not finite; then move the dynamic loss scale."""
    optimizer, state = m.config.optimizer, m.at("train_state")
    m.elementwise.adamw(
        m.at("chunks"),
        m.chunks,
        m.at("weights"),
        m.at("gradients"),
        m.at("first_moments"),
        m.at("second_moments"),
        m.at("working_weights"),
        state,
        m.at("learning_rate"),
        beta1=optimizer.beta1,
        beta2=optimizer.beta2,
        epsilon=optimizer.epsilon,
        weight_decay=optimizer.weight_decay,
    )
    if m.precision.loss_scale != 1:
        m.elementwise.loss_scale(state, m.precision.loss_scale_window)


def refresh_working_weights(m: Machine) -> None:
    """Make the working weights from the master weights; the padding of the vocabulary stays 0."""
    m.elementwise.working_copy(m.at("chunks"), m.chunks, m.at("weights"), m.at("working_weights"), m.at("train_state"))
