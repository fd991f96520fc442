"""What GPU tests share: they run where a CUDA device is, and are skipped as a whole elsewhere."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest

from andrea import AndreaError, Precision
from andrea.engine import launcher
from andrea.engine.compiler import SUPPORT, architecture_of, compile_kernels

PRECISIONS = {
    "fp32": Precision("fp32"),
    "tf32": Precision("tf32", multiply="tf32", macros={"ANDREA_STORAGE": "float", "ANDREA_MULTIPLY": "tf32"}),
    "fp16": Precision(
        "fp16", "float16", "float16", macros={"ANDREA_STORAGE": "half", "ANDREA_MULTIPLY": "half"}, loss_scale=1024.0
    ),
    "bf16": Precision("bf16", "bfloat16", "bfloat16", macros={"ANDREA_STORAGE": "bf16", "ANDREA_MULTIPLY": "bf16"}),
}

# float32 sums of up to a few thousand terms lose a few of 24 bits; tf32 and fp16 keep 11 bits of an operand, bf16 8.
TOLERANCE = {"fp32": 1e-5, "tf32": 1e-3, "fp16": 1e-2, "bf16": 1e-2}

# What rounding to the stored type alone may do to one element, as a share of it, and next to 0.
ROUNDING = {"fp32": (2.0**-24, 0.0), "tf32": (2.0**-11, 0.0), "fp16": (2.0**-11, 2.0**-25), "bf16": (2.0**-8, 0.0)}


def to_storage(values, storage):
    """Return values rounded to nearest as the card holds them: float32, float16, or bfloat16 as its bits."""
    if storage != "bfloat16":
        return np.ascontiguousarray(values, dtype=storage)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.where((bits & 0x7F800000) == 0x7F800000, bits, rounded).astype(np.uint32).__rshift__(16).astype(np.uint16)


def from_storage(raw):
    """Return what the card holds as float64."""
    if raw.dtype != np.uint16:
        return raw.astype(np.float64)
    return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


class Loaded:
    """Kernels on the device, each set loaded once for all tests: loading takes longer than most of them compute."""

    def __init__(self, architecture):
        self._architecture, self._sets = architecture, {}

    def __call__(self, files, macros):
        key = tuple(files), tuple(sorted(macros.items()))
        if key not in self._sets:
            self._sets[key] = launcher.Kernels(compile_kernels(files, macros, self._architecture))
        return self._sets[key]

    def close(self):
        for kernels in self._sets.values():
            kernels.close()


class Card:
    """Memory and kernels of the device, for one test."""

    def __init__(self, capability, loaded):
        self.capability = capability
        self.architecture = architecture_of(capability)
        self.kernels = loaded
        self._addresses = []

    def room(self, size, poison=0xFF):
        """Return the address of `size` bytes, filled with bytes that read as NaN in every float type."""
        self._addresses.append(launcher.allocate(size))
        launcher.check(launcher.driver().cuMemsetD8(self._addresses[-1], poison, max(1, size)))
        return self._addresses[-1]

    def put(self, values, shift=0):
        """Return the address of a copy of an array on the card, `shift` bytes behind an aligned one."""
        values = np.ascontiguousarray(values)
        address = self.room(values.nbytes + shift) + shift
        launcher.upload(address, values)
        return address

    def get(self, address, shape, dtype):
        """Return an array from the card."""
        result = np.empty(shape, dtype=np.uint16 if dtype == "bfloat16" else dtype)
        launcher.download(address, result)
        return result

    def close(self):
        """Give everything back, after the device has finished without an error."""
        launcher.check(launcher.driver().cuCtxSynchronize(), "the end of a test")
        for address in self._addresses:
            launcher.release(address)


@pytest.fixture(scope="session")
def capability():
    """Give the device's compute capability, its context current; skips where there is no device."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(launcher.context())
        except (AndreaError, launcher.CudaError):
            pytest.skip("no CUDA device")
        yield found


@pytest.fixture(scope="session")
def loaded(capability):
    """Give what loads kernels, (files, macros) -> `Kernels`."""
    made = Loaded(architecture_of(capability))
    yield made
    made.close()


@pytest.fixture
def card(capability, loaded):
    """Give the device with memory that a test need not give back."""
    made = Card(capability, loaded)
    yield made
    made.close()


@pytest.fixture(params=sorted(PRECISIONS))
def precision(request, capability):
    """Each precision that the device has."""
    if capability < SUPPORT[request.param]:
        pytest.skip(f"compute capability {capability} has no {request.param}")
    return PRECISIONS[request.param]


@pytest.fixture
def close():
    """Give a check of a result against a float64 reference; see `TOLERANCE` for where the bounds come from."""

    def check(result, reference, name):
        tolerance = TOLERANCE[name]
        result, reference = from_storage(np.asarray(result)), np.asarray(reference, dtype=np.float64)
        assert result.shape == reference.shape
        assert np.isfinite(result).all(), "an element was not written"
        share, floor = ROUNDING[name]
        error = np.maximum(np.abs(result - reference) - floor, 0)
        assert np.linalg.norm(error) <= tolerance * np.linalg.norm(reference)
        # One element far above the others, as the target's in a row of softmax, is off by its own rounding at least.
        excess = np.maximum(error - share * np.abs(reference), 0)
        assert excess.max() <= 8 * tolerance * np.sqrt(np.mean(reference**2))

    return check


@pytest.fixture
def storage():
    """Give the two conversions between float64 and what the card holds: (to, from)."""
    return to_storage, from_storage
