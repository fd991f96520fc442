"""The option engine.attention, and cuDNN's attention on a library that is imitated: it reads memory by our strides.

What is asked of cuDNN, at which addresses, what is planned and what is refused is tested here; cuDNN itself on a card.
"""

from __future__ import annotations

import ctypes
import sys
import types

import numpy as np
import pytest
from attrs import evolve

from andrea.engine import SWITCHES, EngineConfig, attention_choice, attention_cudnn
from andrea.engine import operations as op
from andrea.engine.attention_choice import attention_of, check_attention, open_attention
from andrea.engine.attention_cudnn import SLACK, WORKSPACE, CudnnAttention, workspace_bytes
from andrea.engine.buffers import describe_memory, plan_memory
from andrea.engine.model import ModelConfig
from andrea.errors import AndreaError
from andrea.types import Device, Precision

FP16 = Precision("fp16", "float16", "float16")
BF16 = Precision("bf16", "bfloat16", "bfloat16")
FP32 = Precision("fp32")
H200 = Device("cuda", "imitated", (9, 0))
SMALL = EngineConfig(ModelConfig(2, 2, 64, context=32), vocabulary=300, batch_size=3)
CUDNN = evolve(SMALL, options={"attention": "cudnn"})


class RefusedError(Exception):
    """What the library says to a graph that it has nothing for."""


class Tensor:
    """Sizes, strides, type and number of a tensor."""

    def __init__(self, dim=(), stride=(), data_type="", uid=0):
        self.dim, self.stride, self.data_type, self.uid, self.output = dim, stride, data_type, uid, False

    def set_output(self, value):
        self.output = value
        return self

    def set_dim(self, dim):
        self.dim = dim
        return self

    def set_stride(self, stride):
        self.stride = stride
        return self

    def set_data_type(self, data_type):
        self.data_type = data_type
        return self

    def set_uid(self, uid):
        self.uid = uid
        return self

    def at(self, address):
        """View memory as this tensor describes it."""
        kind = np.dtype({"half": np.float16, "float": np.float32}[self.data_type])
        size = 1 + sum((n - 1) * step for n, step in zip(self.dim, self.stride, strict=True))
        raw = np.ctypeslib.as_array((ctypes.c_uint8 * (size * kind.itemsize)).from_address(address)).view(kind)
        return np.lib.stride_tricks.as_strided(raw, self.dim, [step * kind.itemsize for step in self.stride])


class Graph:
    """Attention as the formula says, between the tensors that were described."""

    proposals = ("python_kernel", "eng1", "eng2")
    refused: tuple[str, ...] = ("eng1",)
    scratch = 512

    def __init__(self, **options):
        self.options, self.asked, self.results = options, {}, []
        self.filters, self.built, self.calls, self.index = [], None, [], -1

    def tensor(self, **described):
        return Tensor(**described)

    def _results(self, count):
        self.results = [Tensor(data_type=self.options["io_data_type"]) for _ in range(count)]
        return self.results

    def sdpa(self, q, k, v, **asked):
        self.inputs, self.asked = (q, k, v), asked
        return self._results(2)

    def sdpa_backward(self, q, k, v, o, dO, stats, **asked):
        self.inputs, self.asked = (q, k, v, o, dO, stats), asked
        return self._results(3)

    def validate(self):
        assert all(one.output and one.uid for one in self.results)

    def build_operation_graph(self):
        pass

    def create_execution_plans(self, modes):
        assert modes == ["A", "FALLBACK"]

    def deselect_numeric_notes(self, notes):
        self.filters += notes

    def get_execution_plan_count(self):
        return len(self.proposals)

    def select_plan(self, index):
        self.index = index

    @property
    def selected_engine(self):
        return object() if self.proposals[self.index].startswith("python") else None

    def build_plan_at_index(self, index):
        if self.proposals[index] in self.refused:
            raise RefusedError(f"{self.proposals[index]} cannot\nlong story")
        self.built = index

    def get_plan_name_at_index(self, index):
        return self.proposals[index]

    def get_workspace_size(self):
        return self.scratch

    def execute(self, addresses, workspace, handle):
        assert self.built is not None
        self.calls.append((workspace, handle))
        views = [one.at(addresses[one.uid]) for one in self.inputs]
        q, k, v, *saved = (view.astype(np.float64) for view in views)
        T, scale = q.shape[2], self.asked["attn_scale"]
        scores = np.where(np.tri(T, dtype=bool), scale * q @ k.swapaxes(2, 3), -np.inf)
        lse = np.log(np.exp(scores - scores.max(axis=3, keepdims=True)).sum(axis=3, keepdims=True))
        lse += scores.max(axis=3, keepdims=True)
        p = np.exp(scores - lse)
        if not saved:
            found = [p @ v, lse]
        else:
            out, dout, kept = saved
            np.testing.assert_allclose(kept, lse, rtol=1e-5)
            ds = p * (dout @ v.swapaxes(2, 3) - (dout * out).sum(axis=3, keepdims=True)) * scale
            found = [ds @ k, ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ dout]
        for tensor, values in zip(self.results, found, strict=True):
            tensor.at(addresses[tensor.uid])[...] = values


