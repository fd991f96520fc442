"""Which attention the engine computes with: its option ``attention``, and the interface that all of them have."""

from __future__ import annotations

from typing import Protocol

from andrea.engine import EngineConfig
from andrea.engine.attention import Attention
from andrea.engine.attention_cudnn import CudnnAttention, check_cudnn
from andrea.engine.attention_hopper import HopperAttention, has_kernel, hopper_cell
from andrea.engine.compiler import architecture_of
from andrea.types import Device, Precision


class AttentionKernels(Protocol):
    """What the engine launches; see `andrea.engine.attention.Attention` for shapes. Arguments are device addresses."""

    name: str

    @property
    def version(self) -> str:
        """What numbers depend on beside our own kernels; empty where nothing else computes."""

    def forward(self, qkv: int, out: int, lse: int, B: int, T: int, stream: int) -> None:
        """Attend from every position of B rows."""

    def backward(
        self, qkv: int, out: int, lse: int, dout: int, dqkv: int, rows: int, B: int, T: int, stream: int
    ) -> None:
        """Give the gradient of queries, keys and values."""

    def decode(
        self, qkv: int, keys: int, values: int, positions: int, out: int, rows: int, context: int, stream: int
    ) -> None:
        """Attend from one new token a row to what the caches hold."""

    def cache(
        self, qkv: int, keys: int, values: int, B: int, T: int, first_row: int, context: int, stream: int
    ) -> None:
        """Copy a prompt's keys and values into the caches."""

    def close(self) -> None:
        """Give everything back."""


def attention_of(config: EngineConfig, precision: Precision, architecture: str) -> str:
    """Return the name of the attention that a configuration gets.

    ``mma`` and ``hopper`` are kernels of our own; ``auto`` is the second where it has a kernel, else the first.
    """
    wanted = str(config.options.get("attention", "auto"))
    if wanted != "auto":
        return wanted
    return "hopper" if has_kernel(config.model.head_dim, precision, architecture) else "mma"


def check_attention(config: EngineConfig, device: Device, precision: Precision) -> None:
    """Refuse an attention that cannot compute this, before anything is opened.

    Raises
    ------
    AndreaError
        Says what it can compute.
    """
    architecture = architecture_of(device.capability)
    chosen = attention_of(config, precision, architecture)
    if chosen == "cudnn":
        check_cudnn(config, device, precision)
    elif chosen == "hopper":
        hopper_cell(config.model.head_dim, precision, architecture)


def open_attention(config: EngineConfig, precision: Precision, architecture: str) -> AttentionKernels:
    """Return the attention of a configuration, loaded into the current context.

    Raises
    ------
    AndreaError
        When it cannot compute this.
    """
    model, chosen = config.model, attention_of(config, precision, architecture)
    shape = (model.head_dim, model.n_head, precision, architecture)
    if chosen == "cudnn":
        return CudnnAttention(*shape, config.batch_size, model.context, config.training)
    if chosen == "hopper":
        return HopperAttention(*shape)
    return Attention(*shape)
