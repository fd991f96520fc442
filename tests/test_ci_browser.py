"""`.ci/browser` finds a browser for anybody: on PATH, by apt-get for root, by Playwright, or says what lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "browser"
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the script is bash's")

PYTHON = """#!/bin/bash
echo "python $*" >> calls
case "$*" in
    "-m playwright install chromium") [ -e playwright-works ] ;;
    "-c "*) echo "$PWD/downloaded" ;;
    *pytest*) echo "tests in $ANDREA_CHROMIUM" >> calls ;;
esac
"""
APT = """#!/bin/bash
echo "apt-get $*" >> calls
[ -e apt-works ] || exit 100
case "$*" in install*) cp downloaded bin/chromium ;; esac
"""


@pytest.fixture
def machine(tmp_path):
    """Return a function that runs the script on a made-up machine, and gives its end and the calls that it made."""

    def write(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run(user=1000, apt=False, works=(), starts=True, chromium=False):
        write(tmp_path / ".venv" / "bin" / "python", PYTHON)
        write(tmp_path / "downloaded", f"#!/bin/bash\nexit {0 if starts else 127}\n")
        write(tmp_path / "bin" / "id", f"#!/bin/bash\necho {user}\n")
        for name in ("bash", "cp"):
            (tmp_path / "bin" / name).symlink_to(shutil.which(name))
        if apt:
            write(tmp_path / "bin" / "apt-get", APT)
        if chromium:
            shutil.copy(tmp_path / "downloaded", tmp_path / "bin" / "chromium")
        for name in works:
            (tmp_path / name).touch()
        environment = {**os.environ, "PATH": str(tmp_path / "bin")}
        bash = str(shutil.which("bash"))
        done = subprocess.run([bash, str(SCRIPT)], cwd=tmp_path, env=environment, capture_output=True, text=True)
        return done, (tmp_path / "calls").read_text()

    return run


def test_a_browser_that_is_there_is_taken(machine, tmp_path):
    """Nothing is installed but the libraries of Python."""
    done, calls = machine(user=0, apt=True, chromium=True)
    assert done.returncode == 0, done
    assert f"tests in {tmp_path}/bin/chromium\n" in calls
    assert "apt-get" not in calls
    assert "playwright install" not in calls


@pytest.mark.parametrize(("user", "apt"), [(1000, True), (0, False), (0, True)])
def test_without_apt_or_root_playwright_brings_one(machine, tmp_path, user, apt):
    """Also where apt-get fails; nobody but root is asked to call it."""
    done, calls = machine(user, apt, ("playwright-works",))
    assert done.returncode == 0, done
    assert f"tests in {tmp_path}/downloaded\n" in calls
    assert ("apt-get" in calls) == (user == 0 and apt)


def test_root_installs_by_apt(machine, tmp_path):
    """And Playwright downloads nothing."""
    done, calls = machine(0, True, ("apt-works",))
    assert done.returncode == 0, done
    assert f"tests in {tmp_path}/bin/chromium\n" in calls
    assert "playwright install" not in calls


def test_what_lacks_is_said(machine):
    """No browser by any way: exit code 1, what would help, and no test is run."""
    done, calls = machine()
    assert done.returncode == 1
    assert "there is no browser: put chromium or google-chrome on PATH" in done.stderr
    assert "pytest" not in calls


def test_a_browser_that_does_not_start_is_said(machine):
    """A download lacks libraries of the system where nobody installed them."""
    done, calls = machine(works=("playwright-works",), starts=False)
    assert done.returncode == 1
    assert "does not start" in done.stderr
    assert "playwright install-deps chromium" in done.stderr
    assert "pytest" not in calls
