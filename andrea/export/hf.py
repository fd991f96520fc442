"""A folder that `transformers` loads: a GPT-2 whose biases are zero, and `tokenizer.json`.

Ours is the network of Radford et al. (2019), "Language models are unsupervised multitask learners", without the biases
of its matrices, so zeros stand where that one has them.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from andrea.export.portable import EPSILON, LIBRARY_FILE, OWN_FOLDER, Array, Portable
from andrea.extras import import_extra

MATRICES = {"w_o": "attn.c_proj", "w_1": "mlp.c_fc", "w_2": "mlp.c_proj"}  # both as [in, out]
NORMS = {"ln1": "ln_1", "ln2": "ln_2"}


def hf_files(portable: Portable, dtype: str = "float32") -> dict[str, bytes]:
    """Return the content of every file of the folder, by name.

    Parameters
    ----------
    portable
        The model.
    dtype
        Of the weights, ``float32`` or ``float16``.

    Raises
    ------
    AndreaError
        When safetensors is not installed.
    """
    safetensors = import_extra("safetensors.numpy", "export", "a model for transformers is a file of safetensors")
    tensors = {name: np.ascontiguousarray(value, dtype) for name, value in hf_tensors(portable).items()}
    own = portable.tokenizer_files()
    files = {f"{OWN_FOLDER}/{name}": content for name, content in own.items()}
    files["model.safetensors"] = safetensors.save(tensors, {"format": "pt"})
    files["config.json"] = _json(hf_config(portable, dtype))
    files["generation_config.json"] = _json(_ends(portable))
    if LIBRARY_FILE in own:
        files |= _tokenizer(portable, own[LIBRARY_FILE].decode())
    files["README.md"] = _card(portable, LIBRARY_FILE in own).encode()
    return files


def hf_tensors(portable: Portable) -> dict[str, Array]:
    """Return the weights by the names of `transformers`."""
    ours, C = portable.weights, portable.model.d_model
    found: dict[str, Array] = {"wte.weight": ours["embed"], "wpe.weight": ours["position"]}
    for i in range(portable.model.n_layer):
        qkv = np.concatenate([ours[f"layer{i}.{name}"] for name in ("w_q", "w_k", "w_v")], axis=1)
        found[f"h.{i}.attn.c_attn.weight"] = qkv
        found[f"h.{i}.attn.c_attn.bias"] = np.zeros(3 * C, np.float32)
        for name, theirs in MATRICES.items():
            matrix = ours[f"layer{i}.{name}"]
            found[f"h.{i}.{theirs}.weight"] = matrix
            found[f"h.{i}.{theirs}.bias"] = np.zeros(matrix.shape[1], np.float32)
        for norm, theirs in NORMS.items():
            found[f"h.{i}.{theirs}.weight"] = ours[f"layer{i}.{norm}.gamma"]
            found[f"h.{i}.{theirs}.bias"] = ours[f"layer{i}.{norm}.beta"]
    found["ln_f.weight"], found["ln_f.bias"] = ours["final.gamma"], ours["final.beta"]
    tensors = {f"transformer.{name}": value for name, value in found.items()}
    return tensors if portable.model.tie_embeddings else {**tensors, "lm_head.weight": ours["head"]}


def hf_config(portable: Portable, dtype: str) -> dict[str, Any]:
    """Return ``config.json``."""
    model = portable.model
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": portable.tokenizer.size,
        "n_positions": model.context,
        "n_embd": model.d_model,
        "n_layer": model.n_layer,
        "n_head": model.n_head,
        "n_inner": None,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": EPSILON,
        "scale_attn_weights": True,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "tie_word_embeddings": model.tie_embeddings,
        "torch_dtype": dtype,
        **_ends(portable),
    }


def _ends(portable: Portable) -> dict[str, int]:
    """Return the id that begins a document, which so ends the one before."""
    bos = portable.tokenizer.bos
    return {"bos_token_id": bos, "eos_token_id": bos, "pad_token_id": bos}


def _tokenizer(portable: Portable, content: str) -> dict[str, bytes]:
    """Return ``tokenizer.json`` with the id that begins every document put before a text, and its configuration."""
    from tokenizers import Tokenizer, processors

    library, bos = Tokenizer.from_str(content), portable.tokenizer.bos
    name = library.id_to_token(bos)
    begin = {"id": "begin", "ids": [bos], "tokens": [name]}
    library.post_processor = processors.TemplateProcessing(
        single=["begin", "$A"], pair=["begin", "$A", "$B:1"], special_tokens=[begin]
    )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": name,
        "eos_token": name,
        "pad_token": name,
        "split_special_tokens": True,  # text that happens to spell its name is text
        "clean_up_tokenization_spaces": False,
        "model_max_length": portable.model.context,
    }
    return {LIBRARY_FILE: library.to_str().encode() + b"\n", "tokenizer_config.json": _json(config)}


def _card(portable: Portable, has_tokenizer: bool) -> str:
    """Return what the hub shows of a model."""
    tokenizer = (
        "`AutoTokenizer` puts the id that begins a document before every text, as the model expects it."
        if has_tokenizer
        else "Its tokenizer has no `tokenizer.json`: give ids."
    )
    model = portable.model
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags: [andrea]
---

# {portable.name}

A language model of {portable.parameters:,} parameters after {portable.step:,} updates, grown with ANDREA on
{", ".join(portable.sources)}.

It is a GPT-2 of {model.n_layer} layers, width {model.d_model} and {model.n_head} heads that reads up to
{model.context:,} tokens; the biases of its matrices are zero. {tokenizer}
"""


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"
