"""Text on the card: a forward over each prompt, then one position of all rows at a time against cached keys and values.

Prompts are read one after the other in the first row of the activations, then copied to a place in the layers' caches,
keys [B, H, T, D] and values. So a row's numbers never depend on its neighbours. The next id is chosen on the card, by
the rule of `andrea.engine.sampling`, so that the host only looks every `CAPACITY` ids; a row that has met a stop
meanwhile is cut on the host.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from attrs import define

from andrea.engine import GenerateOptions, Tokens, Watch
from andrea.engine.buffers import DECODE_CAPACITY, Pinned
from andrea.engine.forward import forward
from andrea.engine.graph import Graph
from andrea.engine.launcher import check, driver
from andrea.engine.machine import Machine
from andrea.engine.sampling import check_options, window_start
from andrea.errors import NotFiniteError
from andrea.rng import Draws

SAMPLE_THREADS = 512  # as in kernels/sample.cu


@define(eq=False)
class Row:
    """One text as it grows: its number among all prompts, its ids, and where the window starts that the cache holds."""

    number: int
    ids: list[int]
    prompt: int
    draws: Draws
    cached_from: int = -1
    done: bool = False

    @property
    def position(self) -> int:
        """Where the newest id stands in the window."""
        return len(self.ids) - 1 - self.cached_from


class Decoder:
    """Rows of text on the card.

    Parameters
    ----------
    machine
        A card that is set up.
    ids
        Mirror of the step's inputs, whose first row takes prompts.
    """

    def __init__(self, machine: Machine, ids: Pinned) -> None:
        self._machine, self._ids = machine, ids
        self._state = Pinned(machine.arena, "decode_ids", "decode_seen")
        self._tokens = Pinned(machine.arena, "decode_tokens", "decode_tokens")
        self._graph: Graph | None = None
        self._reading: Graph | None = None

    def prepare(self) -> None:
        """Launch everything once, on no rows, so that code is loaded and products are prepared."""
        self._state.view("decode_positions")[...] = -1
        self._state.copy_in(self._machine.stream)
        self._read_prompt(0, [0])
        one_position(self._machine)
        self._wait()

    def record(self) -> None:
        """Record a prompt's forward and one position as graphs, in the place of those before."""
        self.close_graphs()
        m = self._machine
        self._reading = m.record(lambda: forward(m, m.at("ids"), 1))
        self._graph = m.record(lambda: one_position(m))

    def close_graphs(self) -> None:
        """Give the graphs back; what follows is launched one by one."""
        for graph in (self._reading, self._graph):
            if graph is not None:
                graph.close()
        self._reading = self._graph = None

    def generate(
        self, prompts: Sequence[npt.ArrayLike], options: GenerateOptions, watch: Watch | None = None
    ) -> list[Tokens]:
        """Return the ids added to each prompt; see `andrea.engine.Engine.generate`."""
        check_options(options)
        rows: list[Row] = []
        for number, prompt in enumerate(prompts):
            ids = np.asarray(prompt, dtype=np.int64).reshape(-1).tolist()
            rows.append(Row(number, ids, len(ids), Draws(options.seed, "generate", options.first + number)))
        for row in rows:
            if not row.ids or min(row.ids) < 0 or max(row.ids) >= self._machine.config.vocabulary:
                raise ValueError(f"a prompt needs at least one id, all in [0, {self._machine.config.vocabulary})")
        for first in range(0, len(rows), self._machine.B):
            batch = rows[first : first + self._machine.B]
            made = 0
            while made < options.max_tokens and not all(row.done for row in batch):
                made += self._extend(batch, options, made, watch)
        return [np.array(row.ids[row.prompt :], dtype=np.int32) for row in rows]

    def _extend(self, batch: list[Row], options: GenerateOptions, made: int, watch: Watch | None) -> int:
        """Add ids to every row that is not done; returns how many."""
        T = self._machine.T
        active = {place: row for place, row in enumerate(batch) if not row.done}
        for place, row in active.items():
            start = window_start(len(row.ids), T)
            if start != row.cached_from:
                row.cached_from = start
                self._read_prompt(place, row.ids[start:])
        room = min(T - row.position for row in active.values())
        count = min(DECODE_CAPACITY, options.max_tokens - made, room)
        self._write_state(active, options, count)
        for _ in range(count):
            if self._graph is None:
                one_position(self._machine)
            else:
                self._graph.launch()
        self._tokens.copy_out(self._machine.stream)
        self._wait()
        for place, row in active.items():
            take(row, self._tokens.view("decode_tokens")[place, :count].tolist(), options.stop, watch)
        return count

    def _write_state(self, active: dict[int, Row], options: GenerateOptions, count: int) -> None:
        """Copy newest ids, positions, options, random numbers and ids already seen to the card."""
        names = ("decode_ids", "decode_positions", "decode_counts", "decode_uniforms", "decode_seen")
        ids, positions, counts, uniforms, seen = (self._state.view(name) for name in names)
        ids[...], positions[...], counts[...], seen[...] = 0, -1, 0, 0
        given = (options.temperature, options.top_p, options.repetition_penalty, options.top_k)
        self._state.view("sample_options")[...] = given
        for place, row in active.items():
            ids[place], positions[place] = row.ids[-1], row.position
            seen[place, row.ids] = 1
            if options.temperature > 0:
                uniforms[place, :count] = row.draws.uniform(count)  # a number for every id, in this order
        self._state.copy_in(self._machine.stream)

    def _read_prompt(self, place: int, window: list[int]) -> None:
        """Run the model on one window and put its keys and values into the caches of a place."""
        self._wait()  # the mirror may still be on its way from the prompt before
        ids = self._ids.view("ids")[0]
        ids[:] = 0
        ids[: len(window)] = window
        self._ids.copy_in(self._machine.stream)
        m = self._machine
        if self._reading is None:
            forward(m, m.at("ids"), 1)
        else:
            self._reading.launch()
        for i in range(m.layers):
            m.attention.cache(m.at(f"layer{i}.qkv"), *caches(m, i), 1, m.T, place, m.T, m.stream)

    def _wait(self) -> None:
        check(driver().cuStreamSynchronize(self._machine.stream), "cuStreamSynchronize")

    def close(self) -> None:
        """Give graphs and mirrors back."""
        self.close_graphs()
        self._state.close()
        self._tokens.close()


