"""The streams of a step: the main one, and beside it one for what the next launches do not need.

Where a configuration `overlaps`, gradients of weights and the order of the tokens' positions are launched on a side
stream: it waits for where main is (a fork), and main waits for it before it writes what a side launch still touches (to
settle). While a graph is recorded both are edges and no nodes. Launches of the side run one behind the other, so that
what was launched there earlier is done when the one that main waits for is; and on the multiprocessors that main
leaves, where the card knows priorities.

Else there is no side stream: every launch is on main, in the order in which it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from andrea.engine.launcher import check, driver

if TYPE_CHECKING:
    from andrea.engine import EngineConfig

WORKSPACE = "gemm_side_workspace"  # products of the side may run while one of main does
STREAM_NON_BLOCKING, DISABLE_TIMING = 1, 2


def overlaps(config: EngineConfig) -> bool:
    """Return whether a step uses a side stream; what only looks has nothing to put on it.

    By default where it gains, as measured: with few tokens, whose launches leave multiprocessors idle (12M:8 1.03x),
    and in wide models (120M:64 1.01x). A narrow model's large batch is bound by memory, which two share (12M:64 0.98x).
    """
    if not config.training:
        return False
    few = config.batch_size * config.model.context <= 16_384
    return bool(config.options.get("overlap", few or config.model.d_model >= 512))


def open_branch(side: bool) -> Branch:
    """Create the main stream in the current context, and with `side` a side stream of lower priority."""
    cuda = driver()
    if not side:
        return Branch(int(check(cuda.cuStreamCreate(STREAM_NON_BLOCKING), "cuStreamCreate")))
    priorities = reversed(check(cuda.cuCtxGetStreamPriorityRange(), "cuCtxGetStreamPriorityRange"))
    create = cuda.cuStreamCreateWithPriority
    return Branch(*(int(check(create(STREAM_NON_BLOCKING, one), "cuStreamCreateWithPriority")) for one in priorities))


class Branch:
    """A main stream, and perhaps a side stream. Buffers are known by their addresses.

    Parameters
    ----------
    main
        Where everything is launched that nothing else is said of.
    side
        The other stream; None: main does all.
    """

    def __init__(self, main: int, side: int | None = None) -> None:
        self.main, self.side = main, side
        self._forked = None if side is None else self._event()
        self._ends: list[Any] = []  # an event behind each launch since the last join; kept for the next
        self._last: dict[int, int] = {}  # address -> number of the last launch that touches it, from 1
        self._launched = self._settled = 0

    @contextmanager
    def beside(self, *addresses: int) -> Iterator[int]:
        """Give the stream for launches that main's next launches do not need.

        Parameters
        ----------
        addresses
            What they read or write that main will write or read before `join`, as `settle` will be asked for it.
        """
        if self.side is None:
            yield self.main
            return
        self._record(self._forked, self.main)
        self._wait(self.side, self._forked)
        yield self.side
        if self._launched == len(self._ends):
            self._ends.append(self._event())
        self._record(self._ends[self._launched], self.side)
        self._launched += 1
        self._last |= dict.fromkeys(addresses, self._launched)

    def settle(self, address: int) -> None:
        """Let main wait for the last launch of the side that touches what lies at an address."""
        self._follow(self._last.get(address, 0))

    def join(self) -> None:
        """Let main wait for everything that the side was given."""
        self._follow(self._launched)
        self._last.clear()
        self._launched = self._settled = 0

    def close(self) -> None:
        """Give streams and events back."""
        for event in (self._forked, *self._ends):
            if event is not None:
                check(driver().cuEventDestroy(event), "cuEventDestroy")
        for stream in (self.main, self.side):
            if stream is not None:
                check(driver().cuStreamDestroy(stream), "cuStreamDestroy")

    def _follow(self, number: int) -> None:
        """Let main wait for one of the launches, unless it has waited for that or a later one."""
        if number > self._settled:
            self._wait(self.main, self._ends[number - 1])
            self._settled = number

    def _event(self) -> Any:
        return check(driver().cuEventCreate(DISABLE_TIMING), "cuEventCreate")

    def _record(self, event: Any, stream: int) -> None:
        check(driver().cuEventRecord(event, stream), "cuEventRecord")

    def _wait(self, stream: int, event: Any) -> None:
        check(driver().cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent")
