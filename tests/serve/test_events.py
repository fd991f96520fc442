"""What is told to who listens: everything at first, then changes, then that the server ends."""

from __future__ import annotations

import asyncio
import json

from andrea.serve import runs as runs_module
from andrea.serve.events import Watch
from andrea.serve.runs import Runs


class Failing:
    """Runs that cannot be looked at the first time."""

    def __init__(self):
        self.looked = 0

    def refresh(self):
        self.looked += 1
        if self.looked == 1:
            raise RuntimeError("a disk that is away")
        return []


def test_a_look_that_fails_is_not_the_last(caplog):
    """It is logged, and the next one tells."""

    async def listen():
        watch = Watch(Failing(), Still(), every=0.01)
        work = asyncio.create_task(watch.work())
        events = watch.events()
        await anext(events)
        assert parsed(await anext(events)) == ("system", {"cpu_cores": 2})
        work.cancel()

    asyncio.run(asyncio.wait_for(listen(), 30))
    assert "a disk that is away" in caplog.text


class Still:
    """A machine whose figures never change."""

    def figures(self):
        return {"cpu_cores": 2}


def parsed(event):
    """Return (name, value) of an event."""
    name, data, empty, end = event.decode().split("\n")
    assert (empty, end) == ("", "")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def test_changes_are_told_once_and_an_end_ends(tmp_path, write_run, lines, monkeypatch):
    """What stays the same is not told again; a run that went is; a listener who comes later hears everything."""
    monkeypatch.setattr(runs_module, "LOOK_EVERY", 0.0)
    for name in ("a", "b"):
        write_run(tmp_path / name, lines.run(5))
    ending = False

    async def listen():
        nonlocal ending
        watch = Watch(Runs(tmp_path), Still(), lambda: ending, every=0.01)
        work = asyncio.create_task(watch.work())
        events = watch.events()
        assert await anext(events) == b"retry: 2000\n\n"
        told = [parsed(await anext(events)) for _ in range(3)]
        assert [(name, value.get("model")) for name, value in told] == [("run", "a"), ("run", "b"), ("system", None)]
        with (tmp_path / "b" / "journal.jsonl").open("a") as file:
            file.write(lines.step(5) + "\n")
        name, value = parsed(await anext(events))
        assert (name, value["model"], value["step"]) == ("run", "b", 6)
        (tmp_path / "a").rename(tmp_path.parent / "elsewhere")
        assert parsed(await anext(events)) == ("gone", {"model": "a"})
        later = watch.events()
        await anext(later)
        assert [parsed(await anext(later))[0] for _ in range(2)] == ["run", "system"]
        ending = True
        assert [event async for event in events] == [event async for event in later] == []
        work.cancel()

    asyncio.run(asyncio.wait_for(listen(), 30))
