"""From machine code to launches: loads cubins into the current context, packs arguments, checks every answer.

Nothing here decides what is computed. The few memory calls are what a test or a tool needs; the engine's own memory
is one arena (`andrea.engine.buffers`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea.engine.compiler import Cubin
from andrea.errors import AndreaError

Dimensions = int | tuple[int, ...]

_TYPES: dict[str, Any] = {
    "p": ctypes.c_uint64,
    "i": ctypes.c_int32,
    "l": ctypes.c_int64,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
}
_BYTES = {"p": 8, "i": 4, "l": 8, "f": 4, "d": 8}
_PLAIN_SHARED = 48 * 1024  # a block gets more, static and dynamic together, only when the kernel's limit is raised


class CudaError(RuntimeError):
    """The driver refused a call: the call's name and the driver's own words."""


def driver() -> Any:
    """Return the driver's bindings.

    Raises
    ------
    AndreaError
        When they are not installed or there is no driver.
    """
    try:
        from cuda.bindings import driver as bindings

        check(bindings.cuInit(0), "cuInit")
    except Exception as error:  # the loader's own error types differ between versions of the bindings
        raise AndreaError(
            f"no CUDA device: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            "it needs an NVIDIA card, its driver, and: pip install 'andrea[cuda]'",
        ) from error
    return bindings


def check(answer: tuple[Any, ...], call: str = "") -> Any:
    """Return what a driver call gave beside its status: nothing, one value or a tuple.

    Raises
    ------
    CudaError
        When the status is not success.
    """
    status, *values = answer
    if int(status):
        from cuda.bindings import driver as bindings

        _, text = bindings.cuGetErrorString(status)
        words = text.decode() if isinstance(text, bytes) else "unknown error"
        raise CudaError(f"{call or 'the CUDA driver'} failed: {getattr(status, 'name', status)}: {words}")
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


class Kernel:
    """One kernel, ready to launch; its argument buffer is made once and refilled by every launch.

    Parameters
    ----------
    bindings
        `cuda.bindings.driver`.
    name
        Of the kernel.
    function
        The driver's handle.
    signature
        One letter a parameter: p pointer, i int32, l int64, f float32, d float64.
    """

    def __init__(self, bindings: Any, name: str, function: Any, signature: str) -> None:
        self.name, self.signature, self.function = name, signature, function
        self._launch = bindings.cuLaunchKernel
        self._bindings = bindings
        self._attribute = bindings.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._set_attribute = bindings.cuFuncSetAttribute
        self._values = [_TYPES[letter]() for letter in signature]
        self._pointers = (ctypes.c_void_p * max(1, len(signature)))(*(ctypes.addressof(v) for v in self._values))
        self._address = ctypes.addressof(self._pointers)
        static = bindings.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        self._shared_limit = _PLAIN_SHARED - check(bindings.cuFuncGetAttribute(static, function), f"kernel {name}")

    def allow_shared(self, shared_bytes: int) -> None:
        """Raise the limit of dynamic shared memory; a capture must come after it."""
        if shared_bytes > self._shared_limit:
            check(self._set_attribute(self.function, self._attribute, shared_bytes), f"shared memory of {self.name}")
            self._shared_limit = shared_bytes

    def __call__(self, grid: Dimensions, block: Dimensions, shared_bytes: int, stream: Any, *arguments: Any) -> None:
        """Launch on a stream; inside a capture it becomes a node of the graph.

        Parameters
        ----------
        grid, block
            Blocks and threads: a number, or up to three (x, y, z).
        shared_bytes
            Dynamic shared memory of a block.
        stream
            The driver's stream, or 0.
        arguments
            In the kernel's order: pointers and integers as int, float32 as float.
        """
        self._fill(arguments)
        if shared_bytes > self._shared_limit:
            self.allow_shared(shared_bytes)
        status = self._launch(self.function, *_three(grid), *_three(block), shared_bytes, stream, self._address, 0)[0]
        if int(status):
            check((status,), f"launch of {self.name} grid {grid} block {block} shared {shared_bytes}")

    def node(self, graph: Any, behind: Sequence[Any], grid: Dimensions, block: Dimensions, *arguments: Any) -> Any:
        """Add a launch to a graph behind some of its nodes, without shared memory, and return its node."""
        self._fill(arguments)
        launch = self._bindings.CUDA_KERNEL_NODE_PARAMS()
        launch.func, launch.kernelParams, launch.sharedMemBytes = self.function, self._address, 0
        launch.gridDimX, launch.gridDimY, launch.gridDimZ = _three(grid)
        launch.blockDimX, launch.blockDimY, launch.blockDimZ = _three(block)
        return check(self._bindings.cuGraphAddKernelNode(graph, list(behind), len(behind), launch), self.name)

    def _fill(self, arguments: Sequence[Any]) -> None:
        if len(arguments) != len(self._values):
            raise TypeError(f"{self.name} takes {len(self._values)} arguments ({self.signature}), not {len(arguments)}")
        for value, argument in zip(self._values, arguments, strict=True):
            value.value = argument


def _three(size: Dimensions) -> tuple[int, int, int]:
    if isinstance(size, int):
        return (size, 1, 1)
    return (*size, 1, 1)[:3]  # type: ignore[return-value]


class Kernels:
    """The kernels of some cubins, loaded into the current context.

    Parameters
    ----------
    cubins
        From `andrea.engine.compiler.compile_kernels`.

    Raises
    ------
    CudaError
        When the card cannot run the code.
    ValueError
        When two cubins hold a kernel of the same name.
    """

    def __init__(self, cubins: Sequence[Cubin]) -> None:
        self._driver = driver()
        self._modules = []
        self._found: dict[str, tuple[Any, str]] = {}
        self._made: dict[str, Kernel] = {}
        for cubin in cubins:
            module = check(self._driver.cuModuleLoadData(cubin.image), f"loading {cubin.file} ({cubin.architecture})")
            self._modules.append(module)
            for report in cubin.kernels:
                if report.name in self._found:
                    raise ValueError(f"kernel {report.name} of {cubin.file} exists twice")
                self._found[report.name] = (module, report.parameters)

    @property
    def names(self) -> list[str]:
        """Names of all kernels, sorted."""
        return sorted(self._found)

    def kernel(self, name: str, signature: str | None = None) -> Kernel:
        """Return a kernel, the same object every time.

        Parameters
        ----------
        name
            As in the text.
        signature
            Only for kernels that a macro writes: one letter a parameter (p, i, l, f, d). Checked against the card's.
        """
        if name not in self._made:
            if name not in self._found:
                raise KeyError(f"no kernel {name}; loaded are {', '.join(self.names)}")
            module, letters = self._found[name]
            function = check(self._driver.cuModuleGetFunction(module, name.encode()), f"kernel {name}")
            self._made[name] = Kernel(self._driver, name, function, self._checked(name, function, signature or letters))
        return self._made[name]

    def _checked(self, name: str, function: Any, signature: str) -> str:
        """Return the signature when its sizes are those that the driver knows (it tells them since CUDA 12.4)."""
        if set(signature) - set(_TYPES):
            raise ValueError(f"kernel {name} has a parameter of unknown type: {signature}")
        ask = getattr(self._driver, "cuFuncGetParamInfo", None)
        sizes = [_BYTES[letter] for letter in signature]
        if ask is not None:
            known = [int(answer[2]) for answer in (ask(function, i) for i in range(len(sizes))) if not int(answer[0])]
            if known != sizes:
                raise ValueError(f"kernel {name} takes parameters of {known} bytes, not {signature!r}")
        return signature

    def close(self) -> None:
        """Unload the code; kernels of it must not be launched again."""
        for module in self._modules:
            check(self._driver.cuModuleUnload(module), "cuModuleUnload")
        self._modules, self._found, self._made = [], {}, {}


# -- memory and context for tests and tools --------------------------------------------------------------------------


@contextmanager
def context(index: int = 0) -> Iterator[tuple[int, int]]:
    """Make a card's primary context current; gives its compute capability."""
    cuda = driver()
    device = check(cuda.cuDeviceGet(index), f"cuDeviceGet({index})")
    attributes = cuda.CUdevice_attribute
    major = check(cuda.cuDeviceGetAttribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
    minor = check(cuda.cuDeviceGetAttribute(attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
    check(cuda.cuCtxPushCurrent(check(cuda.cuDevicePrimaryCtxRetain(device), "context")), "context")
    try:
        yield int(major), int(minor)
    finally:
        check(cuda.cuCtxPopCurrent())
        check(cuda.cuDevicePrimaryCtxRelease(device))


def allocate(size: int) -> int:
    """Return the address of `size` bytes of the card's memory, never 0 bytes."""
    return int(check(driver().cuMemAlloc(max(1, size)), f"allocation of {size} bytes"))


def release(address: int) -> None:
    """Give memory of `allocate` back."""
    check(driver().cuMemFree(address), "cuMemFree")


def upload(address: int, values: npt.NDArray[Any]) -> None:
    """Copy an array to the card, and wait."""
    values = np.ascontiguousarray(values)
    if values.nbytes:
        check(driver().cuMemcpyHtoD(address, values.ctypes.data, values.nbytes), "copy to the card")


def download(address: int, values: npt.NDArray[Any]) -> None:
    """Fill a contiguous array from the card, after everything before it has run."""
    if not values.flags.c_contiguous:
        raise ValueError("the array must be contiguous")
    check(driver().cuCtxSynchronize(), "cuCtxSynchronize")
    if values.nbytes:
        check(driver().cuMemcpyDtoH(values.ctypes.data, address, values.nbytes), "copy from the card")
