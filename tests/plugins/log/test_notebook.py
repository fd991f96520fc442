"""log.notebook: one display that changes in its place, and nothing elsewhere."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from andrea import AndreaError, Evaluation, Sample
from andrea.plugins.log import notebook
from andrea.plugins.log.notebook import Notebook
from andrea.testing import check_plugin, run_steps


@pytest.fixture
def shown(monkeypatch):
    """Stand in for IPython; return what its display showed, newest last."""
    found = []

    class Handle:
        def update(self, html):
            found.append(html)

    def show(html, display_id):
        assert display_id is True
        found.append(html)
        return Handle()

    module, display = ModuleType("IPython"), ModuleType("IPython.display")
    display.HTML, display.display = str, show
    module.display, module.get_ipython = display, lambda: SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(notebook, "REDRAW", 0.0)
    return found


def test_a_run_is_shown_in_one_display(shown):
    """It begins, every step changes it, and at its end it says why."""
    run_steps(["log.notebook"], 6)
    assert len(shown) >= 8
    assert "sources" in shown[0]
    assert any("step 3, loss" in html and "tokens/s" in html for html in shown)
    assert "ended:" in shown[-1]
    assert "step 6" in shown[-1]


def test_held_out_text_and_samples(shown):
    """They stay below the line, and what a model writes is text whatever it looks like."""
    plugin = Notebook(width=12)
    run = SimpleNamespace(name="tiny", sources=("a", "b"), stop_step=40)
    plugin.on_start(run)
    plugin.on_evaluation(Evaluation(10, {"a<b": 1.0}, {"a<b": 2.0}), run)
    plugin.on_sample(Sample(20, 1.5, ("<", ""), ("script>alert(1)</script>", "two")), run)
    html = shown[-1]
    assert '<progress value="0" max="40">' in html
    assert "after step 10: a&lt;b 2.000; mean 2.000" in html
    assert "<li><code>&lt;script&gt;aler</code></li><li><code>two</code></li>" in html
    assert "<script" not in html


def test_drawing_is_not_asked_too_often(shown, monkeypatch):
    """Between two drawings lies a while: a step of a small model takes less than a drawing."""
    monkeypatch.setattr(notebook, "REDRAW", 1000.0)
    run_steps(["log.notebook"], 6)
    assert len(shown) <= 4


@pytest.mark.parametrize("absent", ["library", "notebook"])
def test_outside_of_a_notebook_it_is_silent(shown, monkeypatch, absent, capsys):
    """Without IPython, and where no notebook asks, nothing is shown and nothing fails."""
    if absent == "library":
        monkeypatch.setitem(sys.modules, "IPython", None)
    else:
        sys.modules["IPython"].get_ipython = lambda: None
    run_steps(["log.notebook"], 3)
    assert shown == []
    assert capsys.readouterr().out == ""


def test_a_width_of_nothing_is_refused():
    """The option and its least value are named."""
    with pytest.raises(AndreaError, match=r"log\.notebook\.width is 0"):
        Notebook(width=0)


def test_the_plugin_keeps_its_contracts():
    """As every plugin does."""
    check_plugin("log.notebook")


def test_real_ipython(monkeypatch, capsys):
    """IPython's own display takes what it is given."""
    testing = pytest.importorskip("IPython.testing.globalipapp")
    shell = testing.get_ipython() or testing.start_ipython()
    monkeypatch.setattr(notebook, "REDRAW", 0.0)
    assert shell is not None
    run_steps(["log.notebook"], 3)
    assert "IPython.core.display.HTML" in capsys.readouterr().out
