// GELU and its gradient, of n elements; blocks of EACH_THREADS, grid ceil(n / EACH_BLOCK).
#include "elementwise.cuh"
#include "gelu.cuh"

extern "C" __global__ void __launch_bounds__(EACH_THREADS)
k_gelu_fwd(const storage* pre, storage* out, int64 n) {
  each(pre, out, n, [](float x) { return to_operand(x * gate(x)); });
}

// out = dact gelu'(pre); `out` may be `dact`.
extern "C" __global__ void __launch_bounds__(EACH_THREADS)
k_gelu_bwd(const storage* dact, const storage* pre, storage* out, int64 n) {
  each(dact, pre, out, n, [](float d, float x) { return to_operand(d * gelu_slope(x)); });
}
