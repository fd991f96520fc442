"""JSON read strictly: no key twice, no unknown key, no value of another type; every fault is named by its key."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import attrs
import cattrs
from cattrs import IterableValidationNote
from cattrs.gen import make_dict_structure_fn, make_mapping_structure_fn

from andrea.errors import AndreaError, did_you_mean, nearest

MOST_LEVELS = 100  # of nested lists and objects in a file or setting

# -- text to value -----------------------------------------------------------------------------------------------------


def read_json(path: Path) -> Any:
    """Return the JSON value of a file; malformed text is reported with line and column."""
    try:
        return parse_json(path.read_text(encoding="utf-8-sig"))  # some editors begin a file with a byte order mark
    except AndreaError as error:
        raise AndreaError(f"{path}: {error.message}", error.hint) from None
    except json.JSONDecodeError as error:
        raise AndreaError(f"{path} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise AndreaError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise AndreaError(f"cannot read {path}: {error.strerror}") from None


def parse_json(text: str) -> Any:
    """Return the value of a JSON text that is no deeper and has no longer numbers than anyone writes.

    Raises
    ------
    json.JSONDecodeError
        When it is no JSON.
    AndreaError
        When it is, but cannot be meant.
    """
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # Python reads no number of thousands of digits
        raise AndreaError(f"a number has too many digits: {error}", "give a shorter number") from None
    layer = [value]
    for _ in range(MOST_LEVELS):
        layer = [i for one in layer if isinstance(one, (dict, list)) for i in _items(one)]
    if layer:
        raise _too_deep()
    return value


def _items(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def _too_deep() -> AndreaError:
    return AndreaError(f"the value is nested more than {MOST_LEVELS} levels deep", "nothing here needs so many")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, in which Python would let the last of two equal keys win in silence."""
    keys = [key for key, _ in pairs]
    if twice := [key for key in dict.fromkeys(keys) if keys.count(key) > 1]:
        raise AndreaError(f"the key {twice[0]!r} stands twice in one object", "keep one of them")
    return dict(pairs)


def _no_number(text: str) -> Any:
    raise AndreaError(f"{text} is not a number of JSON", "give a finite number")


# -- value to class ----------------------------------------------------------------------------------------------------


def structure(value: Any, kind: Any, where: str) -> Any:
    """Return `value` as an instance of the attrs class or type `kind`, or raise one `AndreaError` with all faults."""
    try:
        return make_converter().structure(value, kind)
    except AndreaError as error:
        raise AndreaError(f"{where}: {error.message}", error.hint) from None
    except Exception as error:
        faults = list(_faults(error, "", kind))
        hints = dict.fromkeys(hint for _, hint in faults if hint)
        raise AndreaError("\n".join(f"{where}: {message}" for message, _ in faults), "\n".join(hints)) from None


def to_json(config: Any) -> Any:
    """Return the plain JSON value of a configuration, its keys in the order of the fields."""
    return json.loads(json.dumps(cattrs.Converter(unstruct_collection_overrides={tuple: list}).unstructure(config)))


