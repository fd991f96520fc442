"""A library that an extra brings, and what is said where it is missing."""

from __future__ import annotations

import math
import sys

import pytest

from andrea import AndreaError
from andrea.extras import import_extra


def test_what_is_there_is_imported():
    """The module that was asked for comes back."""
    assert import_extra("math", "hub", "this needs numbers") is math


def test_what_is_missing_names_the_library_and_the_extra(monkeypatch):
    """Also when a module of ours is what needs the library."""
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(AndreaError, match="a model is a file, which needs safetensors") as caught:
        import_extra("safetensors.numpy", "export", "a model is a file")
    assert caught.value.hint == "install the extra export: pip install 'andrea[export]'"
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "andrea.harness", raising=False)
    with pytest.raises(AndreaError, match="which needs lm_eval"):
        import_extra("andrea.harness", "lm-eval", "--tasks runs the harness")
