"""A sequence of launches recorded once and replayed with one call."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from andrea.engine.launcher import check, driver


class Graph:
    """What `record` launches on `stream`, as one executable graph.

    Nothing runs while it is recorded. Every kernel must have run before (code is loaded at the first launch) and
    every matrix product must be prepared: neither may happen inside. Garbage collection waits meanwhile, because a
    finaliser that frees something of CUDA's would break the recording.

    Parameters
    ----------
    stream
        A stream that does not synchronise with the default one.
    record
        Launches the work.
    """

    def __init__(self, stream: Any, record: Callable[[], None]) -> None:
        self._driver = driver()
        collecting = gc.isenabled()
        gc.disable()
        try:
            mode = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
            check(self._driver.cuStreamBeginCapture(stream, mode), "cuStreamBeginCapture")
            try:
                record()
            finally:
                graph = check(self._driver.cuStreamEndCapture(stream), "cuStreamEndCapture")
            _, self.nodes = check(self._driver.cuGraphGetNodes(graph, 0), "cuGraphGetNodes")
            self._executable = check(self._driver.cuGraphInstantiate(graph, 0), "cuGraphInstantiate")
            check(self._driver.cuGraphDestroy(graph), "cuGraphDestroy")
            check(self._driver.cuGraphUpload(self._executable, stream), "cuGraphUpload")
        finally:
            if collecting:
                gc.enable()
        self._stream = stream

    def launch(self) -> None:
        """Replay on the stream it was recorded on."""
        check(self._driver.cuGraphLaunch(self._executable, self._stream), "cuGraphLaunch")

    def close(self) -> None:
        """Give the graph back; it must not be running."""
        if self._executable is not None:
            check(self._driver.cuGraphExecDestroy(self._executable), "cuGraphExecDestroy")
            self._executable = None
