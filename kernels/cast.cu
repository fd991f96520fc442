// Between float32 and the storage type, and filling with zeros.
// n elements; blocks of EACH_THREADS, grid ceil(n / EACH_BLOCK), for zeros ceil(bytes / ZERO_BLOCK).
#include "elementwise.cuh"

extern "C" __global__ void __launch_bounds__(EACH_THREADS)
k_cast_to_storage(const float* __restrict__ in, storage* __restrict__ out, int64 n) {
  const int64 base = blockIdx.x * EACH_BLOCK;
  if (aligned(in, out) && base + EACH_BLOCK <= n) {
#pragma unroll
    for (int u = 0; u < EACH_UNROLL; u++) {
      const int64 first = base + (u * EACH_THREADS + threadIdx.x) * WIDE;
      const Pack<float, WIDE> x = load<WIDE>(in + first);
      Pack<storage, WIDE> y;
#pragma unroll
      for (int i = 0; i < WIDE; i++) y.at[i] = to_storage(x.at[i]);
      store(out + first, y);
    }
    return;
  }
  const int64 end = min(n, base + EACH_BLOCK);
  for (int64 i = base + threadIdx.x; i < end; i += EACH_THREADS) out[i] = to_storage(in[i]);
}

extern "C" __global__ void __launch_bounds__(EACH_THREADS)
k_cast_to_float(const storage* __restrict__ in, float* __restrict__ out, int64 n) {
  const int64 base = blockIdx.x * EACH_BLOCK;
  if (aligned(in, out) && base + EACH_BLOCK <= n) {
#pragma unroll
    for (int u = 0; u < EACH_UNROLL; u++) {
      const int64 first = base + (u * EACH_THREADS + threadIdx.x) * WIDE;
      const Pack<storage, WIDE> x = load<WIDE>(in + first);
      Pack<float, WIDE> y;
#pragma unroll
      for (int i = 0; i < WIDE; i++) y.at[i] = to_float(x.at[i]);
      store(out + first, y);
    }
    return;
  }
  const int64 end = min(n, base + EACH_BLOCK);
  for (int64 i = base + threadIdx.x; i < end; i += EACH_THREADS) out[i] = to_float(in[i]);
}

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
