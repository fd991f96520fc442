"""source.licences reads what lies beside installed distributions."""

from __future__ import annotations

import pytest

from andrea import AndreaError, SourceSpec
from andrea.plugins.source import licences


def read(**options):
    return list(licences.open_source(SourceSpec("s", "source.licences", options)))


def test_the_licence_of_a_distribution_is_read_whole():
    """The licence of numpy comes, cut into documents of one group a file that stay in order."""
    documents = read(distributions=["numpy"], chunk=1000)
    groups = {document.group for document in documents if document.group.startswith("numpy/")}

    assert any("NumPy Developers" in document.text for document in documents)
    assert groups
    # A paragraph may pass the wished length a little, so twice is the bound.
    assert max(len(document.text) for document in documents) < 2000


def test_names_do_not_say_where_it_is_installed():
    """Groups and names are the same on every machine."""
    assert not [d for d in read(distributions=["numpy"]) if d.group.startswith("/") or "site-packages/" in d.group]


def test_twice_is_the_same():
    """Iterating again yields the same documents."""
    documents = licences.open_source(SourceSpec("s", "source.licences", {"distributions": ["numpy"]}))

    assert list(documents) == list(documents)


def test_a_distribution_that_is_not_there_is_named():
    """An unknown name is an error that says what to type."""
    with pytest.raises(AndreaError, match="no distribution 'nothing-of-this'") as error:
        read(distributions=["nothing-of-this"])
    assert "pip install" in error.value.hint
