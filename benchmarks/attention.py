"""Attention and our own matrix products against PyTorch's on one card: medians of 20 runs by events, in TFLOP/s.

    python benchmarks/attention.py [attention] [hopper] [tiles] [gemm]

Attention counts FLOPs at the causal half, the backward 2.5 times the forward. `tiles` times other tile choices, and
checks each against the tiles that are in use. Needs PyTorch, for memory, events and comparison only.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from andrea import Precision
from andrea.engine.attention import FILES, ROW_BYTES, TILES, Attention, Tiles, cell_of, type_macros
from andrea.engine.attention_hopper import TILES as HOPPER_TILES
from andrea.engine.attention_hopper import HopperAttention, HopperTiles, has_kernel
from andrea.engine.compiler import architecture_of, compile_kernels
from andrea.engine.gemm import WORKSPACE_BYTES, Problem
from andrea.engine.own_gemm import OwnGemms

TYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
PRECISIONS = {
    "fp32": Precision("fp32"),
    "tf32": Precision("tf32", multiply="tf32"),
    "fp16": Precision("fp16", "float16", "float16"),
    "bf16": Precision("bf16", "bfloat16", "bfloat16"),
}
REPEATS = 20


def milliseconds(run):
    """Return the median time of a launch, after two that warm up."""
    for _ in range(2):
        run()
    times = []
    for _ in range(REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def architecture():
    """Return the name of this card's architecture."""
    return architecture_of(torch.cuda.get_device_capability())


class Case:
    """One shape of attention, with memory for forward and backward."""

    def __init__(self, name, B, T, H, D):
        self.name, self.B, self.T, self.H, self.D = name, B, T, H, D
        make = {"device": "cuda", "dtype": TYPES[name]}
        self.qkv, self.dout = torch.randn(B, T, 3, H, D, **make), torch.randn(B, T, H, D, **make)
        self.out, self.dqkv = torch.empty_like(self.dout), torch.empty_like(self.qkv)
        self.lse = torch.empty(B, H, T, device="cuda")
        self.rows = torch.empty(B * H * T * ROW_BYTES, device="cuda", dtype=torch.uint8)
        self.operations = 2 * B * H * T * T * D

    def runs(self, attention):
        """Return the launches of forward and backward."""
        stream = torch.cuda.current_stream().cuda_stream
        at = {key: getattr(self, key).data_ptr() for key in ("qkv", "out", "lse", "dout", "dqkv", "rows")}

        def forward():
            attention.forward(at["qkv"], at["out"], at["lse"], self.B, self.T, stream)

        def backward():
            inputs = at["qkv"], at["out"], at["lse"], at["dout"]
            attention.backward(*inputs, at["dqkv"], at["rows"], self.B, self.T, stream)

        return forward, backward

    def rates(self, attention):
        """Return TFLOP/s of forward and backward."""
        forward, backward = self.runs(attention)
        return self.operations / milliseconds(forward) / 1e9, 2.5 * self.operations / milliseconds(backward) / 1e9

    def peer_rates(self, backend):
        """Return the same of PyTorch with one backend."""
        q, k, v = (x.transpose(1, 2).detach().requires_grad_() for x in self.qkv.unbind(2))
        with sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            with torch.no_grad():
                forward = milliseconds(
                    lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                )
            gradient = self.dout.transpose(1, 2)
            backward = milliseconds(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True))
        return self.operations / forward / 1e9, 2.5 * self.operations / backward / 1e9


#: Precision, rows, width of a head, heads.
SHAPES = [
    ("bf16", 64, 64, 12),
    ("bf16", 64, 32, 12),
    ("bf16", 32, 64, 24),
    ("bf16", 16, 128, 12),
    ("bf16", 8, 64, 12),
    ("fp16", 64, 64, 12),
    ("tf32", 64, 64, 12),
    ("fp32", 16, 64, 12),
]


def measure_attention():
    """Print our rates beside PyTorch's backends."""
    for name, B, D, H in SHAPES:
        case = Case(name, B, 1024, H, D)
        attention = Attention(D, H, PRECISIONS[name], architecture())
        line = f"{name} B {B} H {H} D {D}: ours {_pair(case.rates(attention))}"
        if name == "bf16":
            for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
                line += f"   {backend.name.lower()} {_pair(case.peer_rates(backend))}"
        print(line, flush=True)
        attention.close()


