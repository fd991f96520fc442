"""The third stage: the next batch of every source, kept ready.

The stream of a source is, epoch after epoch, its training documents in an order that is a function of (seed, source's
name, epoch), each as `bos` and its tokens, end to end. A pull takes the next rows x context tokens of it. So a batch
is a function of (seed, source, pull number of that source) and never of the step, no token is lost or repeated within
an epoch, and the whole state is a position in each stream.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import frozen

from andrea.errors import AndreaError
from andrea.rng import Draws
from andrea.tokens import TokenFile
from andrea.types import Batch, Ints, Tokens


@frozen(eq=False)
class _Epoch:
    """The order of one pass, `order` (D,), and where each of its documents begins in the stream, `starts` (D + 1,)."""

    order: Ints
    starts: Ints


@frozen
class _Position:
    """A place in a source's stream: `token` of the pass `epoch`; always in front of a token, never at a pass's end."""

    epoch: int
    token: int


@frozen(eq=False)
class _Ready:
    """A batch that begins at `here`, the position behind it, and how many documents have been drawn by then."""

    here: _Position
    batch: Batch
    after: _Position
    drawn: int


class Batches:
    """Gives the batches of every source, one after another.

    Parameters
    ----------
    files
        Training token file of each source by its name; their order gives the indices of the sources.
    rows, context
        Rows of a batch (R) and tokens of a row (T).
    seed
        Decides the order of the documents.
    """

    def __init__(self, files: Mapping[str, TokenFile], rows: int, context: int, seed: int) -> None:
        self.names = tuple(files)
        self.rows, self.context, self._seed = rows, context, seed
        self._files = tuple(files.values())
        self._documents = np.array([file.documents for file in self._files], dtype=np.int64)
        self._tokens = np.array([file.offsets[-1] for file in self._files], dtype=np.int64)
        for constant in (self._documents, self._tokens):
            constant.setflags(write=False)
        self._lengths = [np.diff(file.offsets.astype(np.int64)) for file in self._files]
        self._epochs: list[dict[int, _Epoch]] = [{} for _ in self._files]
        self._ready: list[deque[_Ready]] = [deque() for _ in self._files]
        self._positions = [_Position(0, 0)] * len(self._files)
        self._pulls = np.zeros(len(self._files), dtype=np.int64)
        self._drawn = np.zeros(len(self._files), dtype=np.int64)

    def fork(self) -> Batches:
        """Return batches that stand where these do and go on by themselves."""
        fork = copy.copy(self)
        fork._positions, fork._ready = self._positions.copy(), [made.copy() for made in self._ready]
        fork._pulls, fork._drawn = self._pulls.copy(), self._drawn.copy()
        return fork

    def take(self, source: int, rows: int | None = None) -> Batch:
        """Return the next batch of a source; `ready` makes those after it while nobody waits.

        Parameters
        ----------
        source
            Index of the source.
        rows
            Rows of this batch; the rows of a step by default.
        """
        self.ready(source, rows)
        first = self._ready[source].popleft()
        self._positions[source], self._drawn[source] = first.after, first.drawn
        self._pulls[source] += 1
        return first.batch

    def ready(self, source: int, rows: int | None = None, count: int = 1) -> None:
        """Make the next `count` batches of a source ahead of their `take`.

        They depend on the position alone, so that they may be made at any time, or be thrown away, without a
        difference.
        """
        here, rows, made = self._positions[source], rows or self.rows, self._ready[source]
        if made and (made[0].here != here or made[0].batch.inputs.shape[0] != rows):
            made.clear()
        while len(made) < count:
            made.append(self._assemble(source, made[-1].after if made else here, rows))

    def _assemble(self, source: int, here: _Position, rows: int) -> _Ready:
        count = rows * self.context
        stream, documents, after = self._read(source, here, count)
        look_ahead, _, _ = self._read(source, after, 1)
        targets = np.concatenate([stream[1:], look_ahead]).reshape(rows, self.context)
        batch = Batch(source, stream.reshape(rows, self.context), targets, documents)
        return _Ready(here, batch, after, self._count_drawn(source, after))

    def _read(self, source: int, here: _Position, count: int) -> tuple[Tokens, tuple[int, ...], _Position]:
        """Return `count` tokens of the stream, the documents that they come from, and the position behind them."""
        parts: list[Tokens] = []
        documents: list[int] = []
        epoch, token = here.epoch, here.token
        total = int(self._tokens[source])
        while count:
            taken = min(count, total - token)
            part, of = self._gather(source, epoch, token, token + taken)
            parts.append(part)
            documents += of
            count -= taken
            epoch, token = (epoch, token + taken) if token + taken < total else (epoch + 1, 0)
        tokens = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return tokens, tuple(documents), _Position(epoch, token)

    def _gather(self, source: int, epoch: int, start: int, end: int) -> tuple[Tokens, list[int]]:
        """Return the tokens [start, end) of a pass: each document is one stretch of the file, moved as a whole."""
        file, passed = self._files[source], self._epoch(source, epoch)
        first = int(np.searchsorted(passed.starts, start, side="right")) - 1
        last = int(np.searchsorted(passed.starts, end, side="left"))
        documents, starts = passed.order[first:last], passed.starts[first : last + 1].copy()
        move = file.offsets[documents].astype(np.int64) - starts[:-1]
        starts[0], starts[-1] = start, end
        where = np.arange(start, end) + np.repeat(move, np.diff(starts))
        return file.tokens[where].astype(np.int32), documents.tolist()

    def _epoch(self, source: int, epoch: int) -> _Epoch:
        """Return the order of a pass; only the last two that were asked for are kept."""
        kept = self._epochs[source]
        if epoch not in kept:
            order = Draws(self._seed, f"order.{self.names[source]}", epoch).permutation(self._files[source].documents)
            starts = np.concatenate([[0], np.cumsum(self._lengths[source][order])])
            self._epochs[source] = kept = {**dict(list(kept.items())[-1:]), epoch: _Epoch(order, starts)}
        return kept[epoch]

    # -- what plugins see, int64 (S,) each -----------------------------------------------------------------------------

    @property
    def documents(self) -> Ints:
        """Training documents of each source; read-only."""
        return self._documents

    @property
    def tokens(self) -> Ints:
        """Training tokens of each source, the `bos` in front of each document included; read-only."""
        return self._tokens

    @property
    def pulls(self) -> Ints:
        """Batches taken of each source."""
        return self._pulls.copy()

    @property
    def drawn(self) -> Ints:
        """Documents drawn of each source over the lifetime; one is counted when its first token is an input."""
        return self._drawn.copy()

    @property
    def distinct(self) -> Ints:
        """Distinct documents drawn of each source: no document comes twice before all came once."""
        return np.minimum(self._drawn, self._documents)

    def _count_drawn(self, source: int, here: _Position) -> int:
        epoch, index, offset = self._place(source, here)
        return epoch * self._files[source].documents + index + (offset > 0)

    def _place(self, source: int, here: _Position) -> tuple[int, int, int]:
        """Return (epoch, index in the order, token of that document) of the token at a position."""
        if here.token == 0:
            return here.epoch, 0, 0
        starts = self._epoch(source, here.epoch).starts
        index = int(np.searchsorted(starts, here.token, side="right")) - 1
        return here.epoch, index, here.token - int(starts[index])

    # -- state ---------------------------------------------------------------------------------------------------------

    def export_state(self) -> dict[str, Any]:
        """Return what a resume needs: positions of what was taken, not of what was made ready."""
        epoch, index, offset = np.array(
            [self._place(s, here) for s, here in enumerate(self._positions)], dtype=np.int64
        ).T.copy()
        return {
            "sources": list(self.names),
            "seed": self._seed,
            "documents": self.documents,
            "tokens": self.tokens,
            "epoch": epoch,
            "index": index,
            "offset": offset,
            "pulls": self.pulls,
        }

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Go on from an exported state.

        Raises
        ------
        AndreaError
            When it was exported with another seed or other data, or is not a whole state.
        """
        own = self.export_state()
        if set(state) != set(own):
            raise AndreaError(
                f"the saved data positions have {sorted(state)}, not {sorted(own)}", "use another checkpoint"
            )
        for name in ("sources", "seed", "documents", "tokens"):
            if not np.array_equal(state[name], own[name]):
                raise AndreaError(
                    f"the {name} of the data have changed: {_plain(own[name])}, and {_plain(state[name])} when the "
                    "checkpoint was written",
                    "go on with the same data and seed, or begin a new run",
                )
        positions = [
            self._position(s, *(int(state[k][s]) for k in ("epoch", "index", "offset"))) for s in range(len(self.names))
        ]
        self._positions = positions
        self._drawn = np.array([self._count_drawn(s, here) for s, here in enumerate(positions)], dtype=np.int64)
        self._pulls = np.array(state["pulls"], dtype=np.int64)

    def _position(self, source: int, epoch: int, index: int, offset: int) -> _Position:
        starts = self._epoch(source, epoch).starts if epoch >= 0 else np.zeros(1, dtype=np.int64)
        if not (0 <= index < starts.size - 1 and 0 <= offset < starts[index + 1] - starts[index]):
            raise AndreaError(
                f"source {self.names[source]}: there is no token {offset} of document {index} in epoch {epoch}",
                "the saved data positions are damaged; use another checkpoint",
            )
        return _Position(epoch, int(starts[index]) + offset)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def held_out_rows(file: TokenFile, context: int, limit_rows: int) -> tuple[Tokens, Tokens, int]:
    """Return the fixed evaluation set of a source: the first rows of its held-out file, in the order of the file.

    Parameters
    ----------
    file
        Held-out token file.
    context
        Tokens of a row (T).
    limit_rows
        At most so many rows (R).

    Returns
    -------
    inputs, targets
        int32 (R, T), packed as in training; behind the end of a short file inputs are `bos` and targets -1, which do
        not count.
    bytes
        Bytes of text that the counted targets stand for, exactly. Bits per byte of the set are the summed loss of the
        counted targets / ln 2 / bytes. A target that is `bos`, the end of a document, adds to the loss and stands for
        no byte.
    """
    count = min(int(file.tokens.size) - 1, limit_rows * context)
    rows = -(-count // context)
    inputs = np.full(rows * context, file.bos, dtype=np.int32)
    targets = np.full(rows * context, -1, dtype=np.int32)
    inputs[:count] = file.tokens[:count]
    targets[:count] = file.tokens[1 : count + 1]
    text_bytes = int(file.token_bytes[targets[:count]].sum(dtype=np.int64))
    return inputs.reshape(rows, context), targets.reshape(rows, context), text_bytes
