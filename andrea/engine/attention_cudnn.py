"""Attention by cuDNN behind the interface of `andrea.engine.attention`: what our kernels are held against, a fallback.

cuDNN takes graphs: tensors by their sizes and strides, and what is done with them. They are described and compiled when
an engine is opened, for the shapes that it will run; a launch only fills in addresses, so it can be captured. Queries,
keys and values are strided views of our packed array, nothing is copied. cuDNN's statistics are the natural logarithm
of the sum of exponentials of scaled scores, which is what our kernels keep too. One position at a time (`decode`) and
the caches stay with our kernels.

The backward is asked for in its deterministic form. Up to cuDNN 9.28 that form keeps the gradient of all scores but on
Blackwell: two bytes for each query and key, T^2 for each head of each row.

Axis letters: B rows, T tokens, H heads, D width of a head.
"""

from __future__ import annotations

import math
from typing import Any

from attrs import frozen

from andrea.engine import EngineConfig
from andrea.engine.attention import Attention
from andrea.errors import AndreaError
from andrea.extras import import_extra
from andrea.types import Device, Precision

#: The buffer that cuDNN's scratch lies in.
WORKSPACE = "attention_workspace"
#: What cuDNN wants beside what its algorithms are known to keep: 256 bytes were seen.
SLACK = 4096
CAPABILITY = (8, 0)
WAY_OUT = "leave engine.attention at auto"

_TYPES = {"float16": "HALF", "bfloat16": "BFLOAT16"}
# Numbers of the tensors in cuDNN's graphs.
Q, K, V, OUT, LSE, DOUT, DQ, DK, DV = range(1, 10)


