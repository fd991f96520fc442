"""A model as it was found elsewhere, in our shapes and our order of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from andrea.engine.model import ModelConfig, layout
from andrea.errors import AndreaError

Weights = npt.NDArray[np.float32]


@frozen(eq=False)
class Foreign:
    """A model without a run.

    Attributes
    ----------
    path
        Where it was found.
    model
        Shapes.
    vocabulary
        Rows of its embedding (V).
    state
        ``weights``, and where they are known ``first_moments``, ``second_moments`` and ``applied_updates``, as
        `andrea.engine.Engine.export_state` has them.
    step
        Updates that made it; 0 when nobody says.
    tokenizer
        Folder of its tokenizer; None when it has none.
    """

    path: Path
    model: ModelConfig
    vocabulary: int
    state: Mapping[str, npt.NDArray[Any]]
    step: int = 0
    tokenizer: Path | None = field(default=None)

    def with_vocabulary(self, size: int) -> Foreign:
        """Return the model with the first `size` rows of its embedding and head: further ones are padding.

        Raises
        ------
        AndreaError
            When it has fewer.
        """
        if size > self.vocabulary:
            raise AndreaError(
                f"the tokenizer has {size:,} ids, and the model in {self.path} only {self.vocabulary:,}",
                "name the tokenizer that it was trained with: --tokenizer FOLDER",
            )
        state = {key: value if value.size < 2 else self._cut(value, size) for key, value in self.state.items()}
        return attrs.evolve(self, vocabulary=size, state=state)

    def _cut(self, flat_P: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
        parts = layout(self.model, self.vocabulary)
        rows = size * self.model.d_model
        ends = [one.offset + rows if one.name in ("embed", "head") else one.end for one in parts]
        return np.concatenate([flat_P[one.offset : end] for one, end in zip(parts, ends, strict=True)])


def flatten(model: ModelConfig, vocabulary: int, tensors: Mapping[str, npt.NDArray[Any]], path: Path) -> Weights:
    """Return the parameters in published order, float32 (P,).

    Raises
    ------
    AndreaError
        When a tensor has another shape, or a weight is not finite.
    """
    parts = layout(model, vocabulary)
    weights = np.empty(parts[-1].end, dtype=np.float32)
    for one in parts:
        tensor = tensors[one.name]
        if tensor.shape != one.shape:
            raise AndreaError(f"{path}: {one.name} has the shape {tensor.shape}, and its config means {one.shape}")
        weights[one.offset : one.end] = tensor.reshape(-1)
    check_finite(weights, path)
    return weights


def check_finite(values: npt.NDArray[Any], path: Path) -> None:
    """Refuse numbers that are not finite."""
    if not np.isfinite(values).all():
        raise AndreaError(f"{path} holds numbers that are not finite", "the model is damaged; take another copy of it")
