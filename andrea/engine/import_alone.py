"""Imports one module of a package without what the package itself would import."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from contextlib import suppress
from types import ModuleType


def import_alone(name: str) -> ModuleType:
    """Import ``package.module`` while its packages stand empty; the plain way where that does not do.

    A package of bindings may import every library that it knows, which takes longer than all else of a start. Whoever
    imports the package later gets it whole; the module in it is this one, and an attribute of it if the package imports
    it, as those of bindings do.
    """
    packages = [name[:end] for end, letter in enumerate(name) if letter == "."]
    if not {name, *packages} & set(sys.modules):
        before = set(sys.modules)
        with suppress(Exception):  # the module needs what its package prepares, or is not there, which is told below
            return _import_in_empty(packages, name)
        for other in set(sys.modules) - before:  # it may hold a package that was empty
            if other.startswith(f"{packages[0]}."):
                del sys.modules[other]
    return importlib.import_module(name)


def _import_in_empty(packages: list[str], name: str) -> ModuleType:
    try:
        for package in packages:
            spec = importlib.util.find_spec(package)
            if spec is None:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)
            sys.modules[package] = importlib.util.module_from_spec(spec)
        return importlib.import_module(name)
    finally:
        for package in packages:
            sys.modules.pop(package, None)
