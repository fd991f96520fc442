"""The order of tokens, and the choice of the next id, on the card: exactly what numpy says."""

from __future__ import annotations

import numpy as np
import pytest

from andrea.engine import GenerateOptions
from andrea.engine.buffers import ORDER_CHUNK
from andrea.engine.generate import SAMPLE_THREADS
from andrea.engine.sampling import choose

ROWS, CAPACITY = 6, 3
OPTIONS = [
    GenerateOptions(temperature=0),
    GenerateOptions(temperature=0, repetition_penalty=1.7),
    GenerateOptions(),
    GenerateOptions(temperature=0.7),
    GenerateOptions(top_k=1),
    GenerateOptions(top_k=40, temperature=1.3),
    GenerateOptions(top_p=0.9),
    GenerateOptions(top_p=0.01),
    GenerateOptions(top_k=50, top_p=0.5, repetition_penalty=1.2),
    GenerateOptions(top_k=10**6, top_p=0.999999, temperature=2.0, repetition_penalty=0.8),
]


@pytest.mark.parametrize("V", [1, 5, 300, 1025, 8449])
def test_choice_is_the_rules(card, precision, storage, V):
    """Every option, ties of 16-bit logits included, gives the ids of `choose` from the same logits and numbers."""
    to, back = storage
    random = np.random.Generator(np.random.PCG64(V))
    kernel = card.kernels(["sample"], precision.macros).kernel("k_sample")
    stride = -(-V // 128) * 128
    raw = to(random.standard_normal((ROWS, stride)) * 3, precision.storage)
    logits = back(raw)
    uniforms = random.random((ROWS, CAPACITY))
    uniforms[0], uniforms[1] = 0, np.nextafter(1, 0)
    seen = (random.random((ROWS, V)) < 0.3).astype(np.uint8)
    positions = np.array([0, 5, -1, 7, 8, 9], dtype=np.int32)
    counts = np.full(ROWS, 1, dtype=np.int32)
    for options in OPTIONS:
        given = (options.temperature, options.top_p, options.repetition_penalty, options.top_k)
        state = [card.put(values) for values in (np.zeros(ROWS, np.int32), positions, counts)]
        tokens = card.put(np.full((ROWS, CAPACITY), -7, dtype=np.int32))
        history = card.put(seen)
        scratch = card.room(ROWS * V * 8), card.room(ROWS * V * 8)
        inputs = card.put(np.array(given, dtype=np.float64)), history, card.put(uniforms)
        kernel(ROWS, SAMPLE_THREADS, 0, 0, card.put(raw), V, stride, *inputs, *scratch, *state, tokens, CAPACITY)
        chosen = card.get(tokens, (ROWS, CAPACITY), "int32")
        assert (chosen[:, [0, 2]] == -7).all()
        for row in range(ROWS):
            if positions[row] < 0:
                assert chosen[row, 1] == -7
                continue
            want = choose(logits[row, :V], options, np.flatnonzero(seen[row]).tolist(), uniforms[row, 1])
            assert chosen[row, 1] == want, (options, row)
            assert card.get(history, (ROWS, V), "uint8")[row, want] == 1
        moved = card.get(state[1], (ROWS,), "int32"), card.get(state[2], (ROWS,), "int32")
        assert moved[0].tolist() == [1, 6, -1, 8, 9, 10]
        assert moved[1].tolist() == [2, 2, 1, 2, 2, 2]


def test_broken_logits_are_reported(card, precision, storage):
    """A logit that is not a number gives -1."""
    raw = storage[0](np.where(np.arange(128) == 77, np.nan, 1.0)[None], precision.storage)
    kernel = card.kernels(["sample"], precision.macros).kernel("k_sample")
    tokens = card.put(np.zeros(1, np.int32))
    numbers = card.put(np.array([1.0, 1, 1, 0])), card.put(np.zeros(100, np.uint8)), card.put(np.zeros(1))
    state = [card.put(np.zeros(1, np.int32)) for _ in range(3)]
    scratch = card.room(800), card.room(800)
    kernel(1, SAMPLE_THREADS, 0, 0, card.put(raw), 100, 128, *numbers, *scratch, *state, tokens, 1)
    assert card.get(tokens, (1,), "int32")[0] == -1


@pytest.mark.parametrize("V", [1, 5, 1500, 8576])
@pytest.mark.parametrize("N", [1, 31, ORDER_CHUNK, ORDER_CHUNK + 1, 5000, 65536])
def test_order_is_a_stable_sort(card, precision, N, V):
    """Positions sorted by id, equal ids in their order, for few and many ids."""
    ids = (np.random.Generator(np.random.PCG64(N)).random(N) ** 3 * V).astype(np.int32)
    kernels = card.kernels(["token_order"], precision.macros)
    chunks = -(-N // ORDER_CHUNK)
    given, counts, starts = card.put(ids), card.room(4 * chunks * V, poison=0), card.room(4 * V)
    order = card.room(4 * N)
    kernels.kernel("k_order_count")(chunks, 256, 0, 0, given, counts, N, V)
    kernels.kernel("k_order_chunks")(-(-V // 256), 256, 0, 0, counts, starts, chunks, V)
    kernels.kernel("k_order_starts")(1, 1024, 0, 0, starts, V)
    kernels.kernel("k_order_place")(chunks, 32, 0, 0, given, counts, starts, order, N, V)
    assert card.get(order, (N,), "int32").tolist() == np.argsort(ids, kind="stable").tolist()
