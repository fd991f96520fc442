"""Work spread over processes gives what one process gives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from andrea import AndreaError
from andrea.workers import Workers, asked_to_end, count_processes


def square(context, number):
    """Return a number that depends on the context, later ones sooner."""
    time.sleep(0.02 / (1 + number))
    return context * number * number


def fail(context, number):
    raise AndreaError(f"no {number}", "another")


def die(context, number):
    os.kill(os.getpid(), signal.SIGKILL)


def wait_to_end(context, path):
    Path(path).touch()
    while not asked_to_end():
        time.sleep(0.01)
    return "ended"


def which_process(context, number):
    return os.getpid()


@pytest.fixture(scope="module")
def workers():
    with Workers(2, 10, lambda: None) as made:
        assert made.start()
        yield made


def test_results_come_in_order(workers):
    """Whatever finishes first, results have the order of the items, here and in processes."""
    here = Workers(1, 10, lambda: None)
    assert not here.start()
    expected = [10 * number * number for number in range(12)]
    assert list(here.map(square, range(12))) == list(workers.map(square, range(12))) == expected
    assert here.submit(square, 3)() == workers.submit(square, 3)() == 90


def test_processes_are_others(workers):
    """With processes the caller works not itself; without it does."""
    assert os.getpid() not in set(workers.map(which_process, range(4)))
    assert set(Workers(1, None, lambda: None).map(which_process, range(4))) == {os.getpid()}


def test_only_a_few_items_are_under_way(workers):
    """Items are taken as results are, so that memory does not grow with their number."""
    taken = []
    results = workers.map(square, (taken.append(number) or number for number in range(1000)))
    for _ in range(3):
        next(results)
    assert len(taken) <= 3 + 2 + 2


def test_the_users_error_travels_whole(workers):
    """An error raised in a process arrives with its message and hint."""
    with pytest.raises(AndreaError, match="no 7") as caught:
        workers.submit(fail, 7)()
    assert caught.value.hint == "another"


def test_a_killed_process_is_an_error_that_says_what_to_do():
    """A process killed from outside is named, and how to go on."""
    with Workers(1 + 1, None, lambda: None) as workers:
        workers.start()
        with pytest.raises(AndreaError, match="has ended") as caught:
            workers.submit(die, 0)()
    assert "ANDREA_PROCESSES=1" in caught.value.hint


def test_leaving_ends_what_is_under_way(tmp_path):
    """An exception of `tick` leaves the block, which asks running work to end and waits for it."""

    def stop():
        if (tmp_path / "begun").exists():
            raise KeyboardInterrupt

    def wait():
        with Workers(2, None, stop) as workers:
            workers.start()
            workers.submit(wait_to_end, tmp_path / "begun")()

    with pytest.raises(KeyboardInterrupt):
        wait()


def test_no_process_outlives_a_killed_caller(tmp_path):
    """When the caller is killed its processes end by themselves."""
    code = (
        "import sys; sys.path[:0] = [sys.argv[1]]\n"
        "import os, test_workers as t\n"
        "if __name__ == '__main__':\n"
        "    workers = t.Workers(2, None, lambda: None)\n"
        "    workers.start()\n"
        "    print(workers.submit(t.which_process, 0)(), flush=True)\n"
        "    workers.submit(t.wait_to_end, sys.argv[2])()\n"
    )
    script = tmp_path / "caller.py"
    script.write_text(code, encoding="utf-8")
    here, begun = str(Path(__file__).parent), tmp_path / "begun"
    with subprocess.Popen([sys.executable, script, here, begun], stdout=subprocess.PIPE, text=True) as caller:
        worker = int(caller.stdout.readline())
        deadline = time.monotonic() + 30
        while not begun.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(worker, 0)
        caller.kill()
    while _runs(worker) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(worker)


def _runs(process):
    """Say whether a process runs; one that has ended and waits to be noticed by its new parent does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_number_of_processes(monkeypatch):
    """ANDREA_PROCESSES says how many; without it as many as there are processors, nonsense is refused."""
    monkeypatch.setenv("ANDREA_PROCESSES", "3")
    assert count_processes() == 3
    monkeypatch.delenv("ANDREA_PROCESSES")
    assert 1 <= count_processes() <= 6
    for wrong in ("0", "-1", "many"):
        monkeypatch.setenv("ANDREA_PROCESSES", wrong)
        with pytest.raises(AndreaError, match="ANDREA_PROCESSES is"):
            count_processes()


def test_a_script_that_begins_anew_in_its_processes_is_told(tmp_path):
    """A script without a guard ends with an error that shows the guard, where it would wait for itself for ever."""
    script = tmp_path / "script.py"
    script.write_text(
        "import operator\n"
        "from andrea.workers import Workers, refuse_in_a_script_without_guard\n"
        "refuse_in_a_script_without_guard()\n"
        "with Workers(2, 10, lambda: None) as workers:\n"
        "    workers.start()\n"
        "    print(workers.submit(operator.add, 1)())\n"
    )
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert 'put what it does under: if __name__ == "__main__":' in done.stderr
    assert "a process that prepares data has ended" in done.stderr
