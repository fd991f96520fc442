"""filter.length keeps what lies within its bounds."""

from __future__ import annotations

import pytest

from andrea import AndreaError, Document
from andrea.plugins.filter.length import Length


def ask(text, **options):
    return Length(**options).keep_document(document=Document(text, "a", "a"))


def test_bounds_are_inclusive():
    """Exactly the least and the most are kept; one less or more is dropped with the bound it misses."""
    bounds = {"min_characters": 3, "max_characters": 5}
    assert [ask("x" * count, **bounds) for count in (2, 3, 5, 6)] == [
        "shorter than 3 characters",
        None,
        None,
        "longer than 5 characters",
    ]


def test_bytes_are_those_of_utf8():
    """A character of two bytes counts as two."""
    assert ask("é" * 3, min_bytes=6, max_bytes=6) is None
    assert ask("é" * 3, min_bytes=7) == "shorter than 7 bytes"
    assert ask("é" * 3, max_bytes=5) == "longer than 5 bytes"


def test_without_options_everything_stays():
    """The defaults drop nothing."""
    assert ask("") is ask("x" * 10_000_000) is None


@pytest.mark.parametrize(
    "options", [{"min_characters": -1}, {"min_characters": 9, "max_characters": 8}, {"max_bytes": 0}]
)
def test_bounds_that_keep_nothing_are_refused(options):
    """Bounds between which there is nothing are the user's error."""
    with pytest.raises(AndreaError, match="keeps nothing"):
        Length(**options)
