"""Every address over HTTP: its shape for empty, running, finished and damaged runs, and what is refused."""

from __future__ import annotations

import json
import os
import socket
import struct

import pytest

from andrea.serve import runs as runs_module
from andrea.serve.packet import VERSION

KINDS = ("empty", "running", "finished", "damaged")
SYSTEM = {
    "gpu_util": (int, type(None)),
    "gpu_mem_used": (int, type(None)),
    "gpu_mem_total": (int, type(None)),
    "gpu_power_w": (int, float, type(None)),
    "gpu_power_limit_w": (int, float, type(None)),
    "gpu_temp_c": (int, type(None)),
    "cpu_load_1m": (int, float),
    "cpu_cores": (int,),
    "mem_used": (int,),
    "mem_total": (int,),
}


@pytest.fixture
def folder(tmp_path, write_run, lines):
    """Return a folder with a run of every kind."""
    write_run(tmp_path / "empty")
    running = write_run(tmp_path / "running", lines.run(30), checkpoints=(10, 20))
    (running / "lock").write_text(str(os.getpid()))
    write_run(tmp_path / "finished", [*lines.run(40), lines.stop(40)], checkpoints=(40,))
    found = lines.run(30)
    damaged = write_run(tmp_path / "damaged", [found[0], "garbage", *found[1:], "\0" * 40])
    with (damaged / "journal.jsonl").open("a") as file:
        file.write(lines.step(30)[:50])
    (damaged / "config.json").write_text('{"name": "dam')
    (damaged / "checkpoints").write_text("a file where a folder should be")
    return tmp_path


@pytest.fixture
def served(serve, folder, monkeypatch):
    """Return a server over it."""
    monkeypatch.setattr(runs_module, "LOOK_EVERY", 0.0)
    return serve(folder)


def losses_of(folder, name):
    """Return the (step, loss) of a run's journal that can be read, by step."""
    found = {}
    for line in (folder / name / "journal.jsonl").read_text().splitlines() if name != "empty" else ():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if value["kind"] == "step":
            found[value["step"]] = value["loss"]
    return [[step, loss] for step, loss in found.items()]


# -- shapes ------------------------------------------------------------------------------------------------------------


def test_loss_has_the_curves_of_all_runs(served, folder):
    """Those that train are live, the others saved."""
    value = served.json("/loss")
    assert value == {
        "live": {"running": losses_of(folder, "running")},
        "saved": {name: losses_of(folder, name) for name in ("damaged", "empty", "finished")},
    }
    few = served.json("/loss?points=4")
    assert [step for step, _ in few["live"]["running"]] == [6, 14, 21, 29]


@pytest.mark.parametrize("kind", KINDS)
def test_loss_of_a_run(served, folder, kind):
    """Every step with exactly its loss; a part of it; few points of it."""
    points = losses_of(folder, kind)
    assert served.json(f"/loss/{kind}") == {"points": points}
    assert served.json(f"/loss/{kind}?from=5&to=9") == {"points": points[5:10]}
    assert served.json(f"/loss/{kind}?from=29") == {"points": points[29:]}
    assert served.json(f"/loss/{kind}?points=1000000") == {"points": points}
    few = served.json(f"/loss/{kind}?points=3")["points"]
    assert len(few) == min(3, len(points))
    assert few[-1:] == points[-1:]
    assert len(served.json(f"/loss/{kind}?points=3&from=10")["points"]) == min(3, len(points))


def test_a_loss_that_is_not_finite_is_null(serve, tmp_path, write_run, lines):
    """JSON has no other word for it."""
    write_run(tmp_path / "run", [lines.step(0), lines.step(1, loss="nan"), lines.step(2, loss="inf"), lines.sample(3)])
    served = serve(tmp_path)
    assert [loss for _, loss in served.json("/loss/run")["points"]][1:] == [None, None]
    assert [loss for _, loss in served.json("/loss/run?points=9")["points"]][1:] == [None, None]
    assert [loss for _, loss in served.json("/loss")["saved"]["run"]][1:] == [None, None]


def test_a_long_curve_comes_whole(serve, tmp_path, write_run, lines):
    """Over several blocks of the answer."""
    write_run(tmp_path / "run", [lines.step(step) for step in range(20_500)])
    assert [step for step, _ in serve(tmp_path).json("/loss/run")["points"]] == list(range(20_500))


def test_checkpoints_of_all_runs(served):
    """Model, step and bytes, and nothing else."""
    expected = [("finished", 40), ("running", 10), ("running", 20)]
    assert served.json("/checkpoints") == {
        "checkpoints": [{"model": model, "step": step, "size_bytes": 123} for model, step in expected]
    }


