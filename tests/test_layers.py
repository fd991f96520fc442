"""Who may import whom, and what importing andrea loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

import andrea
from andrea.hookspecs import hook_names

PACKAGE = Path(andrea.__file__).parent


def ours(*names):
    return tuple(f"andrea.{name}" for name in names)


BASE = ours("errors", "types", "rng")
# What a run is put together from, and what one that is there is opened with.
PARTS = (
    *BASE,
    *ours("resources", "sources", "filters", "workers", "tokenfile", "tokens", "batches", "engine", "engine.buffers"),
    *ours("engine.device", "strict_json", "registry", "config", "experiment_file", "settings", "placeholders"),
    *ours("checkpoint", "journal", "evaluate", "loop", "interrupts", "folder_lock"),
)

# Of our own modules, a module that fits the first pattern may import those that fit one of the others. The first row
# that fits rules, and every module has one.
RULES = {
    # -- below all
    "andrea": ours("errors", "plugin", "types", "notebook"),
    "andrea.errors": (),
    "andrea.rng": (),
    "andrea.types": ours("rng", "notebook"),  # which is above all, and imported only when it is asked for
    "andrea.resources": ours("errors"),
    "andrea.plugin": ours("errors", "types"),
    "andrea.hookspecs": ours("errors", "types", "plugin"),
    **dict.fromkeys(ours("byte_level", "extras", "split", "words", "workers", "writing", "progress"), BASE),
    **dict.fromkeys(ours("interrupts", "folder_lock", "placeholders", "chart", "columns", "figures"), BASE),
    "andrea.strict_json": BASE,
    **dict.fromkeys(ours("smoothing", "student_t"), BASE),
    "andrea.loss_curves": (*BASE, *ours("plugin")),
    # -- numbers
    "andrea.engine": (*BASE, "andrea.engine.*"),
    "andrea.engine.attention_cudnn": (*BASE, *ours("extras", "engine", "engine.attention")),
    "andrea.engine.attention_choice": (*BASE, *ours("engine", "engine.attention*", "engine.compiler")),
    "andrea.engine.*": (*BASE, *ours("resources", "engine", "engine.*")),
    # -- text
    "andrea.sources": (*BASE, *ours("extras", "plugin")),
    "andrea.filters": (*BASE, "andrea.sources"),
    "andrea.rows": (*BASE, *ours("extras", "sources")),
    "andrea.conversations": (*BASE, *ours("sources", "rows")),
    "andrea.coherence": (*BASE, "andrea.words"),
    "andrea.store": (*BASE, *ours("sources", "filters", "split")),
    "andrea.tokenfile": (*BASE, "andrea.sources"),
    "andrea.seal": (*BASE, "andrea.tokenfile"),
    "andrea.grams": BASE,
    "andrea.known": (*BASE, *ours("sources", "grams")),
    "andrea.human": (*BASE, *ours("sources", "tokenfile", "words", "grams", "known")),
    "andrea.tokens": (
        *BASE,
        *ours("human", "known", "seal", "sources", "filters", "split", "words", "workers", "store", "tokenfile"),
    ),
    "andrea.unchanged": (*BASE, *ours("tokenfile", "tokens")),
    "andrea.batches": (*BASE, *ours("tokenfile", "tokens")),
    "andrea.bigram": (*BASE, "andrea.tokens"),
    "andrea.diet": (*BASE, "andrea.tokenfile"),
    # -- plugins; see below: each only its own modules
    "andrea.plugins": (),
    "andrea.plugins.*": (
        "andrea",
        *ours("byte_level", "extras", "sources", "rows", "conversations", "coherence", "smoothing", "loss_curves"),
        *ours("plugins.*"),
    ),
    # -- a run; the loop is handed its engine and its plugins: what it imports of these are the protocol and the types
    "andrea.registry": (*BASE, *ours("plugin", "hookspecs", "strict_json")),
    "andrea.config": (*BASE, *ours("strict_json", "plugin", "engine", "engine.model", "engine.schedule", "registry")),
    "andrea.experiment_file": (*BASE, *ours("resources", "plugin", "strict_json", "config")),
    "andrea.settings": (*BASE, *ours("strict_json", "config")),
    "andrea.journal": (*BASE, "andrea.tokenfile"),
    "andrea.checkpoint": (*BASE, *ours("strict_json", "config", "tokenfile")),
    "andrea.evaluate": (*BASE, *ours("batches", "engine", "tokens")),
    "andrea.loop": (
        *BASE,
        *ours("plugin", "hookspecs", "config", "tokenfile", "batches", "engine", "evaluate", "checkpoint", "journal"),
        *ours("interrupts", "folder_lock"),
    ),
    "andrea.planning": (
        *BASE,
        *ours("sources", "engine.device", "strict_json", "registry", "config", "experiment_file", "settings"),
        *ours("placeholders", "checkpoint", "loop"),
    ),
    "andrea.run_data": (
        *BASE,
        *ours("sources", "filters", "workers", "tokens", "config", "registry", "loop", "interrupts", "planning"),
        *ours("strict_json", "unchanged"),
    ),
    "andrea.fingerprint": ("andrea", *BASE, *ours("registry", "tokens", "planning")),
    "andrea.assembly": (*PARTS, *ours("planning", "run_data", "fingerprint")),
    # -- what uses a run
    "andrea.trained": (*PARTS, *ours("planning", "run_data", "assembly", "writing")),
    "andrea.vocabulary": (*PARTS, *ours("planning", "run_data", "diet")),
    "andrea.chat": (*BASE, *ours("engine", "conversations", "trained", "writing")),
    "andrea.scoring": (*BASE, *ours("engine", "trained")),
    "andrea.harness": (*BASE, *ours("engine", "trained", "scoring")),
    "andrea.export": (*BASE, *ours("tokenfile", "export.*")),
    "andrea.export.*": (*BASE, *ours("byte_level", "extras", "engine.model", "trained", "export.*")),
    "andrea.importing": (),
    "andrea.importing.adopt": (*PARTS, *ours("planning", "assembly", "vocabulary", "importing.*")),
    "andrea.importing.*": (
        *BASE,
        *ours("extras", "strict_json", "engine.model", "export.hf", "export.portable", "importing.*"),
    ),
    "andrea.audit": (*PARTS, *ours("run_data", "trained")),
    "andrea.audit_*": (*BASE, *ours("tokenfile", "journal", "student_t", "audit", "audit_*")),
    "andrea.trial": (
        *BASE,
        *ours("strict_json", "config", "experiment_file", "settings", "registry", "resources", "placeholders"),
        "andrea.tokenfile",
    ),
    "andrea.trial_run": (*PARTS, *ours("planning", "run_data", "assembly", "trained", "progress", "trial")),
    "andrea.trial_*": (
        *BASE,
        *ours("tokenfile", "journal", "strict_json", "student_t", "interrupts", "trial", "trial_*"),
    ),
    "andrea.serve": (),
    "andrea.serve.*": (*BASE, *ours("smoothing", "checkpoint", "coherence", "loop", "registry", "serve.*")),
    "andrea.inspection": ("andrea", *PARTS, *ours("planning", "run_data", "vocabulary")),
    "andrea.cells": (*BASE, *ours("engine.compiler", "engine.kernel_table", "loop", "registry")),
    "andrea.notebook": (
        *PARTS,
        *ours("planning", "assembly", "trained", "columns", "export", "export.portable", "progress"),
    ),
    # -- above all
    "andrea.testing": ours("testing.*"),
    "andrea.testing.*": (
        *PARTS,
        *ours("plugin", "engine.benchmark", "engine.schedule", "words", "human", "known", "testing.*"),
    ),
    "andrea.cli_options": (),
    "andrea.cli_answers": (*BASE, *ours("progress", "interrupts", "journal", "tokens")),
    "andrea.cli": ("andrea", "andrea.*"),
    "andrea.cli_*": ("andrea.*",),
    "andrea.__main__": ours("cli"),
}


def name_of(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def tree_of(name):
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


def imports_of(name):
    """Yield (module, imported name or None) of every import, also within functions and for typing."""
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                public = node.module == "andrea" and alias.name in andrea.__all__  # `plugin` is both name and module
                yield (module, None) if module in MODULES and not public else (node.module, alias.name)


def fits(name, patterns):
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def own(name):
    """Return what a module imports of ours."""
    return [(module, what) for module, what in imports_of(name) if module.split(".")[0] == "andrea"]


def test_the_walk_sees_modules():
    """A rule over an empty list would hold for anything."""
    assert {"andrea", "andrea.loop", "andrea.engine", "andrea.plugins.bandit.ucb1"} <= set(MODULES)
    assert ("andrea.rng", "Draws") in own("andrea.types")
    assert ("andrea.engine.reference", "ReferenceEngine") in own("andrea.engine")


@pytest.mark.parametrize("name", list(MODULES))
def test_a_layer_imports_only_what_lies_below(name):
    """Each stage knows the one before; engine and plugins know neither each other nor what is above them."""
    rules = [below for pattern, below in RULES.items() if fnmatchcase(name, pattern)]
    assert rules, f"no row of RULES says what {name} may import"
    assert [module for module, _ in own(name) if not fits(module, rules[0])] == []


def test_every_rule_is_of_a_module():
    """A row for a module that is gone would hold for nothing, and so would a module's row behind a wider pattern."""
    first = {name: next(pattern for pattern in RULES if fnmatchcase(name, pattern)) for name in MODULES}
    assert set(RULES) - set(first.values()) == set()


