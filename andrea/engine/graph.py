"""A sequence of launches recorded once and replayed with one call."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

from andrea.engine.launcher import check, driver

NODE_PRIORITIES = 8  # CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY
Zero = Callable[[Any, Sequence[Any], int, int], Any]  # graph, nodes that come first, address, bytes -> its node


class Graph:
    """What `record` launches on `stream`, as one executable graph.

    Nothing runs while it is recorded. Every kernel must have run before (code is loaded at the first launch) and
    every matrix product must be prepared: neither may happen inside. Garbage collection waits meanwhile, because a
    finaliser that frees something of CUDA's would break the recording.

    The driver launches a graph of nothing but kernels, one behind the other, in a few microseconds whatever its length,
    and any other node by node. So memory that a library fills with zeros is filled by a kernel instead.

    Parameters
    ----------
    stream
        A stream that does not synchronise with the default one.
    record
        Launches the work.
    zero
        Adds a kernel to a graph that does what a fill with zeros does.
    branches
        Whether it was recorded from streams of several priorities; each launch then keeps that of its stream.

    Attributes
    ----------
    nodes
        Nodes that it holds, launches as a rule.
    other
        Of these, nodes that are no kernels.
    """

    def __init__(self, stream: Any, record: Callable[[], None], zero: Zero, branches: bool = False) -> None:
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
            try:
                _, self.nodes = check(self._driver.cuGraphGetNodes(graph, 0), "cuGraphGetNodes")
                self.other = fill_by_kernels(graph, self.nodes, zero)
                flags = NODE_PRIORITIES if branches else 0
                self._executable = check(self._driver.cuGraphInstantiate(graph, flags), "cuGraphInstantiate")
            finally:
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


def fill_by_kernels(graph: Any, count: int, zero: Zero) -> int:
    """Put a kernel in the place of every fill with zeros of `count` nodes; return how many are no kernels then."""
    cuda = driver()
    kinds = cuda.CUgraphNodeType
    nodes, _ = check(cuda.cuGraphGetNodes(graph, count), "cuGraphGetNodes") if count else ([], 0)
    others = 0
    for node in nodes:
        kind = check(cuda.cuGraphNodeGetType(node), "cuGraphNodeGetType")
        if kind == kinds.CU_GRAPH_NODE_TYPE_MEMSET and _fills_a_row(cuda, node):
            _replace(cuda, graph, node, zero)
        elif kind != kinds.CU_GRAPH_NODE_TYPE_KERNEL:
            others += 1
    return others


def _fills_a_row(cuda: Any, node: Any) -> bool:
    """Say whether a node fills bytes in a row with zeros."""
    fill = check(cuda.cuGraphMemsetNodeGetParams(node), "cuGraphMemsetNodeGetParams")
    return int(fill.value) == 0 and int(fill.height) == 1


def _replace(cuda: Any, graph: Any, node: Any, zero: Zero) -> None:
    """Put a kernel between the nodes before and behind a fill, and take the fill out."""
    fill = check(cuda.cuGraphMemsetNodeGetParams(node), "cuGraphMemsetNodeGetParams")
    before, behind = _around(cuda.cuGraphNodeGetDependencies, node), _around(cuda.cuGraphNodeGetDependentNodes, node)
    kernel = zero(graph, before, int(fill.dst), int(fill.elementSize) * int(fill.width))
    if behind:
        # Up to CUDA 12 the call that takes a list of edges' data has a name of its own.
        connect = getattr(cuda, "cuGraphAddDependencies_v2", cuda.cuGraphAddDependencies)
        check(connect(graph, [kernel] * len(behind), behind, None, len(behind)), "cuGraphAddDependencies")
    check(cuda.cuGraphDestroyNode(node), "cuGraphDestroyNode")


def _around(ask: Callable[..., Any], node: Any) -> list[Any]:
    """Return the nodes that a node waits for, or that wait for it; the edges' data, since CUDA 13, says nothing new."""
    *_, count = check(ask(node), ask.__name__)
    return list(check(ask(node, count), ask.__name__)[0]) if count else []
