"""Finds plugins through entry points, chooses those of a run, and registers them in order.

A plugin's name is ``kind.variant``. Built-ins enter by the same door as everyone else: the entry-point group
``andrea``. Only what a run uses is imported.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import attrs
import pluggy
from attrs import frozen

from andrea import hookspecs
from andrea.errors import AndreaError, did_you_mean, nearest
from andrea.plugin import names_sources, option_fields, option_help
from andrea.plugin import path_options as path_fields
from andrea.strict_json import structure

GROUP = "andrea"
EXCLUSIVE = ("tokenizer", "precision", "bandit", "sampler", "reward")
ADDITIVE = ("source", "filter", "weight", "limit", "stop", "signals", "log")
KINDS = (*EXCLUSIVE, *ADDITIVE)
DEFAULTS = (
    "tokenizer.harris",
    "bandit.uniform",
    "sampler.proportional",
    "reward.ema_drop",
    "weight.progress",
    "weight.repetition",
    "weight.size",
    "stop.max_steps",
    "stop.not_finite",
    "signals.checkpoint",
    "log.console",
)
DEFAULT_WEIGHTS = tuple(name for name in DEFAULTS if name.startswith("weight."))
CURRICULUM = ("bandit", "sampler", "reward", "weight", "limit")  # the kinds that say what is read next


@frozen
class Entry:
    """A plugin that is installed: its name, where it comes from, and how to import it."""

    name: str
    package: str
    version: str
    point: EntryPoint

    @property
    def kind(self) -> str:
        """The part of the name before the dot."""
        return self.name.partition(".")[0]

    @property
    def variant(self) -> str:
        """The part of the name behind the dot."""
        return self.name.partition(".")[2]

    def load(self) -> Any:
        """Import it: a module with decorated functions, or a class."""
        try:
            return self.point.load()
        except Exception as error:
            raise AndreaError(
                f"plugin {self.name} of {self.package} {self.version} is broken: {type(error).__name__}: {error}",
                f"repair or remove the package: pip uninstall {self.package}",
            ) from error


@frozen
class Chosen:
    """A plugin of a run, with what the user set."""

    entry: Entry
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the plugin."""
        return self.entry.name


def available() -> dict[str, Entry]:
    """Return every installed plugin by name, sorted; nothing is imported.

    Raises
    ------
    AndreaError
        When two packages offer the same name.
    """
    found: dict[str, Entry] = {}
    packages: dict[Distribution | None, tuple[str, str]] = {None: ("unknown", "0")}
    for point in entry_points(group=GROUP):
        if point.dist is not None and point.dist not in packages:
            packages[point.dist] = (point.dist.name, point.dist.version)  # each parses the package's metadata
        entry = Entry(point.name, *packages[point.dist], point)
        twin = found.setdefault(point.name, entry)
        if twin.package != entry.package:
            raise AndreaError(
                f"two packages offer the plugin {point.name}: {twin.package} and {entry.package}",
                "uninstall one of them",
            )
    return dict(sorted(found.items()))


def find(name: str) -> Entry:
    """Return one installed plugin.

    Raises
    ------
    AndreaError
        When there is none of this name: the nearest are shown.
    """
    installed = available()
    _refuse_unknown([name], installed)
    return installed[name]


# -- choosing ----------------------------------------------------------------------------------------------------------


def choose(
    asked: Sequence[str],
    without: Sequence[str],
    configured: Mapping[str, Mapping[str, Any]],
    readers: Sequence[str],
    precision: str,
) -> list[Chosen]:
    """Return the plugins of a run in call order: the command line's, then the experiment's, defaults last.

    Parameters
    ----------
    asked
        Names of the command line, in order.
    without
        Names to leave out.
    configured
        Options by name; a name here is switched on, in this order, except the options of an exclusive plugin that
        the command line replaced.
    readers
        Plugins that read the experiment's sources.
    precision
        The default precision on this device.

    Raises
    ------
    AndreaError
        With every wrong name at once, each with its neighbours; when two plugins of an exclusive kind are asked for.
    """
    installed = available()
    _refuse_unknown([*asked, *without, *configured, *readers], installed)
    names = _without_rivals(asked, configured, precision)
    for reader in readers:
        if reader not in names:
            names.append(reader)
    # A default weight is left out where it would be, also of a run that goes on, whose own list names all that it has.
    if unused := [name for name in without if name not in names and name not in DEFAULT_WEIGHTS]:
        raise AndreaError(f"--without {unused[0]}: it is not used", f"in use: {', '.join(names)}")
    return [Chosen(installed[name], dict(configured.get(name, {}))) for name in names if name not in without]


