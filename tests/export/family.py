"""The three shapes of the family at a small depth, with weights of the size that training gives them, and real text."""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from andrea import TokenizerRequest
from andrea.engine import EngineConfig
from andrea.engine import operations as op
from andrea.engine.model import ModelConfig, initial_weights, layout
from andrea.engine.network import block_forward, tensors
from andrea.engine.reference import ReferenceEngine
from andrea.export.portable import Portable
from andrea.plugins.tokenizer.harris import Harris
from andrea.rng import Draws
from andrea.types import Precision

LIBRARY = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
TEXTS = [text for path in LIBRARY if len(text := path.read_text()) > 8000]
SHAPES = {  # layers are few, everything else is as in the family
    "12M": (ModelConfig(2, 12, 384), 4096),
    "120M": (ModelConfig(2, 12, 768), 8192),
    "480M": (ModelConfig(1, 24, 1536), 8192),
}


@cache
def tokenizer_of(segments):
    """Return a Harris tokenizer with as many ids as that of the family."""
    sample = [text.encode() for text in TEXTS[::9]]
    return Harris(segments=segments).make_tokenizer(TokenizerRequest(lambda limit: iter(sample)))


def make_portable(name, tied=True):
    """Return a model of a shape: its matrices larger than at the start, its norms not 1 and 0."""
    shape, segments = SHAPES[name]
    model = ModelConfig(shape.n_layer, shape.n_head, shape.d_model, tie_embeddings=tied)
    tokenizer = tokenizer_of(segments)
    weights = {}
    flat = initial_weights(model, tokenizer.size, seed=1)
    for one in layout(model, tokenizer.size):
        part = flat[one.offset : one.end].reshape(one.shape)
        if one.name.endswith((".gamma", ".beta")):
            part += np.float32(0.2) * Draws(2, one.name).normal(one.size).reshape(one.shape)
        elif one.name.startswith("layer"):
            part *= 4
        weights[one.name] = part
    return Portable(f"family-{name}", 5, model, weights, tokenizer, ("library",))


def flat(portable):
    """Return the weights in published order."""
    return np.concatenate(
        [portable.weights[p.name].reshape(-1) for p in layout(portable.model, portable.tokenizer.size)]
    )


@threadpool_limits.wrap(limits=1)  # threads that wait for each other on a busy machine take ten times as long
def our_logits(portable, ids):
    """Return the logits of the numpy engine's network for every position of a text, (T, V)."""
    w = tensors(flat(portable), portable.model, portable.tokenizer.size)
    x = op.k_embed_fwd(np.asarray(ids)[None], w.embed, w.position)
    for layer in w.layers:
        x, _ = block_forward(x, layer, portable.model.n_head)
    return op.k_head_fwd(op.k_layernorm_fwd(x, w.final_gamma, w.final_beta)[0], w.head)[0]


def open_engine(portable):
    """Return the numpy engine with the weights of a model."""
    engine = ReferenceEngine(EngineConfig(portable.model, portable.tokenizer.size, batch_size=2), Precision("fp32"))
    engine.import_state({**engine.export_state(), "weights": flat(portable)})
    return engine


def ids_of(portable, text, count):
    """Return the first ids of a text, behind the one that begins a document."""
    tokenizer = portable.tokenizer
    return np.append(tokenizer.bos, tokenizer.encode(text.encode())[: count - 1]).astype(np.int32)
