"""The configuration of a run: frozen classes, read strictly from JSON, with errors that name the key.

An option of a plugin lives under ``plugins``, by the plugin's name; everything else has a section here. No section
is named like a kind of plugin, so that ``--set`` always knows whom it addresses.
"""

from __future__ import annotations

import glob
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import attrs
import cattrs
from attrs import field, frozen
from cattrs import IterableValidationNote
from cattrs.gen import make_dict_structure_fn, make_mapping_structure_fn

from andrea.engine.model import ModelConfig
from andrea.engine.schedule import OptimizerConfig, ScheduleConfig
from andrea.errors import AndreaError, did_you_mean, nearest
from andrea.plugin import option
from andrea.plugin import path_options as own_path_options
from andrea.resources import experiments_folder
from andrea.types import SourceSpec

MOST_LEVELS = 100  # of nested lists and objects in a file or setting
MOST_CHARACTERS = 100  # of a name: file systems end names at 255 bytes, and a file's has more than the run's


def _refuse_below(config: Any, section: str, hint: str, **least: int) -> None:
    """Refuse the first of the named numbers that is below its least value."""
    for name, bound in least.items():
        value = getattr(config, name)
        if value < bound:
            raise AndreaError(f"{section}.{name} is {value}; it must be at least {bound}", hint)


@frozen
class BatchConfig:
    """Rows of a step.

    Attributes
    ----------
    batch_size
        Rows of a micro-batch.
    accumulation
        Micro-batches of one update.
    pulls_per_step
        Sources mixed in one step; divides the rows.
    """

    batch_size: int = 8
    accumulation: int = 1
    pulls_per_step: int = 1

    def __attrs_post_init__(self) -> None:
        _refuse_below(self, "batch", "", batch_size=1, accumulation=1, pulls_per_step=1)
        if self.rows % self.pulls_per_step:
            raise AndreaError(
                f"batch.pulls_per_step {self.pulls_per_step} does not divide the {self.rows} rows of a step",
                "rows of a step are batch_size x accumulation",
            )

    @property
    def rows(self) -> int:
        """Rows of one step (R)."""
        return self.batch_size * self.accumulation


@frozen
class SamplingConfig:
    """Text drawn during the run: `count` texts from `prompts` in turn, the same seeds every time.

    Attributes
    ----------
    sample_every
        Steps between samples; 0 draws none.
    prompts
        Beginnings; an empty text starts a document.
    count, max_tokens
        Texts, and tokens of each.
    temperature, top_p
        How each token is drawn.
    """

    sample_every: int = 2000
    prompts: tuple[str, ...] = ("",)
    count: int = 8
    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 0.95

    def __attrs_post_init__(self) -> None:
        none = "to draw no samples: sampling.sample_every 0"
        _refuse_below(self, "sampling", none, sample_every=0, count=1, max_tokens=1)
        if not self.prompts:
            raise AndreaError("sampling.prompts is empty", f'[""] begins documents of its own; {none}')
        _refuse_below(self, "sampling", "0 takes the likeliest token, 1 draws as the model says", temperature=0)
        if not 0 < self.top_p <= 1:
            raise AndreaError(f"sampling.top_p is {self.top_p}; it must be above 0 and at most 1", "1 leaves none out")


@frozen
class EvaluationConfig:
    """Held-out losses during the run: every `eval_every` steps (0: never), on the first `rows` rows of each source."""

    eval_every: int = 2000
    rows: int = 64

    def __attrs_post_init__(self) -> None:
        _refuse_below(self, "evaluation", "to evaluate never: evaluation.eval_every 0", eval_every=0, rows=1)


@frozen
class CheckpointConfig:
    """When checkpoints are written (0: at the end only) and which stay: the last `keep` and every `keep_every`-th."""

    every: int = 1000
    keep: int = 3
    keep_every: int = 0

    def __attrs_post_init__(self) -> None:
        _refuse_below(self, "checkpoints", "the last checkpoint must stay", keep=1)
        _refuse_below(self, "checkpoints", "it counts steps; 0 is never", every=0, keep_every=0)


@frozen
class DataConfig:
    """How text is prepared.

    Attributes
    ----------
    held_out_share
        Of the works.
    mix
        Each source's share of the tokenizer's sample; equal shares when left out.
    tokenizer
        Folder of a saved tokenizer, which is taken and not trained; the tokenizer plugin must be the one that saved it.
    """

    held_out_share: float = 0.05
    mix: dict[str, float] | None = None
    tokenizer: str = option("", help="folder of a saved tokenizer", path="folder")

    def __attrs_post_init__(self) -> None:
        if not 0 < self.held_out_share < 1:
            raise AndreaError(f"data.held_out_share is {self.held_out_share}", "a number between 0 and 1, as 0.05")