def _refuse_unknown(names: Sequence[str], installed: Mapping[str, Entry]) -> None:
    wrong = [name for name in dict.fromkeys(names) if name not in installed]
    if not wrong:
        return
    hints = []
    for name in wrong:
        kind = name.partition(".")[0]
        siblings = [other for other in installed if other.startswith(kind + ".")]
        if close := _neighbours(name, installed):
            hints.append(f"{name}: did you mean {' or '.join(close)}?")
        elif siblings:
            hints.append(f"{name}: plugins of the kind {kind} are {', '.join(siblings)}")
        else:
            hints.append(f"{name}: kinds are {', '.join(KINDS)}")
    hints.append("andrea plugins lists them all")
    raise AndreaError("\n".join(f"there is no plugin {name}" for name in wrong), "\n".join(hints))


def _neighbours(name: str, installed: Mapping[str, Entry]) -> list[str]:
    """Return what may be meant: variants of the kind that are spelled alike, else the same variant of another kind.

    Kind and variant are compared apart: whole names of one kind are all alike, since they begin alike.
    """
    kind, _, variant = name.rpartition(".")
    kinds = [kind] if kind in KINDS else nearest(kind, KINDS, 1)
    variants = {entry.variant: entry.name for entry in installed.values() if entry.kind in kinds}
    close = [variants[one] for one in nearest(variant, variants)]
    return close or [entry.name for entry in installed.values() if entry.variant == variant]


def _defaults(named: Iterable[str]) -> list[str]:
    """Return the defaults of a run that names some plugins.

    The default weights belong to the default curriculum: a run that names another part of one has what it names alone.
    """
    own = [name for name in named if name.partition(".")[0] in CURRICULUM and name not in DEFAULT_WEIGHTS]
    return [name for name in DEFAULTS if not own or name not in DEFAULT_WEIGHTS]


def _without_rivals(asked: Sequence[str], configured: Mapping[str, Any], precision: str) -> list[str]:
    """Merge the three lists; of an exclusive kind the first list that names one wins."""
    names: list[str] = []
    for level in (asked, list(configured), [*_defaults([*asked, *configured]), precision]):
        taken = {name.partition(".")[0]: name for name in names}
        for name in level:
            kind = name.partition(".")[0]
            if name in names or (kind in EXCLUSIVE and kind in taken):
                continue
            rivals = [other for other in names if other.partition(".")[0] == kind and other in level]
            if kind in EXCLUSIVE and rivals:
                raise AndreaError(
                    f"{rivals[0]} and {name} exclude each other: a run has one {kind}", "name only one of them"
                )
            names.append(name)
    return names


# -- registering -------------------------------------------------------------------------------------------------------


def register(plugins: Sequence[tuple[str, Any]]) -> pluggy.PluginManager:
    """Return a new plugin manager with the given (name, plugin object) in call order.

    Raises
    ------
    AndreaError
        When a plugin implements a hook that does not exist, takes an argument that does not exist, or asks to be
        called first or last: the order is the user's.
    """
    manager = pluggy.PluginManager("andrea")
    manager.add_hookspecs(hookspecs)
    for name, target in reversed(plugins):  # pluggy calls the last registered first
        try:
            manager.register(target, name)
        except pluggy.PluginValidationError as error:
            raise AndreaError(f"plugin {name}: {error}", "docs/plugins.md lists every hook and its arguments") from None
        callers = manager.get_hookcallers(target)
        if not callers:
            raise AndreaError(
                f"plugin {name} implements no hook",
                "its entry point names the class, or the module with the decorated functions",
            )
        for caller in callers:
            for impl in caller.get_hookimpls():
                if impl.plugin_name == name and (impl.tryfirst or impl.trylast or impl.wrapper or impl.hookwrapper):
                    raise AndreaError(f"plugin {name}: {caller.name} must not ask for tryfirst, trylast or a wrapper")
    _refuse_unknown_hooks(manager)
    return manager


