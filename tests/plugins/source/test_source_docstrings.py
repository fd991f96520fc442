"""source.docstrings reads docstrings, comments and help topics without importing anything."""

from __future__ import annotations

import json
import sys

import pytest

from andrea import AndreaError, SourceSpec
from andrea.plugins.source import docstrings

MODULE = '''"""Module's own.

    Indented.
"""
raise RuntimeError("this module must never be imported")

# one comment
# of two lines

    # three lines
    #   of comment,
    # indented
class Class:
    """A class."""
    def method(self):
        """A method."""
        def inner():
            """Inside."""
    def none(self): pass
async def coroutine():
    "   A coroutine."
def blank():
    """   """
'''


def read(**options):
    documents = docstrings.open_source(SourceSpec("s", "source.docstrings", options))
    first = list(documents)
    assert first == list(documents), "reading twice must give the same"
    return first


@pytest.fixture
def packages(tmp_path, monkeypatch):
    files = {
        "zebra/__init__.py": '"""Zebra."""',
        "zebra/stripes.py": MODULE,
        "zebra/sub/__init__.py": '"""Sub."""',
        "zebra/tests/test_it.py": '"""A test."""',
        "zebra/template.py": "class {{ name }}: pass",
        "horse.py": '"""Horse."""',
        "empty/__init__.py": "",
    }
    for name, source in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_docstrings_of_a_package(packages):
    """Every docstring is a document, cleaned, in the order of the source; its group is its file; tests are left out."""
    documents = read(packages=["zebra", "horse"])
    assert [(d.group, d.text) for d in documents] == [
        ("horse.py", "Horse."),
        ("zebra/__init__.py", "Zebra."),
        ("zebra/stripes.py", "Module's own.\n\nIndented."),
        ("zebra/stripes.py", "A class."),
        ("zebra/stripes.py", "A method."),
        ("zebra/stripes.py", "Inside."),
        ("zebra/stripes.py", "A coroutine."),
        ("zebra/sub/__init__.py", "Sub."),
    ]
    assert "zebra/stripes.py Class.method" in [d.name for d in documents]
    assert not {"zebra", "zebra.stripes", "horse"} & set(sys.modules)


def test_a_part_of_a_package(packages):
    """A dotted name takes a subpackage or a single module, with the same groups."""
    assert [d.group for d in read(packages=["zebra.sub"])] == ["zebra/sub/__init__.py"]
    assert {d.group for d in read(packages=["zebra.stripes"])} == {"zebra/stripes.py"}
    assert "zebra" not in sys.modules


def test_comments(packages):
    """Blocks of three and more lines of comment, without their marks."""
    assert [(d.text, d.name) for d in read(packages=["zebra"], comments=True)] == [
        ("three lines\n  of comment,\nindented", "zebra/stripes.py line 10")
    ]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["nowhere_to_be_found"], "no package 'nowhere_to_be_found' is installed"),
        (["zebra.nothing"], "zebra.nothing has no Python source"),
        (["itertools"], "itertools has no Python source"),
        (["../zebra"], "no package"),
    ],
)
def test_a_package_that_is_not_there(packages, names, said):
    """What is not installed or has no source is an error that names it."""
    with pytest.raises(AndreaError, match=said):
        read(packages=names)


def test_nothing_to_read_is_an_error():
    """No package, no library, no topics: the error says what to give."""
    with pytest.raises(AndreaError, match="told to read nothing") as caught:
        read()
    assert "standard_library" in caught.value.hint


def test_real_packages():
    """A package of the standard library gives its own docstrings."""
    documents = read(packages=["json"])
    assert json.dumps.__doc__ is not None
    assert any("Serialize ``obj`` to a JSON formatted ``str``" in d.text for d in documents)
    assert {d.group for d in documents} >= {"json/__init__.py", "json/encoder.py"}


def test_the_standard_library(packages, monkeypatch):
    """All of the library without other people's packages and without tests."""
    for name in ("site-packages/other.py", "test/test_x.py"):
        (packages / name).parent.mkdir(exist_ok=True)
        (packages / name).write_text('"""Not of the library."""', encoding="utf-8")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(packages))
    texts = [d.text for d in read(standard_library=True)]
    assert "Horse." in texts
    assert "Sub." in texts
    assert not {"Not of the library.", "A test."} & set(texts)


def test_help_topics():
    """The help topics that Python carries are real prose, each a work of its own."""
    documents = read(topics=True)
    assert len(documents) > 50
    assert len({d.group for d in documents}) == len(documents)
    assert any("while" in d.text for d in documents)
