"""Equality to the last bit, and what a plugin remembers."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import attrs
import numpy as np

_DATA = (bool, int, float, str, bytes, list, tuple, dict, set, frozenset, np.ndarray, np.generic)


def same(first: Any, second: Any) -> bool:
    """Say whether two values are equal, arrays and floats to the last bit, NaN being equal to NaN."""
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray):
        if first.dtype != second.dtype or first.shape != second.shape:
            return False
        return bool(first.tobytes() == second.tobytes()) if first.dtype != object else same([*first], [*second])
    if isinstance(first, float):
        return first == second or (first != first and second != second)
    if isinstance(first, Mapping):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    if attrs.has(type(first)):
        return all(same(getattr(first, f.name), getattr(second, f.name)) for f in attrs.fields(type(first)))
    if "__eq__" not in _methods(first) and hasattr(first, "__dict__"):
        return same(vars(first), vars(second))
    return bool(first == second)


def _methods(value: Any) -> set[str]:
    return {name for cls in type(value).__mro__[:-1] for name in vars(cls)}  # [:-1]: object itself compares identity


def own_memory(plugin: Any) -> dict[str, Any]:
    """Return a copy of the public attributes of a plugin object; a module has none of its own."""
    if isinstance(plugin, ModuleType):
        return {}
    return {name: copy.deepcopy(value) for name, value in vars(plugin).items() if not name.startswith("_")}


def shared_memory(plugin: Any) -> dict[str, Any]:
    """Return a copy of the data that lives in the plugin's module or class, which no run owns."""
    places: list[Mapping[str, Any]] = [vars(plugin)]
    if not isinstance(plugin, ModuleType):
        module = sys.modules.get(type(plugin).__module__)
        places = [vars(type(plugin)), vars(module) if module else {}]
    return {
        name: copy.deepcopy(value)
        for place in places
        for name, value in place.items()
        if isinstance(value, _DATA) and not name.startswith("__")
    }


def moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the names whose values differ, or that exist on one side only."""
    return [n for n in {**before, **after} if n not in before or n not in after or not same(before[n], after[n])]
