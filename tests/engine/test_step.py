"""The CUDA engine's sequence of launches, on a card that is imitated in numpy: same buffers, same arguments, float32.

Every kernel is replaced by its twin working on the same addresses, so what is tested is everything but the kernels:
which buffer goes where, in which order, what survives a step, and the layout of parameters.
"""

from __future__ import annotations

import ctypes
import types
from typing import Any, ClassVar

import numpy as np
import pytest
from attrs import evolve

from andrea.engine import EngineConfig, GenerateOptions, generate
from andrea.engine import operations as op
from andrea.engine.benchmark import measure, random_batch
from andrea.engine.elementwise import CHUNK, STATE, Elementwise
from andrea.engine.fp8 import MATRIX, PRODUCTS, SCALE_FLOATS
from andrea.engine.model import ModelConfig, initial_weights
from andrea.engine.network import add_gradients, tensors
from andrea.engine.operations8 import Operations8
from andrea.engine.reference import ReferenceEngine
from andrea.engine.sampling import choose
from andrea.engine.schedule import OptimizerConfig, ScheduleConfig
from andrea.errors import AndreaError
from andrea.types import Device, Precision

FP32 = Precision("fp32")
CARD = Device("cuda", "imitated", (9, 0))
FAST = ScheduleConfig(steps=1000, warmup_steps=0, peak=1e-3)
SMALL = EngineConfig(ModelConfig(2, 2, 64, context=16), vocabulary=140, batch_size=3, schedule=FAST)
SHAPES = {
    "small": SMALL,
    "odd": evolve(SMALL, model=ModelConfig(2, 3, 96, context=7), vocabulary=131),
    "accumulation": evolve(SMALL, batch_size=2, accumulation=3),
    "untied": evolve(SMALL, model=ModelConfig(2, 2, 64, context=16, tie_embeddings=False)),
    "plain norms": evolve(SMALL, model=ModelConfig(2, 2, 64, context=16, norm_affine=False)),
    "one layer, one token": evolve(SMALL, model=ModelConfig(1, 1, 32, context=1), batch_size=1),
}


