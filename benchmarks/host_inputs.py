"""What a step's inputs cost the host: checking the ids and copying them into memory that the card reads by itself.

Memory of two kinds: as the engine takes it, and write-combined, which is not read into the caches before it is written
(the engine only writes its inputs' mirror, so it could have that). The caches are emptied before each repeat, as a step
of the model empties them.

python benchmarks/host_inputs.py [ROWS] [CONTEXT]
"""

from __future__ import annotations

import argparse
import ctypes
import time

import numpy as np

from andrea.engine import launcher

KINDS = {"pinned": 0, "write-combined": 0x04}  # CU_MEMHOSTALLOC_WRITECOMBINED
REPEATS = 200


def main() -> None:
    """Print the median microseconds of each part for each kind of memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=int, nargs="?", default=64)
    parser.add_argument("context", type=int, nargs="?", default=1024)
    options = parser.parse_args()
    shape = (options.rows, options.context)
    given = [np.random.default_rng(i).integers(0, 8449, shape, dtype=np.int32) for i in range(2)]
    size, caches = sum(one.nbytes for one in given), np.empty(256 << 20, dtype=np.uint8)
    with launcher.context():
        cuda, check = launcher.driver(), launcher.check
        card = launcher.allocate(size)
        for kind, flags in KINDS.items():
            host = int(check(cuda.cuMemHostAlloc(size, flags), "cuMemHostAlloc"))
            memory = np.ctypeslib.as_array((ctypes.c_int32 * (size // 4)).from_address(host)).reshape(2, *shape)
            times = []
            for _ in range(REPEATS):
                caches[:] = 1
                marks = [time.perf_counter()]
                for one in given:
                    one.view(np.uint32).max()
                marks.append(time.perf_counter())
                for mirror, one in zip(memory, given, strict=True):
                    mirror[...] = one
                marks.append(time.perf_counter())
                check(cuda.cuMemcpyHtoDAsync(card, host, size, 0), "cuMemcpyHtoDAsync")
                marks.append(time.perf_counter())
                check(cuda.cuCtxSynchronize(), "cuCtxSynchronize")
                times.append(np.diff([*marks, time.perf_counter()]) * 1e6)
            del memory
            check(cuda.cuMemFreeHost(host), "cuMemFreeHost")
            found = dict(zip(("check", "copy", "call", "transfer"), np.median(times, axis=0), strict=True))
            print(
                f"{kind:16s}", *(f"{part} {microseconds:7.1f} us" for part, microseconds in found.items()), flush=True
            )
        launcher.release(card)


if __name__ == "__main__":
    main()
