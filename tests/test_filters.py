"""Keeping and dropping documents, and the report of it."""

from __future__ import annotations

from andrea import Document
from andrea.filters import Report, keep


def documents(*texts):
    return [Document(text, f"d{number}", "g") for number, text in enumerate(texts)]


def test_documents_are_kept_or_dropped_with_a_reason():
    """What is kept comes out with its bytes; what is dropped is counted by reason; the source's name is passed on."""
    asked = []

    def ask(document, source):
        asked.append((document.name, source))
        return {"two": "even", "four": "even", "six!": "loud"}.get(document.text)

    report = Report()
    given = documents("one", "two", "thrée", "four", "six!")
    kept = list(keep(given, "numbers", ask, report))
    assert kept == [(given[0], b"one"), (given[2], "thrée".encode())]
    assert asked == [(f"d{number}", "numbers") for number in range(5)]
    assert report.to_json() == {"kept": 2, "bytes": 9, "dropped": {"even": 2, "loud": 1}}


def test_what_no_token_file_can_hold_is_dropped_unasked():
    """Empty and blank texts and halves of surrogate pairs are dropped before any filter is asked."""

    def ask(document, source):
        raise AssertionError(document)

    report = Report()
    assert list(keep(documents("", " \n\t", "a\ud800b"), "s", ask, report)) == []
    assert report.dropped == {"empty": 2, "not valid Unicode: half a surrogate pair": 1}


def test_a_report_lists_reasons_in_order():
    """The report is the same whatever the order in which reasons came up."""
    one, two = Report(), Report()
    for reason in "bca":
        one.drop(reason)
    for reason in "abc":
        two.drop(reason)
    assert str(one.to_json()) == str(two.to_json())