class Own:
    """Our own kernels, which note what they are asked for."""

    def __init__(self, *shape):
        self.shape, self.calls = shape, []

    def decode(self, *arguments):
        self.calls.append(("decode", arguments))

    def cache(self, *arguments):
        self.calls.append(("cache", arguments))

    def close(self):
        self.calls.append("closed")


@pytest.fixture
def library(monkeypatch):
    """Give the imitated package, of which `graphs` and `handles` are what was made."""
    made = types.ModuleType("cudnn")
    made.__version__ = "1.32.0"
    made.graphs, made.handles, made.streams = [], [], []

    def pygraph(**options):
        made.graphs.append(Graph(**options))
        return made.graphs[-1]

    def create_handle():
        made.handles.append(f"handle {len(made.handles)}")
        return made.handles[-1]

    made.pygraph, made.create_handle, made.destroy_handle = pygraph, create_handle, made.handles.remove
    made.set_stream = lambda _handle, stream: made.streams.append(stream)
    made.backend_version, made.backend_version_string = lambda: 91900, lambda: "9.19.0"
    made.cudnnGraphNotSupportedError = RefusedError
    made.data_type = types.SimpleNamespace(HALF="half", BFLOAT16="bfloat16", FLOAT="float")
    made.heur_mode = types.SimpleNamespace(A="A", FALLBACK="FALLBACK")
    made.numerical_note = types.SimpleNamespace(NONDETERMINISTIC="not deterministic")
    monkeypatch.setitem(sys.modules, "cudnn", made)
    monkeypatch.setattr(attention_cudnn, "Attention", Own)
    return made


# -- which ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [one for one in SWITCHES["attention"] if one != "auto"])
def test_the_option_names_an_attention(name):
    """Whatever the card, since what it cannot do is refused."""
    assert attention_of(evolve(SMALL, options={"attention": name}), BF16, "sm_80") == name


@pytest.mark.parametrize("options", [{}, {"attention": "auto"}])
@pytest.mark.parametrize(
    ("precision", "architecture", "name"),
    [(BF16, "sm_90a", "hopper"), (FP16, "sm_90a", "hopper"), (BF16, "sm_80", "mma"), (FP32, "sm_90a", "mma")],
)
def test_hopper_is_taken_where_it_has_a_kernel(options, precision, architecture, name):
    """Without the option and with auto; on other cards and in other precisions our kernels for every card."""
    assert attention_of(evolve(SMALL, options=options), precision, architecture) == name


def test_each_attention_is_opened_with_its_shape(library, monkeypatch):
    """All but cuDNN take D, H, precision and architecture."""
    monkeypatch.setattr(attention_choice, "Attention", lambda *shape: ("mma", *shape))
    monkeypatch.setattr(attention_choice, "HopperAttention", lambda *shape: ("hopper", *shape))
    for name in ("mma", "hopper"):
        config = evolve(SMALL, options={"attention": name})
        found = open_attention(config, BF16, "sm_90a")
        assert found == (name, 32, 2, BF16, "sm_90a")
    found = open_attention(CUDNN, FP16, "sm_90a")
    assert isinstance(found, CudnnAttention)
    assert found._own.shape == (32, 2, FP16, "sm_90a")
    assert f"{found.name} {found.version}" == "cudnn 9.19.0 1.32.0 1:eng2 3:eng2 3:eng2"
    assert len(library.graphs) == 3


def test_hopper_is_refused_where_it_has_no_kernel():
    """Before anything is opened: another card, another precision, another width of heads."""
    config = evolve(SMALL, options={"attention": "hopper"})
    check_attention(config, H200, BF16)
    wide = evolve(config, model=evolve(SMALL.model, d_model=192))
    older = evolve(H200, capability=(8, 0))
    for given in ((wide, H200, BF16), (config, older, BF16), (config, H200, FP32)):
        with pytest.raises(AndreaError, match="have no wgmma kernel") as caught:
            check_attention(*given)
        assert "leave engine.attention at auto" in caught.value.hint


# -- what is planned --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((64, 1024, 12), 1613758720),
        ((8, 1024, 12), 201720064),
        ((2, 130, 3), 593200),
        ((3, 7, 2), 98728),
        ((1, 2, 1), 16648),
        ((5, 333, 24), 35549536),
    ],
)
def test_the_plan_holds_what_cudnn_wants(shape, wanted):
    """What cuDNN 9.19 and 9.28 want for an H200, of the cards the most; not much more is planned."""
    assert wanted <= workspace_bytes(*shape, training=True) <= wanted + SLACK


