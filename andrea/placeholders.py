"""What stands in braces in the texts of a JSON value, such as ``{data}``, the folder that the command line names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from andrea.errors import AndreaError

DATA = "{data}"


def texts(value: Any) -> Iterator[str]:
    """Yield every text within a JSON value; the keys of objects are none."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts(item)


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with every text within it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    return [mapped(item, change) for item in value] if isinstance(value, list) else value


def fill_data(value: Any, data: Path | None, where: str) -> Any:
    """Return a JSON value with ``{data}`` replaced by a folder.

    Raises
    ------
    AndreaError
        When the value speaks of it and no folder is named, or one that is none; `where` says what was read.
    """
    if not any(DATA in text for text in texts(value)):
        return value
    if data is None:
        raise AndreaError(f"{where} speaks of {DATA}, the folder of its text", "name it with --data FOLDER")
    if not data.is_dir():
        raise AndreaError(f"--data {data} is no folder", f"{where} reads its text from there")
    return mapped(value, lambda text: text.replace(DATA, str(data)))
