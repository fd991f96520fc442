"""A ``.npz`` file, for numpy alone: every tensor by its name, and the shapes as JSON."""

from __future__ import annotations

import io
import json
from typing import Any

import attrs
import numpy as np

from andrea.engine.model import layout
from andrea.export.portable import Portable


def npz_file(portable: Portable, dtype: str = "float32") -> bytes:
    """Return the content of the file.

    Tensors have the names and shapes of `andrea.engine.model.layout`. ``about`` is a text in JSON: name, step, shapes,
    vocabulary, and the id that begins a document. ``bytes`` holds what the ids stand for, end to end, and
    ``bytes_end`` where each one ends, int64 (V,).
    """
    model, tokenizer = portable.model, portable.tokenizer
    about = {
        "name": portable.name,
        "step": portable.step,
        "model": attrs.asdict(model),
        "vocabulary": tokenizer.size,
        "bos": tokenizer.bos,
    }
    pieces = [tokenizer.decode([one]) for one in range(tokenizer.size)]
    arrays: dict[str, Any] = {
        one.name: portable.weights[one.name].astype(dtype) for one in layout(model, tokenizer.size)
    }
    arrays["about"] = np.array(json.dumps(about))
    arrays["bytes"] = np.frombuffer(b"".join(pieces), dtype=np.uint8)
    arrays["bytes_end"] = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()
