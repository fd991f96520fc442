"""CUDA text to machine code for one architecture, by NVRTC, kept in a cache on disk.

Every file of `kernels/` is a translation unit of its own. What a unit becomes depends on its text, the text of all
headers, the options and the compiler's version: their digest is the name of the cache entry. No GPU is needed.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import platformdirs
from attrs import asdict, frozen

from andrea.errors import AndreaError
from andrea.resources import kernels_folder

#: Lowest compute capability that can run a precision: bf16 and tf32 need the tensor cores of sm_80, fp8 those of sm_89.
SUPPORT: dict[str, tuple[int, int]] = {"fp32": (7, 5), "tf32": (8, 0), "fp16": (7, 5), "bf16": (8, 0), "fp8": (8, 9)}

#: Architectures that the kernels are compiled for in CI.
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")

_MAGIC = b"ANDREA-CUBIN-1\n"
# Without --no-cache the compiler may take machine code from a cache of its own, and then gives no report.
_OPTIONS = ("--std=c++17", "--ptxas-options=-v", "--no-cache", "-DANDREA=1")


@frozen
class KernelReport:
    """What one kernel needs of the card, in registers and bytes a thread or block, and its parameters.

    Attributes
    ----------
    name
        As in the text; every kernel is ``extern "C"``.
    registers, stack_frame, spill_stores, spill_loads
        Per thread; anything but 0 in the last three means traffic to memory that nobody asked for.
    shared
        Static shared memory of a block.
    parameters
        One letter a parameter: p pointer, i int32, l int64, f float32, d float64; empty when the text writes the kernel
        through a macro.
    """

    name: str
    registers: int
    shared: int
    stack_frame: int
    spill_stores: int
    spill_loads: int
    parameters: str = ""


@frozen(eq=False)
class Cubin:
    """Machine code of one file: where it came from, for which architecture, its bytes, and a report per kernel."""

    file: str
    architecture: str
    digest: str
    image: bytes
    kernels: tuple[KernelReport, ...]


def architecture_of(capability: tuple[int, int]) -> str:
    """Return the compiler's name of a card's architecture; Hopper's own instructions need the ``a``."""
    return "sm_90a" if capability == (9, 0) else f"sm_{capability[0]}{capability[1]}"


def capability_of(architecture: str) -> tuple[int, int]:
    """Return (major, minor) of an architecture's name, for instance (9, 0) of ``sm_90a``."""
    digits = re.fullmatch(r"sm_(\d+)[a-z]?", architecture)
    if digits is None:
        raise AndreaError(f"there is no architecture {architecture!r}", f"known are {', '.join(ARCHITECTURES)}")
    return divmod(int(digits[1]), 10)


def compiler_version() -> tuple[int, int]:
    """Return (major, minor) of the NVRTC that is installed.

    Raises
    ------
    AndreaError
        When there is none.
    """
    with _loading:  # threads that all ask first wait for one of them to load the library
        return _version()


def compile_kernels(
    names: Sequence[str | Path],
    macros: Mapping[str, str],
    architecture: str,
    cache: Path | None = None,
) -> list[Cubin]:
    """Compile files of `kernels/`, or take them from the cache.

    Parameters
    ----------
    names
        Names of files in `kernels/`, with or without ``.cu``, or paths of files anywhere.
    macros
        Definitions, name to value: those of a `Precision` and the caller's own.
    architecture
        For instance ``sm_90a``.
    cache
        Folder of the cache; the user's by default.

    Returns
    -------
    list of Cubin
        One a name, in the order asked for.

    Raises
    ------
    AndreaError
        When a file is missing or does not compile: names file and line.
    """
    paths = [_kernel_path(name) for name in names]
    options = [f"--gpu-architecture={architecture}", *_OPTIONS]
    options += [f"-D{name}={value}" for name, value in sorted(macros.items())]
    folder = cache if cache is not None else cache_folder()
    with ThreadPoolExecutor(max_workers=min(len(paths), os.cpu_count() or 1) or 1) as pool:
        longest_first = sorted(set(paths), key=lambda path: -path.stat().st_size)  # so that no core ends on a long one
        jobs = {path: pool.submit(_compile_cached, path, architecture, options, folder) for path in longest_first}
        return [jobs[path].result() for path in paths]


def kernel_files() -> list[str]:
    """Return the names of all kernel files, sorted, without their ending."""
    return sorted(path.stem for path in kernels_folder().glob("*.cu"))


def cache_folder() -> Path:
    """Return where compiled kernels are kept for the next start."""
    return platformdirs.user_cache_path("andrea") / "kernels"


