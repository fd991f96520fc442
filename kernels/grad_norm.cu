// Clipping by one global norm in three kernels, and the loss scale. The norm is also the test for overflow: one gradient
// that is not finite makes it not finite, and then the update is a no-op.
#include "reduce.cuh"
#include "state.cuh"
#include "vector.cuh"

constexpr int GRAD_THREADS = 256;
constexpr int GRAD_UNROLL = 8;
constexpr int64 GRAD_BLOCK = (int64)GRAD_THREADS * GRAD_UNROLL * 4;  // gradients of one block

// partials[block] = sum of squares of GRAD_BLOCK gradients. Grid ceil(n / GRAD_BLOCK).
extern "C" __global__ void __launch_bounds__(GRAD_THREADS)
k_grad_norm_partial(const float* __restrict__ gradients, float* __restrict__ partials, int64 n) {
  __shared__ Parts<1> parts;
  const int64 base = blockIdx.x * GRAD_BLOCK;
  float sum[1] = {};
  if (aligned(gradients) && base + GRAD_BLOCK <= n) {
    Pack<float, 4> g[GRAD_UNROLL];
#pragma unroll
    for (int u = 0; u < GRAD_UNROLL; u++) g[u] = load<4>(gradients + base + (u * GRAD_THREADS + threadIdx.x) * 4);
#pragma unroll
    for (int u = 0; u < GRAD_UNROLL; u++) {
#pragma unroll
      for (int i = 0; i < 4; i++) sum[0] += g[u].at[i] * g[u].at[i];
    }
  } else {
    const int64 end = min(n, base + GRAD_BLOCK);
    for (int64 i = base + threadIdx.x; i < end; i += GRAD_THREADS) sum[0] += gradients[i] * gradients[i];
  }
  block_sums(sum, parts);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum[0];
}

// From the partial sums: norm, clipping factor, whether this update is applied, and its bias corrections. One block.
// Gradients carry the loss scale; norm and clipping see them without it. max_norm 0 clips nothing.
extern "C" __global__ void __launch_bounds__(1024)
k_grad_norm_final(const float* __restrict__ partials, int64 count, TrainState* state, float max_norm, double beta1,
                  double beta2) {
  __shared__ Parts<1, double> parts;
  double sum[1] = {};
#pragma unroll 4
  for (int64 i = threadIdx.x; i < count; i += 1024) sum[0] += (double)partials[i];
  block_sums(sum, parts);
  if (threadIdx.x != 0) return;
  const double norm = sqrt(sum[0]) / (double)state->loss_scale;
  const bool finite = isfinite(norm);
  state->grad_norm = (float)norm;
  state->skipped = finite ? 0 : 1;
  state->skips += finite ? 0 : 1;
  if (!finite) return;
  const double clip = max_norm > 0.0f && norm > (double)max_norm ? (double)max_norm / norm : 1.0;
  const double applied = (double)(state->applied += 1);
  state->factor = (float)(clip / (double)state->loss_scale);
  state->correction1 = (float)(1.0 / (1.0 - pow(beta1, applied)));
  state->correction2 = (float)(1.0 / sqrt(1.0 - pow(beta2, applied)));
}

// gradients *= factor, unless the update is skipped. k_adamw does it on the way; this is the operation by itself.
// Grid ceil(n / GRAD_BLOCK).
extern "C" __global__ void __launch_bounds__(GRAD_THREADS)
k_grad_scale(float* gradients, const TrainState* __restrict__ state, int64 n) {
  if (state->skipped != 0) return;
  const float factor = state->factor;
  const int64 base = blockIdx.x * GRAD_BLOCK;
  if (aligned(gradients) && base + GRAD_BLOCK <= n) {
#pragma unroll
    for (int u = 0; u < GRAD_UNROLL; u++) {
      float* address = gradients + base + (u * GRAD_THREADS + threadIdx.x) * 4;
      Pack<float, 4> g = load<4>(address);
#pragma unroll
      for (int i = 0; i < 4; i++) g.at[i] *= factor;
      store(address, g);
    }
    return;
  }
  const int64 end = min(n, base + GRAD_BLOCK);
  for (int64 i = base + threadIdx.x; i < end; i += GRAD_THREADS) gradients[i] *= factor;
}

// Halves the loss scale after an overflow (not below 1) and doubles it after `window` updates without one (not above
// 2^24). The last launch of a step; a window of 0 leaves the scale alone. One thread.
extern "C" __global__ void k_loss_scale(TrainState* state, int window) {
  if (window <= 0) return;
  if (state->skipped != 0) {
    state->loss_scale = fmaxf(state->loss_scale * 0.5f, 1.0f);
    state->growth = 0;
  } else if (++state->growth >= window) {
    state->loss_scale = fminf(state->loss_scale * 2.0f, 16777216.0f);
    state->growth = 0;
  }
}