def array(address, *shape, dtype=np.float32):
    """View memory at an address."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address)).view(dtype).reshape(shape)


class HostDriver:
    """The driver's calls that the engine makes, on host memory; copies are immediate."""

    def __init__(self):
        self.blocks = {}
        self.allocations = 0
        self.calls = []
        self.streams = set()

    def _allocate(self, size, *_):
        block = ctypes.create_string_buffer(size + 256)
        address = -(-ctypes.addressof(block) // 256) * 256
        ctypes.memset(address, 0x7F, size)  # nobody may count on zeros
        self.blocks[address] = block
        self.allocations += 1
        return 0, address

    cuMemAlloc = cuMemHostAlloc = _allocate  # noqa: N815

    def cuMemFree(self, address):  # noqa: N802
        del self.blocks[address]
        return (0,)

    cuMemFreeHost = cuMemFree  # noqa: N815

    def _copy(self, to, source, size, *_):
        ctypes.memmove(to, source, size)
        return (0,)

    cuMemcpyHtoD = cuMemcpyDtoH = _copy  # noqa: N815

    def cuMemcpyHtoDAsync(self, *copy):  # noqa: N802
        self.calls.append("inputs")
        return self._copy(*copy)

    def cuMemcpyDtoHAsync(self, *copy):  # noqa: N802
        self.calls.append("results")
        return self._copy(*copy)

    def _fill(self, to, value, size, *_):
        ctypes.memset(to, value, size)
        return (0,)

    cuMemsetD8 = cuMemsetD8Async = _fill  # noqa: N815

    def cuCtxGetStreamPriorityRange(self):  # noqa: N802
        return 0, 0, -5

    def cuStreamCreateWithPriority(self, _flags, priority):  # noqa: N802
        return 0, 10 - priority

    def cuMemGetInfo(self):  # noqa: N802
        return 0, 8 << 30, 8 << 30

    def cuEventRecord(self, event, _stream):  # noqa: N802
        self.calls.append("event")
        return (0,)

    def cuEventSynchronize(self, event):  # noqa: N802
        self.calls.append("wait")
        return (0,)

    def __getattr__(self, name):
        return lambda *_: (0, 1.0)


class HostKernels:
    """Kernels by name, each the numpy twin on the launch's own arguments."""

    def __init__(self, host):
        self.host = host

    def kernel(self, name):
        def launch(grid, _block, _shared, stream, *arguments):
            self.host.calls.append(name)
            self.host.streams.add(stream)
            SHAPE["grid"] = grid
            globals()[name](*arguments)

        return launch

    def close(self):
        pass


def k_embed_fwd(ids, embed, position, x, N, T, C):
    ids_N = array(ids, N, dtype=np.int32)
    array(x, N, C)[:] = array(embed, int(ids_N.max()) + 1, C)[ids_N] + array(position, T, C)[np.arange(N) % T]


def k_decode_embed(ids, positions, embed, position, x, C):
    B = SHAPE["B"]
    for row, (one, at) in enumerate(
        zip(array(ids, B, dtype=np.int32), array(positions, B, dtype=np.int32), strict=True)
    ):
        if at >= 0:
            array(x, B, C)[row] = array(embed, one + 1, C)[one] + array(position, at + 1, C)[at]


def k_embed_bwd(dx, ids, order, dembed, partials, N, C):
    ids_N, order_N = array(ids, N, dtype=np.int32), array(order, N, dtype=np.int32)
    assert order_N.tolist() == np.argsort(ids_N, kind="stable").tolist()
    for place in order_N:
        array(dembed, int(ids_N.max()) + 1, C)[ids_N[place]] += array(dx, N, C)[place]


def k_embed_bwd_borders(*_):
    pass


def k_embed_bwd_position(dx, dposition, B, TC):
    array(dposition, TC)[:] += array(dx, B, TC).sum(axis=0)


def affine(gamma, beta, C):
    return (array(gamma, C), array(beta, C)) if gamma else (None, None)


def k_layernorm_fwd(x, gamma, beta, y, mean, rstd, N, C, epsilon):
    assert epsilon == op.NORM_EPSILON
    found = op.k_layernorm_fwd(array(x, 1, N, C), *affine(gamma, beta, C))
    for address, value in zip((y, mean, rstd), found, strict=True):
        array(address, value.size)[:] = value.reshape(-1)


def k_residual_layernorm_fwd(x, branch, gamma, beta, total, y, mean, rstd, N, C, epsilon):
    array(total, N, C)[:] = array(x, N, C) + array(branch, N, C)
    k_layernorm_fwd(total, gamma, beta, y, mean, rstd, N, C, epsilon)


def k_layernorm_bwd(dy, x, mean, rstd, gamma, dskip, dx, partials, N, C, *_):
    scale = array(gamma, C) if gamma else None
    dgamma, dbeta = (np.zeros(C, np.float32), np.zeros(C, np.float32)) if gamma else (None, None)
    statistics = array(mean, 1, N), array(rstd, 1, N)
    result = op.k_layernorm_bwd(array(dy, 1, N, C), array(x, 1, N, C), *statistics, scale, dgamma, dbeta)[0]
    array(dx, N, C)[:] = result + array(dskip, N, C) if dskip else result
    if gamma:
        shares = array(partials, Elementwise.norm_shares(N), 2, C)
        shares[:] = 0
        shares[0] = dgamma, dbeta


def k_layernorm_bwd_final(partials, shares, gradients, places, C):
    norms = SHAPE["norms"]
    sums = array(partials, norms, shares, 2, C).sum(axis=1)
    for total, place in zip(sums.reshape(-1, C), array(places, 2 * norms, dtype=np.int64), strict=True):
        array(gradients + 4 * int(place), C)[:] += total


def k_gelu_fwd(pre, out, n):
    array(out, n)[:] = op._gelu(array(pre, n))


def k_gelu_bwd(dact, pre, out, n):
    array(out, n)[:] = array(dact, n) * op._gelu_and_slope(array(pre, n).copy())[1]


def k_norm_matvec(x, parts, gamma, beta, total, weight, y, B, C, outputs, epsilon, gelu=0, turned=False):
    assert epsilon == op.NORM_EPSILON
    assert total != x
    given = array(x, B, C), array(parts, op.MATVEC_PARTS, B, C) if parts else None, *affine(gamma, beta, C)
    if turned:
        found = op.k_norm_matvec_head(*given, array(weight, outputs, C))
    else:
        found = op.k_norm_matvec(*given, array(weight, C, outputs), bool(gelu))
    array(y, B, outputs)[:], array(total, B, C)[:] = found


def k_norm_matvec_head(*arguments):
    k_norm_matvec(*arguments, turned=True)


def k_matvec_parts(x, weight, parts, B, inputs, outputs):
    found = op.k_matvec_parts(array(x, B, inputs), array(weight, inputs, outputs))
    array(parts, *found.shape)[:] = found


k_norm_matvec_rows, k_norm_matvec_head_rows, k_matvec_parts_rows = k_norm_matvec, k_norm_matvec_head, k_matvec_parts


def k_loss_fwd(logits, targets, losses, V, stride):
    N = SHAPE["N"]
    rows = array(logits, N, stride)[:, None, :V]
    array(losses, N)[:] = op.k_loss_fwd(rows, array(targets, N, 1, dtype=np.int32))[0]


def k_loss_bwd(logits, targets, losses, loss_scale, share, V, stride, keep):
    N = SHAPE["N"]
    k_loss_fwd(logits, targets, losses, V, stride)
    rows, wanted = array(logits, N, stride), array(targets, N, 1, dtype=np.int32)
    part = rows[:, None, :V].copy()
    _, lse = op.k_loss_fwd(part, wanted)
    rows[:, V:] = 0
    rows[:, :V] = op.k_loss_bwd(part, wanted, lse, float(array(loss_scale, 1)[0]) * share)[:, 0]


def k_loss_rows(losses, targets, row_losses, T):
    B = SHAPE["B"]
    valid = array(targets, B, T, dtype=np.int32) >= 0
    sums = (array(losses, B, T) * valid).sum(axis=1)
    array(row_losses, B)[:] = sums / np.maximum(valid.sum(axis=1), 1)


def k_grad_norm_partial(gradients, partials, n):
    array(partials, -(-n // 8192))[:] = 0
    array(partials, 1)[0] = float(np.square(array(gradients, n).astype(np.float64)).sum())


def k_grad_norm_final(partials, count, state, max_norm, beta1, beta2):
    held = array(state, 1, dtype=STATE)
    norm = float(np.sqrt(array(partials, count).astype(np.float64).sum())) / float(held["loss_scale"][0])
    held["grad_norm"], held["skipped"] = norm, not np.isfinite(norm)
    held["skips"] += held["skipped"]
    if not held["skipped"][0]:
        held["applied"] += 1
        held["factor"] = op.clip_scale(norm, max_norm) / held["loss_scale"]
        held["correction1"] = 1 / (1 - beta1 ** float(held["applied"][0]))
        held["correction2"] = 1 / np.sqrt(1 - beta2 ** float(held["applied"][0]))


def k_adamw(chunks, weights, gradients, first, second, copies, state, rate, beta1, beta2, epsilon, decay):
    held = array(state, 1, dtype=STATE)[0]
    if held["skipped"]:
        return
    for c in array(chunks, SHAPE["chunks"], dtype=CHUNK):
        w, m, v = (array(base + 4 * int(c["parameter"]), c["size"]) for base in (weights, first, second))
        g = array(gradients + 4 * int(c["gradient"]), c["size"]) * held["factor"]
        lr = float(array(rate, 1)[0])
        update = {"rate": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon, "update": int(held["applied"])}
        op.k_adamw(w, g, m, v, decay=decay if c["decay"] else 0.0, **update)
    k_working_copy(chunks, weights, copies, state)


def k_working_copy(chunks, weights, copies, state):
    for c in array(chunks, SHAPE["chunks"], dtype=CHUNK):
        if c["copy"] < 0:
            continue
        assert c["stride"] == c["row"] or c["column"] + c["size"] <= c["row"]  # so its copy is one piece
        to = array(copies + 4 * (int(c["copy"]) + int(c["column"])), c["size"])
        to[:] = array(weights + 4 * int(c["parameter"]), c["size"])


def k_zero(out, size):
    ctypes.memset(out, 0, size)


def k_loss_scale(state, window):
    assert window == 0


def k_order_count(ids, counts, N, V):
    for i, one in enumerate(array(ids, N, dtype=np.int32)):
        array(counts, -(-N // 512), V, dtype=np.int32)[i // 512, one] += 1


def k_order_chunks(counts, totals, chunks, V):
    table = array(counts, chunks, V, dtype=np.int32)
    array(totals, V, dtype=np.int32)[:] = table.sum(axis=0)
    table[:] = np.cumsum(table, axis=0) - table


def k_order_starts(totals, V):
    found = array(totals, V, dtype=np.int32)
    found[:] = np.cumsum(found) - found


def k_order_place(ids, counts, starts, order, N, V):
    table = array(counts, -(-N // 512), V, dtype=np.int32)
    for i, one in enumerate(array(ids, N, dtype=np.int32)):
        array(order, N, dtype=np.int32)[array(starts, V, dtype=np.int32)[one] + table[i // 512, one]] = i
        table[i // 512, one] += 1


def k_sample(logits, V, stride, options, seen, uniforms, weights, keys, ids, positions, counts, tokens, capacity):
    B = SHAPE["B"]
    temperature, top_p, penalty, top_k = array(options, 4, dtype=np.float64)
    chosen = GenerateOptions(temperature=temperature, top_p=float(top_p), repetition_penalty=penalty, top_k=int(top_k))
    for row in range(B):
        if array(positions, B, dtype=np.int32)[row] < 0:
            continue
        count = array(counts, B, dtype=np.int32)[row]
        history = np.flatnonzero(array(seen, B, V, dtype=np.uint8)[row])
        uniform = array(uniforms, B, capacity, dtype=np.float64)[row, count]
        one = choose(array(logits, B, stride)[row, :V], chosen, history, uniform)
        array(tokens, B, capacity, dtype=np.int32)[row, count] = array(ids, B, dtype=np.int32)[row] = one
        array(seen, B, V, dtype=np.uint8)[row, one] = 1
        array(positions, B, dtype=np.int32)[row] += 1
        array(counts, B, dtype=np.int32)[row] += 1


def cast(kernel, x, codes, turned, scale, amax, N, C):
    """Launch a kernel that casts (N, C): leaves codes in the orders wanted, and raises the largest magnitude."""
    *made, straight, other, top = kernel(array(x, N, C), float(array(scale, 1)[0]))
    for address, found in ((codes, straight), (turned, other)):
        if address:
            array(address, *found.shape, dtype=np.uint8)[:] = found
    array(amax, 1)[0] = max(array(amax, 1)[0], top)
    return made


def k_fp8_e4m3(x, *rest):
    cast(op.k_fp8_e4m3, x, *rest)


def k_fp8_e5m2(x, *rest):
    cast(op.k_fp8_e5m2, x, *rest)


def k_fp8_gelu_fwd(pre, out, *rest):
    (made,) = cast(op.k_fp8_gelu_fwd, pre, *rest)
    if out:
        array(out, *made.shape)[:] = made


def k_fp8_gelu_bwd(dact, pre, out, *rest):
    slopes = array(pre, *rest[-2:]).copy()
    (made,) = cast(lambda d, factor: op.k_fp8_gelu_bwd(d, slopes, factor), dact, *rest)
    array(out or dact, *made.shape)[:] = made if out else np.nan


def k_fp8_scales(history, amax, scales, state, tensors, forwards, record):
    held = array(state, 1, dtype=STATE)[0]
    given = array(history, tensors, 16), array(amax, tensors), forwards, int(held["applied"])
    array(scales, tensors, 2, SCALE_FLOATS)[:, :, 0] = op.k_fp8_scales(*given, bool(record and not held["skipped"]))


def fp8_matrices(matrices, weights):
    """Give the rows of a table of matrices and their values."""
    for row in array(matrices, SHAPE["grid"][1], dtype=MATRIX):
        yield row, array(weights + 4 * int(row["source"]), row["rows"], row["columns"])


def k_fp8_weights_amax(matrices, weights, amax):
    for m, (_, values) in enumerate(fp8_matrices(matrices, weights)):
        assert array(amax, SHAPE["grid"][1])[m] == 0
        array(amax, SHAPE["grid"][1])[m] = op.k_fp8_weights_amax(values)


def k_fp8_weights(matrices, weights, amax, scales, codes):
    for m, (row, values) in enumerate(fp8_matrices(matrices, weights)):
        straight, turned, factor = op.k_fp8_weights(values, float(array(amax, SHAPE["grid"][1])[m]))
        array(scales, SHAPE["grid"][1], 2, SCALE_FLOATS)[m, :, 0] = factor, 1 / factor
        for place, made in ((row["straight"], straight), (row["turned"], turned)):
            if place >= 0:
                array(codes + int(place), *made.shape, dtype=np.uint8)[:] = made


class HostAttention:
    """Attention by its twin."""

    name = "mma"
    version = ""

    def __init__(self, heads):
        self.heads = heads

    def _split(self, qkv, B, T, C):
        return np.ascontiguousarray(array(qkv, B, T, 3, C).transpose(2, 0, 1, 3))

    def forward(self, qkv, out, lse, B, T, stream):
        C = SHAPE["C"]
        y, found = op.k_attn_fwd(self._split(qkv, B, T, C), self.heads)
        array(out, B, T, C)[:], array(lse, B, self.heads, T)[:] = y, found

    def backward(self, qkv, out, lse, dout, dqkv, rows, B, T, stream):
        C = SHAPE["C"]
        array(rows, B, self.heads, T, 2)[:] = np.nan
        saved = array(out, B, T, C), array(lse, B, self.heads, T)
        found = op.k_attn_bwd(array(dout, B, T, C), self._split(qkv, B, T, C), *saved, self.heads)
        array(dqkv, B, T, 3, C)[:] = found.transpose(1, 2, 0, 3)

    def cache(self, qkv, keys, values, batches, tokens, first_row, context, stream):
        H, C, B = self.heads, SHAPE["C"], SHAPE["B"]
        _, k, v = self._split(qkv, batches, tokens, C)
        for to, given in ((keys, k), (values, v)):
            cache = array(to, B, H, context, C // H)
            cache[first_row : first_row + batches, :, :tokens] = given.reshape(batches, tokens, H, -1).swapaxes(1, 2)

    def decode(self, qkv, keys, values, lengths, out, rows, context, stream):
        H, C = self.heads, SHAPE["C"]
        D = C // H
        for r, length in enumerate(array(lengths, rows, dtype=np.int32)):
            if length < 0:
                array(out, rows, C)[r] = 0
                continue
            q, k, v = array(qkv, rows, 3, H, D)[r]
            for to, given in ((keys, k), (values, v)):
                array(to, rows, H, context, D)[r, :, length] = given
            k_HTD, v_HTD = (array(one, rows, H, context, D)[r, :, : length + 1] for one in (keys, values))
            scores = np.einsum("hd,htd->ht", q, k_HTD) / np.sqrt(D)
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            array(out, rows, H, D)[r] = np.einsum("ht,htd->hd", p / p.sum(axis=1, keepdims=True), v_HTD)

    def close(self):
        pass


class HostGemms:
    """Products by numpy, at addresses."""

    name, version = "numpy", "0"
    algorithm = ""

    def __init__(self):
        self.used, self.workspaces = {}, {}

    def prepare(self, p):
        self.used[p.key] = "numpy"

        def stored(address, kind, scale, *shape):
            if kind not in KINDS:
                return array(address, *shape)
            return op.decode_float8(array(address, *shape, dtype=np.uint8), KINDS[kind]) * array(scale, 1)[0]

        def run(a, b, d, stream, aux=0, scales=(0, 0)):
            left = stored(a, p.operand, scales[0], *((p.k, p.m) if p.transpose_a else (p.m, p.k)))
            kind_b = p.operand_b or p.operand
            right = stored(b, kind_b, scales[1], *((p.n, p.k) if p.transpose_b else (p.k, p.n)))
            found = (left.T if p.transpose_a else left) @ (right.T if p.transpose_b else right)
            to = array(d, p.m, p.n)
            if p.epilogue == "gelu":
                array(aux, p.m, p.n)[:] = found
                found = op._gelu(found)
            elif p.epilogue == "dgelu":
                found = found * op._gelu_and_slope(array(aux, p.m, p.n).copy())[1]
            to[:] = to + found if p.accumulate else found

        return run

    def close(self):
        pass


SHAPE: dict[str, Any] = {}
KINDS = {kind.name: kind for kind in (op.E4M3, op.E5M2)}


@pytest.fixture
def opened(monkeypatch):
    """Open engines on the imitated card."""
    from andrea.engine import branch, launcher, machine, optimizer, step

    host = HostDriver()
    for module in (branch, launcher, machine, step):
        monkeypatch.setattr(module, "driver", lambda: host)
    monkeypatch.setattr("andrea.engine.generate.driver", lambda: host)
    monkeypatch.setattr(machine, "compile_kernels", lambda *_: [])
    monkeypatch.setattr(machine, "Kernels", lambda _cubins: HostKernels(host))
    monkeypatch.setattr(machine, "open_attention", lambda *_: HostAttention(SHAPE["H"]))
    monkeypatch.setattr(machine, "open_gemms", lambda *_: HostGemms())
    assert isinstance(optimizer, types.ModuleType)
    engines = []

    def open_one(config, precision=FP32, **options):
        B, T, C = config.batch_size, config.model.context, config.model.d_model
        SHAPE.update(B=B, N=B * T, C=C, H=config.model.n_head)
        SHAPE["norms"] = len(machine.norms_with_parameters(config.model))
        SHAPE["chunks"] = len(machine.update_chunks(config.model, config.vocabulary))
        engines.append(step.CudaEngine(evolve(config, options={"graph": False} | options), CARD, precision))
        engines[-1].driver = host
        return engines[-1]

    yield open_one
    for engine in engines:
        engine.close()
    assert not host.blocks  # everything was given back


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_the_twins(opened, shape, fused):
    """Each launch reads and writes the right buffers: all gradients, losses and the norm are the twin's."""
    config = SHAPES[shape]
    engine = opened(config, fused_gelu=fused)
    inputs, targets = random_batch(config)
    result = engine.train_step(0, inputs, targets)
    weights = initial_weights(config.model, config.vocabulary, config.seed)
    expected = np.zeros_like(weights)
    views = tensors(weights, config.model, config.vocabulary), tensors(expected, config.model, config.vocabulary)
    losses = add_gradients(inputs, targets, *views, config.model, 1 / inputs.size)
    # float32 in both, sums in another order.
    np.testing.assert_allclose(result.row_losses, losses, rtol=1e-5)
    np.testing.assert_allclose(result.grad_norm, np.linalg.norm(expected), rtol=1e-5)
    got = np.concatenate([value.reshape(-1) for value in engine.gradients().values()])
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("shape", ["small", "untied", "plain norms", "accumulation"])
def test_steps_follow_the_reference(opened, shape):
    """Five steps move weights and moments as the numpy engine does, clipping included."""
    config = evolve(SHAPES[shape], optimizer=OptimizerConfig(max_grad_norm=0.5))
    engine, reference = opened(config), ReferenceEngine(config, FP32)
    for step in range(5):
        batch = random_batch(config, seed=step)
        got, want = engine.train_step(step, *batch), reference.train_step(step, *batch)
        np.testing.assert_allclose(got.row_losses, want.row_losses, rtol=1e-4)
    ours, theirs = engine.export_state(), reference.export_state()
    assert ours["applied_updates"] == theirs["applied_updates"] == 5
    for name in ("weights", "first_moments", "second_moments"):
        # Adam turns rounding of a tiny gradient into a step of the full rate for single weights: compare norms.
        assert np.linalg.norm(ours[name] - theirs[name]) < 1e-3 * np.linalg.norm(theirs[name])
    reference.close()


def test_state_goes_out_and_in(opened):
    """A state put into a fresh engine goes on with the same bytes; a wrong one is refused."""
    first, second = opened(SMALL), opened(evolve(SMALL, seed=5))
    first.train_step(0, *random_batch(SMALL))
    saved = first.export_state()
    second.import_state(saved)
    for engine in (first, second):
        engine.train_step(1, *random_batch(SMALL, seed=1))
    ours, theirs = first.export_state(), second.export_state()
    assert {name: value.tobytes() for name, value in ours.items()} == {n: v.tobytes() for n, v in theirs.items()}
    with pytest.raises(ValueError, match="wants"):
        second.import_state(saved | {"loss_scale": np.ones(1, np.float32)})


def test_update_without_finite_gradient_is_skipped(opened):
    """A weight that is not a number makes the update a no-op."""
    engine = opened(SMALL)
    saved = engine.export_state()
    saved["weights"][SMALL.vocabulary * 64 + 3] = np.nan
    engine.import_state(saved)
    with np.errstate(all="ignore"):
        result = engine.train_step(0, *random_batch(SMALL))
    assert result.skipped
    assert {n: v.tobytes() for n, v in engine.export_state().items()} == {n: v.tobytes() for n, v in saved.items()}


def test_evaluation_pads_rows_and_batches(opened):
    """Any number of rows, short rows, targets that do not count: as the numpy engine."""
    engine, reference = opened(SMALL), ReferenceEngine(SMALL, FP32)
    inputs, targets = random_batch(evolve(SMALL, batch_size=7))
    inputs, targets = inputs[:, :9].copy(), targets[:, :9].copy()
    targets[1, 3:], targets[5] = -1, -1
    got = engine.evaluate(inputs, targets)
    np.testing.assert_allclose(got, reference.evaluate(inputs, targets), rtol=1e-5)  # float32, another order
    assert got[5] == 0
    reference.close()


def test_probes_frame_the_update(opened):
    """A probe is measured before and after the update and does not disturb it."""
    engine, plain = opened(SMALL), opened(SMALL)
    probe, batch = random_batch(evolve(SMALL, batch_size=5), seed=8), random_batch(SMALL)
    before = float(engine.evaluate(*probe).mean(dtype=np.float64))
    result = engine.train_step(0, *batch, {"held": probe})
    assert result.probe_losses == {"held": (before, float(engine.evaluate(*probe).mean(dtype=np.float64)))}
    assert result.row_losses.tobytes() == plain.train_step(0, *batch).row_losses.tobytes()


def test_greedy_text_is_the_references(opened):
    """Caches, idle rows, more prompts than rows, and the jump of a full window give the numpy engine's ids."""
    engine, reference = opened(SMALL), ReferenceEngine(SMALL, FP32)
    for step in range(20):
        engine.train_step(step, *random_batch(SMALL))
    reference.import_state(engine.export_state())
    prompts = [[1], list(range(5)), list(range(40)), [7, 7], [139]]
    for options in (
        GenerateOptions(24, temperature=0),
        GenerateOptions(70, top_k=20, repetition_penalty=1.3, seed=4, stop=(3,)),
    ):
        got, want = engine.generate(prompts, options), reference.generate(prompts, options)
        assert [row.tolist() for row in got] == [row.tolist() for row in want]
    reference.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_few_rows_are_as_many(opened, monkeypatch, shape):
    """Logits of a position are the same, but for the order of sums, by either way, and each is launched as told."""
    engine = opened(evolve(SHAPES[shape], training=False))
    m, B, V = engine._machine, SHAPES[shape].batch_size, SHAPES[shape].vocabulary
    engine.import_state({"weights": initial_weights(SHAPES[shape].model, V, 0)})
    found = {}
    for few in (8, B, B - 1, 0):
        monkeypatch.setattr(Elementwise, "takes_few_rows", lambda _, rows, C, few=few: rows <= few)
        array(m.at("decode_ids"), B, dtype=np.int32)[:] = np.arange(B)
        array(m.at("decode_positions"), B, dtype=np.int32)[:] = 0
        array(m.at("decode_counts"), B, dtype=np.int32)[:] = 0
        array(m.at("logits"), B, m.V)[:] = np.nan
        engine.driver.calls.clear()
        generate.one_position(m)
        assert ("k_gelu_fwd" in engine.driver.calls) == (few < B)
        assert (engine.driver.calls.count("k_norm_matvec" + "_rows" * (B > 1)) == 2 * m.layers) == (few >= B)
        found[few] = array(m.at("logits"), B, m.V)[:, :V].copy()
    # float32 sums of at most 256 terms of order 1.
    np.testing.assert_allclose(found[8], found[0], rtol=1e-4, atol=1e-5)
    assert np.ptp(found[8], axis=1).min() > 0.1
    assert found[8].tobytes() == found[B].tobytes()
    assert found[0].tobytes() == found[B - 1].tobytes()


def test_wide_models_of_few_rows_take_the_library():
    """What a block would hold of eight rows must fit a block of the oldest card; one row fits far longer."""
    launch = Elementwise(None, "bfloat16")
    assert launch.takes_few_rows(8, 1536)
    assert launch.takes_few_rows(1, 5120)
    assert not launch.takes_few_rows(2, 5120)
    assert not launch.takes_few_rows(9, 64)
    assert Elementwise(None, "float32").takes_few_rows(8, 1536)


def test_text_is_watched_and_numbered_on(opened):
    """Every id is told, a true answer is a row's last, and rows drawn in parts are those drawn at once."""
    engine = opened(SMALL)
    options = GenerateOptions(70, seed=4)
    prompts = [[1], [7, 7], list(range(5)), [139], [2], [3]]
    free = [row.tolist() for row in engine.generate(prompts, options)]
    seen = [[] for _ in prompts]
    cut = engine.generate(prompts, options, lambda row, one: seen[row].append(one) or len(seen[row]) == 3 + 20 * row)
    assert [row.tolist() for row in cut] == seen == [row[: 3 + 20 * n] for n, row in enumerate(free)]
    second = engine.generate(prompts[2:], evolve(options, first=2))
    assert [row.tolist() for row in second] == free[2:]


def test_nothing_is_allocated_after_construction(opened):
    """Steps, evaluation, text and export take no memory of the card."""
    engine = opened(SMALL)
    count = engine.driver.allocations
    engine.train_step(0, *random_batch(SMALL))
    engine.evaluate(*random_batch(SMALL))
    engine.generate([[1]], GenerateOptions(3))
    engine.import_state(engine.export_state())
    assert engine.driver.allocations == count


def test_results_come_before_the_update(opened):
    """The host gets losses and norm before AdamW runs, waits for nothing else, and the next step sees new weights."""
    engine = opened(SMALL)
    engine.driver.calls.clear()
    finish = engine.launch_step(0, *random_batch(SMALL))
    calls = engine.driver.calls
    assert calls[0] == "inputs"
    assert "wait" not in calls  # the host is free until the function is called
    assert calls[-5:] == ["k_grad_norm_final", "results", "event", "k_adamw", "event"]
    assert finish().row_losses.shape == (SMALL.rows,)
    assert calls.count("wait") == 1
    moved = engine.train_step(1, *random_batch(SMALL)).row_losses
    whole = opened(SMALL)
    whole.train_step(0, *random_batch(SMALL))
    assert whole.train_step(1, *random_batch(SMALL)).row_losses.tobytes() == moved.tobytes()


def test_timing_is_of_two_steps(opened):
    """Before the second step nothing is known; then what the driver says, and the host's own time."""
    engine = opened(SMALL)
    engine.train_step(0, *random_batch(SMALL))
    assert engine.last_timing is None
    engine.train_step(1, *random_batch(SMALL))
    timing = engine.last_timing
    assert (timing.device_ms, timing.idle_ms) == (1.0, 1.0)  # what the imitated driver answers
    assert timing.host_ms > 0


class HostGraph:
    """A graph that knows the algorithm it was recorded with, and whether it was given back."""

    made: ClassVar[list[HostGraph]] = []
    nodes, other = 7, 0

    def __init__(self, _stream, record, _zero, _branches):
        self.record, self.algorithm, self.closed = record, HostGemms.algorithm, False
        self.made.append(self)

    def launch(self):
        assert not self.closed
        self.record()

    def close(self):
        assert not self.closed
        self.closed = True


def test_tuning_records_every_graph_anew(opened, monkeypatch):
    """After tuning no graph holds an old algorithm: step, update, evaluation, prompt and position."""
    from andrea.engine import step

    def tune(self, _time, _stream):
        monkeypatch.setattr(HostGemms, "algorithm", "fast")
        return {"card": {}}

    monkeypatch.setattr(HostGemms, "algorithm", "first")
    monkeypatch.setattr(HostGemms, "tune", tune, raising=False)
    monkeypatch.setattr(HostGraph, "made", [])
    monkeypatch.setattr(step, "CublasLt", HostGemms)
    monkeypatch.setattr("andrea.engine.machine.Graph", HostGraph)
    engine, plain = opened(SMALL, graph=True), opened(SMALL)
    assert engine.tune() == {"card": {}}
    assert [graph.algorithm for graph in HostGraph.made if graph.closed] == ["first"] * 5
    assert [graph.algorithm for graph in HostGraph.made if not graph.closed] == ["fast"] * 5
    batch = random_batch(SMALL)
    assert engine.train_step(0, *batch).row_losses.tobytes() == plain.train_step(0, *batch).row_losses.tobytes()
    options = GenerateOptions(9, seed=3)
    assert engine.generate([[1, 2]], options)[0].tolist() == plain.generate([[1, 2]], options)[0].tolist()
    assert engine.evaluate(*batch).tobytes() == plain.evaluate(*batch).tobytes()
    assert (engine.graph_nodes, plain.graph_nodes) == (7, None)
    monkeypatch.setattr("andrea.engine.benchmark.open_engine", lambda config, *_: opened(config, graph=True))
    assert measure(SMALL, CARD, FP32, steps=1, warmup=1)["graph_nodes"] == 7
    engine.close()
    assert all(graph.closed for graph in HostGraph.made)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("eight", [False, True])
def test_two_streams_give_the_same_bits(opened, shape, eight):
    """Nothing but streams differs: every kernel adds what it added, in the same order, and memory has one buffer more.

    What may run at the same time is in tests/engine/test_branch.py: here a launch is done before the next begins.
    """
    precision = fp8(*PRODUCTS) if eight else FP32
    results = []
    for overlap in (False, True):
        engine = opened(SHAPES[shape], precision, overlap=overlap)
        batches = [random_batch(SHAPES[shape], seed=step) for step in range(3)]
        losses = [engine.train_step(step, *batch).row_losses.tobytes() for step, batch in enumerate(batches)]
        results.append((losses, {name: value.tobytes() for name, value in engine.export_state().items()}))
        assert ("gemm_side_workspace" in {one.name for one in engine.memory_plan()}) == overlap
    assert results[0] == results[1]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("shape", ["small", "accumulation"])
def test_launches_are_timed_by_kind(opened, monkeypatch, shape, overlap):
    """Each launch of a step is in one group, with the operations and bytes that follow from the shape.

    With two streams too, all of them on that of the clock.
    """
    config = SHAPES[shape]
    engine, L, A = opened(config, overlap=overlap), config.model.n_layer, config.accumulation
    C, N = config.model.d_model, config.batch_size * config.model.context
    engine.train_step(0, *random_batch(config))
    m = engine._machine
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_run", lambda *_: engine.driver.streams.clear())  # what keeps the card busy
        groups = {group.name: group for group in engine.time_kernels()}
    assert engine.driver.streams == {m.stream}
    assert groups["attention forward"].launches == groups["attention backward"].launches == L * A
    assert groups["k_adamw"].launches == 1
    assert groups["k_zero"].launches == 1 + A
    products = [group for group in groups.values() if "->" in group.name]
    assert sum(group.launches for group in products) == (3 * 4 * L + 3) * A
    linear = L * 12 * C * C + engine._machine.V * C
    assert sum(group.operations for group in products) == 3 * 2 * N * linear * A
    assert groups["k_layernorm_bwd"].launches == (2 * L + 1) * A
    assert groups["k_layernorm_bwd_final"].launches == A  # all norms of a micro-batch in one
    norms = groups["k_residual_layernorm_fwd"]
    assert norms.bytes == (2 * L) * A * (4 * 4 * N * C + 8 * N)
    assert all(group.milliseconds == group.launches for group in groups.values())  # a millisecond each, it says
    engine.driver.streams.clear()
    engine.train_step(1, *random_batch(config))  # nothing is watched any more
    assert not m.gemms.__class__.__name__.startswith("_Timed")
    assert len(engine.driver.streams) == 1 + overlap


def test_cudnn_is_told_where_its_scratch_lies(opened, monkeypatch):
    """And the fingerprint says which attention it is, of cuDNN with its version."""
    from andrea.engine import machine
    from andrea.engine.attention_cudnn import WORKSPACE, CudnnAttention

    class Imitated(HostAttention, CudnnAttention):
        name, version, workspace = "cudnn", "9.19.0", 0

    plain = opened(SMALL)
    assert plain.fingerprint()["attention"] == "mma"
    made = Imitated(SHAPE["H"])
    monkeypatch.setattr(machine, "check_attention", lambda *_: None)  # the imitated card computes in float32
    monkeypatch.setattr(machine, "open_attention", lambda *_: made)
    engine = opened(SMALL, attention="cudnn")
    assert made.workspace == engine._machine.at(WORKSPACE) != 0
    assert engine.fingerprint()["attention"] == "cudnn 9.19.0"
    assert {one.name for one in engine.memory_plan()} - {one.name for one in plain.memory_plan()} == {WORKSPACE}


def test_benchmark_of_a_card(opened, monkeypatch):
    """On a card also its own time, idle time, the host's, and each launch with its share of the roof."""
    monkeypatch.setattr("andrea.engine.benchmark.open_engine", lambda config, *_: opened(config))
    card = evolve(CARD, name="NVIDIA H200")
    figures = measure(SMALL, card, FP32, steps=2, warmup=1, kernels=True)
    assert (figures["device_ms"], figures["idle_ms"]) == (1.0, 1.0)
    assert figures["host_ms"] > 0
    assert figures["share_of_peak"] == figures["model_tflops"] / 67
    attention = next(group for group in figures["kernels"] if group["name"] == "attention forward")
    rate = attention["operations"] / attention["milliseconds"] * 1e3
    assert attention["share_of_roof"] == rate / 67e12
    adamw = next(group for group in figures["kernels"] if group["name"] == "k_adamw")
    assert adamw["share_of_roof"] == adamw["bytes"] / adamw["milliseconds"] * 1e3 / 4.8e12
    sort = next(group for group in figures["kernels"] if group["name"] == "k_order_place")
    assert sort["share_of_roof"] is None


@pytest.mark.parametrize("shape", ["small", "odd", "untied", "plain norms", "one layer, one token"])
def test_without_training_the_numbers_are_the_same(opened, shape):
    """Fewer buffers, the same launches: losses and texts have the bytes of an engine that trains, from less memory."""
    config = SHAPES[shape]
    engine = opened(config)
    engine.train_step(0, *random_batch(config))
    using = opened(evolve(config, training=False))
    assert not using.export_state()["weights"].any()
    weights = engine.export_state()["weights"]
    using.import_state({"weights": weights})
    rows = random_batch(evolve(config, batch_size=2 * config.batch_size + 1), seed=3)
    prompts = [[1], list(range(5)), list(range(40)), [7, 7], [130]]
    options = GenerateOptions(24, top_k=20, repetition_penalty=1.3, seed=4, stop=(3,))
    for _ in range(2):  # one does not disturb the other
        assert using.evaluate(*rows).tobytes() == engine.evaluate(*rows).tobytes()
        texts = [[row.tolist() for row in one.generate(prompts, options)] for one in (using, engine)]
        assert texts[0] == texts[1]
    assert sum(b.bytes for b in using.memory_plan()) < sum(b.bytes for b in engine.memory_plan())
    assert [(n, v.tobytes()) for n, v in using.export_state().items()] == [("weights", weights.tobytes())]


def test_without_training_there_is_no_step(opened):
    """What needs gradients is refused, and so is a state with moments."""
    engine, training = opened(evolve(SMALL, training=False)), opened(SMALL)
    engine.driver.calls.clear()
    calls = (lambda: engine.train_step(0, *random_batch(SMALL)), engine.gradients, engine.time_kernels)
    for call in calls:
        with pytest.raises(RuntimeError, match="without training"):
            call()
    assert engine.driver.calls == []
    with pytest.raises(ValueError, match="this engine wants"):
        engine.import_state(training.export_state())


def test_wrong_tokens_are_refused(opened):
    """Shapes and ids that do not fit reach no kernel, and the step after them is as ever."""
    engine = opened(SMALL)
    inputs, targets = random_batch(SMALL)
    with pytest.raises(ValueError, match="a step takes"):
        engine.train_step(0, inputs[:2], targets[:2])
    engine.driver.calls.clear()
    for wrong in (-1, 140):
        bad = inputs.copy()
        bad[0, 3] = wrong
        for given in ((bad, targets), (inputs, bad)):
            with pytest.raises(ValueError, match="outside"):
                engine.train_step(0, *given)
    with pytest.raises(ValueError, match="a step takes int32"):
        engine.train_step(0, inputs.astype(np.int64), targets)
    assert engine.driver.calls == []
    plain = opened(SMALL)
    ours, theirs = engine.train_step(0, inputs, targets), plain.train_step(0, inputs, targets)
    assert ours.row_losses.tobytes() == theirs.row_losses.tobytes()


def test_unknown_option_names_the_nearest(opened):
    """A misspelt option is refused with the one that was meant."""
    with pytest.raises(AndreaError, match="no option grahp") as error:
        opened(SMALL, grahp=True)
    assert "graph" in error.value.hint


def test_cap_refuses_before_anything_is_allocated(opened):
    """Too small an arena is refused with the batch that fits, which is then taken."""
    config = evolve(SMALL, model=ModelConfig(1, 2, 64, context=256), batch_size=64)
    limit = 170 << 20
    with pytest.raises(AndreaError, match="batch_size 64 needs") as error:
        opened(config, arena_limit=limit)
    batch = int(error.value.hint.split()[1])
    assert 0 < batch < 64
    opened(evolve(config, batch_size=batch), arena_limit=limit)


def test_closed_engine_says_so(opened):
    """After `close` every call is an error."""
    engine = opened(SMALL)
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        engine.export_state()


# -- operands of 8 bits ----------------------------------------------------------------------------------------------

STILL = ScheduleConfig(steps=10**9, warmup_steps=0, peak=1e-60)  # a rate of 0 in float32
EIGHT = evolve(SMALL, schedule=STILL)


def fp8(*products):
    """Products in 8 bits at any width, all else in float32, as the imitated card has it."""
    return Precision("fp8", fp8={0: products})


def twin_gradients(config, batch, operations):
    """Losses and gradients at the initial weights with the given operations."""
    weights = initial_weights(config.model, config.vocabulary, config.seed)
    total = np.zeros_like(weights)
    views = tensors(weights, config.model, config.vocabulary), tensors(total, config.model, config.vocabulary)
    return add_gradients(*batch, *views, config.model, 1 / (config.rows * config.model.context), operations), total


def flat_gradients(engine):
    return np.concatenate([value.reshape(-1) for value in engine.gradients().values()])


MIXED = [PRODUCTS, ("w_2.y", "w_1.dx"), ("w_1.y", "w_2.dx", "w_1.dw"), ("w_2.y", "w_2.dw")]
CASES = [((one,), False) for one in PRODUCTS] + [(products, fused) for products in MIXED for fused in (False, True)]


@pytest.mark.parametrize(("products", "fused"), CASES)
def test_products_in_8_bits_are_the_twins(opened, products, fused):
    """The first step only measures; the second rounds what the table names, by the first's largest magnitudes."""
    engine, batch = opened(EIGHT, fp8(*products), fused_gelu=fused), random_batch(EIGHT)
    measured = Operations8(products)
    losses, plain = twin_gradients(EIGHT, batch, measured)
    np.testing.assert_allclose(engine.train_step(0, *batch).row_losses, losses, rtol=1e-5)
    np.testing.assert_allclose(flat_gradients(engine), plain, rtol=1e-3, atol=1e-6)

    m = engine._machine
    for i in range(EIGHT.model.n_layer):  # what is not written, as nobody reads it but as codes, must not be read
        array(m.at(f"layer{i}.hidden"), m.N, m.F)[:] = np.nan
    rounding = Operations8(products, known=measured.amax)
    losses, expected = twin_gradients(EIGHT, batch, rounding)
    np.testing.assert_allclose(engine.train_step(1, *batch).row_losses, losses, rtol=1e-4)
    error = np.linalg.norm(flat_gradients(engine) - expected) / np.linalg.norm(expected)
    effect = np.linalg.norm(plain - expected) / np.linalg.norm(expected)
    # Float32 sums in another order move a value over a border between two codes here and there.
    assert error < 5e-4
    assert effect > 2e-3


def test_scales_follow_the_last_updates(opened):
    """The history has the largest magnitude over all micro-batches, and begins anew after sixteen updates."""
    config = evolve(EIGHT, batch_size=2, accumulation=3)
    engine, batch = opened(config, fp8("w_1.y", "w_1.dx")), random_batch(config)
    parts = [Operations8(("w_1.y", "w_1.dx")) for _ in range(3)]
    for part, *micro in zip(parts, *(np.split(one, 3) for one in batch), strict=True):
        twin_gradients(config, micro, part)
    engine.train_step(0, *batch)
    history = engine.export_state()["fp8_history"]
    inputs = np.max([part.amax["w_1.x"] for part in parts], axis=0)
    gradients = np.max([part.amax["w_1.dy"] for part in parts], axis=0)[::-1]  # the last layer's come first
    known = [engine._linear.plan.tensors.index(f"layer{i}.w_1.{side}") for side in ("x", "dy") for i in (0, 1)]
    np.testing.assert_allclose(history[known, 1], [*inputs, *gradients], rtol=1e-5)
    assert not np.delete(history[known], 1, axis=1).any()
    assert not np.delete(history, known, axis=0).any()
    for step in range(1, 17):
        engine.train_step(step, *random_batch(config, seed=step))
    later = engine.export_state()["fp8_history"]
    assert (later[known] > 0).all()
    assert (later[known, 1] != history[known, 1]).all()


def test_state_of_8_bits_goes_out_and_in(opened):
    """A resumed run goes on with the same bytes; without the history it begins by measuring."""
    precision, config = fp8(*PRODUCTS), evolve(SMALL, accumulation=2)
    first, second = opened(config, precision), opened(evolve(config, seed=5), precision)
    for step in range(3):
        first.train_step(step, *random_batch(config, seed=step))
    saved = first.export_state()
    first.evaluate(*random_batch(config))
    first.generate([[1, 2]], GenerateOptions(3))
    losses = first.train_step(3, *random_batch(config, seed=3)).row_losses.tobytes()
    second.import_state(saved)
    assert second.train_step(3, *random_batch(config, seed=3)).row_losses.tobytes() == losses
    ours, theirs = first.export_state(), second.export_state()
    assert {name: value.tobytes() for name, value in ours.items()} == {n: v.tobytes() for n, v in theirs.items()}

    second.import_state(saved | {"fp8_history": np.zeros_like(saved["fp8_history"])})
    assert second.train_step(3, *random_batch(config, seed=3)).row_losses.tobytes() != losses
    with pytest.raises(ValueError, match="wants"):
        second.import_state({name: value for name, value in saved.items() if name != "fp8_history"})


def test_other_products_begin_by_measuring_what_they_lack(opened):
    """A state fits an engine of other products: it measures first where it casts what the state knows nothing of."""
    first = opened(SMALL, fp8("w_1.y", "w_1.dx", "w_2.y"))
    for step in range(2):
        first.train_step(step, *random_batch(SMALL, seed=step))
    fewer, more = opened(SMALL, fp8("w_1.y")), opened(SMALL, fp8("w_1.y", "w_2.dx"))
    for engine in (fewer, more):
        engine.import_state(first.export_state())
    assert fewer._linear.ready
    assert not more._linear.ready


def test_skipped_update_leaves_no_trace_in_the_history(opened):
    """A step that is not finite enters no history, and a first step of this kind is followed by another first step."""
    engine = opened(SMALL, fp8(*PRODUCTS))
    saved = engine.export_state()
    broken = saved["weights"].copy()
    broken[SMALL.vocabulary * 64 + 3] = np.nan
    engine.import_state(saved | {"weights": broken})
    with np.errstate(all="ignore"):
        assert engine.train_step(0, *random_batch(SMALL)).skipped
        assert engine.train_step(1, *random_batch(SMALL)).skipped
    assert not engine.export_state()["fp8_history"].any()
    assert not engine._linear.ready
    engine.import_state(saved)
    engine.train_step(0, *random_batch(SMALL))
    assert engine._linear.ready


def test_operands_of_8_bits_learn_alike(opened):
    """After 20 steps on three batches the loss is within 2% of that without them, and both have learned."""
    engine, plain = opened(SMALL, fp8(*PRODUCTS)), opened(SMALL)
    for step in range(20):
        batch = random_batch(SMALL, seed=step % 3)
        got, want = engine.train_step(step, *batch), plain.train_step(step, *batch)
    # Rounding to four bits changes single weights, not where they go together.
    np.testing.assert_allclose(got.row_losses.mean(), want.row_losses.mean(), rtol=2e-2)
    assert got.row_losses.mean() < 4.5  # ln 140 = 4.94


def test_evaluation_and_text_are_not_rounded(opened):
    """Held-out losses and text are those of the weights in the storage type."""
    engine, plain = opened(SMALL, fp8(*PRODUCTS)), opened(SMALL)
    for step in range(3):
        engine.train_step(step, *random_batch(SMALL, seed=step))
    plain.import_state({name: value for name, value in engine.export_state().items() if name != "fp8_history"})
    rows = random_batch(SMALL, seed=7)
    assert engine.evaluate(*rows).tobytes() == plain.evaluate(*rows).tobytes()
    options = GenerateOptions(9, temperature=0)
    assert engine.generate([[1, 2]], options)[0].tolist() == plain.generate([[1, 2]], options)[0].tolist()


def test_table_goes_by_width(opened):
    """A model narrower than every entry is trained as without 8 bits, and has nothing of them in state or memory."""
    precision = Precision("fp8", fp8={65: ("w_1.y",), 128: PRODUCTS})
    engine, plain = opened(SMALL, precision), opened(SMALL)
    for step in range(2):
        batch = random_batch(SMALL, seed=step)
        assert (
            engine.train_step(step, *batch).row_losses.tobytes() == plain.train_step(step, *batch).row_losses.tobytes()
        )
    assert set(engine.export_state()) == set(plain.export_state())
    assert [b.name for b in engine.memory_plan()] == [b.name for b in plain.memory_plan()]
    assert precision.fp8_products(127) == ("w_1.y",)
    assert precision.fp8_products(1000) == PRODUCTS


def test_launches_of_8_bits_are_timed_by_kind(opened):
    """Casts count the bytes they move, and products have names of their own."""
    engine, L = opened(SMALL, fp8(*PRODUCTS)), SMALL.model.n_layer
    N, C = SMALL.batch_size * SMALL.model.context, SMALL.model.d_model
    for step in range(2):
        engine.train_step(step, *random_batch(SMALL))
    groups = {group.name: group for group in engine.time_kernels()}
    assert groups["k_fp8_e4m3"].launches == 3 * L  # of two norms and the heads; the fourth is in GELU
    assert groups["k_fp8_e4m3"].bytes == 3 * L * N * C * (4 + 2)  # float32 in, codes in both orders out
    assert groups["k_fp8_gelu_fwd"].bytes == L * N * 4 * C * (4 + 2)
    assert groups["k_fp8_gelu_bwd"].bytes == L * N * 4 * C * (8 + 2)
    eight = [group for name, group in groups.items() if "e4m3" in name and "->" in name]
    assert sum(group.launches for group in eight) == 12 * L
    assert sum(group.operations for group in eight) == 3 * 2 * N * L * 12 * C * C


def test_gradients_of_matrices_need_rows_of_16_bytes(opened):
    """Where a micro-batch's positions are no multiple of 16, they stay in the storage type; the rest does not."""
    config = evolve(SMALL, model=ModelConfig(2, 3, 96, context=7), vocabulary=131)
    engine = opened(config, fp8(*PRODUCTS))
    for step in range(2):
        engine.train_step(step, *random_batch(config))
    used = engine._machine.gemms.used
    assert not [key for key in used if "e4m3xe5m2" in key]
    assert [key for key in used if "e5m2xe4m3" in key]
    assert "w_1.dw" not in engine.fingerprint()["fp8"]
    used = opened(SMALL, fp8(*PRODUCTS))._machine.gemms.used
    assert [key for key in used if "e4m3xe5m2->float32 +=" in key]


def test_without_training_nothing_is_in_8_bits(opened):
    """An engine that only looks has no buffers for them, and takes weights alone."""
    trained, engine = opened(SMALL, fp8(*PRODUCTS)), opened(evolve(SMALL, training=False), fp8(*PRODUCTS))
    assert not [buffer.name for buffer in engine.memory_plan() if buffer.name.startswith("fp8")]
    engine.import_state({"weights": trained.export_state()["weights"]})
    rows = random_batch(SMALL)
    assert engine.evaluate(*rows).tobytes() == trained.evaluate(*rows).tobytes()


def test_unknown_product_names_the_nearest(opened):
    """A misspelt product is refused with the one that was meant, before anything is allocated."""
    with pytest.raises(AndreaError, match=r"no product 'w_1\.dy'") as error:
        opened(SMALL, fp8("w_1.dy"))
    assert "w_1.d" in error.value.hint