@frozen
class RunConfig:
    """Everything that decides a run.

    Attributes
    ----------
    name
        Of the model; files of the run begin with it.
    model, optimizer, schedule, batch, sampling, evaluation, checkpoints, data
        Sections.
    sources
        What is read: name, reader, options.
    plugins
        Options by plugin name, in call order. Naming a plugin here switches it on.
    without
        Default plugins that are left out.
    engine
        Switches of the engine, for instance ``{"graph": false}``.
    seed
        Decides weights, order, draws and samples.
    """

    name: str
    model: ModelConfig
    sources: tuple[SourceSpec, ...]
    seed: int = 0
    optimizer: OptimizerConfig = field(factory=OptimizerConfig)
    schedule: ScheduleConfig = field(factory=ScheduleConfig)
    batch: BatchConfig = field(factory=BatchConfig)
    sampling: SamplingConfig = field(factory=SamplingConfig)
    evaluation: EvaluationConfig = field(factory=EvaluationConfig)
    checkpoints: CheckpointConfig = field(factory=CheckpointConfig)
    data: DataConfig = field(factory=DataConfig)
    plugins: dict[str, dict[str, Any]] = field(factory=dict)
    without: tuple[str, ...] = ()
    engine: dict[str, Any] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        if not self.sources:
            raise AndreaError("the experiment names no sources", 'give at least one: "sources": [{"name": ...}]')
        names = [spec.name for spec in self.sources]
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise AndreaError(f"two sources are called {twice[0]!r}", "give every source a name of its own")
        for spec in self.sources:
            _check_source_name(spec.name)
            for part in spec.parts:
                _refuse_no_reader(part)
            if bool(spec.reader) == bool(spec.inputs) or (spec.inputs and spec.options):
                raise AndreaError(
                    f"source {spec.name!r} needs either a reader with its options, or inputs",
                    'for instance "reader": "source.text", or "inputs": [{"reader": "source.text", "options": {...}}]',
                )
        if not self.name or not all(c.isalnum() or c in "-_." for c in self.name) or self.name.startswith("."):
            raise AndreaError(f"name {self.name!r} cannot be part of a file name", "use letters, digits, '-' and '_'")
        if len(self.name) > MOST_CHARACTERS:
            raise AndreaError(
                f"name {self.name[:20]}... has {len(self.name)} characters", f"give at most {MOST_CHARACTERS}"
            )


def _check_source_name(name: str) -> None:
    """Refuse what a journal, a table or a file name cannot hold."""
    if not name.strip() or not name.isprintable() or set(name) & set("/\\") or len(name) > MOST_CHARACTERS:
        raise AndreaError(
            f"a source cannot be called {name[:MOST_CHARACTERS]!r}",
            f"use 1 to {MOST_CHARACTERS} characters that can be printed, without '/' and '\\'",
        )


def _refuse_no_reader(spec: SourceSpec) -> None:
    """Refuse a plugin of another kind; what is no plugin at all is said with its neighbours when plugins are chosen."""
    if not spec.reader or spec.reader.startswith("source."):
        return
    from andrea.registry import available  # which needs this module

    plugins = available()
    if spec.reader in plugins:
        readers = [name for name, entry in plugins.items() if entry.kind == "source"]
        raise AndreaError(f"source {spec.name!r}: {spec.reader} is no reader", f"readers: {', '.join(readers)}")


# -- reading -----------------------------------------------------------------------------------------------------------


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


def to_json(config: Any) -> Any:
    """Return the plain JSON value of a configuration, its keys in the order of the fields."""
    return json.loads(json.dumps(cattrs.Converter(unstruct_collection_overrides={tuple: list}).unstructure(config)))


def from_json(value: Any, where: str) -> RunConfig:
    """Return the configuration that a JSON value describes.

    Parameters
    ----------
    value
        A parsed JSON object.
    where
        File or experiment it came from, for messages.

    Raises
    ------
    AndreaError
        On unknown keys (with the nearest known one), missing keys and wrong types, all of them at once.
    """
    config: RunConfig = structure(value, RunConfig, where)
    return config


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


