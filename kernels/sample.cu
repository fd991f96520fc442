// The next id of every row from its logits, by the rule of `andrea.engine.sampling.choose`, in float64: repetition
// penalty, temperature, top-k, top-p, then the inverse of the cumulative distribution in the order of ids.
//
// Top-k and top-p need no sort: scores become integers of the same order, and the smallest one that is kept is built bit
// by bit, each bit by one count, or one sum, over the row. Bits in which all scores of its sign agree need neither: of
// bfloat16 scores without a penalty all but 15. Among equal scores the lowest ids are kept. A thread owns neighbouring
// ids, so that sums and ranks go in the order of ids and are the same every time.
#include "types.cuh"

constexpr int SAMPLE_THREADS = 512;
constexpr int WARPS = SAMPLE_THREADS / 32;

struct SampleOptions {
  double temperature, top_p, penalty, top_k;  // as in Python
};

__device__ __forceinline__ uint64 in_order(double x) {
  const uint64 bits = (uint64)__double_as_longlong(x);
  return bits >> 63 ? ~bits : bits | 1ull << 63;
}

// Sum over the block in a fixed order; every thread gets it. `before` becomes the sum over the threads before this one.
template <typename T>
__device__ __forceinline__ T block_scan(T own, T& before, T* of_warp) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T sum = own;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const T other = __shfl_up_sync(~0u, sum, offset);
    if (lane >= offset) sum += other;
  }
  __syncthreads();
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  T earlier = 0, all = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) {
    if (w == warp) earlier = all;
    all += of_warp[w];
  }
  before = earlier + sum - own;
  return all;
}

template <typename T>
__device__ __forceinline__ T block_total(T own, T* of_warp) {
  T before;
  return block_scan(own, before, of_warp);
}

// The first id with the largest score, and that score.
__device__ __forceinline__ int block_best(double score, int id, double& top, double* scores, int* ids) {
  for (int offset = 16; offset; offset /= 2) {
    const double other = __shfl_xor_sync(~0u, score, offset);
    const int its = __shfl_xor_sync(~0u, id, offset);
    if (other > score || (other == score && its < id)) score = other, id = its;
  }
  if (threadIdx.x % 32 == 0) scores[threadIdx.x / 32] = score, ids[threadIdx.x / 32] = id;
  __syncthreads();
  top = scores[0], id = ids[0];
  for (int w = 1; w < WARPS; ++w)
    if (scores[w] > top) top = scores[w], id = ids[w];  // warps own ascending ids
  return id;
}

// Bits of keys: set in one of them or more, and set in all.
struct Bits {
  uint64 some, all;
};