@pytest.mark.parametrize("kind", KINDS)
def test_samples_of_a_run(served, kind):
    """Step, text and loss of every text; some of them."""
    steps = {"empty": [], "running": [10, 20, 30], "finished": [10, 20, 30, 40], "damaged": [10, 20, 30]}[kind]
    texts = ("> rain on the leaf", "> ")
    expected = [{"step": step, "text": text, "loss": 2.5} for step in steps for text in texts]
    assert served.json(f"/samples/{kind}") == {"samples": expected}
    assert served.json(f"/samples/{kind}?last=1") == {"samples": expected[-2:]}
    assert served.json(f"/samples/{kind}?from=11&to=20") == {"samples": expected[2:4]}
    assert served.json(f"/samples/{kind}?from=1000") == {"samples": []}


def test_system_has_ten_figures(served):
    """Of these names and kinds."""
    value = served.json("/system")
    assert list(value) == list(SYSTEM)
    assert [key for key, kinds in SYSTEM.items() if not isinstance(value[key], kinds)] == []


def test_runs_are_listed_with_their_states(served):
    """In the order of their names; a damaged configuration is said."""
    runs = served.json("/runs")["runs"]
    assert [(run["model"], run["state"], run["step"]) for run in runs] == [
        ("damaged", "interrupted", 30),
        ("empty", "empty", None),
        ("finished", "finished", 40),
        ("running", "running", 30),
    ]
    assert [bool(run["problem"]) for run in runs] == [True, False, False, False]
    assert runs[2]["reasons"] == {"stop.max_steps": "40 steps are done"}


