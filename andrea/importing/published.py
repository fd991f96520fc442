"""A ``.bin`` file in the published layout, which says how many parameters it has and not how they are arranged.

``[int32 step][int32 P][P float32 weights][P first moments][P second moments]``, little-endian. Whoever has the file
knows the shape; what is then left to find is the vocabulary, and whether the counts agree.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from andrea.engine.model import ModelConfig, parameter_count
from andrea.errors import AndreaError
from andrea.importing.foreign import Foreign, Weights, check_finite

SWITCHES = ("tie_embeddings", "norm_affine")


def read_published(path: Path, model: ModelConfig, size: int) -> Foreign:
    """Read a file.

    Parameters
    ----------
    path
        Of the file.
    model
        Its shape.
    size
        Ids of its tokenizer.

    Raises
    ------
    AndreaError
        When the file is not of this layout, damaged, or holds another number of parameters.
    """
    step, weights, first, second = _read(path)
    vocabulary = find_vocabulary(weights.size, model)
    if vocabulary != size:
        raise _misfit(path, weights.size, model, size, vocabulary)
    for values in (weights, first, second):
        check_finite(values, path)
    state: dict[str, npt.NDArray[Any]] = {
        "weights": weights,
        "first_moments": first,
        "second_moments": second,
        "applied_updates": np.array([step], dtype=np.int64),
    }
    return Foreign(path, model, vocabulary, state, step)


def _read(path: Path) -> tuple[int, Weights, Weights, Weights]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise AndreaError(f"cannot read {path}: {error.strerror}") from None
    step, count = struct.unpack_from("<ii", content) if len(content) >= 8 else (-1, -1)
    if step < 0 or count < 1 or len(content) != 8 + 12 * count:
        raise AndreaError(
            f"{path} is not in the published layout: {len(content):,} bytes that begin with {step} and {count}",
            "it begins with the step and the number P of parameters, and is 8 + 12 P bytes long",
        )
    values = np.frombuffer(content, dtype="<f4", offset=8).reshape(3, count).astype(np.float32)
    return step, values[0], values[1], values[2]


def find_vocabulary(parameters: int, model: ModelConfig) -> int | None:
    """Return the ids (V) of a model of this shape with so many parameters; None when no number of ids gives them."""
    a_row = parameter_count(model, 2) - parameter_count(model, 1)
    rows, rest = divmod(parameters - parameter_count(model, 1), a_row)
    return rows + 1 if rest == 0 and rows >= 0 else None


def _misfit(path: Path, parameters: int, model: ModelConfig, size: int, vocabulary: int | None) -> AndreaError:
    """Return the error for counts that do not agree, with the switches by which they would."""
    settings = {name: not getattr(model, name) for name in SWITCHES}
    fitting = []
    for names in (("tie_embeddings",), ("norm_affine",), SWITCHES):
        changed = {name: settings[name] for name in names}
        if find_vocabulary(parameters, attrs.evolve(model, **changed)) == size:
            fitting.append(" ".join(f"--set model.{name}={str(value).lower()}" for name, value in changed.items()))
    means = f"{vocabulary:,} ids" if vocabulary else "no whole number of ids"
    return AndreaError(
        f"{path} has {parameters:,} parameters, which with this shape means {means}; the tokenizer has {size:,}, "
        f"which would be {parameter_count(model, size):,} parameters",
        f"this would fit: {' or '.join(fitting)}"
        if fitting
        else "give its shape: --set model.n_layer=..., n_head, d_model, context, tie_embeddings, norm_affine",
    )
