"""The text that Prometheus reads."""

from __future__ import annotations

import re

from andrea.serve.brief import Brief
from andrea.serve.machine import Machine
from andrea.serve.metrics import metrics

LINE = re.compile(r'([a-z_:][a-z0-9_:]*)(\{(?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+\})? (NaN|[+-]Inf|[-+0-9.e]+)')


def read(text):
    """Return the value of every metric by name and labels; every line must be one, or a comment before its metric."""
    found, described = {}, set()
    assert text.endswith("\n")
    for line in text.splitlines():
        if comment := re.fullmatch(r"# (?:HELP ([a-z0-9_]+) \S.*|TYPE ([a-z0-9_]+) gauge)", line):
            described.add(comment[1] or comment[2])
            continue
        name, labels, value = LINE.fullmatch(line).groups()
        assert name in described
        found[name + (labels or "")] = float(value)
    return found


def look(model, folder):
    brief = Brief(model, folder)
    brief.refresh()
    return brief


def test_runs_and_machine(tmp_path, write_run, lines):
    """What is not known is left out; a run is in one state."""
    whole = look("a/b", write_run(tmp_path / "whole", lines.run(20)))
    empty = look("empty", write_run(tmp_path / "empty"))
    found = read(metrics([whole, empty], Machine().figures()))
    assert found['andrea_run_step{model="a/b"}'] == 20
    assert found['andrea_run_loss{model="a/b"}'] == float(whole.line.loss)
    assert found['andrea_run_bits_per_byte{model="a/b",source="code"}'] == 2.15
    assert found['andrea_run_state{model="empty",state="empty"}'] == 1
    assert sum(value for name, value in found.items() if name.startswith("andrea_run_state")) == 2
    assert not [name for name in found if "tokens_per_second" in name]
    assert 'andrea_run_step{model="empty"}' not in found
    assert found["andrea_cpu_cores"] >= 1


def test_odd_names_and_numbers(tmp_path, write_run, lines):
    """Quotes, backslashes and line ends are escaped; a loss that is not finite has a name."""
    folder = write_run(tmp_path / "run", [lines.step(0, loss="nan")])
    found = read(metrics([look('a "b"\\\n', folder)], dict.fromkeys(Machine().figures())))
    value = found['andrea_run_loss{model="a \\"b\\"\\\\\\n"}']
    assert value != value
    (folder / "journal.jsonl").write_text(lines.step(0, loss="inf") + "\n")
    assert read(metrics([look("a", folder)], Machine().figures()))['andrea_run_loss{model="a"}'] == float("inf")


def test_no_runs():
    """The machine is there all the same."""
    assert "andrea_mem_total" in read(metrics([], Machine().figures()))
