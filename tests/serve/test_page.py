"""The dashboard's document: whole in itself, with the scripts that its policy names."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

from andrea.serve.page import FOLDER, SCRIPTS, page


class Reader(HTMLParser):
    """Collects the elements of a document, and what stands in its scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.contents = [], {"script": [], "style": []}
        self._within = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._within = tag if tag in self.contents else None
        if self._within:
            self.contents[tag].append("")

    def handle_endtag(self, tag):
        self._within = None

    def handle_data(self, data):
        if self._within:
            self.contents[self._within][-1] += data


DOCUMENT, POLICY = page()
READ = Reader(DOCUMENT.decode())


def test_nothing_is_fetched_from_anywhere():
    """No element names an address but the empty icon and places in the page."""
    named = [attrs[key] for _, attrs in READ.elements for key in ("src", "href", "action", "srcset") if key in attrs]
    assert sorted(named) == ["#main", "data:,"]
    assert "@import" not in "".join(READ.contents["style"])
    assert "url(" not in "".join(READ.contents["style"])


def test_the_policy_names_exactly_the_scripts_and_styles():
    """By their digests, so that no other runs."""
    for tag in ("script", "style"):
        found = re.search(rf"{tag}-src ([^;]*);", POLICY)[1].split(" ")
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in READ.contents[tag]]
        assert found == [f"'sha256-{digest}'" for digest in digests]
    assert len(READ.contents["script"]) == len(SCRIPTS)


def test_no_attribute_is_a_script_or_a_style():
    """The policy would refuse it."""
    assert [attrs for _, attrs in READ.elements if any(key.startswith("on") or key == "style" for key in attrs)] == []


def test_what_scripts_look_for_is_there():
    """By its id; and no id is there twice."""
    ids = [attrs["id"] for _, attrs in READ.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    own = "".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS if "uplot" not in name)
    wanted = set(re.findall(r'(?:byId|getElementById|chart)\("([\w-]+)"', own))
    assert wanted - set(ids) == set()
    assert "innerHTML" not in own
    assert "eval(" not in own


def test_every_control_has_a_name():
    """For those who hear the page: a text, a label around it, or an attribute."""
    labelled = set(re.findall(r"<label[^>]*>.*?<(?:input|select)[^>]*id=\"([\w-]+)\"", DOCUMENT.decode(), re.S))
    for tag, attrs in READ.elements:
        if tag in ("input", "select"):
            assert "aria-label" in attrs or attrs["id"] in labelled
        if tag == "section":
            assert "aria-label" in attrs or "aria-labelledby" in attrs


def test_the_chart_library_has_its_licence_beside_it():
    """And is named with its version, as its authors made it."""
    assert "Permission is hereby granted" in (FOLDER / "uplot" / "LICENSE").read_text(encoding="utf-8")
    begin = (FOLDER / "uplot" / "uPlot.iife.min.js").read_text(encoding="utf-8").splitlines()[0]
    assert re.fullmatch(r"/\*! https://github.com/leeoniya/uPlot \(v[\d.]+\) \*/", begin)
