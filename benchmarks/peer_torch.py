"""The model in PyTorch, as fast as PyTorch alone makes it: the yardstick of `andrea benchmark`.

Same shapes, same arithmetic, one update = forward, backward, clip, AdamW: torch.compile, bfloat16 autocast, the fastest
attention backend that runs here, fused AdamW, vocabulary padded to a multiple of 128. Prints one JSON document.

    python benchmarks/peer_torch.py --layers 12 --heads 12 --width 768 --vocabulary 8449 --batch 64 8
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); no biases in the linear layers."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        for linear in (self.qkv, self.out, self.up, self.down):
            nn.init.normal_(linear.weight, std=0.02)
        for linear in (self.out, self.down):
            linear.weight.data /= math.sqrt(2 * layers)

    def forward(self, x_btc: torch.Tensor) -> torch.Tensor:
        """Return the block's output, the shape of its input."""
        B, T, C = x_btc.shape
        q, k, v = self.qkv(self.norm1(x_btc)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_btc = x_btc + self.out(y.transpose(1, 2).reshape(B, T, C))
        return x_btc + self.down(functional.gelu(self.up(self.norm2(x_btc)), approximate="tanh"))


class Model(nn.Module):
    """Embedding, positions, blocks, final norm, tied head and loss."""

    def __init__(self, vocabulary: int, padded: int, context: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.embed, self.position = nn.Embedding(padded, width), nn.Embedding(context, width)
        nn.init.normal_(self.embed.weight, std=width**-0.5)
        nn.init.normal_(self.position.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(width, heads, layers) for _ in range(layers))
        self.final = nn.LayerNorm(width)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss, nats per token."""
        x = self.embed(inputs) + self.position.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.final(x), self.embed.weight)
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1).long())


def measure(options: argparse.Namespace, batch: int, backend: str) -> dict[str, object]:
    """Time `options.steps` updates after warm-up; returns medians and memory."""
    torch.manual_seed(0)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    padded = -(-options.vocabulary // 128) * 128
    model = Model(options.vocabulary, padded, options.context, options.width, options.heads, options.layers).cuda()
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, fused=True)
    compiled = torch.compile(model)
    tokens = torch.randint(0, options.vocabulary, (batch, options.context + 1), device="cuda")
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16), sdpa_kernel([BACKENDS[backend]]):
            loss = compiled(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(options.warmup):
        step()
    torch.cuda.synchronize()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(options.steps + 1)]
    begin = time.perf_counter()
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    wall = (time.perf_counter() - begin) / options.steps
    times = sorted(a.elapsed_time(b) for a, b in itertools.pairwise(marks))
    median = statistics.median(times)
    return {
        "batch": batch,
        "backend": backend,
        "median_ms": median,
        "p95_ms": times[min(len(times) - 1, int(0.95 * len(times)))],
        "wall_ms": wall * 1e3,
        "tokens_per_second": batch * options.context / median * 1e3,
        "memory_bytes": torch.cuda.max_memory_allocated(),
    }


def main() -> None:
    """Measure each batch with each backend and keep the faster."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("layers", 12), ("heads", 12), ("width", 768), ("vocabulary", 8449), ("context", 1024)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--batch", type=int, nargs="+", default=[64])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--backends", nargs="+", choices=sorted(BACKENDS), default=sorted(BACKENDS))
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    results = []
    for batch in options.batch:
        found = []
        for backend in options.backends:
            torch.compiler.reset()
            try:
                found.append(measure(options, batch, backend))
            except RuntimeError as error:  # a backend that refuses the shape
                found.append({"batch": batch, "backend": backend, "failed": str(error).splitlines()[0]})
        results.append(max(found, key=lambda one: float(str(one.get("tokens_per_second", 0)))) | {"tried": found})
    print(json.dumps({"torch": torch.__version__, "card": torch.cuda.get_device_name(), "results": results}))


if __name__ == "__main__":
    main()