@pytest.mark.parametrize("name", [name for name in MODULES if fnmatchcase(name, "andrea.plugins.*.*")])
def test_a_plugin_knows_public_names_and_its_own_modules(name):
    """What a built-in uses, a plugin from outside can use; and no plugin knows another."""
    for module, what in own(name):
        if module == "andrea":
            assert what in andrea.__all__, f"{name} imports {what}, which is not public"
        if module.startswith("andrea.plugins"):
            first, second = name.rsplit(".", 1), module.rsplit(".", 1)
            assert first[0] == second[0], f"{name} imports {module}, of another kind"
            assert first[1].split("_")[0] == second[1].split("_")[0], f"{name} imports {module}, another plugin"


@pytest.mark.parametrize("name", list(MODULES))
def test_nobody_imports_what_is_above_all(name):
    """Plugins come in through entry points, the command line and the kit are used by nobody."""
    for module, _ in own(name):
        assert not module.startswith("andrea.plugins") or name.startswith("andrea.plugins."), f"{name}: {module}"
        above = name.startswith("andrea.cli") or name == "andrea.__main__"
        assert not module.startswith("andrea.cli") or above, f"{name} imports the command line"
        assert not module.startswith("andrea.testing") or name.startswith("andrea.testing"), f"{name} imports the kit"


