"""ANDREA grows small language models on one GPU; every policy is a plugin.

Importing it loads neither CUDA nor any plugin.
"""

from andrea.errors import AndreaError
from andrea.plugin import hookimpl, option, plugin, state
from andrea.types import (
    Batch,
    Choice,
    Device,
    Document,
    Evaluation,
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

__version__ = "0.1.0"

__all__ = [
    "AndreaError",
    "Batch",
    "Choice",
    "Device",
    "Document",
    "Evaluation",
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
]
