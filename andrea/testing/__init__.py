"""What a plugin author tests with: the contract of every kind, a few steps without data, an engine without learning.

Its names are loaded when they are first used, because pytest imports this package in every session.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from andrea.testing.contract import ContractError, check_plugin, check_plugin_object
    from andrea.testing.engine import FakeEngine
    from andrea.testing.steps import SOURCES, History, run_steps

_PLACES = {
    "ContractError": "contract",
    "check_plugin": "contract",
    "check_plugin_object": "contract",
    "FakeEngine": "engine",
    "SOURCES": "steps",
    "History": "steps",
    "run_steps": "steps",
}

__all__ = ["SOURCES", "ContractError", "FakeEngine", "History", "check_plugin", "check_plugin_object", "run_steps"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"andrea.testing has no {name!r}")
    return getattr(importlib.import_module(f"andrea.testing.{_PLACES[name]}"), name)
