# ruff: noqa: N802 - the driver names its functions
"""The launcher without a card: how it checks answers, packs arguments, and refuses what cannot be right."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from andrea.engine.compiler import Cubin, KernelReport
from andrea.engine.launcher import CudaError, Kernel, Kernels, check


class Status(int):
    """A driver's status: 0 is success."""

    name = "CUDA_ERROR_OF_TEST"


class FakeDriver:
    """Records launches as the driver would see them: it reads the arguments through the pointers it is given."""

    CUfunction_attribute = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="dynamic", CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES="static"
    )

    def __init__(self, types=(), static=0):
        self.types, self.static = types, static
        self.launches, self.limits = [], []

    def cuFuncGetAttribute(self, attribute, function):
        return Status(0), self.static

    def cuFuncSetAttribute(self, function, attribute, value):
        self.limits.append((attribute, value))
        return (Status(0),)

    def cuLaunchKernel(self, function, *sizes):
        *sizes, stream, address, _ = sizes
        pointers = (ctypes.c_void_p * len(self.types)).from_address(address)
        values = [kind.from_address(p).value for kind, p in zip(self.types, pointers, strict=True)]
        self.launches.append((function, tuple(sizes), stream, values))
        return (Status(0),)

    def cuModuleLoadData(self, image):
        return Status(0), image

    def cuModuleGetFunction(self, module, name):
        return Status(0), (module, name)

    def cuModuleUnload(self, module):
        return (Status(0),)

    def cuFuncGetParamInfo(self, function, index):
        if index >= len(self.types):
            return Status(1), 0, 0
        return Status(0), 8 * index, ctypes.sizeof(self.types[index])


def cubin(*kernels):
    reports = tuple(KernelReport(name, 8, 0, 0, 0, 0, letters) for name, letters in kernels)
    return Cubin("test.cu", "sm_90a", "digest", b"image", reports)


@pytest.fixture
def loaded(monkeypatch):
    """Give a function that loads kernels into a fake driver."""

    def load(fake, *cubins):
        monkeypatch.setattr("andrea.engine.launcher.driver", lambda: fake)
        return Kernels(cubins)

    return load


def test_arguments_arrive_with_their_types():
    """Addresses, negative 32- and 64-bit integers, floats and doubles are what the kernel reads."""
    fake = FakeDriver([ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_double])
    kernel = Kernel(fake, "k_test", "function", "pilfd")
    kernel((3, 2), 64, 128, 7, 0x7F0000001000, -5, -(2**40), 0.5, 0.1)
    kernel(1, (32, 8), 0, 0, 2**63, 2**31 - 1, 2**62, -1.5, 1e300)
    assert fake.launches[0] == ("function", (3, 2, 1, 64, 1, 1, 128), 7, [0x7F0000001000, -5, -(2**40), 0.5, 0.1])
    assert fake.launches[1] == ("function", (1, 1, 1, 32, 8, 1, 0), 0, [2**63, 2**31 - 1, 2**62, -1.5, 1e300])


@pytest.mark.parametrize("arguments", [(), (1,), (1, 2, 3)])
def test_a_wrong_number_of_arguments_is_refused(arguments):
    """Too few or too many arguments never reach the driver."""
    fake = FakeDriver([ctypes.c_uint64, ctypes.c_int32])
    with pytest.raises(TypeError, match="k_test takes 2 arguments"):
        Kernel(fake, "k_test", "function", "pi")(1, 1, 0, 0, *arguments)
    assert fake.launches == []


def test_a_fraction_where_an_integer_belongs_is_refused():
    """A float for an integer parameter is an error, not a truncation."""
    fake = FakeDriver([ctypes.c_int32])
    with pytest.raises(TypeError):
        Kernel(fake, "k_test", "function", "i")(1, 1, 0, 0, 1.5)


def test_shared_memory_beyond_the_plain_limit_is_asked_for_once():
    """Static and dynamic shared memory together decide; the limit is raised before the first launch that needs it."""
    fake = FakeDriver(static=1024)
    kernel = Kernel(fake, "k_test", "function", "")
    kernel(1, 1, 47 * 1024, 0)
    assert fake.limits == []
    kernel(1, 1, 48 * 1024, 0)
    kernel(1, 1, 48 * 1024, 0)
    assert fake.limits == [("dynamic", 48 * 1024)]


def test_a_kernel_is_made_once_and_by_name(loaded):
    """The same object every time; an unknown name lists what is loaded."""
    kernels = loaded(FakeDriver(), cubin(("k_a", ""), ("k_b", "")))
    assert kernels.kernel("k_a") is kernels.kernel("k_a")
    assert kernels.names == ["k_a", "k_b"]
    with pytest.raises(KeyError, match="k_c; loaded are k_a, k_b"):
        kernels.kernel("k_c")


def test_two_kernels_of_one_name_are_refused(loaded):
    """Which of the two would run must never be a matter of order."""
    with pytest.raises(ValueError, match=r"k_a of test\.cu exists twice"):
        loaded(FakeDriver(), cubin(("k_a", "")), cubin(("k_a", "")))


def test_a_signature_that_the_card_contradicts_is_refused(loaded):
    """Sizes of parameters are compared with what the driver knows of the code."""
    fake = FakeDriver([ctypes.c_uint64, ctypes.c_int32])
    assert loaded(fake, cubin(("k_a", "pi"))).kernel("k_a").signature == "pi"
    with pytest.raises(ValueError, match="takes parameters of"):
        loaded(fake, cubin(("k_a", "pl"))).kernel("k_a")
    with pytest.raises(ValueError, match="unknown type"):
        loaded(fake, cubin(("k_a", "p?"))).kernel("k_a")
    assert loaded(fake, cubin(("k_a", ""))).kernel("k_a", "pi").signature == "pi"


def test_check_unpacks_an_answer():
    """Nothing, one value, or a tuple: what stands behind the status."""
    assert check((Status(0),)) is None
    assert check((Status(0), 5)) == 5
    assert check((Status(0), 5, 6)) == (5, 6)


def test_check_raises_with_the_name_of_the_call(monkeypatch):
    """A status that is not success becomes an error that says which call failed and what the driver said."""
    from cuda.bindings import driver

    monkeypatch.setattr(driver, "cuGetErrorString", lambda status: (Status(0), b"out of memory"))
    with pytest.raises(CudaError, match="loading k failed: CUDA_ERROR_OUT_OF_MEMORY: out of memory"):
        check((driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY,), "loading k")