@pytest.mark.parametrize("name", [name for name in MODULES if name != "andrea.loop" and "testing" not in name])
def test_only_the_loop_calls_hooks(name):
    """No other module asks plugins anything; the registry alone may look at pluggy's hooks."""
    hooks = set(hook_names())
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            asked = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
            assert not (node.func.attr in ("ask", "one", "tell", "of") and asked in hooks), f"{name} asks {asked}"
        if isinstance(node, ast.Attribute) and node.attr == "hook":
            assert name == "andrea.registry", f"{name} reaches for a manager's hooks"


def loaded_by(statement):
    """Return the modules that a fresh interpreter loads."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", statement], capture_output=True, text=True, check=True
    )
    return {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


def test_importing_andrea_loads_neither_cuda_nor_plugins():
    """And no other library than numpy, attrs and pluggy: it is what every plugin and every pytest session pays for."""
    found = loaded_by("import andrea")
    assert {"andrea", "andrea.types", "numpy", "pluggy"} <= found
    heavy = (
        "nvmath",
        "tokenizers",
        "cattrs",
        "rich",
        "typer",
        "platformdirs",
        "scipy",
        "torch",
        "threadpoolctl",
    )
    # A bare cuda may be there from the interpreter's start.
    assert [name for name in found if name.split(".")[0] in heavy or name.startswith("cuda.")] == []
    ours = {name for name in found if name.startswith("andrea.")}
    assert ours == {"andrea.errors", "andrea.plugin", "andrea.rng", "andrea.types"}
    parts = ("numpy.testing", "numpy.f2py", "numpy.distutils", "asyncio", "multiprocessing", "unittest")
    assert [name for name in found if name.startswith(parts)] == []


def test_asking_for_help_loads_no_plugin_and_no_engine():
    """The command line stays quick because a command imports what it needs."""
    found = loaded_by(
        "import sys; sys.argv = ['andrea', '--help']\n"
        "import andrea.cli\n"
        "try: andrea.cli.main()\n"
        "except SystemExit: pass"
    )
    assert "andrea.cli" in found
    loaded = [
        n for n in found if n.startswith(("andrea.plugins", "andrea.engine", "andrea.loop", "cuda.", "tokenizers"))
    ]
    assert loaded == []
