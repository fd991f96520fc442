// Cross-entropy over a padded vocabulary: the loss of every position, and logits turned into their gradient in place.
//
// A block takes one of N rows of `stride` logits, of which the first V count; the rest are padding, whose gradient is 0.
// A thread keeps a running maximum and a sum of exponentials relative to it, so the row is read from memory once; the
// gradient needs it again and finds it in shared memory when it fits there. Probabilities are never stored.
#include "reduce.cuh"
#include "vector.cuh"

constexpr int LOSS_THREADS = 256;

// log2(e): exponentials are taken to base 2, which is what the card computes.
constexpr float LOG2E = 1.4426950408889634f;
constexpr float LN2 = 0.6931471805599453f;
constexpr float LOWEST = -1.0e38f;  // a maximum of nothing; finite also in units of log2(e)
#define NOTHING __int_as_float(0xff800000)  // minus infinity, whose exponential is 0

// 2^x by the card's own unit, to 2 units in the last place; exp2f spends more on results too small to matter here.
__device__ __forceinline__ float power_of_two(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Sum of 2^(x - top) of what was seen so far, x in units of log2(e).
struct Running {
  float top = LOWEST, sum = 0.0f;
};

template <int W>
__device__ __forceinline__ void include(Running& run, const Pack<storage, W>& logits, int count) {
  float x[W], top = LOWEST;
#pragma unroll
  for (int i = 0; i < W; i++) {
    x[i] = i < count ? to_float(logits.at[i]) : NOTHING;
    top = fmaxf(top, x[i]);
  }
  top = fmaxf(run.top, top * LOG2E);
  run.sum = __fmul_rn(run.sum, power_of_two(run.top - top));
  run.top = top;
#pragma unroll
  for (int i = 0; i < W; i++) run.sum += power_of_two(fmaf(x[i], LOG2E, -top));
}

// log2 of the sum of 2^x over the whole row; every thread gets the same bits.
__device__ __forceinline__ float row_log_sum(Running run) {
  __shared__ float tops[LOSS_THREADS / WARP];
  __shared__ Parts<1> parts;
  float top = warp_max(run.top);
  if (threadIdx.x % WARP == 0) tops[threadIdx.x / WARP] = top;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < LOSS_THREADS / WARP; w++) top = fmaxf(top, tops[w]);
  float sum[1] = {__fmul_rn(run.sum, power_of_two(run.top - top))};
  block_sums(sum, parts);
  return top + log2f(sum[0]);
}

// Written so that no two steps are fused: the same bits wherever it stands.
__device__ __forceinline__ float loss_of(float log_sum, float logit) {
  return __fmul_rn(__fsub_rn(log_sum, __fmul_rn(logit, LOG2E)), LN2);
}

template <int W>
__device__ __forceinline__ Running read_row(const storage* row, int V) {
  Running run;
#pragma unroll 2
  for (int c = threadIdx.x * W; c < V; c += LOSS_THREADS * W) {
    const Pack<storage, W> logits = load<W>(row + c);
    if (c + W <= V)
      include(run, logits, W);
    else
      include(run, logits, V - c);
  }
  return run;
}

// The whole row is on its way at once: two loads at a time would leave memory idle. A thread reads only what it copied,
// so no barrier is needed.
template <int W>
__device__ __forceinline__ void keep_row(const storage* row, storage* kept, int V) {
  for (int c = threadIdx.x * W; c < V; c += LOSS_THREADS * W) {
    if constexpr (W == WIDE)
      copy_wide(kept + c, row + c);
    else
      kept[c] = row[c];
  }
  close_copies();
  wait_copies(0);
}

