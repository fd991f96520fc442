"""Every hook is documented where plugin authors look, and tested."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from andrea import hookspecs
from andrea.hookspecs import hook_names

ROOT = Path(__file__).parents[1]
HOOKS = hook_names()


def test_hooks_are_in_the_order_of_a_run():
    """The file is the documentation of the order."""
    assert HOOKS[:5] == ["open_source", "keep_document", "identify_document", "make_tokenizer", "choose_precision"]
    assert HOOKS.index("select_source") < HOOKS.index("reward") < HOOKS.index("on_step") < HOOKS.index("should_stop")
    assert HOOKS[-1] == "on_finish"
    assert len(HOOKS) == 18


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_says_when_it_is_called_and_how_answers_combine(hook):
    """One sentence, When, Combine; a question that answers says what it returns or shows it."""
    text = inspect.getdoc(getattr(hookspecs, hook))
    first, _, rest = text.partition("\n\n")
    assert first.endswith(".")
    assert "\nWhen: " in f"\n{rest}"
    assert "\nCombine: " in rest
    if not hook.startswith("on_") or hook == "on_signal":
        assert "Returns: " in rest or "Example: " in rest


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_has_types(hook):
    """Every argument and the answer."""
    signature = inspect.signature(getattr(hookspecs, hook))
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in signature.parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty
        assert parameter.default is inspect.Parameter.empty


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_is_in_the_documentation_with_its_signature(hook):
    """docs/plugins.md shows the signature as it is."""
    signature = inspect.signature(getattr(hookspecs, hook))
    shown = f"{hook}{signature}".replace("'", "")
    assert f"`{shown}`" in (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_is_called_in_a_test(hook):
    """Some test beside this one names it."""
    tests = [
        path for path in (ROOT / "tests").rglob("test_*.py") if path.name not in ("test_hookspecs.py", "test_docs.py")
    ]
    assert any(hook in path.read_text(encoding="utf-8") for path in tests)


@pytest.mark.parametrize("hook", HOOKS)
def test_only_the_loop_asks(hook):
    """The hook is asked in andrea/loop.py, by its name."""
    text = (ROOT / "andrea" / "loop.py").read_text(encoding="utf-8")
    assert f'"{hook}"' in text
