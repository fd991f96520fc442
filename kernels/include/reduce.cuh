// Sums and maxima over warps and blocks, always in the same order, so that the same input gives the same bits.
#pragma once
#include "types.cuh"

constexpr int WARP = 32;
constexpr int MAX_WARPS = 32;

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = WARP / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
  for (int offset = WARP / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int offset = WARP / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, offset));
  return x;
}

// Room for the warps' parts of COUNT sums; a second use of the same room needs a barrier in between.
template <int COUNT, typename T = float>
struct Parts {
  T of_warp[MAX_WARPS][COUNT];
};

// Replaces each x[i] by its sum over the block (whole warps, one-dimensional): every thread gets the same bits.
template <int COUNT, typename T>
__device__ __forceinline__ void block_sums(T (&x)[COUNT], Parts<COUNT, T>& parts) {
#pragma unroll
  for (int i = 0; i < COUNT; i++) x[i] = warp_sum(x[i]);
  const int warps = blockDim.x / WARP, warp = threadIdx.x / WARP;
  if (warps == 1) return;
  if (threadIdx.x % WARP == 0) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) parts.of_warp[warp][i] = x[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < COUNT; i++) x[i] = parts.of_warp[0][i];
  for (int w = 1; w < warps; w++) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) x[i] += parts.of_warp[w][i];
  }
}
