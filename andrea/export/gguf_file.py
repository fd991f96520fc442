"""A ``.gguf`` file, as llama.cpp and its kin read it: a GPT-2 whose biases are zero, and the vocabulary.

Every id decodes there to the bytes that it has here. Text becomes ids as follows. Byte pairs are what llama.cpp
merges too, so the ids are ours. What splits text otherwise, as Harris segments do, has no counterpart there: the file
then asks for the longest token at each place (the rule of RWKV's vocabulary), which is lossless too and mostly, but not
always, cuts where we do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from andrea.byte_level import BEGIN_NAME
from andrea.export.hf import MATRICES, hf_tensors
from andrea.export.portable import EPSILON, Portable
from andrea.extras import import_extra

NORMAL, CONTROL, UNUSED = 1, 3, 5  # types of tokens
FILE_TYPES = {"float32": 0, "float16": 1}  # what most of the weights are
NAMES = {
    "wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "lm_head": "output",
    "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip


@frozen
class Vocabulary:
    """Tokens as the file has them.

    Attributes
    ----------
    model
        How text is split: ``gpt2`` by merges, ``rwkv`` by the longest token.
    tokens, types
        Of every id.
    merges
        Pairs, best first.
    """

    model: str
    tokens: Sequence[str]
    types: Sequence[int]
    merges: Sequence[str] = ()


def write_gguf(portable: Portable, path: Path, dtype: str = "float32") -> None:
    """Write the file.

    Parameters
    ----------
    portable
        The model.
    path
        Of the file.
    dtype
        Of the matrices, ``float32`` or ``float16``; norms are float32.

    Raises
    ------
    AndreaError
        When the package gguf is not installed.
    """
    gguf = import_extra("gguf", "export", "a model for llama.cpp is a file of gguf")
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "gpt2")
    try:
        _describe(writer, portable, dtype)
        _add_vocabulary(writer, portable)
        for name, tensor in gguf_tensors(portable, dtype).items():
            writer.add_tensor(name, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _describe(writer: Any, portable: Portable, dtype: str) -> None:
    model = portable.model
    writer.add_name(portable.name)
    writer.add_file_type(FILE_TYPES[dtype])
    writer.add_context_length(model.context)
    writer.add_embedding_length(model.d_model)
    writer.add_block_count(model.n_layer)
    writer.add_feed_forward_length(4 * model.d_model)
    writer.add_head_count(model.n_head)
    writer.add_layer_norm_eps(EPSILON)


def _add_vocabulary(writer: Any, portable: Portable) -> None:
    words, bos = vocabulary(portable), portable.tokenizer.bos
    writer.add_tokenizer_model(words.model)
    writer.add_token_list(words.tokens)
    writer.add_token_types(words.types)
    if words.model == "gpt2":
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges(words.merges)
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(bos)  # the next document begins where one ends
    writer.add_add_bos_token(True)


def vocabulary(portable: Portable) -> Vocabulary:
    """Return the tokens of a model's tokenizer."""
    tokenizer = portable.tokenizer
    pieces = [tokenizer.decode([one]) for one in range(tokenizer.size)]
    types = [NORMAL if piece else UNUSED for piece in pieces]
    types[tokenizer.bos] = CONTROL
    library = portable.library()
    if library is not None and library["model"]["type"] == "BPE" and library["model"]["merges"]:
        names = {number: name for name, number in library["model"]["vocab"].items()}
        merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in library["model"]["merges"]]
        return Vocabulary("gpt2", [names[one] for one in range(tokenizer.size)], types, merges)
    tokens = [_escaped(piece, one) for one, piece in enumerate(pieces)]
    tokens[tokenizer.bos] = BEGIN_NAME  # by which a prompt there has it, as in the tokenizer.json of ours
    return Vocabulary("rwkv", tokens, types)


def _escaped(piece: bytes, one: int) -> str:
    r"""Return a token's bytes as ``\xHH``; an id without bytes gets a name that no text in UTF-8 can have."""
    return "".join(f"\\x{byte:02x}" for byte in piece) or f"\\xff{one}"


def gguf_tensors(portable: Portable, dtype: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the weights by llama.cpp's names, matrices as [out, in]."""
    transposed = {f"{name}.weight" for name in ("attn.c_attn", *MATRICES.values())}
    result = {}
    for full_name, value in hf_tensors(portable).items():
        name, block = full_name.removeprefix("transformer."), ""
        if name.startswith("h."):
            _, number, name = name.split(".", 2)
            block = f"blk.{number}."
        tensor = value.T if name in transposed else value
        layer, kind = name.rsplit(".", 1)
        keep = tensor.ndim == 1 or layer == "wpe"  # llama.cpp adds positions and norms in float32
        result[f"{block}{NAMES[layer]}.{kind}"] = np.ascontiguousarray(tensor, np.float32 if keep else dtype)
    return result
