// A stable sort of positions by token, for the gradient of the embedding: a counting sort, the same order every time.
//
// Positions are cut into chunks of ORDER_CHUNK. First each chunk counts its tokens (sums of integers do not depend on
// their order); then each token's counts become the number of its positions in earlier chunks, and the totals become
// the place where the token's positions begin; last, each chunk puts its positions behind those of earlier chunks.
#include "types.cuh"

constexpr int ORDER_CHUNK = 512;
constexpr int ORDER_THREADS = 256;
constexpr int SCAN_THREADS = 1024;

// counts[chunk][token], which must be zero before. Grid ceil(N / ORDER_CHUNK).
extern "C" __global__ void __launch_bounds__(ORDER_THREADS)
k_order_count(const int32* __restrict__ ids_n, int32* counts_kv, int32 N, int32 V) {
  int32 begin = blockIdx.x * ORDER_CHUNK, end = min(N, begin + ORDER_CHUNK);
  for (int32 i = begin + threadIdx.x; i < end; i += ORDER_THREADS) {
    atomicAdd(counts_kv + (int64)blockIdx.x * V + ids_n[i], 1);
  }
}

// counts become sums over earlier chunks, totals the sum over all. Grid ceil(V / ORDER_THREADS).
extern "C" __global__ void __launch_bounds__(ORDER_THREADS)
k_order_chunks(int32* counts_kv, int32* __restrict__ totals_v, int32 chunks, int32 V) {
  int32 token = blockIdx.x * ORDER_THREADS + threadIdx.x, sum = 0;
  if (token >= V) return;
#pragma unroll 8
  for (int32 chunk = 0; chunk < chunks; ++chunk) {
    int32 count = counts_kv[(int64)chunk * V + token];
    counts_kv[(int64)chunk * V + token] = sum;
    sum += count;
  }
  totals_v[token] = sum;
}

// totals become starts: each the sum of those before it. One block.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
k_order_starts(int32* totals_v, int32 V) {
  __shared__ int32 of_warp[SCAN_THREADS / 32];
  int32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, before = 0;
  for (int32 base = 0; base < V; base += SCAN_THREADS) {
    int32 token = base + threadIdx.x, own = token < V ? totals_v[token] : 0, sum = own;
    for (int offset = 1; offset < 32; offset *= 2) {
      int32 other = __shfl_up_sync(0xffffffffu, sum, offset);
      if (lane >= offset) sum += other;
    }
    if (lane == 31) of_warp[warp] = sum;
    __syncthreads();
    int32 earlier = 0, all = 0;
    for (int32 w = 0; w < SCAN_THREADS / 32; ++w) {
      earlier += w < warp ? of_warp[w] : 0;
      all += of_warp[w];
    }
    if (token < V) totals_v[token] = before + earlier + sum - own;
    before += all;
    __syncthreads();
  }
}

// order[place] = position. One warp a chunk, 32 neighbouring positions at a time. Grid ceil(N / ORDER_CHUNK), 32 threads.
extern "C" __global__ void __launch_bounds__(32)
k_order_place(const int32* __restrict__ ids_n, int32* counts_kv, const int32* __restrict__ starts_v, int32* order_n,
              int32 N, int32 V) {
  int32 begin = blockIdx.x * ORDER_CHUNK, end = min(N, begin + ORDER_CHUNK), lane = threadIdx.x;
  int32* counts = counts_kv + (int64)blockIdx.x * V;
  for (int32 base = begin; base < end; base += 32) {
    int32 position = base + lane, token = position < end ? ids_n[position] : -1 - lane;
    uint32 equal = __match_any_sync(0xffffffffu, token);
    int32 earlier = __popc(equal & ((1u << lane) - 1));
    if (token >= 0) order_n[starts_v[token] + counts[token] + earlier] = position;
    __syncwarp();
    if (token >= 0 && earlier == 0) counts[token] += __popc(equal);
    __syncwarp();
  }
}