// Replaces the row by scale (softmax - onehot(target)) = 2^(x - shift) - scale onehot, with shift = log_sum - log2(scale).
template <int W>
__device__ __forceinline__ void write_gradient(storage* row, const storage* source, int target, float shift, float scale,
                                               int V, int stride) {
#pragma unroll 2
  for (int c = threadIdx.x * W; c < stride; c += LOSS_THREADS * W) {
    Pack<storage, W> out = {};
    if (c < V && target >= 0) {
      const Pack<storage, W> logits = load<W>(source + c);
      float d[W];
#pragma unroll
      for (int i = 0; i < W; i++) d[i] = power_of_two(fmaf(to_float(logits.at[i]), LOG2E, -shift));
      if (target >= c && target < c + W) {
#pragma unroll
        for (int i = 0; i < W; i++) d[i] -= c + i == target ? scale : 0.0f;
      }
      if (c + W > V) {
#pragma unroll
        for (int i = 0; i < W; i++) d[i] = c + i < V ? d[i] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < W; i++) out.at[i] = to_operand(d[i]);
    }
    store(row + c, out);
  }
}

template <int W>
__device__ __forceinline__ void classify(storage* row, storage* kept, int target, float* loss, float scale, int V,
                                         int stride) {
  // The target's logit is read before the barriers inside row_log_sum, after which other threads overwrite the row.
  const float wanted = target >= 0 ? to_float(row[target]) : 0.0f;
  if (kept != nullptr) keep_row<W>(row, kept, V);
  const storage* source = kept != nullptr ? kept : row;
  const Running run = read_row<W>(source, V);
  const float log_sum = row_log_sum(run);
  if (threadIdx.x == 0) *loss = target >= 0 ? loss_of(log_sum, wanted) : 0.0f;
  write_gradient<W>(row, source, target, log_sum - log2f(scale), scale, V, stride);
}

// losses[n] = lse(logits) - logits[target], 0 where the target is -1. Grid N.
extern "C" __global__ void __launch_bounds__(LOSS_THREADS, 6)
k_loss_fwd(const storage* __restrict__ logits_nv, const int* __restrict__ targets_n, float* __restrict__ losses_n, int V,
           int stride) {
  const storage* row = logits_nv + (int64)blockIdx.x * stride;
  const int target = targets_n[blockIdx.x];
  const bool wide = stride % WIDE == 0 && aligned(logits_nv);
  const Running run = wide ? read_row<WIDE>(row, V) : read_row<1>(row, V);
  const float log_sum = row_log_sum(run);
  if (threadIdx.x == 0) losses_n[blockIdx.x] = target >= 0 ? loss_of(log_sum, to_float(row[target])) : 0.0f;
}

// The same losses, and logits become loss_scale x share x (softmax - onehot), 0 where the target is -1 and in the padding.
// `loss_scale` lies in the card's memory. With `keep` the row stays in dynamic shared memory of stride elements. Grid N.
extern "C" __global__ void __launch_bounds__(LOSS_THREADS, 6)
k_loss_bwd(storage* logits_nv, const int* __restrict__ targets_n, float* __restrict__ losses_n,
           const float* __restrict__ loss_scale, float share, int V, int stride, int keep) {
  extern __shared__ uint4 room[];
  storage* row = logits_nv + (int64)blockIdx.x * stride;
  storage* kept = keep != 0 ? reinterpret_cast<storage*>(room) : nullptr;
  const int target = targets_n[blockIdx.x];
  const float scale = *loss_scale * share;
  if (stride % WIDE == 0 && aligned(logits_nv))
    classify<WIDE>(row, kept, target, losses_n + blockIdx.x, scale, V, stride);
  else
    classify<1>(row, kept, target, losses_n + blockIdx.x, scale, V, stride);
}

// row_losses[b] = mean of the losses of the row's valid targets, 0 when there is none. Grid B.
extern "C" __global__ void __launch_bounds__(LOSS_THREADS, 6)
k_loss_rows(const float* __restrict__ losses_bt, const int* __restrict__ targets_bt, float* __restrict__ row_losses_b,
            int T) {
  __shared__ Parts<2, double> parts;
  const int64 first = (int64)blockIdx.x * T;
  double sums[2] = {};  // of losses, of valid targets
  for (int t = threadIdx.x; t < T; t += LOSS_THREADS) {
    if (targets_bt[first + t] < 0) continue;
    sums[0] += losses_bt[first + t];
    sums[1] += 1.0;
  }
  block_sums(sums, parts);
  if (threadIdx.x == 0) row_losses_b[blockIdx.x] = (float)(sums[1] > 0.0 ? sums[0] / sums[1] : 0.0);
}