def kernel_digest() -> str:
    """Return the digest of all kernel text, headers included: a part of a run's fingerprint."""
    folder = kernels_folder()
    return _digest(*(_named_text(path, folder) for path in sorted(folder.rglob("*.cu*"))))


def _kernel_path(name: str | Path) -> Path:
    path = Path(name)
    if path.parent == Path():
        path = kernels_folder() / path.with_suffix(".cu")
    if not path.is_file():
        raise AndreaError(f"there is no kernel file {name}", f"known are {', '.join(kernel_files())}")
    return path


# -- cache -----------------------------------------------------------------------------------------------------------


def _compile_cached(path: Path, architecture: str, options: Sequence[str], folder: Path) -> Cubin:
    key = _cache_key(path, options)
    entry = folder / f"{path.stem}-{architecture}-{key[:32]}.cubin"
    found = _read_entry(entry, key)
    if found is None:
        found = _compile(path, architecture, options, key)
        _write_entry(entry, found)
    return found


def _cache_key(path: Path, options: Sequence[str]) -> str:
    """Return the digest of everything that decides the machine code. Where files lie is not among it."""
    root = kernels_folder()
    headers = [_named_text(header, root) for header in sorted((root / "include").rglob("*.cuh"))]
    return _digest(
        path.name.encode(), path.read_bytes(), *headers, repr((options, compiler_version())).encode(), _toolkit()
    )


def _named_text(path: Path, root: Path) -> bytes:
    return path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes()


def _digest(*parts: bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()


def _read_entry(entry: Path, key: str) -> Cubin | None:
    """Return what a cache entry holds; None when it is missing, cut short, damaged or another's."""
    try:
        magic, checksum, header, image = entry.read_bytes().split(b"\n", 3)
        if magic + b"\n" != _MAGIC or checksum.decode() != _digest(header, image):
            return None
        fields = json.loads(header)
        if fields["digest"] != key:
            return None
        kernels = tuple(KernelReport(**kernel) for kernel in fields.pop("kernels"))
        return Cubin(image=image, kernels=kernels, **fields)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_entry(entry: Path, cubin: Cubin) -> None:
    """Write a cache entry so that no reader ever sees a part of it; a folder that cannot be written is no error."""
    fields: dict[str, Any] = {"file": cubin.file, "architecture": cubin.architecture, "digest": cubin.digest}
    fields["kernels"] = [asdict(kernel) for kernel in cubin.kernels]
    header = json.dumps(fields).encode()
    content = _MAGIC + _digest(header, cubin.image).encode() + b"\n" + header + b"\n" + cubin.image
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=entry.parent, prefix=entry.stem, suffix=".new", delete=False) as file:
            file.write(content)
        Path(file.name).replace(entry)
    except OSError:
        return


# -- compiler --------------------------------------------------------------------------------------------------------


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise AndreaError(f"the CUDA bindings cannot be loaded: {error}", _INSTALL) from error
    return nvrtc


_INSTALL = "install them with: pip install 'andrea[cuda]' (or 'andrea[cuda12]' for a driver of CUDA 12)"


_loading = threading.Lock()


@functools.cache
def _version() -> tuple[int, int]:
    nvrtc = _nvrtc()
    try:
        status, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # the loader's own error types differ between versions of the bindings
        raise AndreaError(f"the CUDA compiler NVRTC cannot be loaded: {error}".splitlines()[0], _INSTALL) from error
    if int(status):
        raise AndreaError(f"the CUDA compiler NVRTC does not answer: {status.name}", _INSTALL)
    return int(major), int(minor)


def include_folders() -> list[Path]:
    """Return the folders of CUDA's own headers, of the compiler's major version, wheels before a system toolkit."""
    major = compiler_version()[0]
    wheel = (
        ["cuda_runtime/include", "cuda_nvcc/include", "cuda_cccl/include"]
        if major < 13
        else [f"cu{major}/include", f"cu{major}/include/cccl"]
    )
    found = [Path(root) / "nvidia" / part for root in sys.path if root for part in wheel]
    toolkits = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), f"/usr/local/cuda-{major}", "/usr/local/cuda"]
    found += [Path(root) / part for root in toolkits if root for part in ("include", "include/cccl")]
    result = [folder for folder in dict.fromkeys(found) if folder.is_dir()]
    if not any((folder / "cuda_fp16.h").is_file() for folder in result):
        raise AndreaError(f"the headers of CUDA {major} are missing (cuda_fp16.h was not found)", _INSTALL)
    return result