// Of the keys that have bit 63 as `like` has it; every thread gets them.
__device__ __forceinline__ Bits bits_of(const uint64* keys, int begin, int end, uint64 like) {
  __shared__ Bits of_warp[WARPS];
  Bits own = {0, ~0ull};
  for (int i = begin; i < end; ++i)
    if (keys[i] >> 63 == like >> 63) own.some |= keys[i], own.all &= keys[i];
  for (int offset = 16; offset; offset /= 2) {
    own.some |= __shfl_xor_sync(~0u, own.some, offset);
    own.all &= __shfl_xor_sync(~0u, own.all, offset);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = own;
  __syncthreads();
  for (int w = 0; w < WARPS; ++w) own.some |= of_warp[w].some, own.all &= of_warp[w].all;
  return own;
}

// The largest threshold that `holds`, which must be one of the keys: it holds up to some key and for none above.
template <typename Holds>
__device__ __forceinline__ uint64 largest(const uint64* keys, int begin, int end, Holds holds) {
  uint64 threshold = holds(1ull << 63) ? 1ull << 63 : 0;
  const Bits bits = bits_of(keys, begin, end, threshold);
  for (int b = 62; b >= 0; --b) {
    const uint64 bit = 1ull << b;
    if (!(bits.some & bit)) continue;
    if ((bits.all & bit) || holds(threshold | bit)) threshold |= bit;
  }
  return threshold;
}

// What is kept: keys above the threshold, and the first `ties` that equal it.
struct Kept {
  uint64 threshold;
  int ties;
};

__device__ __forceinline__ Kept keep_count(const uint64* keys, int begin, int end, int k, int* room) {
  const uint64 threshold = largest(keys, begin, end, [&](uint64 least) {
    int count = 0;
    for (int i = begin; i < end; ++i) count += keys[i] >= least;
    return block_total(count, room) >= k;
  });
  int above = 0;
  for (int i = begin; i < end; ++i) above += keys[i] > threshold;
  return {threshold, k - block_total(above, room)};
}

__device__ __forceinline__ double mass_from(const uint64* keys, const double* weights, int begin, int end, uint64 least,
                                            double* room) {
  double sum = 0;
  for (int i = begin; i < end; ++i) sum += keys[i] >= least ? weights[i] : 0.0;
  return block_total(sum, room);
}

// Narrows what is kept to the smallest set, from the best down, whose weights reach `share` of those kept so far.
__device__ __forceinline__ Kept keep_mass(const uint64* keys, const double* weights, int begin, int end, Kept kept,
                                          double share, double* room, int* ids) {
  int equal = 0, before = 0;
  for (int i = begin; i < end; ++i) equal += keys[i] == kept.threshold;
  block_scan(equal, before, ids);
  double sum = 0;
  for (int i = begin, rank = before; i < end; ++i) {
    if (keys[i] > kept.threshold || (keys[i] == kept.threshold && rank++ < kept.ties)) sum += weights[i];
  }
  const double target = share * block_total(sum, room);
  const uint64 threshold = largest(keys, begin, end, [&](uint64 least) {
    return least <= kept.threshold || mass_from(keys, weights, begin, end, least, room) >= target;
  });
  const double above = mass_from(keys, weights, begin, end, threshold + 1, room);
  double one = 0;  // the weight of an element at the threshold; all of them are equal
  int ties = 0;
  for (int i = begin; i < end; ++i)
    if (keys[i] == threshold) one = weights[i], ++ties;
  ties = block_total(ties, ids);
  for (int offset = 16; offset; offset /= 2) one = fmax(one, __shfl_xor_sync(~0u, one, offset));
  __syncthreads();
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = one;
  __syncthreads();
  for (int w = 0; w < WARPS; ++w) one = fmax(one, room[w]);
  if (threshold == kept.threshold) ties = min(ties, kept.ties);
  int needed = 1;
  while (needed < ties && above + needed * one < target) ++needed;
  return {threshold, min(needed, ties)};
}

// The id at `uniform` of the cumulative weights of what is kept. `chosen` is shared memory.
__device__ __forceinline__ void draw(const uint64* keys, const double* weights, int begin, int end, Kept kept,
                                     double uniform, int* chosen, double* room, int* ids) {
  int equal = 0, rank = 0;
  for (int i = begin; i < end; ++i) equal += keys[i] == kept.threshold;
  block_scan(equal, rank, ids);
  double own = 0, edge;
  int last = -1;
  for (int i = begin, r = rank; i < end; ++i) {
    if (keys[i] > kept.threshold || (keys[i] == kept.threshold && r++ < kept.ties)) own += weights[i], last = i;
  }
  const double point = uniform * block_scan(own, edge, room);
  __shared__ int lowest, highest;
  if (threadIdx.x == 0) lowest = 0x7fffffff, highest = -1;
  __syncthreads();
  atomicMax(&highest, last);  // taken when rounding leaves the point behind the last edge
  if (last >= 0 && point < edge + own) {
    int found = last;
    for (int i = begin, r = rank; i < end; ++i) {
      if (!(keys[i] > kept.threshold || (keys[i] == kept.threshold && r++ < kept.ties))) continue;
      edge += weights[i];
      if (edge > point) {
        found = i;
        break;
      }
    }
    atomicMin(&lowest, found);
  }
  __syncthreads();
  if (threadIdx.x == 0) *chosen = min(lowest, highest);
  __syncthreads();
}

// Puts the next id of each row into ids, tokens and seen, and moves its position on; a row at position -1 takes no part.
// A logit that is not finite gives -1. Grid rows. `uniforms` and `tokens` have `capacity` places a row.
extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS)
k_sample(const storage* __restrict__ logits_bv, int32 V, int32 stride, const SampleOptions* __restrict__ options,
         unsigned char* seen_bv, const double* __restrict__ uniforms, double* weights_bv, uint64* keys_bv, int32* ids_b,
         int32* positions_b, int32* counts_b, int32* tokens, int32 capacity) {
  __shared__ double room[WARPS];
  __shared__ int ids[WARPS], chosen;
  const int row = blockIdx.x, per = (V + SAMPLE_THREADS - 1) / SAMPLE_THREADS;
  const int begin = min(V, (int)threadIdx.x * per), end = min(V, begin + per);
  if (positions_b[row] < 0) return;
  const int count = counts_b[row];
  const SampleOptions set = *options;
  const storage* logits = logits_bv + (int64)row * stride;
  unsigned char* seen = seen_bv + (int64)row * V;
  double* weights = weights_bv + (int64)row * V;
  uint64* keys = keys_bv + (int64)row * V;
  double best = -1.7976931348623157e308, top;
  int first = V, broken = 0;
  for (int i = begin; i < end; ++i) {
    double score = (double)to_float(logits[i]);
    broken |= !isfinite(score);
    if (set.penalty != 1.0 && seen[i]) score = score > 0 ? score / set.penalty : score * set.penalty;
    weights[i] = score, keys[i] = in_order(score);
    if (score > best) best = score, first = i;
  }
  broken = __syncthreads_or(broken);
  first = block_best(best, first, top, room, ids);
  __syncthreads();
  if (threadIdx.x == 0) chosen = broken ? -1 : first;
  if (!broken && set.temperature > 0) {
    for (int i = begin; i < end; ++i) weights[i] = exp((weights[i] - top) / set.temperature);
    Kept kept = {0, 0};
    if (set.top_k > 0 && set.top_k < V) kept = keep_count(keys, begin, end, (int)set.top_k, ids);
    if (set.top_p < 1) kept = keep_mass(keys, weights, begin, end, kept, set.top_p, room, ids);
    draw(keys, weights, begin, end, kept, uniforms[(int64)row * capacity + count], &chosen, room, ids);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  tokens[(int64)row * capacity + count] = chosen;
  if (chosen >= 0) seen[chosen] = 1;
  ids_b[row] = max(chosen, 0);
  positions_b[row] += 1;
  counts_b[row] = count + 1;
}