@pytest.mark.parametrize("kind", KINDS)
def test_history_of_a_run(served, folder, kind):
    """A header of the version, with so many rows; from a row on, the rest."""
    status, headers, body = served.ask(f"/history/{kind}")
    size, version = struct.unpack_from("<II", body)
    header = json.loads(body[8 : 8 + size])
    rows = len(losses_of(folder, kind))
    assert (status, version, headers["content-type"]) == (200, VERSION, "application/octet-stream")
    assert (header["complete"], header["columns"][0]["length"]) == (True, rows)
    assert header["damaged"] == (2 if kind == "damaged" else 0)
    body = served.ask(f"/history/{kind}?generation={header['generation']}&first={rows}")[2]
    assert json.loads(body[8 : 8 + struct.unpack_from("<I", body)[0]])["columns"][0]["length"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_configuration_of_a_run(served, folder, kind):
    """As it stands in the folder; an empty one when it cannot be read."""
    expected = {} if kind == "damaged" else json.loads((folder / kind / "config.json").read_text())
    assert served.json(f"/config/{kind}") == expected


def test_metrics_are_text(served):
    """Of the version that Prometheus asks for."""
    status, headers, body = served.ask("/metrics")
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b'andrea_run_step{model="running"} 30\n' in body


def test_the_page(served):
    """With a policy that lets nothing in from elsewhere."""
    status, headers, body = served.ask("/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert headers["content-security-policy"].startswith("default-src 'none'; connect-src 'self'; ")
    assert body.startswith(b"<!doctype html>")


def test_events_tell_everything_and_then_what_changes(served, folder, lines):
    """A run that goes on is told within two looks."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
        connection.sendall(f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode())
        stream = connection.makefile("rb")
        assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
        events = events_of(stream)
        first = [next(events) for _ in range(5)]
        assert [(name, value.get("model")) for name, value in first] == [
            *(("run", model) for model in ("damaged", "empty", "finished", "running")),
            ("system", None),
        ]
        with (folder / "running" / "journal.jsonl").open("a") as file:
            file.write(lines.step(30) + "\n")
        assert next(value["step"] for name, value in events if name == "run" and value["model"] == "running") == 31


def events_of(stream):
    """Yield (name, value) of events."""
    name = ""
    for line in stream:
        key, _, value = line.decode().strip().partition(": ")
        if key == "event":
            name = value
        elif key == "data":
            yield name, json.loads(value)


# -- no runs, one run --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_without_runs_has_the_same_shapes(serve, tmp_path, there):
    """Also one that is removed while it is served."""
    if there:
        (tmp_path / "runs").mkdir()
    served = serve(tmp_path / "runs")
    assert served.json("/loss") == {"live": {}, "saved": {}}
    assert served.json("/checkpoints") == {"checkpoints": []}
    assert served.json("/runs") == {"runs": []}
    assert list(served.json("/system")) == list(SYSTEM)
    assert served.ask("/metrics")[0] == served.ask("/")[0] == 200
    assert served.ask("/loss/quick")[0] == served.ask("/samples/quick")[0] == 404


def test_one_run_is_served_under_the_name_of_its_model(serve, folder):
    """As its files are called."""
    served = serve(folder / "finished")
    assert served.json("/loss") == {"live": {}, "saved": {"tiny": losses_of(folder, "finished")}}
    assert served.json("/loss/tiny") == {"points": losses_of(folder, "finished")}


def test_odd_names_of_folders(serve, tmp_path, write_run, lines):
    """Spaces, letters of other languages, percent signs, quotes, folders within folders."""
    for name in ("a b", "\u00e9t\u00e9", "100%", 'say "hi"', "trial/runs/one-0"):
        write_run(tmp_path / name, lines.run(3))
    served = serve(tmp_path)
    assert len(served.json("/loss")["saved"]) == 5
    for path in ("a%20b", "%C3%A9t%C3%A9", "100%25", "say%20%22hi%22", "trial/runs/one-0", "trial%2Fruns%2Fone-0"):
        assert len(served.json(f"/loss/{path}")["points"]) == 3


def test_a_journal_that_a_resume_cuts_is_read_anew(served, folder, lines):
    """What was cut off is no longer told."""
    assert len(served.json("/loss/running")["points"]) == 30
    (folder / "running" / "journal.jsonl").write_text("".join(f"{line}\n" for line in lines.run(12)))
    assert served.json("/loss/running") == {"points": losses_of(folder, "running")}
    assert [sample["step"] for sample in served.json("/samples/running")["samples"]] == [10, 10]


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["loss", "samples", "history", "config"])
@pytest.mark.parametrize(
    "name",
    [
        "none",
        "../running",
        "..%2Frunning",
        "%2e%2e/%2e%2e/etc/passwd",
        "..%5c..%5cetc",
        "/etc/passwd",
        "running/../finished",
        "running/journal.jsonl",
        "running%00",
        "%ff%fe",
        "%",
        "a" * 5000,
        "",
    ],
)
def test_names_that_are_no_runs_are_not_found(served, address, name):
    """Nothing outside of the folder can be named, and nothing within that is not a run."""
    status, headers, body = served.ask(f"/{address}/{name}")
    assert (status, headers["content-type"]) == (404, "application/json")
    assert set(json.loads(body)) == {"error", "hint"}
    assert b"root:" not in body


def test_a_name_that_is_nearly_one_is_suggested(served):
    """As the command line does."""
    assert json.loads(served.ask("/loss/runing")[2]) == {
        "error": "there is no run 'runing'",
        "hint": "did you mean running?",
    }


@pytest.mark.parametrize(
    "path",
    [
        *(f"/loss?points={value}" for value in ("0", "1", "-5", "1000001", "1e3", "x", "", "9" * 5000, "%D9%A3")),
        *(f"/loss/running?from={value}" for value in ("-1", "2147483648", "1.5", "nan", "9" * 400)),
        *(f"/loss/running?to={value}" for value in ("-1", "x", "99999999999999999999")),
        "/loss/running?from=5&to=4",
        "/samples/running?from=5&to=4",
        *(f"/samples/running?last={value}" for value in ("0", "1000001", "all")),
        *(f"/history/running?first={value}" for value in ("-1", "99999999999", "x")),
        "/history/running?generation=-1",
    ],
)
def test_malformed_and_huge_ranges_are_refused(served, path):
    """With the bounds in the message."""
    status, _, body = served.ask(path)
    assert status == 400
    assert "must be a whole number from" in json.loads(body)["error"] or "lies behind" in json.loads(body)["error"]


@pytest.mark.parametrize("path", ["/loss/running/", "/nothing", "/static/x", "//", "/loss//running"])
def test_other_addresses_are_not_found(served, path):
    """And the hint names those that there are."""
    status, _, body = served.ask(path)
    assert status == 404
    assert set(json.loads(body)) == {"error", "hint"}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/loss", "/loss/running", "/samples/running", "/events"])
def test_nothing_can_be_written(served, method, path):
    """There is only reading."""
    status, headers, _ = served.ask(path, method)
    assert (status, set(headers["allow"].split(", "))) == (405, {"GET", "HEAD"})


def test_pages_from_elsewhere_are_not_let_in(served):
    """No answer allows another origin, also to one who asks."""
    for path in ("/", "/loss", "/runs", "/nothing", "/loss?points=0"):
        _, headers, _ = served.ask(path, headers={"Origin": "http://elsewhere.example"})
        assert [key for key in headers if key.startswith("access-control")] == []
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_only_names_of_this_machine_are_answered_to(serve, folder):
    """A page whose own name was made to lead here is refused; a server that is open to others takes any name."""
    served = serve(folder, hosts=frozenset(("localhost", "127.0.0.1", "::1")))
    for host, status in (
        ("localhost", 200),
        ("localhost:1", 200),
        ("[::1]:80", 200),
        ("evil.example", 400),
        ("[", 400),
    ):
        assert served.ask("/runs", headers={"Host": host})[0] == status
    assert serve(folder).ask("/runs", headers={"Host": "box.example"})[0] == 200


def test_nothing_is_written(served, folder):
    """Whatever is asked, the folder is as it was."""

    def state():
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.rglob("*"))}

    before = state()
    for kind in KINDS:
        for path in ("/", "/loss", f"/loss/{kind}", "/checkpoints", f"/samples/{kind}", f"/history/{kind}", "/metrics"):
            assert served.ask(path)[0] == 200
    assert state() == before
