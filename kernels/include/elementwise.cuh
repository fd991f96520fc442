// The same function of every element: each thread has several wide loads in flight before it uses the first.
#pragma once
#include "vector.cuh"

constexpr int EACH_THREADS = 256;
constexpr int EACH_UNROLL = 4;
constexpr int64 EACH_BLOCK = (int64)EACH_THREADS * EACH_UNROLL * WIDE;  // elements of one block

// out[i] = f(in[i]) for n elements; `out` may be `in`. Blocks: ceil(n / EACH_BLOCK).
template <typename Function>
__device__ __forceinline__ void each(const storage* in, storage* out, int64 n, Function f) {
  const int64 base = blockIdx.x * EACH_BLOCK;
  if (aligned(in, out) && base + EACH_BLOCK <= n) {
    const int64 first = base + threadIdx.x * WIDE;
    Pack<storage, WIDE> x[EACH_UNROLL];
#pragma unroll
    for (int u = 0; u < EACH_UNROLL; u++) x[u] = load<WIDE>(in + first + u * EACH_THREADS * WIDE);
#pragma unroll
    for (int u = 0; u < EACH_UNROLL; u++) {
#pragma unroll
      for (int i = 0; i < WIDE; i++) x[u].at[i] = f(to_float(x[u].at[i]));
      store(out + first + u * EACH_THREADS * WIDE, x[u]);
    }
    return;
  }
  const int64 end = min(n, base + EACH_BLOCK);
  for (int64 i = base + threadIdx.x; i < end; i += EACH_THREADS) out[i] = f(to_float(in[i]));
}

// out[i] = f(a[i], b[i]); `out` may be `a` or `b`.
template <typename Function>
__device__ __forceinline__ void each(const storage* a, const storage* b, storage* out, int64 n, Function f) {
  const int64 base = blockIdx.x * EACH_BLOCK;
  if (aligned(a, b, out) && base + EACH_BLOCK <= n) {
    const int64 first = base + threadIdx.x * WIDE;
    Pack<storage, WIDE> x[EACH_UNROLL], y[EACH_UNROLL];
#pragma unroll
    for (int u = 0; u < EACH_UNROLL; u++) {
      x[u] = load<WIDE>(a + first + u * EACH_THREADS * WIDE);
      y[u] = load<WIDE>(b + first + u * EACH_THREADS * WIDE);
    }
#pragma unroll
    for (int u = 0; u < EACH_UNROLL; u++) {
#pragma unroll
      for (int i = 0; i < WIDE; i++) x[u].at[i] = f(to_float(x[u].at[i]), to_float(y[u].at[i]));
      store(out + first + u * EACH_THREADS * WIDE, x[u]);
    }
    return;
  }
  const int64 end = min(n, base + EACH_BLOCK);
  for (int64 i = base + threadIdx.x; i < end; i += EACH_THREADS) out[i] = f(to_float(a[i]), to_float(b[i]));
}
