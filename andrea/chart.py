"""A line chart as SVG, written by hand: nothing has to be installed to see a curve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 60, 170, 40, 50
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Told apart by colour-blind people too (Okabe and Ito)."""

Line = Sequence[tuple[float, float]]


def draw_shares(title: str, axis: str, lines: Mapping[str, Line]) -> str:
    """Return an SVG of shares from 0 to 1 over sizes, which grow by factors.

    Parameters
    ----------
    title, axis
        What is shown, and what stands below.
    lines
        By name: points (size > 0, share in [0, 1]), sizes rising.
    """
    sizes = sorted({size for line in lines.values() for size, _ in line})
    low, high = math.log(sizes[0]), math.log(sizes[-1])

    def place(size: float, share: float) -> tuple[float, float]:
        along = (math.log(size) - low) / (high - low) if high > low else 0.5
        return LEFT + along * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = [_text(WIDTH / 2, 20, title, "middle", 14), _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, axis, "middle")]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        (x1, y), (x2, _) = place(sizes[0], share), place(sizes[-1], share)
        parts.append(f'<path d="M{x1:.1f} {y:.1f}H{x2:.1f}" stroke="#ddd"/>')
        parts.append(_text(x1 - 8, y + 4, f"{share:.0%}", "end"))
    for size in sizes:
        x, y = place(size, 0)
        parts.append(_text(x, y + 18, f"{size:,.0f}", "middle"))
    for number, (name, line) in enumerate(lines.items()):
        parts += _line([place(*point) for point in line], name, number)
    body = "\n".join(parts)
    style = 'font-family="sans-serif" font-size="11" fill="#222"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {style}>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _line(points: Sequence[tuple[float, float]], name: str, number: int) -> list[str]:
    """Return a line with its points, and its name in the legend."""
    colour = COLOURS[number % len(COLOURS)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    place = TOP + 16 * number + 10
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points),
        f'<path d="M{WIDTH - RIGHT + 15} {place - 4}h18" stroke="{colour}" stroke-width="2"/>',
        _text(WIDTH - RIGHT + 38, place, name, "start"),
    ]


def _text(x: float, y: float, content: str, anchor: str, size: int = 11) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(content)}</text>'
