"""Work spread over processes, with the results that one process would give, in the same order.

Processes are spawned, never forked, so that threads and locks of the caller are not copied half-way. They are started
only when there is enough to do: small data is done here, sooner than a process starts.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, TimeoutError
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Any, TypeVar

from andrea.errors import AndreaError

MOST = 6  # processes by default: each holds tables of the tokenizer, and memory is to stay below a bound
_WAIT = 0.1  # seconds between two looks at whether the user wants to stop

Item = TypeVar("Item")
Result = TypeVar("Result")
Work = Callable[..., Any]

_context: Any = None  # of this process, when it is a worker
_ended: Any = None


class Workers:
    """Does work here, or, once `start` was called, in processes.

    Work is a function of a module that takes the context first. A context manager: on leaving it, what is under way
    is told to end through `asked_to_end`.

    Parameters
    ----------
    processes
        How many; 1 does everything here.
    context
        What all work is given; it is sent to every process once, so it must be picklable when there are several.
    tick
        Called with nothing while results are waited for; may raise to end everything.
    """

    def __init__(self, processes: int, context: Any, tick: Callable[[], None]) -> None:
        self._processes, self._context, self._tick = processes, context, tick
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._end.set()
            self._pool.shutdown(cancel_futures=True)

    @property
    def started(self) -> bool:
        """True when there are processes."""
        return self._pool is not None

    def start(self) -> bool:
        """Start the processes, if there are to be any and they do not run yet; say whether there are."""
        if self._pool is None and self._processes > 1:
            spawn = multiprocessing.get_context("spawn")
            self._end = spawn.Event()
            self._pool = ProcessPoolExecutor(self._processes, spawn, _begin, (self._context, self._end))
        return self.started

    def submit(self, work: Work, *arguments: Any) -> Callable[[], Any]:
        """Let work begin, and return a function that waits for its result; without processes it does the work."""
        if self._pool is None:
            return lambda: work(self._context, *arguments)
        future = self._pool.submit(_work, work, arguments)
        return lambda: self._result(future)

    def map(self, work: Work, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the result of every item in order; only a few more than there are processes are ever under way."""
        waiting: deque[Callable[[], Any]] = deque()
        items = iter(items)
        for item in itertools.islice(items, self._processes + 2 if self.started else 1):
            waiting.append(self.submit(work, item))
        while waiting:
            result = waiting.popleft()()
            for item in itertools.islice(items, 1):
                waiting.append(self.submit(work, item))
            yield result

    def _result(self, future: Future[Any]) -> Any:
        while True:
            self._tick()
            try:
                return future.result(timeout=_WAIT)
            except TimeoutError:
                if future.done():
                    raise  # the work's own
            except BrokenProcessPool as error:
                raise AndreaError(
                    "a process that prepares data has ended, for the reason above or, if there is none, from outside, "
                    "perhaps for want of memory",
                    "the same command goes on from there; ANDREA_PROCESSES=1 needs the least memory",
                ) from error


def count_processes() -> int:
    """Return how many processes to use: ``ANDREA_PROCESSES``, else the processors that we may use, `MOST` at most.

    It decides how long work takes and never what comes out.
    """
    asked = os.environ.get("ANDREA_PROCESSES", "")
    if not asked:
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(MOST, usable)
    if not asked.isdecimal() or int(asked) < 1:
        raise AndreaError(f"ANDREA_PROCESSES is {asked!r}", "give a number of processes from 1 up, or unset it")
    return int(asked)


def refuse_in_a_script_without_guard() -> None:
    """Refuse work in a process that is only importing the script that started it.

    A spawned process imports the caller's script first. One that trains at its top level would train there too, and
    wait for what its parent holds while the parent waits for it.

    Raises
    ------
    AndreaError
        In such a process.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself tells it
        raise AndreaError(
            "this script begins anew in the processes that it starts to prepare data",
            'put what it does under: if __name__ == "__main__":',
        )


def asked_to_end() -> bool:
    """Say, in a worker, whether its result is still wanted; long work looks now and then."""
    return _ended is not None and bool(_ended.is_set())


def _begin(context: Any, ended: Any) -> None:
    """Make this process a worker: Ctrl-C is the caller's to handle, and it must not outlive the caller."""
    global _context, _ended
    _context, _ended = context, ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(work: Work, arguments: tuple[Any, ...]) -> Any:
    return work(_context, *arguments)
