"""Finding a device needs no card, changes nothing, and says in one line what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from andrea.engine import device as module
from andrea.engine.device import CPU, find_device
from andrea.errors import AndreaError
from andrea.types import Device

CARDS = [Device("cuda", "First", (9, 0), 0), Device("cuda", "Second", (8, 6), 1)]


@pytest.fixture
def two_cards(monkeypatch):
    """Stand in for a machine with two cards and a compiler."""
    monkeypatch.setattr(module, "find_cards", lambda: (CARDS, ""))
    monkeypatch.setattr(module, "missing_compiler", lambda: "")


def test_cpu_is_always_there():
    """`cpu` asks nobody."""
    assert find_device("cpu") == CPU


@pytest.mark.usefixtures("two_cards")
@pytest.mark.parametrize(("request_text", "card"), [("auto", 0), ("cuda", 0), ("cuda:0", 0), ("cuda:1", 1)])
def test_card_is_found(request_text, card):
    """`auto` and `cuda` take the first card, `cuda:N` the card N."""
    assert find_device(request_text) == CARDS[card]


@pytest.mark.usefixtures("two_cards")
def test_missing_card_names_those_that_exist():
    """A card that is not there is refused with the list of those that are."""
    with pytest.raises(AndreaError, match="no card 7") as error:
        find_device("cuda:7")
    assert "cuda:0 First, cuda:1 Second" in error.value.hint


@pytest.mark.parametrize("wrong", ["gpu", "cuda:", "cuda:-1", "cuda:x", "", "CPU"])
def test_unknown_device_names_the_known_ones(wrong):
    """Anything else is refused with what exists."""
    with pytest.raises(AndreaError, match="there is no device") as error:
        find_device(wrong)
    assert "auto, cpu, cuda" in error.value.hint


@pytest.mark.parametrize("lack", ["cards", "compiler"])
def test_auto_falls_back_with_one_line(monkeypatch, lack):
    """Without a card or a compiler `auto` takes the CPU and says why once; a named card is an error with the reason."""
    reason = "no such thing here; install it"
    monkeypatch.setattr(module, "find_cards", lambda: ([], reason) if lack == "cards" else (CARDS, ""))
    monkeypatch.setattr(module, "missing_compiler", lambda: "" if lack == "cards" else reason)
    lines: list[str] = []
    assert find_device("auto", lines.append) == CPU
    assert len(lines) == 1
    assert reason in lines[0]
    assert "\n" not in lines[0]
    with pytest.raises(AndreaError, match="install it"):
        find_device("cuda")


def test_compiler_reason_says_what_to_install(monkeypatch):
    """When NVRTC does not load, the reason names the extra that brings it."""

    def fails():
        raise AndreaError("NVRTC cannot be loaded")

    monkeypatch.setattr("andrea.engine.compiler.compiler_version", fails)
    assert "pip install" in module.missing_compiler()


def test_module_loads_without_cuda():
    """Importing the module and asking for the CPU loads nothing of CUDA; a bare cuda is of the interpreter's start."""
    code = (
        "import sys; from andrea.engine.device import find_device; find_device('cpu');"
        "print([m for m in sys.modules if m.startswith(('cuda.', 'nvmath'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
