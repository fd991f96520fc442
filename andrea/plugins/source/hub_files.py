"""Which files of a dataset are its split, by what its README says or by their names, and where they are."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from andrea import AndreaError
from andrea.extras import import_extra
from andrea.rows import ROW_SUFFIXES
from andrea.sources import expand, find_files

_SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}


@frozen
class Repository:
    """A dataset's files.

    Attributes
    ----------
    name
        As the user gave it.
    names
        Of all files, relative, sorted.
    fetch
        Returns the path of one on this machine, after getting it if it is not here.
    """

    name: str
    names: Sequence[str]
    fetch: Callable[[str], Path]

    def files(self, config: str | None, split: str, patterns: str | list[str] | None) -> list[str]:
        """Return the names of the files of a split, in order.

        Raises
        ------
        AndreaError
            When there is no such configuration or split: lists those that there are.
        """
        if patterns is None:
            described = self._described(config)
            patterns = self._of_split(described, split) if described else None
        if patterns is None:
            found = self._by_name(config, split)
        else:
            listed = [patterns] if isinstance(patterns, str) else patterns
            found = [name for pattern in listed for name in self.names if _matches(name, pattern)]
        found = [name for name in dict.fromkeys(found) if name.lower().endswith(ROW_SUFFIXES)]
        if not found:
            raise AndreaError(
                f"dataset {self.name} has no data file for the split {split!r}",
                f"it has: {', '.join(name for name in self.names[:12])}; name files with the option `files`",
            )
        return found

    def _described(self, config: str | None) -> Mapping[str, Any] | None:
        """Return the configuration that the README describes; None when it describes none."""
        configs = _front_matter(self.fetch("README.md")).get("configs") if "README.md" in self.names else None
        configs = [one for one in configs or [] if isinstance(one, dict) and one.get("data_files")]
        if not configs:
            return None
        known = [str(one.get("config_name", "default")) for one in configs]
        if config is None:
            default = [one for one in configs if one.get("default") or one.get("config_name") == "default"]
            chosen = default or (configs if len(configs) == 1 else [])
        else:
            chosen = [one for one, name in zip(configs, known, strict=True) if name == config]
        if not chosen:
            raise AndreaError(
                f"dataset {self.name} has no configuration {config!r}"
                if config
                else f"dataset {self.name} has several",
                f"its configurations: {', '.join(known)}; choose one with the option `config`",
            )
        found: Mapping[str, Any] = chosen[0]
        return found

    def _of_split(self, config: Mapping[str, Any], split: str) -> str | list[str]:
        data_files = config["data_files"]
        if not (isinstance(data_files, list) and all(isinstance(one, dict) for one in data_files)):
            data_files = [{"split": "train", "path": data_files}]
        for one in data_files:
            if one.get("split") == split:
                folder = config.get("data_dir")
                paths = [one["path"]] if isinstance(one["path"], str) else list(one["path"])
                return [f"{folder.strip('/')}/{path}" if folder else path for path in paths]
        known = ", ".join(str(one.get("split")) for one in data_files)
        raise AndreaError(f"dataset {self.name} has no split {split!r}", f"its splits: {known}")

    def _by_name(self, config: str | None, split: str) -> list[str]:
        """Return the files that say a split in a word of their names; if none says any, all are the training split."""
        names = [name for name in self.names if name.lower().endswith(ROW_SUFFIXES)]
        if config is not None:
            names = [name for name in names if config in Path(name).parts[:-1]]
        words = {name: set(re.split(r"[^a-z0-9]+", name.lower())) for name in names}
        of = {key: [name for name in names if words[name] & set(marks)] for key, marks in _SPLITS.items()}
        if not any(of.values()):
            return names if split == "train" else []
        return of.get(split, [])


def _matches(name: str, pattern: str) -> bool:
    """Say whether a path fits a pattern, in which ``*`` stays within a folder and ``**`` does not."""
    parts = re.split(r"(\*\*/?|\*|\?)", pattern)
    wild = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.fullmatch("".join(wild.get(part) or re.escape(part) for part in parts), name) is not None


def _front_matter(path: Path) -> Mapping[str, Any]:
    """Return what a README says between the two lines of dashes at its top."""
    match = re.match(r"\s*---\r?\n(.*?)\r?\n---", path.read_text(encoding="utf-8", errors="replace"), re.DOTALL)
    if match is None:
        return {}
    yaml = import_extra("yaml", "hub", "a dataset's README is described in YAML")
    try:
        found = yaml.safe_load(match[1])
    except yaml.YAMLError as error:
        raise AndreaError(
            f"{path} begins with YAML that is none: {error}", "mend it, or use the option `files`"
        ) from error
    return found if isinstance(found, dict) else {}


def open_repository(source: str, name: str, revision: str | None) -> Repository:
    """Return the files of a folder, or of a dataset on the hub, all of one commit."""
    folder = expand(name)
    if folder.is_dir():
        files = {relative: path for path, relative in find_files(str(folder))}
        return Repository(name, sorted(files), files.__getitem__)
    if name.startswith((".", "/", "~")) or not re.fullmatch(r"[\w.-]+(?:/[\w.-]+)?", name):
        raise AndreaError(f"source {source}: there is no folder {name}", "give a folder, or a dataset as owner/name")
    return _on_the_hub(source, name, revision)


def _on_the_hub(source: str, name: str, revision: str | None) -> Repository:
    hub = import_extra("huggingface_hub", "hub", f"source {source} reads a dataset of the Hugging Face hub")
    errors = import_extra("huggingface_hub.errors", "hub", f"source {source} reads a dataset of the Hugging Face hub")
    import_extra("pyarrow", "hub", f"source {source} reads a dataset of the Hugging Face hub")

    def ask(function: Callable[..., Any], **arguments: Any) -> Any:
        try:
            return function(repo_id=name, repo_type="dataset", **arguments)
        except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError, ValueError) as error:
            said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise AndreaError(
                f"source {source}: dataset {name} cannot be had from the hub: {said}",
                "check the name and the connection; log in if the dataset asks for it: hf auth login",
            ) from error
        except Exception as error:  # of the library's own transport, whose classes change between versions
            if type(error).__module__.partition(".")[0] not in ("httpx", "httpx2", "httpcore", "requests", "urllib3"):
                raise
            raise AndreaError(f"source {source}: the hub cannot be reached: {error}", "check the connection") from error

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return _in_the_cache(name, ask, hub, revision)
    info = ask(hub.HfApi().repo_info, revision=revision)
    names = sorted(entry.rfilename for entry in info.siblings or [])
    return Repository(name, names, lambda file: Path(ask(hub.hf_hub_download, filename=file, revision=info.sha)))


def _in_the_cache(name: str, ask: Callable[..., Any], hub: Any, revision: str | None) -> Repository:
    """Return what an earlier use has brought, without a connection."""
    folder = Path(ask(hub.snapshot_download, revision=revision, local_files_only=True))
    files = {relative: path for path, relative in find_files(str(folder))}
    return Repository(name, sorted(files), files.__getitem__)