def read_json(path: Path) -> Any:
    """Return the JSON value of a file; malformed text is reported with line and column."""
    try:
        return _parse(path.read_text(encoding="utf-8-sig"))  # some editors begin a file with a byte order mark
    except AndreaError as error:
        raise AndreaError(f"{path}: {error.message}", error.hint) from None
    except json.JSONDecodeError as error:
        raise AndreaError(f"{path} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise AndreaError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise AndreaError(f"cannot read {path}: {error.strerror}") from None


def absolute_paths(value: Any, path_options: Callable[[str], Mapping[str, Any]]) -> None:
    """Make options that name files do so whatever folder a program is started in, in the JSON of an experiment.

    Parameters
    ----------
    value
        The experiment, which may be malformed; changed in place.
    path_options
        Which options of a plugin are paths, as `andrea.registry.path_options`.
    """
    sources = _objects(value.get("sources"))
    parts = [*sources, *(part for source in sources for part in _objects(source.get("inputs")))]
    plugins = value.get("plugins")
    named = [(part.get("reader"), part.get("options")) for part in parts]
    named += list(plugins.items()) if isinstance(plugins, dict) else []
    for name, options in named:
        if isinstance(name, str) and isinstance(options, dict):
            _make_absolute(options, path_options(name))
    for data in _objects([value.get("data")]):
        _make_absolute(data, own_path_options(DataConfig))


def _make_absolute(options: dict[str, Any], paths: Mapping[str, Any]) -> None:
    for key in options.keys() & paths.keys():
        found = options[key] if isinstance(options[key], list) else [options[key]]
        full = [_absolute(text, paths[key] == "folder") if isinstance(text, str) else text for text in found]
        options[key] = full if isinstance(options[key], list) else full[0]


def _objects(values: Any) -> list[dict[str, Any]]:
    return [one for one in values if isinstance(one, dict)] if isinstance(values, list) else []


def _absolute(text: str, only_folder: bool) -> str:
    try:
        path, here = Path(text).expanduser(), Path.cwd()
    except RuntimeError:  # ~NAME of nobody: who reads it says so
        return text
    # A pattern stays as it is in a folder whose own name looks like one.
    foreign = not text or "://" in text or (glob.has_magic(text) and glob.has_magic(str(here)))
    return text if foreign or (only_folder and not path.is_dir()) else str(here / path)


def _parse(text: str) -> Any:
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


def experiment_names() -> list[str]:
    """Return the names of the bundled experiments."""
    return sorted(path.stem for path in experiments_folder().glob("*.json"))


def read_experiment(name: str) -> tuple[dict[str, Any], str]:
    """Return the JSON object of a bundled experiment or a file, and where it was found.

    Raises
    ------
    AndreaError
        When there is no such file or experiment: the nearest names are shown.
    """
    bundled = experiments_folder() / f"{name}.json"
    path = bundled if "/" not in name and _is_file(bundled) else Path(name)
    if name and _is_folder(path):
        raise AndreaError(
            f"{name} is a folder",
            f"it holds a run, which goes on with: andrea run --resume --out {name}"
            if (path / "config.json").is_file()
            else f"give a JSON file in it, or a bundled experiment: {', '.join(experiment_names())}",
        )
    if not _is_file(path):
        known = experiment_names()
        raise AndreaError(
            f"there is no experiment or file {name!r}",
            (did_you_mean(name, known) + " " if did_you_mean(name, known) else "")
            + f"bundled experiments: {', '.join(known)}; or give the path of a JSON file",
        )
    value = read_json(path)
    if not isinstance(value, dict):
        raise AndreaError(f"{path}: an experiment is a JSON object, not {json.dumps(value)[:40]}")
    return value, str(name)


def _is_file(path: Path) -> bool:
    """Say whether there is a file, or something that only reading it can tell."""
    try:
        return path.is_file()
    except PermissionError:
        return True
    except OSError:  # a name that cannot be a file's
        return False


def _is_folder(path: Path) -> bool:
    """Say whether there is a folder that can be seen."""
    try:
        return path.is_dir()
    except OSError:
        return False


# -- overriding --------------------------------------------------------------------------------------------------------


def parse_setting(setting: str, option: str = "--set", example: str = "schedule.peak=1e-3") -> tuple[str, Any]:
    """Split ``KEY=VALUE`` of an option of the command line; the value is JSON when it parses, else text."""
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise AndreaError(f"{option} {setting!r} is not KEY=VALUE", f"for instance {option} {example}")
    try:
        return key, _parse(text)
    except json.JSONDecodeError:
        return key, text
    except AndreaError as error:
        raise AndreaError(f"{option} {key}: {error.message}", error.hint) from None


def override(value: dict[str, Any], key: str, new: Any, plugin_names: Sequence[str]) -> None:
    """Set one key of an experiment's JSON object in place.

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