#: Tiles of the wgmma kernels worth trying at D = 64: groups, stages, resident; each kernel varied alone.
HOPPER_CANDIDATES = (
    [(2, 4, 2), (2, 3, 2), (1, 2, 4), (3, 4, 1), (4, 4, 1)],
    [(2, 4, 2), (2, 3, 2), (3, 3, 1), (1, 3, 3), (1, 2, 4)],
    [(1, 3, 3), (1, 2, 3), (3, 4, 1), (2, 3, 1), (2, 4, 1)],
)


def measure_hopper():
    """Print the rates of the wgmma kernels beside the plain ones and PyTorch's, then those of other tiles."""
    for name, B, D, H in SHAPES:
        if not has_kernel(D, PRECISIONS[name], architecture()):
            continue
        case, line = Case(name, B, 1024, H, D), f"{name} B {B} H {H} D {D}:"
        for title, kind in (("mma", Attention), ("wgmma", HopperAttention)):
            attention = kind(D, H, PRECISIONS[name], architecture())
            line += f" {title} {_pair(case.rates(attention))}  "
            attention.close()
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            line += f" {backend.name.lower()} {_pair(case.peer_rates(backend))}  "
        print(line, flush=True)
    case = Case("bf16", 64, 1024, 12, 64)
    for kind, candidates in enumerate(HOPPER_CANDIDATES):
        for candidate in candidates:
            tiles = list(HOPPER_TILES[64])
            tiles[kind] = HopperTiles(*candidate)
            attention = HopperAttention(64, 12, PRECISIONS["bf16"], architecture(), tuple(tiles))
            print(f"{('forward', 'query', 'key')[kind]:8s}{candidate!s:16s}{_pair(case.rates(attention))}", flush=True)
            attention.close()


def _pair(rates):
    return f"{rates[0]:5.0f} {rates[1]:5.0f}"


#: Tiles worth trying in 16 bits: forward, dQ, dK and dV, each varied alone.
CANDIDATES = {
    64: (
        [(4, 2, 64, 64, 1, 2), (4, 1, 64, 64, 1, 3), (4, 1, 128, 128, 1, 2), (4, 2, 32, 32, 1, 2), (8, 1, 64, 64, 1, 1),
         (4, 2, 32, 32, 0, 3), (8, 2, 64, 64, 1, 1), (4, 2, 64, 64, 0, 2), (2, 2, 64, 64, 1, 4)],
        [(4, 2, 64, 16, 1, 2), (4, 1, 64, 32, 1, 3), (4, 1, 64, 64, 1, 2), (4, 2, 64, 32, 0, 2), (4, 2, 32, 16, 1, 2),
         (8, 1, 64, 32, 1, 1), (8, 2, 64, 16, 1, 1), (4, 2, 64, 16, 0, 2), (4, 1, 64, 16, 1, 3)],
        [(4, 1, 64, 32, 1, 2), (4, 1, 64, 32, 0, 3), (4, 1, 64, 64, 1, 2), (4, 2, 64, 16, 0, 2), (8, 1, 64, 32, 1, 1),
         (8, 1, 64, 64, 1, 1), (4, 1, 32, 32, 1, 2), (8, 2, 64, 16, 0, 1), (4, 1, 64, 16, 1, 2)],
    ),
    32: (
        [(4, 2, 64, 64, 1, 2), (4, 1, 64, 64, 1, 4), (4, 1, 128, 128, 1, 3), (4, 2, 32, 32, 1, 3),
         (4, 2, 128, 128, 1, 1), (4, 1, 64, 64, 1, 3), (8, 2, 64, 64, 1, 1), (4, 2, 32, 32, 1, 4)],
        [(4, 2, 64, 32, 1, 2), (4, 1, 64, 32, 1, 4), (4, 1, 64, 64, 1, 3), (4, 2, 64, 16, 1, 3),
         (4, 2, 64, 64, 1, 1), (4, 2, 64, 16, 1, 2), (4, 1, 64, 16, 1, 4), (8, 2, 64, 32, 1, 1)],
        [(4, 1, 64, 32, 1, 2), (4, 1, 64, 32, 1, 3), (4, 1, 64, 64, 1, 2), (4, 2, 64, 32, 1, 2), (4, 2, 64, 16, 1, 2),
         (4, 1, 64, 16, 1, 4), (8, 2, 64, 32, 1, 1), (4, 1, 64, 64, 1, 3)],
    ),
    128: (
        [(4, 1, 64, 64, 1, 2), (4, 1, 32, 32, 1, 2), (4, 2, 32, 32, 0, 1), (8, 1, 64, 64, 1, 1)],
        [(4, 1, 32, 32, 1, 2), (4, 1, 32, 16, 1, 2), (4, 1, 64, 32, 1, 2), (8, 1, 64, 32, 1, 1)],
        [(4, 1, 32, 16, 0, 2), (4, 1, 32, 32, 0, 2), (8, 1, 32, 32, 0, 1), (4, 1, 64, 16, 0, 2)],
    ),
}  # fmt: skip


