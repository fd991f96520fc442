"""What a recorded graph becomes before it is made executable, on an imitated driver."""

# ruff: noqa: N802 - the driver names its functions

from __future__ import annotations

from types import SimpleNamespace

import pytest

from andrea.engine import graph as module

KERNEL, FILL, COPY = "kernel", "fill", "copy"


class Node:
    """A node of a graph of the host: what it is and whom it waits for."""

    def __init__(self, kind, *before, value=0, height=1, address=0, size=4, width=1):
        self.kind, self.before = kind, list(before)
        self.fill = SimpleNamespace(value=value, height=height, dst=address, elementSize=size, width=width)


class Driver:
    """The calls on graphs of the bindings of CUDA 13."""

    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_MEMSET=FILL, CU_GRAPH_NODE_TYPE_KERNEL=KERNEL)

    def __init__(self, nodes):
        self.nodes = nodes

    def cuGraphGetNodes(self, graph, count):
        return 0, list(graph)[:count], len(graph)

    def cuGraphNodeGetType(self, node):
        return 0, node.kind

    def cuGraphMemsetNodeGetParams(self, node):
        return 0, node.fill

    def cuGraphNodeGetDependencies(self, node, count=0):
        return 0, node.before[:count], [None] * count, len(node.before)

    def cuGraphNodeGetDependentNodes(self, node, count=0):
        behind = [other for other in self.nodes if node in other.before]
        return 0, behind[:count], [None] * count, len(behind)

    def cuGraphAddDependencies(self, graph, first, second, data, count):
        assert data is None
        assert count == len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            other.before.append(one)
        return (0,)

    def cuGraphDestroyNode(self, node):
        self.nodes.remove(node)
        for other in self.nodes:
            other.before = [one for one in other.before if one is not node]
        return (0,)


class Driver12(Driver):
    """And of those of CUDA 12, which tell no edges' data unless a call of another name is used."""

    def cuGraphNodeGetDependencies(self, node, count=0):
        status, nodes, _, number = super().cuGraphNodeGetDependencies(node, count)
        return status, nodes, number

    def cuGraphNodeGetDependentNodes(self, node, count=0):
        status, nodes, _, number = super().cuGraphNodeGetDependentNodes(node, count)
        return status, nodes, number

    def cuGraphAddDependencies(self, graph, first, second, count):
        raise AssertionError("this call knows no edges' data")

    def cuGraphAddDependencies_v2(self, graph, first, second, data, count):
        return Driver.cuGraphAddDependencies(self, graph, first, second, data, count)


@pytest.mark.parametrize("kind", [Driver, Driver12])
def test_fills_with_zeros_become_kernels(kind, monkeypatch):
    """In the same place, of the same bytes; other fills and copies stay and are counted."""
    first = Node(FILL, address=4096, size=4, width=100)
    second = Node(KERNEL, first)
    third = Node(FILL, second, address=512, size=1, width=7)
    fourth = Node(KERNEL, third)
    ones, plane, copy = Node(FILL, fourth, value=1), Node(FILL, fourth, height=2), Node(COPY, fourth)
    nodes = [first, second, third, fourth, ones, plane, copy]
    monkeypatch.setattr(module, "driver", lambda: kind(nodes))
    made = []

    def zero(graph, before, address, size):
        made.append((address, size))
        graph.append(Node(KERNEL, *before))
        return graph[-1]

    assert module.fill_by_kernels(nodes, 7, zero) == 3
    assert made == [(4096, 400), (512, 7)]
    assert len(nodes) == 7
    assert first not in nodes
    assert third not in nodes
    head, middle = nodes[-2:]
    assert (head.before, second.before, middle.before, fourth.before) == ([], [head], [second], [middle])
    assert ones.before == plane.before == copy.before == [fourth]


@pytest.mark.parametrize("kind", [Driver, Driver12])
def test_fills_keep_all_their_edges(kind, monkeypatch):
    """Where branches part and meet, and one fill behind another: who came before or behind comes before or behind."""
    left, right = Node(KERNEL), Node(KERNEL)
    meeting = Node(FILL, left, right, address=256)
    second = Node(FILL, meeting, right, address=512)
    ends = [Node(KERNEL, meeting, second), Node(KERNEL, second), Node(KERNEL, meeting)]
    nodes = [second, left, meeting, *ends, right]  # a driver tells them in no order
    monkeypatch.setattr(module, "driver", lambda: kind(nodes))
    made = {}

    def zero(graph, before, address, _size):
        graph.append(Node(KERNEL, *before))
        made[address] = graph[-1]
        return graph[-1]

    assert module.fill_by_kernels(nodes, len(nodes), zero) == 0
    assert set(map(id, nodes)) == set(map(id, [left, right, *ends, *made.values()]))
    assert set(made[256].before) == {left, right}
    assert set(made[512].before) == {made[256], right}
    assert [set(one.before) for one in ends] == [{made[256], made[512]}, {made[512]}, {made[256]}]


@pytest.mark.parametrize("branches", [False, True])
def test_branches_keep_the_priorities_of_their_streams(branches, monkeypatch):
    """The driver looks at the launches' own priorities only where it is told to; one stream is launched as ever."""
    flags = []

    class Capture(Driver):
        CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)

        def cuStreamEndCapture(self, _stream):
            return 0, self.nodes

        def cuGraphInstantiate(self, _graph, given):
            flags.append(given)
            return 0, "executable"

        def __getattr__(self, name):
            return lambda *_: (0,)

    monkeypatch.setattr(module, "driver", lambda: Capture([Node(KERNEL)]))
    graph = module.Graph(1, lambda: None, lambda *_: None, branches)
    assert (graph.nodes, graph.other) == (1, 0)
    assert flags == [8 if branches else 0]


def test_an_empty_graph_has_nothing_to_fill(monkeypatch):
    """Nothing is asked of it."""
    monkeypatch.setattr(module, "driver", lambda: Driver([]))
    assert module.fill_by_kernels([], 0, lambda *_: None) == 0
