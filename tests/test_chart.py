"""A chart is well-formed SVG whose points stand where they should."""

import xml.etree.ElementTree as ElementTree

import pytest

from andrea.chart import draw_shares

SVG = "{http://www.w3.org/2000/svg}"


def points_of(svg):
    root = ElementTree.fromstring(svg)
    lines = [line.attrib["points"].split() for line in root.iter(f"{SVG}polyline")]
    return root, [[tuple(map(float, point.split(","))) for point in line] for line in lines]


def test_points_stand_by_factor_and_share():
    """Equal factors of size are equal steps to the right, and shares are equal steps up."""
    _, (first, second) = points_of(
        draw_shares("t", "n", {"a": [(100, 0.0), (200, 0.5), (400, 1.0)], "b": [(100, 1.0), (400, 0.0)]})
    )
    assert first[1][0] - first[0][0] == pytest.approx(first[2][0] - first[1][0], abs=0.11)  # written to 0.1
    assert first[0][1] - first[1][1] == pytest.approx(first[1][1] - first[2][1], abs=0.11)
    assert first[0][0] < first[2][0]
    assert first[2][1] < first[0][1]
    assert second == [(first[0][0], first[2][1]), (first[2][0], first[0][1])]


def test_names_are_escaped_and_sizes_written():
    """Any name is text in the picture; every size stands below."""
    root, _ = points_of(draw_shares("a < b & c", "segments", {'"x" <y>': [(4096, 0.5)]}))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"a < b & c", "segments", '"x" <y>', "4,096", "0%", "100%"} <= set(texts)


def test_one_size_is_in_the_middle():
    """A single size has no factor to grow by, and is drawn all the same."""
    root, lines = points_of(draw_shares("t", "n", {"a": [(8, 0.25)]}))
    assert len(lines[0]) == 1
    assert len(list(root.iter(f"{SVG}circle"))) == 1
