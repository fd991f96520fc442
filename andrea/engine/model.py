"""The model's shapes: configuration, parameters in their published order, counts, and initial weights.

    x = embed(token_ids) + position
    for each layer:  x = x + attn(LN(x));  x = x + mlp(LN(x))
    logits = LN(x) @ embed.T

Axis letters: V vocabulary, C = d_model, F = 4 C, T context.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from attrs import frozen

from andrea.errors import AndreaError
from andrea.rng import Draws

MOST_PARAMETERS = 2**31 - 1  # the published file counts them in an int32


@frozen
class ModelConfig:
    """Shapes of the transformer.

    Attributes
    ----------
    n_layer, n_head, d_model
        Blocks, attention heads, width.
    context
        Tokens of a row (T).
    tie_embeddings
        The head is the token embedding; else it has its own [V, C] matrix.
    norm_affine
        Layer norms have gamma and beta.
    """

    n_layer: int
    n_head: int
    d_model: int
    context: int = 1024
    tie_embeddings: bool = True
    norm_affine: bool = True

    def __attrs_post_init__(self) -> None:
        for name in ("n_layer", "n_head", "d_model", "context"):
            if getattr(self, name) < 1:
                raise AndreaError(f"model.{name} is {getattr(self, name)}; it must be at least 1")
        if self.least_parameters > MOST_PARAMETERS:
            blocks = 12 * self.n_layer * self.d_model**2 > MOST_PARAMETERS
            what = f"model.n_layer {self.n_layer}" if blocks else f"model.context {self.context}"
            raise _too_large(f"{what} and model.d_model {self.d_model}", self.least_parameters)
        if self.d_model % self.n_head:
            near = [n for n in range(1, self.d_model + 1) if self.d_model % n == 0]
            near.sort(key=lambda n: abs(n - self.n_head))
            raise AndreaError(
                f"model.d_model {self.d_model} is not divisible by model.n_head {self.n_head}",
                f"n_head may be {' or '.join(str(n) for n in sorted(near[:3]))}",
            )

    @property
    def least_parameters(self) -> int:
        """Parameters of the blocks' matrices and the positions: all that the vocabulary does not decide, but norms."""
        return 12 * self.n_layer * self.d_model**2 + self.context * self.d_model

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_head


def _too_large(what: str, count: int) -> AndreaError:
    return AndreaError(
        f"{what} make at least {count:,} parameters; a model has at most {MOST_PARAMETERS:,}",
        "make model.d_model or the other of them smaller",
    )


@frozen
class Parameter:
    """One parameter tensor: name, shape, offset in the flat array, and whether weight decay acts on it."""

    name: str
    shape: tuple[int, ...]
    offset: int
    decay: bool

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        """Offset one past the last element."""
        return self.offset + self.size


def layout(model: ModelConfig, vocabulary: int) -> list[Parameter]:
    """Return every parameter in published order: the layout of flat arrays and of checkpoints.

    Token embedding [V, C], positions [T, C]; per layer LN1 gamma, beta, W_Q, W_K, W_V, W_O, LN2 gamma, beta, W_1
    [C, F], W_2 [F, C] (each [in, out], row-major); final LN gamma, beta; head [V, C] when it is not tied. Decay acts on
    matrices only: not on norms.
    """
    C, F = model.d_model, 4 * model.d_model
    shapes: list[tuple[str, tuple[int, ...]]] = [("embed", (vocabulary, C)), ("position", (model.context, C))]

    def norm(prefix: str) -> None:
        if model.norm_affine:
            shapes.extend([(f"{prefix}.gamma", (C,)), (f"{prefix}.beta", (C,))])

    for i in range(model.n_layer):
        norm(f"layer{i}.ln1")
        shapes.extend((f"layer{i}.{name}", (C, C)) for name in ("w_q", "w_k", "w_v", "w_o"))
        norm(f"layer{i}.ln2")
        shapes.extend([(f"layer{i}.w_1", (C, F)), (f"layer{i}.w_2", (F, C))])
    norm("final")
    if not model.tie_embeddings:
        shapes.append(("head", (vocabulary, C)))
    result, offset = [], 0
    for name, shape in shapes:
        result.append(Parameter(name, shape, offset, decay=len(shape) == 2))
        offset = result[-1].end
    if offset > MOST_PARAMETERS:
        raise _too_large(f"the model and a vocabulary of {vocabulary:,}", offset)
    return result


def parameter_count(model: ModelConfig, vocabulary: int) -> int:
    """Return the number of parameters (P)."""
    return layout(model, vocabulary)[-1].end


def initial_weights(model: ModelConfig, vocabulary: int, seed: int) -> npt.NDArray[np.float32]:
    """Return the weights of step 0, float32 (P,).

    Embedding rows N(0, 1/C), other matrices and positions N(0, 0.02^2), W_O and W_2 further divided by
    sqrt(2 n_layer), gamma 1, beta 0. Each tensor draws under its own name, so one shape does not disturb another.

    Logits start as about N(0, 1), so an untied head starts at a loss of ln V + 1/2. A tied one starts higher, at about
    ln(V e^{1/2} + e^{sqrt C}): the logit of the input token itself is near sqrt(C) until some tens of steps have
    unlearned it.
    """
    parameters = layout(model, vocabulary)
    weights = np.empty(parameters[-1].end, dtype=np.float32)

    def fill(p: Parameter) -> None:
        part, kind = weights[p.offset : p.end], p.name.rsplit(".", 1)[-1]
        if kind in ("gamma", "beta"):
            part[:] = 1.0 if kind == "gamma" else 0.0
        else:
            Draws(seed, f"init.{p.name}").fill_normal(part, _deviation(model, kind))

    with ThreadPoolExecutor() as pool:  # drawing leaves the interpreter to others
        list(pool.map(fill, parameters))
    return weights


def _deviation(model: ModelConfig, kind: str) -> float:
    if kind in ("embed", "head"):
        return float(model.d_model**-0.5)
    return 0.02 / math.sqrt(2 * model.n_layer) if kind in ("w_o", "w_2") else 0.02