def _refuse_unknown_hooks(manager: pluggy.PluginManager) -> None:
    known = hookspecs.hook_names()
    for hook in vars(manager.hook):
        if hook.startswith("_") or hook in known:
            continue
        owner = getattr(manager.hook, hook).get_hookimpls()[0].plugin_name
        raise AndreaError(f"plugin {owner}: there is no hook {hook!r}", did_you_mean(hook, known))


def create(chosen: Sequence[Chosen], sources: Sequence[str] | None = None) -> list[tuple[str, Any]]:
    """Import the chosen plugins and make their objects; wrong options are reported together.

    `sources` are the names of the run's sources, if it is known: options that name others are wrong too.
    """
    made, faults = [], []
    for one in chosen:
        target = one.entry.load()
        try:
            made.append((one.name, make(target, one.name, one.options, sources)))
        except AndreaError as error:
            faults.append(error)
    if faults:
        raise _together(faults)
    return made


def make(target: Any, name: str, options: Mapping[str, Any], sources: Sequence[str] | None = None) -> Any:
    """Return the plugin object: the module itself, or an instance of the class with its options checked."""
    if not isinstance(target, (ModuleType, type)):
        raise AndreaError(
            f"plugin {name} is a {type(target).__name__}",
            "an entry point names a module, or a class: package.module:Class",
        )
    fields = {f.name: f for f in option_fields(target)} if isinstance(target, type) else {}
    known = sorted(fields)
    hints = get_type_hints(target) if fields else {}
    faults: list[AndreaError] = []
    values: dict[str, Any] = {}
    for key, value in options.items():
        try:
            if key not in fields:
                raise _no_option(name, key, known)
            values[key] = structure(value, hints[key], f"{name}.{key}")
            if sources is not None and names_sources(fields[key]):
                _refuse_no_source(f"{name}.{key}", values[key], sources)
        except AndreaError as error:
            faults.append(error)
    missing = [key for key in known if fields[key].default is attrs.NOTHING and key not in options]
    faults += [AndreaError(f"{name} needs the option {key!r}", f"--set {name}.{key}=VALUE") for key in missing]
    if faults:
        raise _together(faults)
    return target if isinstance(target, ModuleType) else target(**values)


def _refuse_no_source(option: str, names: Iterable[str], sources: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in sources]:
        meant = did_you_mean(unknown[0], sources)
        raise AndreaError(
            f"{option} names {', '.join(unknown)}, no source of this run",
            f"{meant} its sources are: {', '.join(sources)}".lstrip(),
        )


def path_options(name: str) -> dict[str, Any]:
    """Return which options of a plugin are paths, as `andrea.plugin.path_options` does.

    Of a reader also those of its sources, its ``Options``. Of a plugin that is not there or is broken nothing is known:
    who uses it says so.
    """
    try:
        target = find(name).load()
    except AndreaError:
        return {}
    holders = [one for one in (target, source_options(target)) if isinstance(one, type)]
    return {key: kind for one in holders for key, kind in path_fields(one).items()}


def source_options(target: Any) -> Any:
    """Return the class of what a source may say to its reader; None of a plugin that has none of this name."""
    return getattr(target, "Options", None)


def _no_option(name: str, key: str, known: Sequence[str]) -> AndreaError:
    if known:
        hint = did_you_mean(key, known) or f"options of {name}: {', '.join(known)}"
    elif name.startswith("source."):
        stands = f'{{"name": ..., "reader": "{name}", "options": {{"{key}": ...}}}}'
        return AndreaError(
            f"{name}.{key} is set, but for no source",
            f"what a reader is told stands with a source that it reads, in the experiment: {stands}",
        )
    else:
        hint = f"{name} has no options"
    return AndreaError(f"{name} has no option {key!r}", hint)


def _together(faults: Sequence[AndreaError]) -> AndreaError:
    """Return one error that says what several say."""
    hints = dict.fromkeys(e.hint for e in faults if e.hint)
    return AndreaError("\n".join(e.message for e in faults), "\n".join(hints))


