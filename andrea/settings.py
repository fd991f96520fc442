"""Settings of the command line, ``KEY=VALUE``, put into the JSON of an experiment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import attrs

from andrea.config import RunConfig
from andrea.errors import AndreaError, did_you_mean
from andrea.strict_json import parse_json


def parse_setting(setting: str, option: str = "--set", example: str = "schedule.peak=1e-3") -> tuple[str, Any]:
    """Split ``KEY=VALUE`` of an option of the command line; the value is JSON when it parses, else text."""
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise AndreaError(f"{option} {setting!r} is not KEY=VALUE", f"for instance {option} {example}")
    try:
        return key, parse_json(text)
    except json.JSONDecodeError:
        return key, text
    except AndreaError as error:
        raise AndreaError(f"{option} {key}: {error.message}", error.hint) from None


def override(value: dict[str, Any], key: str, new: Any, plugin_names: Sequence[str]) -> str | None:
    """Set one key of an experiment's JSON object in place; return the plugin whose option it is, None of a section's.

    The longest prefix of `key` that is a plugin's name addresses that plugin's option; else the dots are sections.
    """
    path = _address(key, plugin_names)
    inner = value
    for depth, part in enumerate(path[:-1]):
        inner = inner.setdefault(part, {})
        if not isinstance(inner, dict):
            place = ".".join(path[: depth + 1])
            hint = (
                f"set all of it: --set '{place}=[...]'" if isinstance(inner, list) else f"set it: --set {place}=VALUE"
            )
            kind = "a list" if isinstance(inner, list) else f"{json.dumps(inner)[:40]}"
            raise AndreaError(f"--set {key}: {place!r} is {kind} and has no keys of its own", hint)
    inner[path[-1]] = new
    return path[1] if path[0] == "plugins" and len(path) > 1 else None


def _address(key: str, plugin_names: Sequence[str]) -> list[str]:
    """Return the keys, from the outside in, under which an experiment holds what ``--set`` names."""
    for name in sorted(plugin_names, key=len, reverse=True):
        if key.startswith(name + "."):
            return ["plugins", name, key[len(name) + 1 :]]
    sections = [f.name for f in attrs.fields(RunConfig)]
    first = key.split(".")[0]
    if first not in sections:
        known = [*sections, *plugin_names]
        asked = first if did_you_mean(first, sections) else ".".join(key.split(".")[:2])
        raise AndreaError(
            f"--set {key}: there is no section or plugin {asked!r}",
            did_you_mean(asked, known) or f"sections: {', '.join(sections)}; andrea plugins lists the plugins",
        )
    return key.split(".")
