// Filling with zeros, by a kernel like any other: see `Machine.zero`. Grid ceil(bytes / ZERO_BLOCK).
#include "elementwise.cuh"

constexpr int64 ZERO_BLOCK = (int64)EACH_THREADS * EACH_UNROLL * 16;  // bytes of one block

extern "C" __global__ void __launch_bounds__(EACH_THREADS)
k_zero(char* out, int64 bytes) {
  const int64 base = blockIdx.x * ZERO_BLOCK;
  if (aligned(out) && base + ZERO_BLOCK <= bytes) {
#pragma unroll
    for (int u = 0; u < EACH_UNROLL; u++)
      *reinterpret_cast<uint4*>(out + base + (u * EACH_THREADS + threadIdx.x) * 16) = uint4{0, 0, 0, 0};
    return;
  }
  const int64 end = min(bytes, base + ZERO_BLOCK);
  for (int64 i = base + threadIdx.x; i < end; i += EACH_THREADS) out[i] = 0;
}
