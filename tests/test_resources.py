"""Kernels and experiments are found beside the package in a checkout and inside it in a wheel."""

from __future__ import annotations

import pytest

from andrea import AndreaError, resources


def make(folder, name):
    (folder / name / "include").mkdir(parents=True)
    (folder / name / "include" / "types.cuh").write_text("")
    return folder / name


def test_a_checkout_has_them_beside_the_package():
    """The folder of this very checkout, with the headers in it."""
    assert (resources.kernels_folder() / "include" / "types.cuh").is_file()


@pytest.mark.parametrize("inside", [True, False])
def test_a_wheel_has_them_inside_the_package(tmp_path, monkeypatch, inside):
    """What lies inside the package wins; else what lies beside it is taken."""
    package = tmp_path / "andrea"
    package.mkdir()
    beside = make(tmp_path, "kernels")
    within = make(package, "kernels") if inside else None
    monkeypatch.setattr(resources, "_PACKAGE", package)
    assert resources.kernels_folder() == (within or beside)
    (tmp_path / "experiments").mkdir()
    assert resources.experiments_folder() == tmp_path / "experiments"


def test_a_foreign_folder_of_the_name_is_not_taken(tmp_path, monkeypatch):
    """A folder called kernels without our headers is somebody else's; the error says where was looked."""
    (tmp_path / "kernels").mkdir()
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "andrea")
    with pytest.raises(AndreaError, match="'kernels'") as caught:
        resources.kernels_folder()
    assert str(tmp_path / "kernels") in caught.value.hint
