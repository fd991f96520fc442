"""ANDREA grows small language models on one GPU; every policy is a plugin.

Importing it loads neither CUDA nor any plugin: `train` is found when it is first used.
"""

from typing import TYPE_CHECKING, Any

from andrea.errors import AndreaError
from andrea.plugin import hookimpl, option, plugin, state
from andrea.types import (
    Batch,
    Choice,
    Device,
    Document,
    Evaluation,
    Human,
    Limits,
    Precision,
    Pull,
    Run,
    Sample,
    SourceSpec,
    StepRecord,
    Tokenizer,
    TokenizerRequest,
    combine,
)

if TYPE_CHECKING:
    from andrea.notebook import train

__version__ = "0.1.0"

__all__ = [
    "AndreaError",
    "Batch",
    "Choice",
    "Device",
    "Document",
    "Evaluation",
    "Human",
    "Limits",
    "Precision",
    "Pull",
    "Run",
    "Sample",
    "SourceSpec",
    "StepRecord",
    "Tokenizer",
    "TokenizerRequest",
    "combine",
    "hookimpl",
    "option",
    "plugin",
    "state",
    "train",
]


def __getattr__(name: str) -> Any:
    """Return what is loaded only when it is asked for."""
    if name == "train":
        from andrea.notebook import train

        return train
    raise AttributeError(f"module 'andrea' has no attribute {name!r}")
