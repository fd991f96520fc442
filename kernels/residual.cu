// The residual stream: x + branch(x), and its gradient, which is what came back through the branch plus what skipped it.
// n elements; blocks of EACH_THREADS, grid ceil(n / EACH_BLOCK).
#include "elementwise.cuh"

extern "C" __global__ void __launch_bounds__(EACH_THREADS)
k_residual_add(const storage* x, const storage* branch, storage* out, int64 n) {
  each(x, branch, out, n, [](float a, float b) { return to_storage(a + b); });
}

extern "C" __global__ void __launch_bounds__(EACH_THREADS)
k_residual_add_bwd(const storage* dbranch, const storage* dx, storage* out, int64 n) {
  each(dbranch, dx, out, n, [](float a, float b) { return to_storage(a + b); });
}
