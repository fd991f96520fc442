"""A GPT-2-shaped folder of `transformers`, read into our order of parameters.

Ours is the network of Radford et al. (2019), "Language models are unsupervised multitask learners", without the biases
of its matrices: a model that has learned biases is another model, and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea.engine.model import ModelConfig, layout
from andrea.errors import AndreaError
from andrea.export.hf import MATRICES, NORMS
from andrea.export.portable import EPSILON, LIBRARY_FILE, OWN_FOLDER
from andrea.extras import import_extra
from andrea.importing.foreign import Foreign, flatten
from andrea.strict_json import read_json

Array = npt.NDArray[Any]
GELU_TANH = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")
FIXED = {
    "model_type": ("gpt2",),
    "activation_function": GELU_TANH,
    "layer_norm_epsilon": (EPSILON,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}  # keys of config.json that must say one of these; what is not said is as GPT-2 has it, which fits
BUFFERS = (".attn.bias", ".attn.masked_bias")  # masks that old files carry along


def read_hf(folder: Path) -> Foreign:
    """Read a model.

    Raises
    ------
    AndreaError
        When a file is missing or damaged, or the model is not one of ours: all reasons at once.
    """
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise AndreaError(f"{folder / 'config.json'} is not an object", "give the folder of a model")
    model, vocabulary = _shapes(folder, config)
    tensors = _read_tensors(folder)
    refuse_biases(folder, tensors)
    ours = rename(tensors, model.n_layer)
    tied = config.get("tie_word_embeddings", True)
    wanted = _names(model.n_layer, tied)
    if missing := sorted(wanted - set(ours)):
        raise AndreaError(f"{folder} has no tensor for {', '.join(missing[:5])}", "the file is cut, or no GPT-2's")
    if extra := sorted(set(ours) - wanted - {"head"}):
        raise AndreaError(f"{folder} has tensors that our model has no place for: {', '.join(extra[:5])}")
    weights = flatten(model, vocabulary, ours, folder)
    return Foreign(folder, model, vocabulary, {"weights": weights}, tokenizer=_tokenizer(folder))


def _shapes(folder: Path, config: Mapping[str, Any]) -> tuple[ModelConfig, int]:
    wrong = [
        f"{key} is {config[key]!r}, and must be {' or '.join(map(repr, fitting))}"
        for key, fitting in FIXED.items()
        if key in config and config[key] not in fitting
    ]
    sizes = {}
    for key in ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size"):
        value = config.get(key, config.get("n_ctx") if key == "n_positions" else None)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            wrong.append(f"{key} is {value!r}, and must be a number of at least 1")
        else:
            sizes[key] = value
    inner = config.get("n_inner")
    if inner is not None and inner != 4 * sizes.get("n_embd", 0):
        wrong.append(f"n_inner is {inner!r}, and must be 4 x n_embd")
    if config.get("model_type") is None:
        wrong.append("model_type is missing, and must be 'gpt2'")
    if wrong:
        raise AndreaError(
            f"{folder / 'config.json'} describes no model of ours:\n  " + "\n  ".join(wrong),
            "only models in the shape of GPT-2 can be imported",
        )
    tied = config.get("tie_word_embeddings", True)
    shape = ModelConfig(sizes["n_layer"], sizes["n_head"], sizes["n_embd"], sizes["n_positions"], bool(tied))
    return shape, sizes["vocab_size"]


def _tokenizer(folder: Path) -> Path | None:
    """Return where the tokenizer lies: our own files, which an export carries along, or the library's."""
    if (folder / OWN_FOLDER).is_dir():
        return folder / OWN_FOLDER
    return folder if (folder / LIBRARY_FILE).exists() else None


# -- tensors -----------------------------------------------------------------------------------------------------------