def test_only_cudnn_has_scratch_in_the_plan():
    """One more buffer, which grows with the batch and is next to nothing without a backward."""
    plain, with_cudnn = plan_memory(SMALL, BF16), plan_memory(CUDNN, BF16)
    assert [one.name for one in with_cudnn] == [*(one.name for one in plain), WORKSPACE]
    assert with_cudnn[WORKSPACE].bytes == workspace_bytes(3, 32, 2, True)
    more = plan_memory(evolve(CUDNN, batch_size=6), BF16)[WORKSPACE].bytes
    assert more - SLACK == 2 * (with_cudnn[WORKSPACE].bytes - SLACK)
    assert plan_memory(evolve(CUDNN, training=False), BF16)[WORKSPACE].bytes == SLACK
    long = evolve(CUDNN, model=evolve(SMALL.model, context=1024))
    assert any("scratch of cuDNN" in line for line in describe_memory(long, BF16))


# -- what is refused --------------------------------------------------------------------------------------------------


def test_what_cudnn_cannot_do_is_said_with_a_way_out(library):
    """Other precisions, older cards, one token; what it can do passes."""
    check_attention(CUDNN, H200, BF16)
    check_attention(CUDNN, H200, evolve(BF16, name="fp8", fp8={64: ("w_1.y",)}))  # its attention is that of bf16
    with pytest.raises(AndreaError, match="computes in 16 bits, precision tf32 in tf32") as caught:
        check_attention(CUDNN, H200, Precision("tf32", multiply="tf32"))
    assert "precision.bf16" in caught.value.hint
    with pytest.raises(AndreaError, match=r"capability 8\.0; imitated has 7\.5") as caught:
        check_attention(CUDNN, evolve(H200, capability=(7, 5)), FP16)
    assert caught.value.hint == "leave engine.attention at auto"
    one = evolve(CUDNN, model=evolve(SMALL.model, context=1))
    with pytest.raises(AndreaError, match="no gradient of a single token"):
        check_attention(one, H200, BF16)
    check_attention(evolve(one, training=False), H200, BF16)


def test_what_is_not_installed_is_said(library, monkeypatch):
    """The package, and the library behind it; nobody else needs them."""
    plain = evolve(SMALL, options={"attention": "mma"})

    def missing():
        raise RuntimeError("Unable to find symbol cudnnGetVersion")

    monkeypatch.setattr(library, "backend_version", missing)
    with pytest.raises(AndreaError, match="library cannot be loaded: Unable to find") as caught:
        check_attention(CUDNN, H200, BF16)
    assert "'andrea[cudnn]', with CUDA 12 'andrea[cudnn12]'" in caught.value.hint
    monkeypatch.setitem(sys.modules, "cudnn", None)
    with pytest.raises(AndreaError, match=r"engine\.attention is cudnn, which needs cudnn") as caught:
        check_attention(CUDNN, H200, BF16)
    assert caught.value.hint == "install the extra cudnn: pip install 'andrea[cudnn]'"
    check_attention(plain, H200, BF16)


def test_a_shape_without_a_proposal_is_refused(library, monkeypatch):
    """With the library's first reason in one line, and nothing left open."""
    monkeypatch.setattr(Graph, "refused", ("eng1", "eng2"))
    with pytest.raises(AndreaError, match=r"cuDNN 9\.19\.0 has no forward of attention for 1 rows of 7") as caught:
        CudnnAttention(32, 2, FP16, "sm_90a", 3, 7)
    assert "2 heads of 32: eng2 cannot" in str(caught.value)
    assert "long story" not in str(caught.value)
    assert caught.value.hint == "leave engine.attention at auto"
    monkeypatch.setattr(Graph, "proposals", ("python_kernel",))
    with pytest.raises(AndreaError, match="it proposes nothing"):
        CudnnAttention(32, 2, FP16, "sm_90a", 3, 7)
    assert library.handles == []


def test_scratch_beyond_the_plan_is_refused(library, monkeypatch):
    """An algorithm that wants more than was planned is not run."""
    monkeypatch.setattr(Graph, "scratch", workspace_bytes(3, 7, 2, True) + 1)
    with pytest.raises(AndreaError, match="bytes of scratch for attention") as caught:
        CudnnAttention(32, 2, FP16, "sm_90a", 3, 7)
    assert caught.value.hint.startswith("leave engine.attention at auto")
    assert library.handles == []


