"""Runs that were never trained: folders with a journal as `andrea.journal` writes it, and a server over them."""

from __future__ import annotations

import http.client
import json
import math
import random
import threading
import time

import pytest
import uvicorn

from andrea.serve.app import make_app
from andrea.serve.machine import Machine
from andrea.serve.runs import Runs

NAMES = ("prose", "code", "chat")


class Lines:
    """Makes lines of a journal, without line ends."""

    def __init__(self, sources=NAMES):
        self.sources = sources

    def step(self, step, loss=None, reward=None, detail=None, pulls=1):
        """Return a step; what is not given follows from its number."""
        rng, count = random.Random(step), len(self.sources)
        loss = 2 + 6 * math.exp(-step / 500) + rng.random() / 4 if loss is None else loss
        start = step // 14 * 14
        phase = {"start": start, "length": 14, "focus": [start % count], "joined": [(start + 1) % count], "share": 0.25}
        pull = {
            "documents": [rng.randrange(10**6) for _ in range(8)],
            "loss": loss,
            "rewards": {"ema_drop": rng.random() * 10 if reward is None else reward},
            "scores": ["inf" if step < count else rng.random() for _ in range(count)],
            "weights": [rng.random() for _ in range(count)],
            "detail": phase if detail is None else detail,
        }
        value = {"kind": "step", "step": step, "loss": loss, "grad_norm": 0.5 + rng.random()}
        value |= {"learning_rate": 3e-4 * min(1, (step + 1) / 100), "skipped": step % 10 == 9, "tokens": 1024}
        value["pulls"] = [{"source": self.sources[(step + number) % count], **pull} for number in range(pulls)]
        return _line(value)

    def sample(self, step, *texts):
        return _line({"kind": "sample", "step": step, "loss": 2.5, "texts": texts or ("> rain on the leaf", "> ")})

    def evaluation(self, step, bits=2.0):
        by_source = {name: bits + 0.1 * number for number, name in enumerate(self.sources)}
        return _line(
            {"kind": "evaluation", "step": step, "loss": dict.fromkeys(by_source, 3.0), "bits_per_byte": by_source}
        )

    def stop(self, step, reasons=None):
        return _line({"kind": "stop", "step": step, "reasons": reasons or {"stop.max_steps": f"{step} steps are done"}})

    def polish(self, step):
        return _line({"kind": "polish", "step": step})

    def run(self, steps, every=10, first=0):
        """Return the lines of so many steps, with a sample and an evaluation behind every so many."""
        found = []
        for step in range(first, steps):
            found.append(self.step(step))
            if (step + 1) % every == 0:
                found += [self.sample(step + 1), self.evaluation(step + 1, 2 + 1 / (step + 1))]
        return found


def _line(value):
    return json.dumps(value, separators=(",", ":"))


@pytest.fixture
def lines():
    """Return what makes lines of a journal."""
    return Lines()


@pytest.fixture
def journal_of(tmp_path):
    """Return a function that writes lines to a journal and returns its path."""

    def write(found, name="journal.jsonl", mode="w"):
        path = tmp_path / name
        with path.open(mode) as file:
            file.writelines(f"{line}\n" for line in found)
        return path

    return write


@pytest.fixture
def write_run():
    """Return a function that makes a run's folder."""

    def write(folder, found=(), name="tiny", sources=NAMES, checkpoints=(), prompts=("> ",)):
        folder.mkdir(parents=True)
        config = {"name": name, "model": {"n_layer": 1}, "sources": [{"name": source} for source in sources]}
        config |= {"sampling": {"prompts": prompts}, "schedule": {"steps": 40}, "plugins": {"tokenizer.byte": {}}}
        (folder / "config.json").write_text(json.dumps(config))
        if found:
            (folder / "journal.jsonl").write_text("".join(f"{line}\n" for line in found))
        for step in checkpoints:
            (folder / "checkpoints").mkdir(exist_ok=True)
            for suffix, size in (("bin", 100), ("npz", 20), ("json", 3)):
                (folder / "checkpoints" / f"step_{step:06d}.{suffix}").write_bytes(b"x" * size)
        return folder

    return write


class Served:
    """A server in a thread of its own, asked over HTTP."""

    def __init__(self, root, **options):
        self.server = uvicorn.Server(
            uvicorn.Config(
                make_app(Runs(root), Machine(), ending=lambda: self.server.should_exit, **options),
                host="127.0.0.1",
                port=0,
                log_level="warning",
                ws="none",
            )
        )
        self._thread = threading.Thread(target=self.server.run)
        self._thread.start()
        while not self.server.started:
            assert self._thread.is_alive()
            time.sleep(0.01)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def ask(self, path, method="GET", headers=None):
        """Return (status, headers, body); the path goes out as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, {key.lower(): value for key, value in answer.getheaders()}, body

    def json(self, path):
        """Return what an address answers as JSON; it must be fine."""
        status, headers, body = self.ask(path)
        assert (status, headers["content-type"]) == (200, "application/json"), body
        return json.loads(body)

    def close(self):
        self.server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture
def serve():
    """Return a function that starts a server over a folder."""
    started = []

    def start(root, **options):
        started.append(Served(root, **options))
        return started[-1]

    yield start
    for served in started:
        served.close()


LONG = 200_000


@pytest.fixture(scope="session")
def long_run(tmp_path_factory):
    """Yield the folder of a run of 200,000 steps over 16 sources, whose journal has about 200 MB."""
    folder = tmp_path_factory.mktemp("long") / "long"
    folder.mkdir()
    lines = Lines([f"source-{number}" for number in range(16)])
    config = {"name": "long", "model": {}, "sources": [{"name": name} for name in lines.sources], "plugins": {}}
    (folder / "config.json").write_text(json.dumps(config | {"schedule": {"steps": LONG}}))
    with (folder / "journal.jsonl").open("w") as file:
        for step, line in enumerate(many_steps(lines, LONG)):
            file.write(line + "\n")
            if (step + 1) % 1000 == 0:
                file.write(
                    lines.sample(step + 1, *["the rain falls on the leaf and the root drinks it " * 20] * 8) + "\n"
                )
                file.write(lines.evaluation(step + 1, 1 + 3 * math.exp(-step / 40_000)) + "\n")
    yield folder
    (folder / "journal.jsonl").unlink()  # pytest keeps what tests leave


def many_steps(lines, steps):
    """Yield steps quickly: the same few, with another number, loss and phase."""
    patterns = []
    for step in range(97):
        rest = lines.step(step).partition('"grad_norm"')[2]
        patterns.append(rest.replace(f'"start":{step // 14 * 14},', '"start":@,'))
    for step in range(steps):
        loss = 2 + 6 * math.exp(-step / 20_000) + 0.3 * math.sin(step * step)
        rest = patterns[step % 97].replace("@", str(step // 14 * 14))
        yield f'{{"kind":"step","step":{step},"loss":{loss},"grad_norm"{rest}'
