"""A model as other programs take it: shapes, named matrices, and each id's bytes; no engine, no moments."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import frozen

from andrea.engine.model import ModelConfig, layout
from andrea.trained import Found
from andrea.types import Tokenizer

Array = npt.NDArray[Any]
LIBRARY_FILE = "tokenizer.json"  # what the library `tokenizers` reads
OWN_FOLDER = "andrea"  # what our tokenizer saves, inside an exported folder
EPSILON = 1e-5  # of the layer norms


@frozen(eq=False)
class Portable:
    """A model and its tokenizer.

    Attributes
    ----------
    name, step
        Of the run, and the updates that made the weights.
    model
        Shapes.
    weights
        float32, by the names of `andrea.engine.model.layout`; norms without parameters have gammas 1 and betas 0.
    tokenizer
        With which the model was trained.
    sources
        Names of what it was trained on.
    """

    name: str
    step: int
    model: ModelConfig
    weights: Mapping[str, npt.NDArray[np.float32]]
    tokenizer: Tokenizer
    sources: tuple[str, ...]

    @classmethod
    def of(cls, found: Found) -> Portable:
        """Return the model of a checkpoint."""
        model, flat = found.config.model, found.snapshot.engine["weights"]
        parts = layout(model, found.tokenizer.size)
        weights = {one.name: flat[one.offset : one.end].reshape(one.shape) for one in parts}
        for norm in norm_names(model):
            weights.setdefault(f"{norm}.gamma", np.ones(model.d_model, np.float32))
            weights.setdefault(f"{norm}.beta", np.zeros(model.d_model, np.float32))
        sources = tuple(source.name for source in found.config.sources)
        return cls(found.config.name, found.snapshot.step, model, weights, found.tokenizer, sources)

    @property
    def parameters(self) -> int:
        """Numbers learned."""
        return layout(self.model, self.tokenizer.size)[-1].end

    def tokenizer_files(self) -> dict[str, bytes]:
        """Return the content of every file that the tokenizer saves, by name."""
        with tempfile.TemporaryDirectory() as folder:
            self.tokenizer.save(Path(folder))
            paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
            return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}

    def library(self) -> dict[str, Any] | None:
        """Return the tokenizer as the library `tokenizers` has it; None when it does not save itself so."""
        content = self.tokenizer_files().get(LIBRARY_FILE)
        if content is None:
            return None
        value: dict[str, Any] = json.loads(content)
        return value


def norm_names(model: ModelConfig) -> list[str]:
    """Return the names of the layer norms."""
    return [*(f"layer{i}.{norm}" for i in range(model.n_layer) for norm in ("ln1", "ln2")), "final"]
