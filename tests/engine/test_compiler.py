"""The kernel compiler: cache, errors, reports, and every kernel file on every architecture of a small set."""

from __future__ import annotations

import threading

import pytest

from andrea import AndreaError
from andrea.engine import compiler
from andrea.engine.compiler import architecture_of, capability_of, compile_kernels
from andrea.resources import kernels_folder

MACROS = {
    "fp32": {"ANDREA_STORAGE": "float", "ANDREA_MULTIPLY": "float"},
    "tf32": {"ANDREA_STORAGE": "float", "ANDREA_MULTIPLY": "tf32"},
    "fp16": {"ANDREA_STORAGE": "half", "ANDREA_MULTIPLY": "half"},
    "bf16": {"ANDREA_STORAGE": "bf16", "ANDREA_MULTIPLY": "bf16"},
    "fp8": {"ANDREA_STORAGE": "bf16", "ANDREA_MULTIPLY": "bf16"},
}
ELEMENTWISE = ["adamw", "embed", "gelu", "grad_norm", "layernorm", "loss", "matvec", "residual", "zero"]
# Some of the cells: `andrea kernels --compile --arch all` compiles every one.
CELLS = [("bf16", "sm_90a"), ("tf32", "sm_80"), ("fp16", "sm_75"), ("fp8", "sm_90a"), ("fp8", "sm_89")]
TINY = """#include "types.cuh"
extern "C" __global__ void k_copy(const storage* in, storage* out, int64 n) {
  if (blockIdx.x * 32LL + threadIdx.x < n) out[blockIdx.x * 32LL + threadIdx.x] = in[blockIdx.x * 32LL + threadIdx.x];
}
"""


@pytest.fixture
def tiny(tmp_path):
    """Give a small kernel file of one's own, and a cache."""
    path = tmp_path / "tiny.cu"
    path.write_text(TINY)
    return path, tmp_path / "cache"


@pytest.mark.parametrize(("precision", "architecture"), CELLS)
def test_element_wise_kernels_compile_without_spills_or_stack(precision, architecture, tmp_path):
    """No kernel touches memory that its text does not name, on any card and in any precision."""
    files = ["fp8"] if precision == "fp8" else ELEMENTWISE
    for cubin in compile_kernels(files, MACROS[precision], architecture, cache=tmp_path):
        assert cubin.kernels
        for kernel in cubin.kernels:
            assert (kernel.stack_frame, kernel.spill_stores, kernel.spill_loads) == (0, 0, 0), kernel
            assert kernel.registers > 0
            assert kernel.parameters
            assert "?" not in kernel.parameters


def test_second_compilation_comes_from_the_cache(tiny, monkeypatch):
    """An entry is found again without the compiler; other macros or another text are other entries."""
    path, cache = tiny
    (first,) = compile_kernels([path], MACROS["bf16"], "sm_90a", cache=cache)
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "_compile", lambda *_: pytest.fail("the compiler was asked"))
        (again,) = compile_kernels([path], MACROS["bf16"], "sm_90a", cache=cache)
    assert (again.image, again.kernels, again.digest) == (first.image, first.kernels, first.digest)
    compile_kernels([path], MACROS["fp16"], "sm_90a", cache=cache)
    path.write_text(TINY.replace("32LL", "64LL"))
    compile_kernels([path], MACROS["bf16"], "sm_90a", cache=cache)
    assert len(list(cache.iterdir())) == 3


def test_a_change_of_any_header_is_another_entry(tiny, monkeypatch):
    """The key covers all headers, whether or not the file includes them, but not where the folder lies."""
    path, cache = tiny
    (first,) = compile_kernels([path], {}, "sm_90a", cache=cache)
    copied = path.parent / "elsewhere"
    (copied / "include").mkdir(parents=True)
    for header in (kernels_folder() / "include").iterdir():
        (copied / "include" / header.name).write_bytes(header.read_bytes())
    monkeypatch.setattr(compiler, "kernels_folder", lambda: copied)
    assert compile_kernels([path], {}, "sm_90a", cache=cache)[0].digest == first.digest
    (copied / "include" / "reduce.cuh").write_text("// changed\n")
    assert compile_kernels([path], {}, "sm_90a", cache=cache)[0].digest != first.digest


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign", "other key"])
def test_a_damaged_entry_is_compiled_again(tiny, damage):
    """Cut short, changed, emptied or replaced: the entry is not believed, and is good again afterwards."""
    path, cache = tiny
    (good,) = compile_kernels([path], {}, "sm_90a", cache=cache)
    (entry,) = cache.iterdir()
    content = entry.read_bytes()
    middle = len(content) // 2
    entry.write_bytes(
        {
            "cut": content[:middle],
            "flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
            "empty": b"",
            "foreign": b"not of ours\n\n\n\n",
            "other key": content.replace(good.digest.encode(), b"0" * 64),
        }[damage]
    )
    (again,) = compile_kernels([path], {}, "sm_90a", cache=cache)
    assert again.image == good.image
    assert entry.read_bytes() == content


