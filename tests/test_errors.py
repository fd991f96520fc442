"""What to do about a refusal of the system's fits the refusal."""

import errno

import pytest

from andrea.errors import cure


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_room_is_asked_for_only_when_there_is_none(number):
    """A full disk and a full quota."""
    assert cure(OSError(number, "")) == "make room"


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (errno.EACCES, "may write"),
        (errno.EPERM, "may write"),
        (errno.EROFS, "mounted"),
        (errno.EIO, "disk checked"),
        (errno.ENAMETOOLONG, "shorter name"),
        (errno.ENOTDIR, "folders"),
        (errno.EEXIST, "folders"),
        (errno.ETIMEDOUT, "what the system says"),
        (None, "what the system says"),
    ],
)
def test_other_refusals_have_other_cures(number, word):
    """Nobody is sent to delete files for want of a permission."""
    error = OSError("strange") if number is None else OSError(number, "")
    assert word in cure(error)
    assert "room" not in cure(error)
