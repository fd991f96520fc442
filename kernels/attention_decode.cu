// Attention while text is generated: one new token a row, against the keys and values of the tokens before it.
//
//   key_cache_rhtd, value_cache_rhtd  [rows, H, context, D]
//   lengths_r                         tokens of each row that are in the cache already
#include "attention.cuh"

constexpr int D = HEAD_DIM;
constexpr int CHUNK = 16 / sizeof(storage);  // elements of one 16-byte load
constexpr int LANES = D / CHUNK;             // threads that share a key
constexpr int THREADS = 128;
constexpr int TEAMS = THREADS / LANES;       // keys in flight, one a team
constexpr int AHEAD = 4;                     // keys that a team reads at once, to hide the way to memory

struct Elements {
  float x[CHUNK];
};

__device__ __forceinline__ Elements read_chunk(const storage* from) {
  uint4 bits = *(const uint4*)from;
  Elements result;
#pragma unroll
  for (int i = 0; i < CHUNK; ++i) result.x[i] = to_float(((const storage*)&bits)[i]);
  return result;
}

__device__ __forceinline__ float team_sum(float x) {
#pragma unroll
  for (int lane = 1; lane < LANES; lane *= 2) x += __shfl_xor_sync(0xffffffff, x, lane);
  return x;
}

// A team's running softmax over its keys.
struct Running {
  float highest, sum, out[CHUNK];
};

__device__ __forceinline__ void add_keys(Running& run, const Elements& query, const storage* keys,
                                         const storage* values, int first, int length) {
  float scores[AHEAD], top = run.highest;
#pragma unroll
  for (int i = 0; i < AHEAD; ++i) {
    int key = first + i * TEAMS;
    Elements k = read_chunk(keys + (int64)min(key, length - 1) * D);
    float product = 0.0f;
#pragma unroll
    for (int j = 0; j < CHUNK; ++j) product = fmaf(query.x[j], k.x[j], product);
    product = team_sum(product) * SCORE_SCALE_LOG2;
    scores[i] = key < length ? product : FORBIDDEN;
    top = fmaxf(top, scores[i]);
  }
  if (top == FORBIDDEN) return;  // no key of this team yet
  float shrink = exp2f(run.highest - top);
  run.highest = top, run.sum *= shrink;
#pragma unroll
  for (int j = 0; j < CHUNK; ++j) run.out[j] *= shrink;
#pragma unroll
  for (int i = 0; i < AHEAD; ++i) {
    float p = exp2f(scores[i] - top);
    Elements v = read_chunk(values + (int64)min(first + i * TEAMS, length - 1) * D);
    run.sum += p;
#pragma unroll
    for (int j = 0; j < CHUNK; ++j) run.out[j] = fmaf(p, v.x[j], run.out[j]);
  }
}

// One block a (row, head): puts the new key and value behind the cached ones and attends over all of them. A row whose
// length does not fit the cache is idle: it writes zeros and keeps its cache.
extern "C" __global__ void __launch_bounds__(THREADS)
k_attn_decode(const storage* __restrict__ qkv_r3hd, storage* key_cache_rhtd, storage* value_cache_rhtd,
              const int* __restrict__ lengths_r, storage* __restrict__ out_rhd, int heads, int context) {
  __shared__ float highest[TEAMS], sums[TEAMS], parts[TEAMS][D];
  int row = blockIdx.x / heads, head = blockIdx.x % heads, team = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  const storage* q = qkv_r3hd + (int64)row * 3 * heads * D + head * D + lane * CHUNK;
  storage* keys = key_cache_rhtd + ((int64)row * heads + head) * context * D + lane * CHUNK;
  storage* values = value_cache_rhtd + ((int64)row * heads + head) * context * D + lane * CHUNK;
  storage* out = out_rhd + ((int64)row * heads + head) * D;
  int length = lengths_r[row];
  if (length < 0 || length >= context) {
    for (int i = threadIdx.x; i < D; i += THREADS) out[i] = to_storage(0.0f);
    return;
  }
  if (team == 0) {
    *(uint4*)(keys + (int64)length * D) = *(const uint4*)(q + heads * D);
    *(uint4*)(values + (int64)length * D) = *(const uint4*)(q + 2 * heads * D);
  }
  __syncthreads();

  Elements query = read_chunk(q);
  Running run = {FORBIDDEN, 0.0f, {}};
  int rounds = (length + 1 + TEAMS * AHEAD - 1) / (TEAMS * AHEAD);  // the same for all teams: they share warps
  for (int i = 0; i < rounds; ++i) add_keys(run, query, keys, values, team + i * TEAMS * AHEAD, length + 1);

  if (lane == 0) highest[team] = run.highest, sums[team] = run.sum;
#pragma unroll
  for (int j = 0; j < CHUNK; ++j) parts[team][lane * CHUNK + j] = run.out[j];
  __syncthreads();
  if (threadIdx.x >= D) return;
  float top = highest[0], sum = 0.0f, total = 0.0f;  // the first team has at least the first key
  for (int i = 1; i < TEAMS; ++i) top = fmaxf(top, highest[i]);
  for (int i = 0; i < TEAMS; ++i) {
    float weight = exp2f(highest[i] - top);
    sum += sums[i] * weight, total += parts[i][threadIdx.x] * weight;
  }
  out[threadIdx.x] = to_storage(total / sum);
}

// The keys and values of a prompt, from its forward pass into the cache's rows from `first_row`.
extern "C" __global__ void __launch_bounds__(256)
k_attn_cache(const storage* __restrict__ qkv_bt3hd, storage* __restrict__ key_cache_rhtd,
             storage* __restrict__ value_cache_rhtd, int batches, int tokens, int heads, int first_row, int context) {
  int64 i = (int64)blockIdx.x * 256 + threadIdx.x;
  if (i >= (int64)batches * tokens * heads * LANES) return;
  int lane = i % LANES, head = i / LANES % heads;
  int64 token = i / LANES / heads;
  int64 row = first_row + token / tokens;
  const storage* from = qkv_bt3hd + (token * 3 * heads + head) * D + lane * CHUNK;
  int64 to = ((row * heads + head) * context + token % tokens) * D + lane * CHUNK;
  *(uint4*)(key_cache_rhtd + to) = *(const uint4*)(from + (int64)heads * D);
  *(uint4*)(value_cache_rhtd + to) = *(const uint4*)(from + 2LL * heads * D);
}