def compile_ahead(choice):
    """Compile one choice of tiles into the cache; a process does several at once."""
    D, tiles = choice
    precision, name = PRECISIONS["bf16"], "sm_90a"
    compile_kernels(FILES, type_macros(precision) | cell_of(D, precision, name, tiles).macros, name)


def choices():
    """Return every (D, kind, candidate, tiles of all three kernels)."""
    result = []
    for D, kinds in CANDIDATES.items():
        for kind, candidates in enumerate(kinds):
            for candidate in candidates:
                tiles = list(TILES[2, D])
                tiles[kind] = Tiles(*candidate)
                result.append((D, kind, candidate, tuple(tiles)))
    return result


def measure_tiles():
    """Print the time of each kernel with each of its candidates, and whether the results agree."""
    with multiprocessing.get_context("spawn").Pool() as pool:
        pool.map(compile_ahead, [(D, tiles) for D, _, _, tiles in choices()], chunksize=1)
    for D in CANDIDATES:
        case = Case("bf16", 64, 1024, 12, D)
        attention = Attention(D, 12, PRECISIONS["bf16"], architecture())
        for run in case.runs(attention):
            run()
        reference = case.out.clone(), case.dqkv.clone()
        attention.close()
        for width, kind, candidate, tiles in choices():
            if width != D:
                continue
            attention = Attention(D, 12, PRECISIONS["bf16"], architecture(), tiles)
            forward, backward = case.runs(attention)
            times = milliseconds(forward), milliseconds(backward)
            results = zip((case.out, case.dqkv), reference, strict=True)
            errors = [float((a - b).norm() / b.norm()) for a, b in results]
            part = ("forward", "query", "key")[kind]
            print(
                f"D {D} {part:8s}{candidate!s:26s}{times[kind > 0]:.3f} ms   {errors[0]:.1e} {errors[1]:.1e}",
                flush=True,
            )
            attention.close()


def measure_gemm():
    """Print our products beside PyTorch's."""
    for name in ("bf16", "fp16", "tf32", "fp32"):
        storage = PRECISIONS[name].storage
        gemms = OwnGemms(PRECISIONS[name], architecture())
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        gemms.workspaces[torch.cuda.current_stream().cuda_stream] = workspace.data_ptr()
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        sizes = [(8192, 8192, 8192, "nt"), (65536, 2304, 768, "nn"), (65536, 768, 3072, "nt"), (768, 768, 65536, "tn")]
        for m, n, k, letters in sizes if name != "fp32" else [(4096, 4096, 4096, "nn"), *sizes[1:]]:
            ta, tb = letters[0] == "t", letters[1] == "t"
            a = torch.randn((k, m) if ta else (m, k), device="cuda", dtype=TYPES[name])
            b = torch.randn((n, k) if tb else (k, n), device="cuda", dtype=TYPES[name])
            result = "float32" if letters == "tn" else storage
            d = torch.empty(m, n, device="cuda", dtype=torch.float32 if result == "float32" else TYPES[name])
            leads = (m if ta else k, k if tb else n, n)
            product = gemms.prepare(Problem(m, n, k, ta, tb, *leads, storage, result, name == "tf32"))
            pointers = a.data_ptr(), b.data_ptr(), d.data_ptr(), torch.cuda.current_stream().cuda_stream
            ours = milliseconds(lambda product=product, pointers=pointers: product(*pointers))
            left, right = a.T if ta else a, b.T if tb else b
            error = float((d.float() - (left @ right).float()).norm() / d.float().norm())
            peer = milliseconds(lambda left=left, right=right: left @ right)
            rate = 2 * m * n * k / 1e9
            print(f"{name} {m}x{n}x{k} {letters}: ours {rate / ours:5.0f}  torch {rate / peer:5.0f} TFLOP/s  "
                  f"difference {error:.1e}", flush=True)  # fmt: skip
        gemms.close()


if __name__ == "__main__":
    parts = {"attention": measure_attention, "hopper": measure_hopper, "tiles": measure_tiles, "gemm": measure_gemm}
    for part in sys.argv[1:] or parts:
        parts[part]()