def _read_tensors(folder: Path) -> dict[str, Array]:
    """Return all tensors of the folder's safetensors files by GPT-2's names, float32."""
    index = folder / "model.safetensors.index.json"
    names = _names_in(index) if index.exists() else ["model.safetensors"]
    if not (folder / names[0]).exists():
        old = (folder / "pytorch_model.bin").exists()
        raise AndreaError(
            f"there is no {folder / names[0]}",
            "load it in transformers and save it anew, which writes safetensors"
            if old
            else "give the folder of a model",
        )
    tensors: dict[str, Array] = {}
    for name in names:
        tensors |= _read_file(folder / name)
    return {name.removeprefix("transformer."): value for name, value in tensors.items() if not name.endswith(BUFFERS)}


def _names_in(index: Path) -> list[str]:
    """Return the files over which an index says that the tensors are spread."""
    content = read_json(index)
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise AndreaError(f"{index} does not say where the tensors are: it has no weight_map", "get the model again")
    return sorted(set(places.values()))


def _read_file(path: Path) -> dict[str, Array]:
    safetensors = import_extra("safetensors", "export", f"{path} is a file of safetensors")
    try:
        parts = safetensors.deserialize(path.read_bytes())
    except OSError as error:
        raise AndreaError(f"cannot read {path}: {error.strerror}") from None
    except safetensors.SafetensorError as error:
        raise AndreaError(f"{path} is damaged: {error}", "take another copy of it") from None
    return {name: _array(path, name, part) for name, part in parts}


def _array(path: Path, name: str, part: Mapping[str, Any]) -> Array:
    """Return a tensor in float32; of bfloat16 numpy knows nothing, but it is the upper half of a float32."""
    kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
    if part["dtype"] not in kinds:
        raise AndreaError(f"{path}: {name} is of the type {part['dtype']}", f"weights may be {', '.join(kinds)}")
    values = np.frombuffer(part["data"], dtype=kinds[part["dtype"]]).reshape(part["shape"])
    if part["dtype"] == "BF16":
        return (values.astype("<u4") << 16).view("<f4")
    return values.astype(np.float32)


def refuse_biases(folder: Path, tensors: Mapping[str, Array]) -> None:
    """Refuse a model whose matrices have biases that are not zero.

    Raises
    ------
    AndreaError
        With how many there are, and the largest.
    """
    names = tuple(f".{name}.bias" for name in ("attn.c_attn", *MATRICES.values()))
    largest = {
        name: float(np.abs(value).max()) for name, value in tensors.items() if name.endswith(names) and value.any()
    }
    if largest:
        worst = max(largest, key=lambda name: largest[name])
        raise AndreaError(
            f"{folder} has {len(largest)} biases that are not zero, the largest in {worst}, {largest[worst]:.4g}",
            "our models have no biases, so without them it would be another model; only one that was trained without "
            "(bias=False) can be imported",
        )


def rename(tensors: Mapping[str, Array], layers: int) -> dict[str, Array]:
    """Return GPT-2's tensors by our names; what has no place keeps its name."""
    theirs = {"wte.weight": "embed", "wpe.weight": "position", "lm_head.weight": "head"}
    theirs |= {"ln_f.weight": "final.gamma", "ln_f.bias": "final.beta"}
    for i in range(layers):
        theirs |= {f"h.{i}.{there}.weight": f"layer{i}.{here}" for here, there in MATRICES.items()}
        for here, there in NORMS.items():
            theirs[f"h.{i}.{there}.weight"] = f"layer{i}.{here}.gamma"
            theirs[f"h.{i}.{there}.bias"] = f"layer{i}.{here}.beta"
    ours: dict[str, Array] = {}
    for name, value in tensors.items():
        if name.endswith(".attn.c_attn.weight") and (number := name.split(".")[1]).isdigit() and int(number) < layers:
            parts = np.split(value, 3, axis=1)
            ours |= {f"layer{number}.{here}": part for here, part in zip(("w_q", "w_k", "w_v"), parts, strict=True)}
        elif not (name.endswith(".bias") and ".ln_" not in name and name != "ln_f.bias"):
            ours[theirs.get(name, name)] = value
    return ours


def _names(layers: int, tied: bool) -> set[str]:
    return {one.name for one in layout(ModelConfig(layers, 1, 1, 1, tied), 1)}
