"""The docstrings of installed Python packages, read from their sources without importing them."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sysconfig
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from andrea import AndreaError, Document, SourceSpec, hookimpl, option, plugin
from andrea.sources import Documents, find_files, read_options, reading

# Other people's packages, which stand inside the standard library's folder, and tests.
_LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
_COMMENTS = re.compile(r"(?:^[ \t]*#.*\n){3,}", re.MULTILINE)


@plugin
class Options:
    """What ``options`` of a source may say."""

    packages: list[str] = option(factory=list, help="names of installed packages or modules, as one imports them")
    standard_library: bool = option(False, help="read all of the standard library, tests left out")
    comments: bool = option(False, help="read blocks of three and more lines of comment in place of docstrings")
    topics: bool = option(False, help="read the help topics that Python carries, as `help('LOOPING')` shows them")


@hookimpl
def open_source(spec: SourceSpec) -> Documents:
    """Read a document from every docstring; the group is its module's file, so a module's docstrings stay together."""
    options = read_options(spec, Options)
    if not (options.packages or options.standard_library or options.topics):
        raise AndreaError(
            f"source {spec.name}: source.docstrings is told to read nothing",
            'give "packages": ["numpy"], "standard_library": true or "topics": true',
        )
    return Documents(partial(_read, options), partial(_files, options))


def _read(options: Options) -> Iterator[Document]:
    for module, path in _modules(options):
        yield from _comments(module, path) if options.comments else _docstrings(module, path)
    if options.topics:
        yield from _topics()


def _files(options: Options) -> Iterator[tuple[Path, str]]:
    for module, path in _modules(options):
        yield path, module
    if options.topics:
        yield _topics_file(), "topics"


def _modules(options: Options) -> list[tuple[str, Path]]:
    modules: dict[str, Path] = {}
    for package in options.packages:
        modules |= _modules_of(package)
    if options.standard_library:
        modules |= _standard_library()
    return sorted(modules.items())


def _modules_of(package: str) -> dict[str, Path]:
    """Return the source files of a package by their path from the folder that holds the package."""
    top, *rest = package.split(".")
    found = importlib.util.find_spec(top) if top.isidentifier() else None
    if found is None:
        raise AndreaError(f"no package {top!r} is installed here", f"install it, or leave it out: pip install {top}")
    folders = [Path(folder, *rest) for folder in found.submodule_search_locations or []]
    modules: dict[str, Path] = {}
    for folder in folders:
        root, module = folder.parents[len(rest)], folder.with_suffix(".py")
        if folder.is_dir():
            above = folder.relative_to(root).as_posix()
            modules |= {f"{above}/{name}": path for path, name in find_files(str(folder), [".py"], _LEFT_OUT)}
        elif module.is_file():
            modules[module.relative_to(root).as_posix()] = module
    if not rest and not folders and found.origin and found.origin.endswith(".py"):
        modules[Path(found.origin).name] = Path(found.origin)
    if not modules:
        raise AndreaError(f"{package} has no Python source to read", "name a package that is written in Python")
    return modules


def _standard_library() -> dict[str, Path]:
    root = Path(sysconfig.get_path("stdlib"))
    return {name: path for path, name in find_files(str(root), [".py"], _LEFT_OUT)}


def _docstrings(module: str, path: Path) -> Iterator[Document]:
    tree = _parse(path)
    for name, node in _walk(tree, "") if tree else ():
        text = ast.get_docstring(node, clean=False)
        if text and text.strip():
            yield Document(text=inspect.cleandoc(text), name=f"{module} {name}".strip(), group=module)


def _parse(path: Path) -> ast.Module | None:
    """Return the syntax tree, or None: packages also carry templates and samples of other versions of Python."""
    with reading(path):
        source = path.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the package's own code, which is not ours to mend
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return None


def _comments(module: str, path: Path) -> Iterator[Document]:
    with reading(path):
        source = path.read_bytes().decode("utf-8", "replace")
    for block in _COMMENTS.finditer(source):
        line = source.count("\n", 0, block.start()) + 1
        text = inspect.cleandoc("\n".join(part.strip().lstrip("#") for part in block[0].split("\n")))
        if text:
            yield Document(text=text, name=f"{module} line {line}", group=module)


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _walk(node: Documented, name: str) -> Iterator[tuple[str, Documented]]:
    """Yield a module, its classes and functions and theirs, in the order of the source, with their qualified names."""
    yield name, node
    for child in node.body:
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _walk(child, f"{name}.{child.name}" if name else child.name)


def _topics_file() -> Path:
    return Path(sysconfig.get_path("stdlib"), "pydoc_data", "topics.py")


def _topics() -> Iterator[Document]:
    path = _topics_file()
    tree = _parse(path)
    values = [node.value for node in tree.body if isinstance(node, ast.Assign)] if tree else []
    topics: dict[str, str] = next((ast.literal_eval(value) for value in values if isinstance(value, ast.Dict)), {})
    if not topics:
        raise AndreaError(
            f"{path} holds no help topics", "this Python came without its documentation; leave topics out"
        )
    for topic, text in sorted(topics.items()):
        yield Document(text=inspect.cleandoc(text), name=f"topic {topic}", group=f"topic {topic}")