def _strict(kind: type) -> Any:
    """Return a hook that takes a JSON value of one kind and nothing that merely converts to it."""

    def take(value: Any, _: Any) -> Any:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        fits = number if kind is float else isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if not fits or (number and not math.isfinite(value)):
            raise AndreaError(f"{json.dumps(value, default=repr)} is not {_KINDS[kind]}")
        return kind(value)

    return take


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def make_converter() -> cattrs.Converter:
    """Return a converter that refuses unknown keys and values of another type."""
    converter = cattrs.Converter(detailed_validation=True, forbid_extra_keys=True)
    for kind in _KINDS:
        converter.register_structure_hook(kind, _strict(kind))

    def strict_class(cls: type) -> Any:
        inner: Any = make_dict_structure_fn(
            cls, converter, _cattrs_forbid_extra_keys=True, _cattrs_detailed_validation=True
        )

        def take(value: Any, kind: Any) -> Any:
            if not isinstance(value, Mapping):
                key = attrs.fields(cls)[0].name
                raise _no_object(value, f'give keys in braces, as {{"{key}": ...}}')
            return inner(value, kind)

        return take

    def strict_list(value: Any, kind: Any) -> Any:
        if isinstance(value, str) or not isinstance(value, Sequence):
            said = json.dumps(value, default=repr)
            raise AndreaError(f"{said} is not a list", f"put it in brackets: [{said if len(said) < 60 else '...'}]")
        element = get_args(kind)[0]
        items: list[Any] = []
        errors: list[Exception] = []
        for index, item in enumerate(value):
            try:
                items.append(converter.structure(item, element))
            except Exception as error:
                error.__notes__ = [IterableValidationNote(f"at {index}", index, element)]
                errors.append(error)
        if errors:
            raise cattrs.IterableValidationError("in a list", errors, kind)
        return tuple(items) if get_origin(kind) is tuple else items

    def strict_mapping(kind: Any) -> Any:
        inner = make_mapping_structure_fn(kind, converter, detailed_validation=True)

        def take(value: Any, _: Any) -> Any:
            if not isinstance(value, Mapping):
                raise _no_object(value, 'give keys in braces, as {"KEY": VALUE}, or {} for none')
            return inner(value, kind)

        return take

    converter.register_structure_hook_func(_is_any(list, tuple), strict_list)
    converter.register_structure_hook_factory(_is_any(dict, Mapping), strict_mapping)
    converter.register_structure_hook_factory(attrs.has, strict_class)
    return converter


def _no_object(value: Any, hint: str) -> AndreaError:
    return AndreaError(f"{json.dumps(value, default=repr)} is not an object with keys", hint)


def _is_any(*origins: Any) -> Callable[[Any], bool]:
    return lambda kind: get_origin(kind) in origins


def _faults(error: BaseException, path: str, kind: Any) -> list[tuple[str, str]]:
    """Flatten a tree of cattrs errors into (message, hint)."""
    if isinstance(error, cattrs.errors.IterableValidationError | cattrs.errors.ClassValidationError):
        inner = getattr(error, "cl", None) or kind
        with_notes, without = error.group_exceptions()
        meant = {key for part in without for key in _meant(part)}
        found = [
            (message, "" if isinstance(part, KeyError) and part.args[0] in meant else hint)
            for part, note in with_notes
            for message, hint in _faults(part, _join(path, note), note.type)
        ]
        return found + [f for part in without for f in _faults(part, path, inner)]
    if isinstance(error, cattrs.errors.ForbiddenExtraKeysError):
        known = [f.name for f in attrs.fields(error.cl)]
        place = f"in {path}" if path else "at the top"
        return [
            (f"unknown key {key!r} {place}", did_you_mean(key, known) or f"keys {place}: {', '.join(known)}")
            for key in sorted(error.extra_fields)
        ]
    if isinstance(error, KeyError):
        section = path.rpartition(".")[0]
        place = f" in {section}" if section else ""
        return [(f"key {error.args[0]!r} is missing{place}", f"add {error.args[0]!r}{place}")]
    if isinstance(error, AndreaError):
        said = not path or error.message.startswith((f"{path}.", f"{path} "))  # the message names its place itself
        return [(error.message if said else f"{path}: {error.message}", error.hint)]
    return [(f"{path or 'value'}: {error}", "")]


def _meant(error: BaseException) -> list[str]:
    """Return the keys that were probably meant by unknown ones, which so are misspelt rather than missing."""
    if not isinstance(error, cattrs.errors.ForbiddenExtraKeysError):
        return []
    known = [f.name for f in attrs.fields(error.cl)]
    return [close for key in error.extra_fields for close in nearest(key, known, 1)]


def _join(path: str, note: Any) -> str:
    name = getattr(note, "name", None)
    if name is None:
        return f"{path}[{note.index!r}]"
    return f"{path}.{name}" if path else str(name)
