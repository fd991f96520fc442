"""Which device to run on: finds cards through the driver, without making a context on any.

Nothing of CUDA is imported until a card is asked for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

from andrea.errors import AndreaError
from andrea.types import Device

INSTALL = "pip install 'andrea[cuda]' for a driver of CUDA 13, 'andrea[cuda12]' for one of CUDA 12"
CPU = Device("cpu", "cpu")
REQUEST = re.compile(r"cuda(?::(\d+))?")


def find_device(request: str, say: Callable[[str], None] | None = None) -> Device:
    """Return the device for ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Parameters
    ----------
    request
        ``auto`` takes the first card, and the CPU when there is none or something is missing.
    say
        Given one line when ``auto`` falls back, with the reason; standard error by default.

    Raises
    ------
    AndreaError
        When the request is none of these, or the card it names cannot be used.
    """
    if request == "cpu":
        return CPU
    match = REQUEST.fullmatch(request)
    if request != "auto" and not match:
        raise AndreaError(f"there is no device '{request}'", "devices: auto, cpu, cuda, cuda:0, cuda:1, ...")
    cards, reason = find_cards()
    reason = reason or missing_compiler()
    if not reason:
        index = int(match[1] or 0) if match else 0
        if index < len(cards):
            return cards[index]
        raise AndreaError(
            f"there is no card {index}", "cards: " + ", ".join(f"cuda:{card.index} {card.name}" for card in cards)
        )
    if request != "auto":
        raise AndreaError(f"device '{request}' cannot be used: {reason}", "--device cpu needs nothing")
    (say or _print_line)(f"running on the CPU: {reason}")
    return CPU


def _print_line(line: str) -> None:
    print(line, file=sys.stderr)


def find_cards() -> tuple[list[Device], str]:
    """Return the cards that the driver shows, and in one line why there are none, else an empty text."""
    try:
        from cuda.bindings import driver

        from andrea.engine.launcher import CudaError, check
    except ImportError:
        return [], f"cuda-python is not installed; {INSTALL}"
    try:
        check(driver.cuInit(0))
        cards = [_describe(driver, i) for i in range(check(driver.cuDeviceGetCount()))]
    except CudaError as failure:
        return [], f"no CUDA card: {failure}; see whether nvidia-smi shows one"
    except RuntimeError:  # what the bindings raise when the driver library itself is absent
        return [], "no CUDA driver on this machine; install NVIDIA's driver to use a card"
    return cards, "" if cards else "the CUDA driver shows no card; see CUDA_VISIBLE_DEVICES"


def _describe(driver: Any, index: int) -> Device:
    from andrea.engine.launcher import check

    handle = check(driver.cuDeviceGet(index))
    name = check(driver.cuDeviceGetName(128, handle)).split(b"\0")[0].decode()
    kinds = driver.CUdevice_attribute
    major, minor = (
        check(driver.cuDeviceGetAttribute(kind, handle))
        for kind in (
            kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    )
    return Device("cuda", name, (major, minor), index)


def missing_compiler() -> str:
    """Return in one line why kernels cannot be compiled here, or an empty text."""
    from andrea.engine.compiler import compiler_version

    try:
        compiler_version()
    except AndreaError:
        return f"the kernel compiler NVRTC is not installed; {INSTALL}"
    return ""
