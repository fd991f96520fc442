"""A module is imported without its packages, which stay whole for others."""

from __future__ import annotations

import sys

import pytest

from andrea.engine.import_alone import import_alone


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a writer of a package made_up.inner, whose own imports are told, and forget it afterwards."""

    def write(outer="", module="from made_up.inner import helper\nvalue = helper.value\n"):
        inner = tmp_path / "made_up" / "inner"
        inner.mkdir(parents=True)
        (tmp_path / "made_up" / "__init__.py").write_text(f"{outer}from made_up import inner\nloaded = True\n")
        (inner / "__init__.py").write_text("from made_up.inner import leaf\n")
        (inner / "helper.py").write_text("value = 5\n")
        (inner / "leaf.py").write_text(module)
        monkeypatch.syspath_prepend(str(tmp_path))

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "made_up"]:
        del sys.modules[name]


def test_packages_are_not_run(package):
    """Here the package cannot even be imported, as bindings whose optional part is missing."""
    package("import a_library_that_nobody_has\n")
    assert import_alone("made_up.inner.leaf").value == 5
    assert "made_up" not in sys.modules
    assert "made_up.inner" not in sys.modules


def test_who_imports_the_package_later_gets_it_whole(package):
    """With the very module that was imported alone: a library is loaded once."""
    package()
    alone = import_alone("made_up.inner.leaf")
    import made_up.inner.leaf  # type: ignore[import-not-found]
    from made_up.inner import leaf

    assert made_up.loaded
    assert leaf is alone is made_up.inner.leaf is import_alone("made_up.inner.leaf")


def test_a_module_that_needs_its_package_gets_it(package):
    """Then everything is imported, as by a plain import."""
    package("ready = 7\n", "import made_up\nvalue = made_up.ready\n")
    assert import_alone("made_up.inner.leaf").value == 7


def test_what_was_imported_in_vain_is_imported_anew(package, tmp_path):
    """Else it would hold the package that was empty."""
    package("ready = 7\n", "from made_up.inner import helper\nvalue = helper.package.ready\n")
    (tmp_path / "made_up" / "inner" / "helper.py").write_text("import made_up as package\n")
    assert import_alone("made_up.inner.leaf").value == 7


def test_what_is_missing_is_told_as_by_a_plain_import(package):
    """The package, or the module in it."""
    with pytest.raises(ModuleNotFoundError, match="made_up"):
        import_alone("made_up.inner.leaf")
    package()
    with pytest.raises(ModuleNotFoundError, match=r"made_up\.inner\.other"):
        import_alone("made_up.inner.other")