@functools.cache
def _toolkit() -> bytes:
    """Return the digest of CUDA's headers that kernels may include: they ship apart from the compiler."""
    folders = include_folders()
    texts = []
    for name in ("cuda_fp16.h", "cuda_fp16.hpp", "cuda_bf16.h", "cuda_bf16.hpp", "cuda_fp8.h", "cuda_fp8.hpp"):
        first = next((folder / name for folder in folders if (folder / name).is_file()), None)
        texts.append(first.read_bytes() if first else b"")
    return _digest(*texts).encode()


def _compile(path: Path, architecture: str, options: Sequence[str], key: str) -> Cubin:
    nvrtc = _nvrtc()
    root = kernels_folder()
    folders = [root / "include", path.parent, *include_folders()]
    arguments = [option.encode() for option in options] + [f"--include-path={folder}".encode() for folder in folders]
    text = path.read_text(encoding="utf-8")
    status, program = nvrtc.nvrtcCreateProgram(text.encode(), f"kernels/{path.name}".encode(), 0, [], [])
    _expect(nvrtc, status)
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(arguments), arguments)
        log = _program_text(nvrtc, program, "ProgramLog").rstrip(b"\0 \n").decode(errors="replace")
        if int(status):
            raise _compile_error(path.name, architecture, log, root)
        image = _program_text(nvrtc, program, "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Cubin(path.name, architecture, key, image, _reports(log, text))


def _program_text(nvrtc: Any, program: Any, what: str) -> bytes:
    status, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    _expect(nvrtc, status)
    buffer = bytearray(size)
    (status,) = getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    _expect(nvrtc, status)
    return bytes(buffer)


def _expect(nvrtc: Any, status: Any) -> None:
    if int(status):
        text = nvrtc.nvrtcGetErrorString(status)[1]
        raise RuntimeError(f"NVRTC failed: {text.decode() if isinstance(text, bytes) else status}")


_ERROR = re.compile(r"^(?P<file>[^\n(]+)\((?P<line>\d+)\): (?:catastrophic )?error:? ?(?P<text>.*)$", re.MULTILINE)


def _compile_error(name: str, architecture: str, log: str, root: Path) -> AndreaError:
    """Return an error that names file and line as an editor wants them, and keeps the compiler's own words."""
    log = log.replace(f"{root}{os.sep}", "kernels/")
    places = [f"{match['file']}:{match['line']}: {match['text']}" for match in _ERROR.finditer(log)]
    first = places[0] if places else (log.splitlines() or ["the compiler gives no reason"])[0]
    return AndreaError(f"kernels/{name} does not compile for {architecture}: {first}", log)


# -- report ----------------------------------------------------------------------------------------------------------


_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def _reports(log: str, text: str) -> tuple[KernelReport, ...]:
    """Return what the assembler's log says about each kernel."""
    parts = _ENTRY.split(log)[1:]
    signatures = _signatures(text)
    if not parts and signatures and "ptxas info" not in log:  # a file may be empty in some precisions
        raise RuntimeError(f"the assembler gave no report on {', '.join(signatures)}:\n{log}")
    reports = []
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        used, stack, shared = _USED.search(part), _STACK.search(part), _SHARED.search(part)
        if used is None or stack is None:
            raise RuntimeError(f"the assembler's report on {name} cannot be read:\n{part}")
        frame, stores, loads = (int(number) for number in stack.groups())
        size = int(shared[1]) if shared else 0
        reports.append(KernelReport(name, int(used[1]), size, frame, stores, loads, signatures.get(name, "")))
    return tuple(reports)


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_KERNEL = re.compile(r"__global__[^;{}#]*?\bvoid\b[^;{}#]*?\b(k_\w+)\s*\(([^(){}#]*)\)\s*\{")
_LETTERS = {
    "float": "f",
    "double": "d",
    "int": "i",
    "int32": "i",
    "uint32": "i",
    "int64": "l",
    "uint64": "l",
    "long": "l",
}


def _signatures(text: str) -> dict[str, str]:
    """Return the parameters of every kernel that the text spells out, one letter each (see `KernelReport`)."""
    result = {}
    for name, parameters in _KERNEL.findall(_COMMENT.sub(" ", text)):
        result[name] = "".join(_letter(parameter) for parameter in parameters.split(",") if parameter.strip())
    return result


def _letter(parameter: str) -> str:
    if "*" in parameter:
        return "p"
    kind = next((word for word in re.findall(r"\w+", parameter) if word not in ("const", "__grid_constant__")), "")
    return _LETTERS.get(kind, "?")
