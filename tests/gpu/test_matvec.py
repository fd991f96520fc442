"""Products of a few rows against their numpy twins in float64, and against themselves.

Outputs are poisoned with NaN before each launch. Axis letters as in the twins.
"""

from __future__ import annotations

import numpy as np
import pytest

from andrea.engine import EngineConfig, GenerateOptions, launcher
from andrea.engine import operations as op
from andrea.engine.device import find_cards
from andrea.engine.elementwise import FILES, Elementwise
from andrea.engine.model import ModelConfig, initial_weights
from andrea.engine.step import CudaEngine

# (C, O): one block and many, inputs of one and of several rounds, sizes that are no multiple of 16 bytes, fewer inputs
# than parts.
SHAPES = [(768, 2304), (1536, 1040), (384, 384), (96, 288), (1088, 160), (50, 131), (5, 7), (3, 9), (1, 40)]

# Logits of two layers, from sums of another order: what a product may be off by (conftest.py), three times over.
LOGITS = {"fp32": 3e-5, "tf32": 3e-3, "fp16": 3e-2, "bf16": 3e-2}


class Rows:
    """The kernels of one precision, and what they read and wrote, as float64."""

    def __init__(self, card, precision, conversions):
        self.card, self.precision, self.type = card, precision, precision.storage
        self.to, self.back = conversions
        self.random = np.random.Generator(np.random.PCG64(99))
        self.launch = Elementwise(card.kernels(FILES, precision.macros), precision.storage)

    def draw(self, *shape, scale=1.0, shift=0):
        """Return (address, float64 values) of random numbers in the storage type."""
        raw = self.to(self.random.standard_normal(shape) * scale, self.type)
        return self.card.put(raw, shift), self.back(raw)

    def draw_float(self, *shape):
        """Return (address, float64 values) of random float32."""
        raw = self.random.standard_normal(shape).astype(np.float32)
        return self.card.put(raw), raw.astype(np.float64)

    def room(self, *shape):
        """Return the address of a poisoned array of the storage type."""
        return self.card.room(int(np.prod(shape)) * (4 if self.type == "float32" else 2))

    def read(self, address, *shape):
        """Return what stands at an address."""
        return self.card.get(address, shape, self.type)

    def operand(self, values):
        """Return values as a product reads them: tf32 keeps 10 bits of the fraction, ties away from zero."""
        rounded = self.to(values, self.type)
        if self.precision.name != "tf32":
            return self.back(rounded)
        return ((rounded.view(np.uint32) + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


@pytest.fixture
def rows(card, precision, storage):
    """Give the kernels of one precision."""
    return Rows(card, precision, storage)


@pytest.mark.parametrize("shift", [0, 4])
@pytest.mark.parametrize("B", [1, 2, 7, 8])
@pytest.mark.parametrize(("C", "outputs"), SHAPES)
def test_parts(rows, close, C, outputs, B, shift):
    """Each quarter is the twin's, float32, whatever the alignment; the same bits again, and alone."""
    x, x_BC = rows.draw(B, C)
    w, w_CO = rows.draw(C, outputs, shift=shift)
    shape = (op.MATVEC_PARTS, B, outputs)
    found = []
    for _ in range(3):
        parts = rows.card.room(4 * int(np.prod(shape)))
        rows.launch.matvec_parts(x, w, parts, B, C, outputs)
        found.append(rows.card.get(parts, shape, "float32"))
    close(found[0], op.k_matvec_parts(x_BC, w_CO), "fp32")
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
    alone = rows.card.room(4 * op.MATVEC_PARTS * outputs)
    rows.launch.matvec_parts(rows.card.put(rows.to(x_BC[-1:], rows.type)), w, alone, 1, C, outputs)
    assert rows.card.get(alone, (op.MATVEC_PARTS, outputs), "float32").tobytes() == found[0][:, -1].tobytes()


@pytest.mark.parametrize(
    ("kind", "given"),
    [("plain", "all"), ("gelu", "no parts"), ("gelu", "no parameters"), ("head", "all"), ("head", "no parameters")],
)
@pytest.mark.parametrize("B", [1, 2, 7, 8])
@pytest.mark.parametrize(("C", "outputs"), SHAPES)
def test_norm_and_product(rows, close, C, outputs, B, kind, given):
    """The stream with its branch, and the product of its norm; the same bits again, alone, and if not aligned."""
    x, x_BC = rows.draw(B, C, scale=2.0)
    parts, parts_PBC = rows.draw_float(op.MATVEC_PARTS, B, C)
    (gamma, gamma_C), (beta, beta_C) = rows.draw_float(C), rows.draw_float(C)
    shape = (outputs, C) if kind == "head" else (C, outputs)
    w, w_ = rows.draw(*shape, scale=C**-0.5)
    if given == "no parts":
        parts, parts_PBC = 0, None
    if given == "no parameters":
        gamma, gamma_C, beta, beta_C = 0, None, 0, None
    total_BC = x_BC if parts_PBC is None else op.k_residual_add(x_BC, rows.back(rows.to(parts_PBC.sum(0), rows.type)))

    def launch(w, x=x, parts=parts, B=B):
        total, y = rows.room(B, C), rows.room(B, outputs)
        arrays, sizes = (x, parts, gamma, beta, total, w, y), {"rows": B, "C": C, "outputs": outputs}
        if kind == "head":
            rows.launch.norm_matvec_head(*arrays, **sizes)
        else:
            rows.launch.norm_matvec(*arrays, **sizes, gelu=kind == "gelu")
        return rows.read(total, B, C), rows.read(y, B, outputs)

    total, y = launch(w)
    close(total, total_BC, rows.precision.name)
    stored_BC = rows.back(total)
    norm_BC = rows.operand(op.k_layernorm_fwd(stored_BC[None], gamma_C, beta_C)[0][0])
    wanted = norm_BC @ (w_.T if kind == "head" else w_)
    if kind == "gelu":
        wanted = op._gelu(rows.back(rows.to(wanted, rows.type)))
    close(y, wanted, rows.precision.name)
    again, moved = launch(w), launch(rows.card.put(rows.to(w_, rows.type), shift=4))
    for other in (again, moved):
        assert other[0].tobytes() == total.tobytes()
        assert other[1].tobytes() == y.tobytes()
    last = 0 if parts_PBC is None else rows.card.put(parts_PBC[:, -1].astype(np.float32))
    alone = launch(w, rows.card.put(rows.to(x_BC[-1:], rows.type)), last, 1)
    assert alone[0].tobytes() == total[-1:].tobytes()
    assert alone[1].tobytes() == y[-1:].tobytes()


def opened(config, precision):
    """Return an engine with initial weights on the first card."""
    engine = CudaEngine(config, find_cards()[0][0], precision)
    engine.import_state({"weights": initial_weights(config.model, config.vocabulary, config.seed)})
    return engine


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_text_is_the_librarys(precision, storage, monkeypatch, batch_size):
    """Logits by these kernels and by the library differ by rounding; in float32 the text is the same."""
    config = EngineConfig(ModelConfig(2, 4, 256, context=64), 300, batch_size=batch_size, training=False)
    prompts = [[7, 9, 20 + row] for row in range(batch_size)]
    options = GenerateOptions(40, temperature=0, repetition_penalty=1e3)  # without it one id is repeated
    texts, logits = [], []
    for few in (8, 0):
        monkeypatch.setattr(Elementwise, "takes_few_rows", lambda _, rows, C, few=few: rows <= few)
        engine = opened(config, precision)
        engine.generate(prompts, GenerateOptions(1, temperature=0))
        raw = np.empty(
            (batch_size, engine._machine.V), np.uint16 if precision.storage == "bfloat16" else precision.storage
        )
        launcher.download(engine._machine.at("logits"), raw)
        logits.append(storage[1](raw)[:, :300])
        texts.append([[ids.tolist() for ids in engine.generate(prompts, options)] for _ in range(2)])
        engine.close()
    assert np.linalg.norm(logits[0] - logits[1]) <= LOGITS[precision.name] * np.linalg.norm(logits[1])
    assert texts[0][0] == texts[0][1]
    if precision.name == "fp32":  # elsewhere two ids may score equally, and what follows another id is another text
        assert texts[0] == texts[1]


@pytest.mark.parametrize("batch_size", [3, 8])
def test_a_row_does_not_depend_on_idle_ones(precision, batch_size):
    """A prompt alone in an engine of several rows gives the ids it gives among others."""
    config = EngineConfig(ModelConfig(2, 4, 256, context=64), 300, batch_size=batch_size, training=False)
    engine = opened(config, precision)
    options = GenerateOptions(30, temperature=0, repetition_penalty=1e3)
    prompts = [[2, 3, row] for row in range(8)]
    together = [ids.tolist() for ids in engine.generate(prompts, options)]
    alone = [engine.generate([prompt], options)[0].tolist() for prompt in prompts]
    engine.close()
    assert alone == together
    assert len({tuple(text) for text in together}) == len(prompts)
