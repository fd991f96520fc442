"""``andrea serve``: what it refuses, and that it ends when it is told to."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest


def test_a_folder_that_is_not_there_is_said(andrea, current_folder):
    """With what to do."""
    ended = andrea("serve")
    assert (ended.code, ended.err.splitlines()[0]) == (2, "error: there is no runs")
    assert "andrea run begins a run in runs/" in ended.err
    (current_folder / "file").write_text("x")
    assert "file is a file" in andrea("serve", "file").err


def test_a_port_in_use_is_said(andrea, current_folder):
    """And that another one can be named."""
    (current_folder / "runs").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = andrea("serve", "--port", port)
    assert ended.code == 2
    assert f"error: cannot listen at 127.0.0.1, port {port}: " in ended.err
    assert "--port 0 for a free one" in ended.err


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a" * 300, "203.0.113.1"])
def test_a_host_that_is_not_this_machine_is_said(andrea, current_folder, host):
    """An unknown name, one that cannot be, an address of another machine."""
    (current_folder / "runs").mkdir()
    ended = andrea("serve", "--host", host, "--port", 0)
    assert (ended.code, ended.err.startswith(f"error: cannot listen at {host}, port 0: ")) == (2, True)


@pytest.mark.parametrize("missing", ["starlette", "uvicorn", "msgspec", "psutil"])
def test_a_missing_library_is_said_with_what_to_install(andrea, current_folder, monkeypatch, missing):
    """The extra brings all of them."""
    (current_folder / "runs").mkdir()
    monkeypatch.setitem(sys.modules, missing, None)
    ended = andrea("serve")
    assert ended.code == 2
    assert f"andrea serve answers over HTTP, which needs {missing}" in ended.err
    assert "pip install 'andrea[serve]'" in ended.err


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_it_serves_until_it_is_told_to_end(current_folder, name, code):
    """At the address that it prints, also while somebody listens to its events."""
    (current_folder / "runs").mkdir()
    command = [sys.executable, "-m", "andrea", "serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ}) as process:
        url = re.search(r"http://127\.0\.0\.1:\d+/", process.stderr.readline())[0]
        with urllib.request.urlopen(url + "runs", timeout=30) as answer:
            assert json.load(answer) == {"runs": []}
        with urllib.request.urlopen(url + "events", timeout=30) as events:
            assert events.readline() == b"retry: 2000\n"
            process.send_signal(getattr(signal, name))
            events.read()
        assert process.wait(30) == code
        assert process.stderr.read() == ""
