"""The loss of guessing, which a run's curves are compared with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from andrea.loop import Hooks
from andrea.registry import Chosen, available, create, register
from andrea.types import TokenizerRequest


def chance(folder: Path, config: Mapping[str, Any]) -> float:
    """Return ln V of a run's tokenizer in nats per token; NaN when the tokenizer cannot be opened."""
    plugins = config.get("plugins")
    for name, options in plugins.items() if isinstance(plugins, Mapping) else ():
        if name.startswith("tokenizer.") and name in available():
            try:
                hooks = Hooks(register(create([Chosen(available()[name], dict(options))])))
                tokenizer = hooks.make_tokenizer(TokenizerRequest(saved=folder / "tokenizer"))
                return math.log(tokenizer.size)
            except Exception:  # a plugin of others may raise anything; its run is shown all the same
                return math.nan
    return math.nan
