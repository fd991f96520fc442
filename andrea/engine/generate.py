"""Text on the card: a forward over each prompt, then one position of all rows at a time against cached keys and values.

A layer's cache lies in its ``preactivation`` buffer, which training does not need between steps: keys [B, H, T, D],
then values, behind the first row, which is where prompts are read, one after the other. So a row's numbers never
depend on its neighbours. The next id is chosen on the host by `andrea.engine.sampling`, as in the reference engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from attrs import define, field

from andrea.engine import GenerateOptions, Tokens
from andrea.engine.forward import forward
from andrea.engine.launcher import check, driver
from andrea.engine.machine import Machine
from andrea.engine.sampling import check_options, choose, window_start
from andrea.rng import Draws

Logits = npt.NDArray[np.float32]


@define(eq=False)
class Row:
    """One text as it grows: its number among all prompts, its ids, and the window that the cache holds."""

    number: int
    ids: list[int]
    prompt: int
    cached_from: int = 0
    cached_to: int = 0
    done: bool = field(default=False)

    def starts_anew(self, context: int) -> bool:
        """Whether the cache does not hold all ids of the window but the newest."""
        return not self.cached_to or window_start(len(self.ids), context) != self.cached_from


def generate(
    m: Machine,
    prompts: Sequence[npt.ArrayLike],
    options: GenerateOptions,
    prefill: Callable[[dict[int, list[int]]], dict[int, Logits]],
    advance: Callable[[dict[int, tuple[int, int]]], dict[int, Logits]],
) -> list[Tokens]:
    """Return the ids added to each prompt.

    Parameters
    ----------
    prefill
        From the windows of some places of the batch to the logits after each, filling their caches.
    advance
        From (id, position) of some places to the logits after each.
    """
    check_options(options)
    rows = [Row(i, np.asarray(p, dtype=np.int64).reshape(-1).tolist(), 0) for i, p in enumerate(prompts)]
    for row in rows:
        row.prompt = len(row.ids)
        if not row.ids or min(row.ids) < 0 or max(row.ids) >= m.config.vocabulary:
            raise ValueError(f"a prompt needs at least one id, all in [0, {m.config.vocabulary})")
    for first in range(0, len(rows), m.B):
        batch = rows[first : first + m.B]
        for index in range(options.max_tokens):
            active = {place: row for place, row in enumerate(batch) if not row.done}
            if not active:
                break
            _extend(m, active, options, index, prefill, advance)
    return [np.array(row.ids[row.prompt :], dtype=np.int32) for row in rows]


def _extend(
    m: Machine,
    active: dict[int, Row],
    options: GenerateOptions,
    index: int,
    prefill: Callable[[dict[int, list[int]]], dict[int, Logits]],
    advance: Callable[[dict[int, tuple[int, int]]], dict[int, Logits]],
) -> None:
    """Add one id to every active row."""
    anew = {place: row for place, row in active.items() if row.starts_anew(m.T)}
    for row in anew.values():
        row.cached_from = window_start(len(row.ids), m.T)
    logits: dict[int, Logits] = {}
    if anew:
        logits |= prefill({place: row.ids[row.cached_from :] for place, row in anew.items()})
    if rest := {place: row for place, row in active.items() if place not in anew}:
        logits |= advance({p: (row.ids[-1], len(row.ids) - 1 - row.cached_from) for p, row in rest.items()})
    for place, row in active.items():
        row.cached_to = len(row.ids)
        uniform = float(Draws(options.seed, "generate", row.number, index).uniform(1)[0])
        row.ids.append(choose(logits[place], options, row.ids, uniform))
        row.done = row.ids[-1] in options.stop


def decode(m: Machine) -> None:
    """Run the model on one position of each row; leaves B rows of logits."""
    x, y, qkv, hidden = m.at("dstream"), m.at("dbranch"), m.at("dqkv"), m.at("dhidden")
    ids, positions, branch = m.at("decode_ids"), m.at("decode_positions"), m.at("branch")
    embed, position = m.weight("embed"), m.weight("position")
    m.elementwise.launch("k_decode_embed", m.B, 128, ids, positions, embed, position, x, m.C)
    for i in range(m.layers):
        layer = f"layer{i}"
        _norm(m, f"{layer}.ln1", add=i > 0)
        m.product(y, m.weight(f"{layer}.w_qkv"), qkv, m.B, m.C, 3 * m.C)
        m.attention.decode(qkv, *caches(m, i), positions, y, m.B, m.T, m.stream)
        m.product(y, m.weight(f"{layer}.w_o"), branch, m.B, m.C, m.C)
        _norm(m, f"{layer}.ln2")
        m.product(y, m.weight(f"{layer}.w_1"), hidden, m.B, m.C, m.F)
        m.elementwise.gelu_fwd(hidden, hidden, m.B * m.F)
        m.product(hidden, m.weight(f"{layer}.w_2"), branch, m.B, m.F, m.C)
    _norm(m, "final")
    m.product_transposed(y, m.weight(m.head), m.at("logits"), m.B, m.C, m.V)


def _norm(m: Machine, name: str, add: bool = True) -> None:
    """Add the branch to the stream, then normalise it."""
    x, y, statistics = m.at("dstream"), m.at("dbranch"), (m.at("final.mean"), m.at("final.rstd"))
    if add:
        m.elementwise.residual_layernorm_fwd(x, m.at("branch"), *m.affine(name), x, y, *statistics, m.B, m.C)
    else:
        m.elementwise.layernorm_fwd(x, *m.affine(name), y, *statistics, m.B, m.C)


def caches(m: Machine, i: int) -> tuple[int, int]:
    """Return the addresses of a layer's cached keys and values; a single row has its cache where its prompt was."""
    start = m.T * m.F if m.B > 1 else 0
    return m.at(f"layer{i}.preactivation", start), m.at(f"layer{i}.preactivation", start + m.N * m.C)


def read_prompt(m: Machine, place: int) -> None:
    """Run the model on the first row of ``ids`` and put its keys and values into the caches of a place."""
    forward(m, m.at("ids"), 1)
    for i in range(m.layers):
        m.attention.cache(m.at(f"layer{i}.qkv"), *caches(m, i), 1, m.T, place, m.T, m.stream)


def read_logits(m: Machine, rows: Sequence[int]) -> list[Logits]:
    """Return rows of the logits as float32 (V,), padding cut off; waits for the card."""
    V, storage = m.config.vocabulary, m.precision.storage
    raw = np.empty((len(rows), V), dtype={"float32": np.float32, "float16": np.float16}.get(storage, np.uint16))
    for line, row in zip(raw, rows, strict=True):
        address = m.at("logits", row * m.V)
        check(driver().cuMemcpyDtoHAsync(line.ctypes.data, address, line.nbytes, m.stream), "cuMemcpyDtoHAsync")
    check(driver().cuStreamSynchronize(m.stream), "cuStreamSynchronize")
    if storage == "bfloat16":  # the upper half of a float32
        return list((raw.astype(np.uint32) << 16).view(np.float32))
    return list(raw.astype(np.float32))