def test_many_at_once_all_get_the_code(tiny):
    """Writers of one entry at the same time do not disturb each other and leave nothing half-written."""
    path, cache = tiny
    found, start = [], threading.Barrier(6)

    def work():
        start.wait()
        found.append(compile_kernels([path], {}, "sm_90a", cache=cache)[0].image)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(found)) == 1
    assert [entry.suffix for entry in cache.iterdir()] == [".cubin"]


def test_a_cache_that_cannot_be_written_is_no_error(tiny):
    """A file stands where the folder should be: the code is compiled all the same."""
    path, cache = tiny
    cache.write_text("in the way")
    assert compile_kernels([path], {}, "sm_90a", cache=cache)[0].kernels[0].name == "k_copy"


def test_a_compile_error_names_file_and_line(tiny):
    """The message can be clicked: kernels/tiny.cu:3 and the compiler's words."""
    path, cache = tiny
    path.write_text(TINY.replace("threadIdx.x < n", "nowhere < n"))
    with pytest.raises(AndreaError, match=r'kernels/tiny\.cu:3: identifier "nowhere" is undefined') as caught:
        compile_kernels([path], {}, "sm_90a", cache=cache)
    assert "sm_90a" in caught.value.message


def test_an_error_in_a_header_names_the_header(tiny):
    """An unknown storage type fails in types.cuh, which is what the message names."""
    path, cache = tiny
    with pytest.raises(AndreaError, match=r"kernels/include/\w+\.cuh:\d+: "):
        compile_kernels([path], {"ANDREA_STORAGE": "nothing)("}, "sm_90a", cache=cache)


def test_a_missing_file_lists_what_exists():
    """A wrong name is answered with the names of all kernel files."""
    with pytest.raises(AndreaError, match="no kernel file layernrom") as caught:
        compile_kernels(["layernrom"], {}, "sm_90a")
    assert "layernorm" in caught.value.hint


def test_reports_carry_parameters_as_letters(tiny):
    """Pointers, 32- and 64-bit integers, floats and doubles are read from the text, comments aside."""
    path, cache = tiny
    path.write_text(
        '#include "types.cuh"\n// k_other(int a) {\nextern "C" __global__ void __launch_bounds__(64, 2)\n'
        "k_mixed(const float* __restrict__ a, int b, /* int x, */ int64 c, const float d, double e, uint32 f) {\n"
        "  const_cast<float*>(a)[0] = b + c + d + e + f; }\n"
    )
    (cubin,) = compile_kernels([path], {}, "sm_90a", cache=cache)
    assert [(kernel.name, kernel.parameters) for kernel in cubin.kernels] == [("k_mixed", "pilfdi")]


def test_a_spill_is_seen(tiny):
    """The report is not blind: a kernel that indexes a local array at run time has a stack frame."""
    path, cache = tiny
    path.write_text(
        'extern "C" __global__ void k_stack(float* a, int i) {\n  float local[64];\n'
        "  for (int j = 0; j < 64; j++) local[(j * i) & 63] = a[j];\n  a[i] = local[i & 63];\n}\n"
    )
    (cubin,) = compile_kernels([path], {}, "sm_90a", cache=cache)
    assert cubin.kernels[0].stack_frame >= 256


def test_names_of_architectures():
    """Hopper gets its own instructions; names and capabilities lead to each other."""
    assert architecture_of((9, 0)) == "sm_90a"
    assert architecture_of((12, 0)) == "sm_120"
    assert all(architecture_of(capability_of(name)) == name for name in compiler.ARCHITECTURES)
    with pytest.raises(AndreaError, match="no architecture"):
        capability_of("hopper")