def workspace_bytes(B: int, T: int, H: int, training: bool) -> int:
    """Return the scratch to plan: the gradient of all scores in 16 bits, in tiles of 64 x 128, and a float a query."""
    tiles = -(-T // 64) * 64 * -(-T // 128) * 128
    return SLACK + (B * H * (2 * tiles + 4 * T) if training else 0)


def check_cudnn(config: EngineConfig, device: Device, precision: Precision) -> None:
    """Refuse what cuDNN's attention does not compute, and say so when it is not installed.

    Raises
    ------
    AndreaError
        Says what it does compute, or what to install.
    """
    if precision.storage not in _TYPES:
        raise AndreaError(
            f"engine.attention cudnn computes in 16 bits, precision {precision.name} in {precision.multiply}",
            f"take --plugin precision.bf16 or --plugin precision.fp16, or {WAY_OUT}",
        )
    if device.capability < CAPABILITY:
        raise AndreaError(
            f"engine.attention cudnn needs a card of compute capability {CAPABILITY[0]}.{CAPABILITY[1]}; "
            f"{device.name} has {device.capability[0]}.{device.capability[1]}",
            WAY_OUT,
        )
    if config.training and config.model.context == 1:
        raise AndreaError("engine.attention cudnn has no gradient of a single token", f"{WAY_OUT}, or model.context=2")
    load_cudnn()


def load_cudnn() -> Any:
    """Return the Python package, after the library behind it has answered.

    Raises
    ------
    AndreaError
        When one of them is missing: says what to install.
    """
    cudnn = import_extra("cudnn", "cudnn", "engine.attention is cudnn")
    try:
        cudnn.backend_version()
    except RuntimeError as error:
        raise AndreaError(
            f"cuDNN's library cannot be loaded: {error}",
            "install the extra cudnn: pip install 'andrea[cudnn]', with CUDA 12 'andrea[cudnn12]'",
        ) from error
    return cudnn


@frozen(eq=False)
class Prepared:
    """A compiled graph: cuDNN's name of what it will launch, and the bytes of scratch that this needs."""

    graph: Any
    name: str
    workspace: int


class CudnnAttention:
    """Attention of one shape by cuDNN, compiled in the current context.

    Parameters
    ----------
    head_dim, n_head
        D and H.
    precision
        Of 16 bits.
    architecture
        For instance ``sm_90a``; of our own kernels.
    B, T
        Rows and tokens of a micro-batch. The forward also takes a single row, which is how prompts are read.
    training
        Whether there will be a backward.

    Attributes
    ----------
    workspace
        Device address of `workspace_bytes`; set before the first launch.

    Raises
    ------
    AndreaError
        When cuDNN is missing, or refuses the shape.
    """

    name = "cudnn"

    def __init__(
        self,
        head_dim: int,
        n_head: int,
        precision: Precision,
        architecture: str,
        B: int,
        T: int,
        training: bool = True,
    ) -> None:
        self._cudnn = load_cudnn()
        self.heads, self._D, self._T = n_head, head_dim, T
        self._type = getattr(self._cudnn.data_type, _TYPES[precision.storage])
        self._float = self._cudnn.data_type.FLOAT
        self.workspace = 0
        self._handle = self._cudnn.create_handle()
        try:
            self._forward = {rows: self._prepare("forward", rows) for rows in sorted({1, B})}
            self._backward = {rows: self._prepare("backward", rows) for rows in ((B,) if training else ())}
            self._check_workspace(workspace_bytes(B, T, n_head, training))
            self._own = Attention(head_dim, n_head, precision, architecture)
        except Exception:
            self._cudnn.destroy_handle(self._handle)
            raise

    @property
    def version(self) -> str:
        """What the numbers depend on: the library, the package, and which of their kernels were chosen."""
        chosen = [f"{rows}:{one.name}" for plans in (self._forward, self._backward) for rows, one in plans.items()]
        return " ".join([self._cudnn.backend_version_string(), self._cudnn.__version__, *chosen])

    # -- launches ----------------------------------------------------------------------------------------------------

    def forward(self, qkv: int, out: int, lse: int, B: int, T: int, stream: int) -> None:
        """out[B, T, H, D], lse[B, H, T] = attention of qkv[B, T, 3, H, D]; B and T as prepared."""
        self._run(self._forward, B, T, stream, {**self._parts(qkv, Q, K, V), OUT: out, LSE: lse})

    def backward(
        self, qkv: int, out: int, lse: int, dout: int, dqkv: int, rows: int, B: int, T: int, stream: int
    ) -> None:
        """dqkv[B, T, 3, H, D] from dout[B, T, H, D]; `rows`, our own kernels' scratch, is left alone."""
        inputs = {**self._parts(qkv, Q, K, V), OUT: out, LSE: lse, DOUT: dout}
        self._run(self._backward, B, T, stream, {**inputs, **self._parts(dqkv, DQ, DK, DV)})

    def decode(
        self, qkv: int, keys: int, values: int, positions: int, out: int, rows: int, context: int, stream: int
    ) -> None:
        """Attend from one new token a row, by our own kernel."""
        self._own.decode(qkv, keys, values, positions, out, rows, context, stream)

    def cache(
        self, qkv: int, keys: int, values: int, B: int, T: int, first_row: int, context: int, stream: int
    ) -> None:
        """Copy keys and values into the caches, by our own kernel."""
        self._own.cache(qkv, keys, values, B, T, first_row, context, stream)

    def close(self) -> None:
        """Give graphs, handle and code back."""
        self._forward, self._backward = {}, {}
        self._cudnn.destroy_handle(self._handle)
        self._own.close()

    def _parts(self, packed: int, *tensors: int) -> dict[int, int]:
        """Return the addresses of queries, keys and values inside [B, T, 3, H, D]."""
        return {tensor: packed + 2 * self.heads * self._D * part for part, tensor in enumerate(tensors)}

    def _run(self, plans: dict[int, Prepared], B: int, T: int, stream: int, addresses: dict[int, int]) -> None:
        if B not in plans or self._T != T:
            raise ValueError(f"{B} rows of {T} were not prepared: there are {sorted(plans)} of {self._T}")
        self._cudnn.set_stream(self._handle, stream)
        plans[B].graph.execute(addresses, self.workspace, handle=self._handle)

    # -- graphs ------------------------------------------------------------------------------------------------------

    def _prepare(self, name: str, B: int) -> Prepared:
        """Describe a graph and compile the first of cuDNN's proposals that it accepts itself."""
        graph = self._cudnn.pygraph(
            io_data_type=self._type,
            intermediate_data_type=self._float,
            compute_data_type=self._float,
            handle=self._handle,
        )
        try:
            (self._describe_forward if name == "forward" else self._describe_backward)(graph, B)
            return self._choose(graph)
        except (self._cudnn.cudnnGraphNotSupportedError, RuntimeError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0][:200]
            raise AndreaError(
                f"cuDNN {self._cudnn.backend_version_string()} has no {name} of attention for {B} rows of {self._T} "
                f"tokens and {self.heads} heads of {self._D}: {reason}",
                WAY_OUT,
            ) from error

    def _describe_forward(self, graph: Any, B: int) -> None:
        q, k, v = (self._packed(graph, B, number) for number in (Q, K, V))
        out, lse = graph.sdpa(q, k, v, generate_stats=True, **self._common())
        self._result(out, OUT, self._sizes(B), self._apart(1))
        self._result(lse, LSE, (B, self.heads, self._T, 1), self._statistics()).set_data_type(self._float)

    def _describe_backward(self, graph: Any, B: int) -> None:
        q, k, v = (self._packed(graph, B, number) for number in (Q, K, V))
        out, dout = (
            graph.tensor(dim=self._sizes(B), stride=self._apart(1), data_type=self._type, uid=number)
            for number in (OUT, DOUT)
        )
        sizes = (B, self.heads, self._T, 1)
        lse = graph.tensor(dim=sizes, stride=self._statistics(), data_type=self._float, uid=LSE)
        gradients = graph.sdpa_backward(q, k, v, out, dout, lse, use_deterministic_algorithm=True, **self._common())
        for gradient, number in zip(gradients, (DQ, DK, DV), strict=True):
            self._result(gradient, number, self._sizes(B), self._apart(3))

    def _common(self) -> dict[str, Any]:
        return {"attn_scale": 1 / math.sqrt(self._D), "use_causal_mask": True}

    def _sizes(self, B: int) -> tuple[int, ...]:
        return B, self.heads, self._T, self._D

    def _apart(self, parts: int) -> tuple[int, ...]:
        """Return elements from one row, head, token and number to the next, in [B, T, parts, H, D]."""
        token = parts * self.heads * self._D
        return self._T * token, self._D, token, 1

    def _statistics(self) -> tuple[int, ...]:
        """Return the same of [B, H, T, 1]."""
        return self.heads * self._T, self._T, 1, 1

    def _packed(self, graph: Any, B: int, number: int) -> Any:
        return graph.tensor(dim=self._sizes(B), stride=self._apart(3), data_type=self._type, uid=number)

    def _result(self, tensor: Any, number: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        return tensor.set_output(True).set_dim(sizes).set_stride(strides).set_uid(number)

    def _choose(self, graph: Any) -> Prepared:
        """Compile the first proposal that is cuDNN's own and deterministic.

        The package also has kernels that it writes in Python, with compilers of its own; those are passed over.
        """
        modes, notes = self._cudnn.heur_mode, self._cudnn.numerical_note
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([modes.A, modes.FALLBACK])
        graph.deselect_numeric_notes([notes.NONDETERMINISTIC])
        refusal: Exception = RuntimeError("it proposes nothing")
        for index in range(graph.get_execution_plan_count()):
            graph.select_plan(index)
            if graph.selected_engine is not None:
                continue
            try:
                graph.build_plan_at_index(index)
            except (self._cudnn.cudnnGraphNotSupportedError, RuntimeError, ValueError) as error:
                refusal = error
                continue
            return Prepared(graph, graph.get_plan_name_at_index(index), int(graph.get_workspace_size()))
        raise refusal

    def _check_workspace(self, planned: int) -> None:
        """Refuse scratch beyond the plan: an algorithm that this module does not know."""
        wanted = max(one.workspace for plans in (self._forward, self._backward) for one in plans.values())
        if wanted > planned:
            raise AndreaError(
                f"cuDNN {self._cudnn.backend_version_string()} wants {wanted} bytes of scratch for attention; "
                f"{planned} are planned",
                f"{WAY_OUT}, or install a version that docs/kernels.md names",
            )
