"""Libraries that are installed only with an extra of andrea, such as ``andrea[hub]``."""

from __future__ import annotations

import importlib
from typing import Any

from andrea.errors import AndreaError


def import_extra(module: str, extra: str, reason: str) -> Any:
    """Import a library that an extra brings, or a module of ours that needs one; or say how to get it.

    Parameters
    ----------
    module
        Full name.
    extra
        Of andrea.
    reason
        What needs it, as the beginning of a sentence.

    Raises
    ------
    AndreaError
        When it is not installed: names the library and the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = (error.name or module).partition(".")[0]
        raise AndreaError(
            f"{reason}, which needs {library}: {error}", f"install the extra {extra}: pip install 'andrea[{extra}]'"
        ) from error