# -- what is launched -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("B", "rows"), [(3, 3), (3, 1), (1, 1)])
def test_packed_arrays_are_described_as_they_lie(library, B, rows):
    """Forward and, of a micro-batch, backward through our strides are the twin's; every element is written."""
    T, H, D = 7, 2, 32
    attention = CudnnAttention(D, H, FP16, "sm_90a", B, T)
    random = np.random.Generator(np.random.PCG64(5))
    qkv = random.standard_normal((rows, T, 3, H, D)).astype(np.float16)
    dout = random.standard_normal((rows, T, H, D)).astype(np.float16)
    out, lse = np.full((rows, T, H, D), np.nan, np.float16), np.full((rows, H, T), np.nan, np.float32)
    dqkv, stream = np.full_like(qkv, np.nan), 77
    attention.workspace = 4096
    addresses = [one.ctypes.data for one in (qkv, out, lse)]
    attention.forward(*addresses, rows, T, stream)
    packed = np.ascontiguousarray(np.moveaxis(qkv.astype(np.float64), 2, 0)).reshape(3, rows, T, H * D)
    want, statistics = op.k_attn_fwd(packed, H)
    # Exact operands, rounded results: 11 bits of float16, 24 of float32.
    np.testing.assert_allclose(out.reshape(want.shape), want, rtol=2.0**-11, atol=2.0**-24)
    np.testing.assert_allclose(lse, statistics, rtol=2.0**-23)
    assert library.streams == [stream]
    if rows == B:
        attention.backward(*addresses, dout.ctypes.data, dqkv.ctypes.data, 0, rows, T, stream)
        rounded = out.astype(np.float64).reshape(want.shape)
        gradient = op.k_attn_bwd(dout.astype(np.float64).reshape(want.shape), packed, rounded, lse, H)
        got = np.moveaxis(dqkv.astype(np.float64), 2, 0).reshape(gradient.shape)
        # The twin makes P from the rounded log-sum-exp, the imitation from its own: 2^-24 of a few numbers near 1.
        np.testing.assert_allclose(got, gradient, rtol=2.0**-10, atol=2.0**-20)
    calls = [call for graph in library.graphs for call in graph.calls]
    assert calls == [(4096, "handle 0")] * (1 + (rows == B))


def test_graphs_are_deterministic_causal_and_scaled(library):
    """Sums are float32, statistics too; kernels that the package writes itself and refused ones are passed over."""
    attention = CudnnAttention(32, 2, BF16, "sm_90a", 3, 7)
    one, several, backward = library.graphs
    for graph in (one, several, backward):
        assert graph.options["io_data_type"] == "bfloat16"
        assert graph.options["intermediate_data_type"] == graph.options["compute_data_type"] == "float"
        assert graph.options["handle"] == "handle 0"
        assert graph.asked["use_causal_mask"] is True
        assert graph.asked["attn_scale"] == pytest.approx(32**-0.5, rel=1e-15)
        assert graph.filters == ["not deterministic"]
        assert graph.proposals[graph.built] == "eng2"
    assert one.asked["generate_stats"] is several.asked["generate_stats"] is True
    assert backward.asked["use_deterministic_algorithm"] is True
    assert several.results[1].data_type == backward.inputs[5].data_type == "float"
    assert [graph.inputs[0].dim[0] for graph in library.graphs] == [1, 3, 3]
    assert attention.version == "9.19.0 1.32.0 1:eng2 3:eng2 3:eng2"


def test_without_training_there_is_no_backward(library):
    """Evaluating and writing need the forward alone."""
    attention = CudnnAttention(32, 2, BF16, "sm_90a", 3, 7, training=False)
    assert [graph.inputs[0].dim[0] for graph in library.graphs] == [1, 3]
    with pytest.raises(ValueError, match=r"3 rows of 7 were not prepared: there are \[\] of 7"):
        attention.backward(1, 2, 3, 4, 5, 6, 3, 7, 0)


@pytest.mark.parametrize("shape", [(2, 7), (3, 6)])
def test_other_shapes_are_not_launched(library, shape):
    """Nothing is compiled on the way: it might be inside a recording."""
    attention = CudnnAttention(32, 2, BF16, "sm_90a", 3, 7)
    with pytest.raises(ValueError, match="were not prepared"):
        attention.forward(1, 2, 3, *shape, 0)
    assert library.streams == []


def test_single_positions_and_caches_stay_with_our_kernels(library):
    """With the same arguments; closing gives everything back."""
    attention = CudnnAttention(32, 2, BF16, "sm_90a", 3, 7)
    attention.decode(1, 2, 3, 4, 5, 3, 7, 9)
    attention.cache(1, 2, 3, 1, 7, 2, 7, 9)
    own = attention._own
    assert own.calls == [("decode", (1, 2, 3, 4, 5, 3, 7, 9)), ("cache", (1, 2, 3, 1, 7, 2, 7, 9))]
    attention.close()
    assert own.calls[-1] == "closed"
    assert library.handles == []
