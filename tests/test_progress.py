"""Progress of long work: lines where there is no terminal, a bar where there is one, standard error always."""

from __future__ import annotations

import sys

from andrea.progress import Preparing


def test_every_stage_is_a_line_where_there_is_no_terminal(capsys):
    """A log gets one line for each stage, however often the stage reports, and nothing on standard output."""
    with Preparing() as preparing:
        for stage, done in (("reading one", 0), ("reading one", 256), ("encoding one", 0), ("encoding one", 9)):
            preparing(stage, done, 9)

    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["reading one ...", "encoding one ..."]


def test_a_terminal_gets_a_bar(monkeypatch):
    """The bar has the stage and its numbers; names in brackets are no markup; an unknown total is allowed."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    preparing = Preparing()
    with preparing:
        preparing("reading [b]one[/b]", 3, 0)
        preparing("encoding [b]one[/b]", 4, 9)
        (task,) = preparing._bar.tasks

    assert (task.description, task.completed, task.total) == ("encoding [b]one[/b]", 4, 9)
    assert preparing._bar.finished or not preparing._bar.live.is_started
