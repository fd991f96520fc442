"""The lock on a run's folder: one holder at a time, freed however the holder ends, and gone without a trace."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from andrea.errors import AndreaError
from andrea.folder_lock import FolderLock

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no such lock")

HOLD = """
import sys, time
from pathlib import Path
from andrea.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_a_held_folder_is_refused_by_name_of_its_holder(tmp_path):
    """A second lock is the user's error with the process's number; after the release there is no file."""
    lock = FolderLock(tmp_path)
    with pytest.raises(AndreaError, match=f"in use by process {os.getpid()}"):
        FolderLock(tmp_path)

    lock.release()
    assert list(tmp_path.iterdir()) == []
    lock.release()
    FolderLock(tmp_path).release()


def test_a_killed_holder_holds_nothing(tmp_path):
    """Another process's lock is refused while it lives, and free once it was killed, whatever it left behind."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(AndreaError, match=f"in use by process {process.pid}"):
            FolderLock(tmp_path)
        process.kill()

    assert (tmp_path / "lock").exists()
    FolderLock(tmp_path).release()
    assert not (tmp_path / "lock").exists()


def test_a_lock_on_a_removed_file_counts_for_nothing(tmp_path):
    """Who opened the file just before its holder removed it locks the new one, not the one that nobody sees."""
    first = FolderLock(tmp_path)
    (tmp_path / "lock").unlink()
    second = FolderLock(tmp_path)

    first.release()  # must not remove the file of the second
    assert (tmp_path / "lock").read_text() == str(os.getpid())
    with pytest.raises(AndreaError, match="in use"):
        FolderLock(tmp_path)
    second.release()
