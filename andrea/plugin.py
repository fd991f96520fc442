"""What a plugin is made of: the marker, options, state, and the class decorator."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, dataclass_transform

import attrs
import numpy as np
import pluggy

from andrea.errors import AndreaError

hookimpl = pluggy.HookimplMarker("andrea")
hookspec = pluggy.HookspecMarker("andrea")

_ROLE = "andrea.role"
_HELP = "andrea.help"
_PATH = "andrea.path"
_SOURCES = "andrea.sources"
Class = TypeVar("Class", bound=type)


def option(
    default: Any = attrs.NOTHING,
    *,
    help: str,
    factory: Any = None,
    path: Literal[False, True, "folder"] = False,
    sources: bool = False,
) -> Any:
    """Declare an option: a field that the user sets with ``--set PLUGIN.OPTION=VALUE``.

    Parameters
    ----------
    default
        Value when nothing is said.
    help
        One line, shown by ``andrea plugins NAME``.
    factory
        Makes the default, for lists and dicts.
    path
        True when the value is a path, or a list of paths: a run keeps them in full, so that it goes on from any folder.
        ``"folder"`` when it is one only if there is such a folder, and another kind of name else.
    sources
        True when the value is a list of names of sources, or an object whose keys are: a name that is no source of the
        run is refused before anything is read.
    """
    metadata = {_ROLE: "option", _HELP: help, _PATH: path, _SOURCES: sources}
    if factory is not None:
        return attrs.field(factory=factory, metadata=metadata)
    return attrs.field(default=default, metadata=metadata)


def state(default: Any = None, *, factory: Any = None) -> Any:
    """Declare a field that checkpoints save and resume restores.

    It may hold int, float, bool, str, None, numpy arrays, and lists and string-keyed dicts of these. What needs the
    number of sources is allocated in ``on_start``, which runs before a resume restores the saved values.
    """
    metadata = {_ROLE: "state"}
    if factory is not None:
        return attrs.field(init=False, factory=factory, metadata=metadata)
    return attrs.field(init=False, default=default, metadata=metadata)


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(option, state))
def plugin(cls: Class) -> Class:
    """Make a class a plugin: its public fields are options, its `state` fields are saved.

    Every option is a keyword with a default. Compared by identity, as pluggy compares plugins with ``==``, which
    array fields break.
    """
    return attrs.define(eq=False, kw_only=True, slots=False)(cls)


def option_fields(cls: type) -> list[attrs.Attribute[Any]]:
    """Return the option fields of a plugin class, in the order they are written."""
    if not attrs.has(cls):
        return []
    return [f for f in attrs.fields(cls) if f.init and f.metadata.get(_ROLE) != "state" and not f.name.startswith("_")]


def option_help(field: attrs.Attribute[Any]) -> str:
    """Return the help line of an option; empty when its author wrote none."""
    return str(field.metadata.get(_HELP, ""))


def path_options(cls: type) -> dict[str, Any]:
    """Return the options of a class whose values are paths, by name: True, or ``"folder"``."""
    return {f.name: f.metadata[_PATH] for f in option_fields(cls) if f.metadata.get(_PATH)}


def names_sources(field: attrs.Attribute[Any]) -> bool:
    """Say whether the value of an option names sources of the run."""
    return bool(field.metadata.get(_SOURCES))


def state_fields(target: object) -> list[str]:
    """Return the names of a plugin's state fields."""
    cls = type(target)
    return [f.name for f in attrs.fields(cls) if f.metadata.get(_ROLE) == "state"] if attrs.has(cls) else []


def get_state(target: object) -> dict[str, Any]:
    """Return a deep copy of a plugin's state by field name; empty for a module."""
    return {name: _copy(getattr(target, name), name) for name in state_fields(target)}


def set_state(target: object, saved: dict[str, Any], name: str) -> None:
    """Restore a plugin's state, strictly: no field may be missing or unknown.

    Raises
    ------
    AndreaError
        When the saved fields are not the plugin's fields.
    """
    known = state_fields(target)
    if set(known) != set(saved):
        raise AndreaError(
            f"the saved state of {name} does not fit: it has {sorted(saved)}, the plugin wants {sorted(known)}",
            "the plugin has changed since the checkpoint was written; install the version named in the checkpoint",
        )
    for key in known:
        setattr(target, key, _copy(saved[key], key))


def _copy(value: Any, where: str) -> Any:
    """Copy a value of the allowed kinds; anything else is the plugin author's error."""
    if isinstance(value, np.generic):  # first, because np.float64 is a float
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (list, tuple)):
        return [_copy(item, where) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _copy(item, where) for key, item in value.items()}
    raise TypeError(
        f"state field {where!r} holds {type(value).__name__}; state may hold int, float, bool, str, None, numpy "
        "arrays, and lists and string-keyed dicts of these"
    )