def take(row: Row, ids: list[int], stop: tuple[int, ...], watch: Watch | None = None) -> None:
    """Append ids to a row up to the first that ends it."""
    for one in ids:
        if one < 0:
            raise NotFiniteError
        row.ids.append(one)
        ended = watch is not None and watch(row.number, one)
        if ended or one in stop:
            row.done = True
            return


def one_position(m: Machine) -> None:
    """Run the model on the newest id of each row and choose the next; it fits into the first layer's activations.

    How depends on the rows that the engine was opened for, never on those that take part.
    """
    ids, positions, x = m.at("decode_ids"), m.at("decode_positions"), m.at("layer0.x1")
    m.elementwise.launch("k_decode_embed", m.B, 128, ids, positions, m.weight("embed"), m.weight("position"), x, m.C)
    if m.elementwise.takes_few_rows(m.B, m.C):
        few_rows(m)
    else:
        many_rows(m)
    sample(m)


def many_rows(m: Machine) -> None:
    """Compute logits from the stream by the library's products."""
    y, qkv, hidden, branch = m.at("layer0.ln1.y"), m.at("layer0.qkv"), m.at("layer0.hidden"), m.at("branch")
    for i in range(m.layers):
        layer = f"layer{i}"
        norm(m, f"{layer}.ln1", add=i > 0)
        m.product(y, m.weight(f"{layer}.w_qkv"), qkv, m.B, m.C, 3 * m.C)
        m.attention.decode(qkv, *caches(m, i), m.at("decode_positions"), y, m.B, m.T, m.stream)
        m.product(y, m.weight(f"{layer}.w_o"), branch, m.B, m.C, m.C)
        norm(m, f"{layer}.ln2")
        m.product(y, m.weight(f"{layer}.w_1"), hidden, m.B, m.C, m.F)
        m.elementwise.gelu_fwd(hidden, hidden, m.B * m.F)
        m.product(hidden, m.weight(f"{layer}.w_2"), branch, m.B, m.F, m.C)
    norm(m, "final")
    m.product_transposed(y, m.weight(m.head), m.at("logits"), m.B, m.C, m.V)


def few_rows(m: Machine) -> None:
    """Compute the same by five launches a layer: what takes a norm makes it, and adds the branch before it.

    The branch lies in parts where the library has its scratch. The stream changes its place with every norm.
    """
    e, parts = m.elementwise, m.at("gemm_workspace")
    heads, qkv, hidden = m.at("layer0.ln1.y"), m.at("layer0.qkv"), m.at("layer0.hidden")
    x, total = m.at("layer0.x1"), m.at("layer0.x2")
    for i in range(m.layers):
        layer = f"layer{i}"
        before = (x, parts if i else 0, *m.affine(f"{layer}.ln1"), total)
        e.norm_matvec(*before, m.weight(f"{layer}.w_qkv"), qkv, rows=m.B, C=m.C, outputs=3 * m.C)
        m.attention.decode(qkv, *caches(m, i), m.at("decode_positions"), heads, m.B, m.T, m.stream)
        e.matvec_parts(heads, m.weight(f"{layer}.w_o"), parts, m.B, m.C, m.C)
        before = (total, parts, *m.affine(f"{layer}.ln2"), x)
        e.norm_matvec(*before, m.weight(f"{layer}.w_1"), hidden, rows=m.B, C=m.C, outputs=m.F, gelu=True)
        e.matvec_parts(hidden, m.weight(f"{layer}.w_2"), parts, m.B, m.F, m.C)
    before = (x, parts, *m.affine("final"), total)
    e.norm_matvec_head(*before, m.weight(m.head), m.at("logits"), rows=m.B, C=m.C, outputs=m.V)


def sample(m: Machine) -> None:
    """Choose the next id of each row from B rows of logits."""
    names = ("decode_ids", "decode_positions", "decode_counts", "decode_tokens")
    scratch = m.at("sample_weights"), m.at("sample_keys")
    m.elementwise.launch(
        "k_sample",
        m.B,
        SAMPLE_THREADS,
        m.at("logits"),
        m.config.vocabulary,
        m.V,
        m.at("sample_options"),
        m.at("decode_seen"),
        m.at("decode_uniforms"),
        *scratch,
        *(m.at(name) for name in names),
        DECODE_CAPACITY,
    )


def norm(m: Machine, name: str, add: bool = True) -> None:
    """Add the branch to the stream, then normalise it."""
    x, y, statistics = m.at("layer0.x1"), m.at("layer0.ln1.y"), (m.at("layer0.ln1.mean"), m.at("layer0.ln1.rstd"))
    if add:
        m.elementwise.residual_layernorm_fwd(x, m.at("branch"), *m.affine(name), x, y, *statistics, m.B, m.C)
    else:
        m.elementwise.layernorm_fwd(x, *m.affine(name), y, *statistics, m.B, m.C)


def caches(m: Machine, i: int) -> tuple[int, int]:
    """Return the addresses of a layer's cached keys and values."""
    return m.at(f"layer{i}.keys"), m.at(f"layer{i}.values")