# -- describing --------------------------------------------------------------------------------------------------------


def describe(entry: Entry) -> dict[str, Any]:
    """Return what ``andrea plugins`` shows of a plugin; a broken one is described as broken."""
    row: dict[str, Any] = {
        "name": entry.name,
        "kind": entry.kind,
        "summary": "",
        "package": entry.package,
        "version": entry.version,
        "hooks": [],
        "options": [],
        "source_options": [],  # of a reader: what a source that it reads may say
    }
    try:
        target = entry.load()
        functions = [getattr(target, name, None) for name in hookspecs.hook_names()]
        row["summary"] = summary(target)
        row["hooks"] = [f.__name__ for f in functions if f is not None and hasattr(f, "andrea_impl")]
        row["options"], row["source_options"] = describe_options(target), describe_options(source_options(target))
    except Exception as error:  # whatever a stranger's module does, the list goes on
        return {**row, "summary": f"broken: {error.__cause__ or error}"}
    return row


def summary(target: Any) -> str:
    """Return the first sentence of a plugin's docstring, on one line."""
    text = inspect.cleandoc(target.__doc__ or "").split("\n\n")[0]
    return " ".join(text.split())


def describe_options(target: Any) -> list[dict[str, Any]]:
    """Return a description of each option of a class; what is no class has none."""
    return [describe_option(field, target) for field in option_fields(target)] if isinstance(target, type) else []


def describe_option(field: attrs.Attribute[Any], target: type) -> dict[str, Any]:
    """Return name, type, default and help of an option; one that must be given has no default."""
    default: Any = field.default
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        default = default.factory()
    kind = get_type_hints(target)[field.name]
    name = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    given = {} if default is attrs.NOTHING else {"default": default}
    return {"name": field.name, "type": name, **given, "help": option_help(field)}


def source_digest(target: Any) -> str:
    """Return the digest of the files that make a plugin (a module, class or object); empty when it has none."""
    cls = target if isinstance(target, (ModuleType, type)) else type(target)
    files = own_sources(cls.__name__ if isinstance(cls, ModuleType) else cls.__module__)
    digest = hashlib.sha256()
    for name, path in files.items():
        digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()[:16] if files else ""


INTERFACE = ("andrea", "andrea.errors", "andrea.plugin", "andrea.types")


def own_sources(name: str) -> dict[str, Path]:
    """Return the files of a plugin's module and of all modules of its own that it imports, however deep, by name.

    Its own are those of its package. Of ours, whose package is andrea, all but what every plugin is written against:
    ``harris`` has ``harris_file`` beside it, ``coherence`` has the score that others show too.
    """
    package = name.partition(".")[0]
    found: dict[str, Path] = {}
    waiting = [name]
    while waiting:
        one = waiting.pop()
        path = None if one in found else _source_file(one)
        if path is not None:
            found[one] = path
            own = (other for other in _imported(one, path) if other.partition(".")[0] == package)
            waiting += [other for other in own if other not in INTERFACE]
    return dict(sorted(found.items()))


def _source_file(name: str) -> Path | None:
    module = sys.modules.get(name)
    try:
        spec = module.__spec__ if module else importlib.util.find_spec(name)
    except (ImportError, ValueError):  # an imported name that is no module
        return None
    path = Path(spec.origin) if spec and spec.origin and spec.has_location else getattr(module, "__file__", None)
    return Path(path) if path and Path(path).suffix == ".py" and Path(path).is_file() else None


def _imported(name: str, path: Path) -> tuple[str, ...]:
    """Return the names that a module's text imports; of ``from a import b`` both ``a`` and ``a.b``."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return _imports_in(package, path.read_bytes())


@functools.lru_cache(maxsize=256)  # a start asks twice: what decides the data, and what the numbers depend on
def _imports_in(package: str, text: bytes) -> tuple[str, ...]:
    names: list[str] = []
    for node in _statements(ast.parse(text).body):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, package)
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return tuple(names)


def _statements(block: Iterable[Any]) -> Iterator[ast.AST]:
    """Yield the statements of a block and all within them: imports are statements, and most of a text is not."""
    for one in block:
        yield one
        for inner in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(one, inner, ()))
