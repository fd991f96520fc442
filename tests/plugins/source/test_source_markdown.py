"""source.markdown reads Markdown trees and the descriptions of installed distributions."""

from __future__ import annotations

import importlib.metadata

import pytest

from andrea import AndreaError, SourceSpec
from andrea.plugins.source import markdown


def read(**options):
    documents = markdown.open_source(SourceSpec("s", "source.markdown", options))
    first = list(documents)
    assert first == list(documents), "reading twice must give the same"
    return first


def test_a_tree_of_files(tmp_path):
    """Markdown files below a folder, each a work in pieces."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("# A\n\n" + "text\n\n" * 50, encoding="utf-8")
    (tmp_path / "b.markdown").write_text("# B", encoding="utf-8")
    (tmp_path / "c.txt").write_text("no", encoding="utf-8")
    documents = read(path=str(tmp_path), chunk=60)
    assert {d.group for d in documents} == {"docs/a.md", "b.markdown"}
    assert "".join(d.text for d in documents if d.group == "docs/a.md") == "# A\n\n" + "text\n\n" * 50
    assert len(documents) > 3


def install(folder, name, header, body):
    info = folder / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n{header}\n\n{body}", encoding="utf-8")


def test_descriptions_of_distributions(tmp_path, monkeypatch):
    """The body of the metadata, or its header field in the old format, by project; what says nothing is left out."""
    first, second = tmp_path / "first", tmp_path / "second"
    install(first, "Zoo_Keeper", "Description-Content-Type: text/markdown", "# Zoo\n\nAnimals, naïve.\n")
    install(first, "ark", "Description: old style", "")
    install(first, "dull", "Summary: nothing", "UNKNOWN\n")
    install(first, "silent", "Summary: nothing", "")
    install(second, "zoo.keeper", "Summary: another", "# Other")
    monkeypatch.setattr("sys.path", [str(first), str(second)])
    documents = read(distributions=True)
    assert [(d.group, d.text) for d in documents] == [
        ("ark", "old style"),
        ("zoo-keeper", "# Zoo\n\nAnimals, naïve."),
    ]


def test_what_is_installed_here():
    """The distributions of this environment give real text, each project a work."""
    documents = read(distributions=True)
    assert {"numpy", "attrs"} <= {d.group for d in documents}
    assert len({d.group for d in documents}) <= len(list(importlib.metadata.distributions()))
    assert sum(len(d.text) for d in documents) > 20_000


def test_nothing_to_read_is_an_error():
    """Neither a path nor distributions: the error says what to give."""
    with pytest.raises(AndreaError, match="told to read nothing") as caught:
        read()
    assert "distributions" in caught.value.hint
