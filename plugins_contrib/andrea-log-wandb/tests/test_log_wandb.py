import json
import struct

import andrea_log_wandb
import pytest
import wandb
from andrea_log_wandb import Wandb
from wandb.proto.wandb_internal_pb2 import Record

from andrea import AndreaError, hookimpl
from andrea.plugin import get_state
from andrea.testing import check_plugin, run_steps

OFFLINE = ("--plugin", "log.wandb", "--set", "log.wandb.mode=offline")


def records(path):
    """Yield the library's own records of an offline run: behind a head of 7 bytes, the framing of a LevelDB log."""
    data, place, parts = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # no frame begins so close to the end of a block
            place += 32768 - place % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def read(folder):
    """Return the parts of a run in the order in which they were begun: each a list of records."""
    paths = sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_ctime_ns)
    return [list(records(path)) for path in paths]


def history(parts):
    """Return (step, value) of every point by key."""
    found = {}
    for record in (record for part in parts for record in part if record.WhichOneof("record_type") == "history"):
        row = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for key, value in row.items():
            found.setdefault(key, []).append((row["_step"], value))
    return found


def of_kind(parts, kind):
    """Return the content of all records of a kind."""
    return [getattr(record, kind) for part in parts for record in part if record.WhichOneof("record_type") == kind]


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Nothing of these tests goes out, whatever the machine is set up for."""
    monkeypatch.setenv("WANDB_MODE", "offline")


def test_it_keeps_its_contracts():
    """All of the kit; its cut runs have a folder, so points are written."""
    check_plugin("log.wandb", mode="offline", every=3)


def test_points_are_those_of_the_journal_and_a_resume_doubles_none(log_runs, journal_of):
    """A run that made seven steps twice has every point once, in two parts of one id, like one that did not."""
    whole, cut = log_runs(*OFFLINE, "--set", "log.wandb.every=1")
    first, both = read(whole), read(cut)
    assert (len(first), len(both)) == (1, 2)
    assert len({record.run_id for record in of_kind(both, "run")}) == 1
    points, resumed = history(first), history(both)
    keys = [key for key in points if not key.startswith(("_", "samples"))]
    assert {key: resumed[key] for key in keys} == {key: points[key] for key in keys}
    lines = list(journal_of(whole))
    steps = [line for line in lines if line["kind"] == "step"]
    assert len(steps) == 30
    assert points["train/loss"] == [(line["step"] + 1, line["loss"]) for line in steps]
    assert points["train/learning_rate"] == [(line["step"] + 1, line["learning_rate"]) for line in steps]
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    assert points["held_out/two/loss"] == [(line["step"], line["loss"]["two"]) for line in evaluations]
    assert len(evaluations) == 6
    assert [record.exit_code for record in of_kind([*first, *both], "exit")] == [0, 0, 0]


def test_samples_and_configuration_are_logged(log_runs, journal_of):
    """Tables in the run's files, one for each step with samples; the configuration as it stands beside the run."""
    whole, cut = log_runs(*OFFLINE)
    for folder in (whole, cut):
        samples = {line["step"]: line["texts"] for line in journal_of(folder) if line["kind"] == "sample"}
        found = {}
        for step, name in history(read(folder))["samples.path"]:
            (path,) = (folder / "wandb").glob(f"offline-run-*/files/{name}")
            table = json.loads(path.read_text())
            assert table["columns"] == ["prompt", "text"]
            found[step] = ["".join(row) for row in table["data"]]
        assert found == samples
        assert sorted(found) == [6, 12, 18, 24, 30]
        for record in of_kind(read(folder), "run"):
            config = {item.key: json.loads(item.value_json) for item in record.config.update if item.key != "_wandb"}
            wanted = json.loads((folder / "config.json").read_text())
            assert {key: config[key] for key in wanted} == wanted
    assert [step for step, _ in history(read(whole))["train/loss"]] == [1, 10, 20, 30]


def test_an_interruption_closes_the_run(interrupt, tmp_path, journal_of):
    """By SIGTERM: all points are there, and the exit code says that it was interrupted."""
    arguments = [*OFFLINE, "--set", "log.wandb.every=1", "--steps", "9999", "--out", "run"]
    assert interrupt(arguments, tmp_path / "run" / "journal.jsonl") == 143
    made = sum(line["kind"] == "step" for line in journal_of(tmp_path / "run"))
    parts = read(tmp_path / "run")
    assert [step for step, _ in history(parts)["train/loss"]] == list(range(1, made + 1))
    assert [record.exit_code for record in of_kind(parts, "exit")] == [130]


def test_a_failure_closes_the_run(tmp_path):
    """With exit code 1, and the plugin holds nothing any more."""

    class Broken:
        """Fail at step 7."""

        @hookimpl
        def should_stop(self, record):
            """Raise."""
            if record.step == 6:
                raise ZeroDivisionError

    log = Wandb(every=1)
    with pytest.raises(ZeroDivisionError):
        run_steps([("log.wandb", log), ("stop.broken", Broken())], 20, folder=tmp_path)
    parts = read(tmp_path)
    assert [step for step, _ in history(parts)["train/loss"]] == list(range(1, 8))
    assert [record.exit_code for record in of_kind(parts, "exit")] == [1]
    assert log._run is None
    assert get_state(log) == {}


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    """A run that writes nothing is not logged either."""
    monkeypatch.chdir(tmp_path)
    run_steps({"log.wandb": {}}, 5)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_opened_is_said(tmp_path, monkeypatch):
    """A library that refuses, and a memory that is damaged."""

    def refuse(**_):
        raise wandb.errors.UsageError("no key")

    monkeypatch.setattr(andrea_log_wandb.wandb, "init", refuse)
    with pytest.raises(AndreaError, match="cannot open a run: no key") as caught:
        run_steps({"log.wandb": {}}, 5, folder=tmp_path)
    assert "log.wandb.mode=offline" in caught.value.hint
    (tmp_path / "wandb" / "andrea.json").write_text("{")
    with pytest.raises(AndreaError, match="is damaged") as caught:
        run_steps({"log.wandb": {}}, 5, folder=tmp_path)
    assert "remove it" in caught.value.hint


@pytest.mark.parametrize("options", [{"every": 0}, {"mode": "of line"}])
def test_senseless_options_are_refused(options):
    """The error says what to type instead."""
    with pytest.raises(AndreaError, match=r"log\.wandb") as caught:
        Wandb(**options).on_start()
    assert "--set" in caught.value.hint
