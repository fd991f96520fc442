"""Where shipped text lies: `kernels/` and `experiments/`, inside the package of a wheel, beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

from andrea.errors import AndreaError

_PACKAGE = Path(__file__).resolve().parent


def kernels_folder() -> Path:
    """Return the folder of the CUDA text.

    Raises
    ------
    AndreaError
        When neither the wheel nor the checkout has it.
    """
    return _find("kernels", "include/types.cuh")


def experiments_folder() -> Path:
    """Return the folder of the bundled experiments.

    Raises
    ------
    AndreaError
        When neither the wheel nor the checkout has it.
    """
    return _find("experiments", ".")


def _find(name: str, landmark: str) -> Path:
    """Return folder `name` of the package or, in an editable install, of the checkout around the package."""
    candidates = (_PACKAGE / name, _PACKAGE.parent / name)
    for folder in candidates:
        if folder.is_dir() and (folder / landmark).exists():
            return folder
    raise AndreaError(
        f"the folder {name!r} that belongs to andrea is missing",
        f"looked in {candidates[0]} and {candidates[1]}; reinstall andrea",
    )
