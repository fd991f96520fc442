"""A run's model as files for other programs: the formats, and writing one such that it is whole or absent."""

from __future__ import annotations

import shutil
from pathlib import Path

from andrea.errors import AndreaError, cure, did_you_mean
from andrea.export.portable import Portable
from andrea.tokenfile import partial_name, publish, sync_folder, write_whole

SUFFIXES = {"hf": "-hf", "gguf": ".gguf", "npz": ".npz"}
DTYPES = ("float32", "float16")


def export(portable: Portable, form: str, out: Path, dtype: str = "float32") -> Path:
    """Write a model and return where it lies.

    Parameters
    ----------
    portable
        The model.
    form
        ``hf``, a folder for transformers; ``gguf``, a file for llama.cpp; ``npz``, a file for numpy.
    out
        The folder or file, which must not exist yet.
    dtype
        Of the weights, ``float32`` or ``float16``.

    Raises
    ------
    AndreaError
        On an unknown form or type, when `out` exists or cannot be written, or a library is missing.
    """
    check_form(form, dtype)
    if out.exists():
        raise AndreaError(f"{out} exists already", "name another place with --out")
    write = {"hf": _write_hf, "gguf": _write_gguf, "npz": _write_npz}[form]
    try:
        write(portable, out, dtype)
    except OSError as error:
        raise AndreaError(
            f"cannot write {out}: {error.strerror or error}", f"{cure(error)}, or name another place"
        ) from error
    return out


def check_form(form: str, dtype: str) -> None:
    """Refuse a format or a type of numbers that does not exist."""
    for what, value, known in (("format", form, tuple(SUFFIXES)), ("type", dtype, DTYPES)):
        if value not in known:
            hint = did_you_mean(value, known) or f"there are {', '.join(known)}"
            raise AndreaError(f"there is no {what} {value!r} to export to", hint)


def _write_hf(portable: Portable, out: Path, dtype: str) -> None:
    from andrea.export.hf import hf_files

    files, partial = hf_files(portable, dtype), partial_name(out)
    if partial.exists():  # one that was killed
        shutil.rmtree(partial)
    try:
        for name, content in files.items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            write_whole(partial / name, content)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_folder(out.parent)


def _write_gguf(portable: Portable, out: Path, dtype: str) -> None:
    from andrea.export.gguf_file import write_gguf

    try:
        write_gguf(portable, partial_name(out), dtype)
        with partial_name(out).open("r+b") as file:
            publish(file, out)
    except BaseException:
        partial_name(out).unlink(missing_ok=True)
        raise


def _write_npz(portable: Portable, out: Path, dtype: str) -> None:
    from andrea.export.npz import npz_file

    content = npz_file(portable, dtype)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, content)
