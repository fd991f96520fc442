// One AdamW update of all tensors in one launch, and the working copies that it leaves.
//
// A block takes one chunk of a tensor; the table of chunks says where its parameters, gradients and working copy lie and
// whether weight decay acts on them. Parameters and both moments share an offset. The working copy may have other row
// lengths than the parameters (a padded vocabulary, W_Q | W_K | W_V side by side).
#include "rounding.cuh"
#include "state.cuh"
#include "vector.cuh"

constexpr int ADAM_THREADS = 256;
constexpr int ADAM_CHUNK = 4096;  // most elements of a chunk

struct Chunk {
  int64 parameter;  // offset of its first element in weights and moments
  int64 gradient;   // the same in the gradients
  int64 copy;       // offset in the working copies of the row that it begins in; -1: there is no copy
  int32 size;       // elements
  int32 decay;      // 1: weight decay acts on it
  int32 column;     // column of its first element
  int32 row;        // elements of a row
  int32 stride;     // elements from one row of the working copy to the next
  int32 reserved;
};
static_assert(sizeof(Chunk) == 48, "as in Python");

__device__ __forceinline__ int64 copy_offset(const Chunk& chunk, int element) {
  const int column = chunk.column + element;
  return chunk.copy + (int64)(column / chunk.row) * chunk.stride + column % chunk.row;
}

__device__ __forceinline__ bool fours(const Chunk& chunk) {
  const int64 copied = chunk.copy < 0 ? 0 : chunk.copy | chunk.row | chunk.stride | chunk.column;
  return ((chunk.parameter | chunk.gradient | chunk.size | copied) & 3) == 0;
}

// What all elements of a launch share.
struct Update {
  float factor, rate, shrink, beta1, rest1, beta2, rest2, correction1, correction2, epsilon;
};

// m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;  w = shrink w - rate mhat / (sqrt(vhat) + epsilon).
__device__ __forceinline__ void move(float& w, float g, float& m, float& v, const Update& u) {
  g *= u.factor;
  m = u.beta1 * m + u.rest1 * g;
  v = u.beta2 * v + u.rest2 * (g * g);
  w = u.shrink * w - u.rate * u.correction1 * m / (sqrtf(v) * u.correction2 + u.epsilon);
}

template <int W>
__device__ __forceinline__ void update_chunk(const Chunk& chunk, float* weights, const float* gradients, float* first,
                                             float* second, storage* copies, const Update& u, int64 applied) {
#pragma unroll 2
  for (int e = threadIdx.x * W; e < chunk.size; e += ADAM_THREADS * W) {
    const int64 at = chunk.parameter + e;
    Pack<float, W> w = load<W>(weights + at), m = load<W>(first + at), v = load<W>(second + at);
    const Pack<float, W> g = load<W>(gradients + chunk.gradient + e);
#pragma unroll
    for (int i = 0; i < W; i++) move(w.at[i], g.at[i], m.at[i], v.at[i], u);
    store(weights + at, w);
    store(first + at, m);
    store(second + at, v);
    if (chunk.copy < 0) continue;
    Pack<storage, W> copy;
    to_working(copy.at, w.at, applied, at);
    store(copies + copy_offset(chunk, e), copy);
  }
}

template <int W>
__device__ __forceinline__ void copy_chunk(const Chunk& chunk, const float* weights, storage* copies, int64 applied) {
  for (int e = threadIdx.x * W; e < chunk.size; e += ADAM_THREADS * W) {
    const Pack<float, W> w = load<W>(weights + chunk.parameter + e);
    Pack<storage, W> copy;
    to_working(copy.at, w.at, applied, chunk.parameter + e);
    store(copies + copy_offset(chunk, e), copy);
  }
}

// Updates weights, moments and working copies; does nothing when the state says skipped. The learning rate lies in the
// card's memory. Grid: the number of chunks.
extern "C" __global__ void __launch_bounds__(ADAM_THREADS)
k_adamw(const Chunk* __restrict__ chunks, float* weights, const float* gradients, float* first, float* second,
        storage* copies, const TrainState* __restrict__ state, const float* __restrict__ learning_rate, double beta1,
        double beta2, float epsilon, float weight_decay) {
  if (state->skipped != 0) return;
  const Chunk chunk = chunks[blockIdx.x];
  Update u;
  u.factor = state->factor;
  u.rate = *learning_rate;
  u.shrink = chunk.decay != 0 ? 1.0f - u.rate * weight_decay : 1.0f;
  u.beta1 = (float)beta1;
  u.rest1 = (float)(1.0 - beta1);
  u.beta2 = (float)beta2;
  u.rest2 = (float)(1.0 - beta2);
  u.correction1 = state->correction1;
  u.correction2 = state->correction2;
  u.epsilon = epsilon;
  if (fours(chunk) && aligned(weights, gradients, first, second, copies))
    update_chunk<4>(chunk, weights, gradients, first, second, copies, u, state->applied);
  else
    update_chunk<1>(chunk, weights, gradients, first, second, copies, u, state->applied);
}

// Makes the working copies anew from the weights, as the last applied update left them. Grid: the number of chunks.
extern "C" __global__ void __launch_bounds__(ADAM_THREADS)
k_working_copy(const Chunk* __restrict__ chunks, const float* __restrict__ weights, storage* __restrict__ copies,
               const TrainState* __restrict__ state) {
  const Chunk chunk = chunks[blockIdx.x];
  if (chunk.copy < 0) return;
  if (fours(chunk) && aligned(weights, copies))
    copy_chunk<4>(chunk, weights, copies, state->applied);
  else
    copy_chunk<1>(chunk, weights, copies, state->applied);
}
