#include "types.cuh"
extern "C" __global__ void __launch_bounds__(256)
k_residual_add(const storage* __restrict__ x, const storage* __restrict__ branch, storage* __restrict__ out, int64 n) {
  int64 i = (int64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = to_storage(to_float(x[i]) + to_float(branch[i]));
}
