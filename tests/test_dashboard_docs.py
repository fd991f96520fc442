"""docs/dashboard.md says what the server does: addresses, options, thresholds, columns."""

from __future__ import annotations

import inspect
import json
import re
import struct
from pathlib import Path

from andrea.cli_serve import serve
from andrea.serve import history, machine, packet, phases
from andrea.serve.app import make_app
from andrea.serve.machine import Machine
from andrea.serve.runs import Runs

PAGE = (Path(__file__).parents[1] / "docs" / "dashboard.md").read_text(encoding="utf-8")


def rows(heading):
    """Return the cells of the first table below a heading, without its head."""
    text = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", PAGE, re.M | re.S)[1]
    table = re.search(r"^\|.*?(?=\n\n|\Z)", text, re.M | re.S)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]


def test_every_address_is_described(tmp_path):
    """And no other."""
    app = make_app(Runs(tmp_path), Machine())
    routes = [route.path.replace("{model:path}", "MODEL") for route in app.routes]
    assert sorted(cell.strip("`") for cell, _ in rows("Addresses")) == sorted(routes)


def test_the_figures_of_the_machine_are_named(tmp_path):
    """In their order."""
    cell = next(text for address, text in rows("Addresses") if address == "`/system`")
    assert re.findall(r'"(\w+)"', cell) == list(machine.Machine().figures())


def test_options_have_their_defaults():
    """As the command line has them."""
    options = inspect.signature(serve).parameters
    found = {name.strip("`-"): default.strip("`") for name, default, _ in rows("The dashboard and its server")}
    assert found == {name: str(option.default) for name, option in options.items() if name != "path"}


def test_thresholds_are_those_that_hold():
    """Of the phases, in their order."""
    table = dict(rows("Phases of learning"))
    assert [name.strip("`") for name in table] == ["random", "frequency", "structure", "coherence", "knowledge"]
    numbers = [re.findall(r"\d+(?:\.\d+)?", text) for text in table.values()]
    assert [[float(number) for number in found] for found in numbers] == [
        [phases.RANDOM],
        [phases.FREQUENCY],
        [phases.STRUCTURE, phases.COHERENT],
        [phases.KNOWLEDGE],
        [],
    ]


def test_columns_are_described_with_their_types():
    """All of them, in their order; and everything that the header has."""
    table = rows("`/history/MODEL`")
    names = [name for cell, _, _ in table for name in re.findall(r"`(\w+)`", cell)]
    types = [kind for _, cell, _ in table for kind in re.findall(r"`(\w+)`", cell)]
    expected = [(name, packet.TYPES[kind]) for name, kind in history.ROWS.items()]
    expected += [(f"pull_{name}", packet.TYPES[kind]) for name, kind in history.PULLS.items()]
    expected += [(f"dice_{name}", packet.TYPES[kind]) for name, kind in history.DICE.items()]
    assert list(zip(names, types, strict=True)) == expected


def test_everything_in_the_header_is_named(tmp_path):
    """What is not a column."""
    data = packet.packet(history.History(tmp_path / "none"), True, 1.0)
    header = json.loads(data[8 : 8 + struct.unpack_from("<I", data)[0]])
    text = PAGE[PAGE.index("### `/history/MODEL`") :]
    assert [key for key in header if f"`{key}`" not in text] == []
    assert f"most {packet.MOST_ROWS:,} steps" in re.sub(r"\s+", " ", text)
