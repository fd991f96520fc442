// Causal scaled dot-product attention for Hopper's own tensor-core instructions, for storage of 16 bits.
//
// The mathematics, the two passes of the backward and all layouts are attention.cu's, which runs everywhere. Here a
// warpgroup owns 64 queries (or keys) and walks over tiles of 64 keys (or queries). Its scores go from one product to the
// next in registers; everything else is read from shared memory by the products themselves. Nothing is pipelined within
// a warpgroup: several stand on a multiprocessor, and while some take exponentials, others multiply.
//
// A tile of 64 x 64 scores on the diagonal is masked, one beyond it skipped, all others are whole. Rows beyond the last
// token are zeros in shared memory, and are not stored.
#include "types.cuh"
#if (MULTIPLY_IS(half) || MULTIPLY_IS(bf16)) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "attention.cuh"
#include "wgmma.cuh"

// GROUPS warpgroups in a block; STAGES tiles of the other side in shared memory; RESIDENT how many blocks should fit a
// multiprocessor. `andrea.engine.attention_hopper` chooses them.
#ifndef FORWARD_GROUPS
#define FORWARD_GROUPS 2
#define FORWARD_STAGES 4
#define FORWARD_RESIDENT 2
#define QUERY_GROUPS 2
#define QUERY_STAGES 4
#define QUERY_RESIDENT 2
#define KEY_GROUPS 1
#define KEY_STAGES 3
#define KEY_RESIDENT 3
#endif

constexpr int D = HEAD_DIM;
using Layout = Tile<D>;
constexpr int STAGE_BYTES = 2 * Layout::BYTES;
constexpr int SCORES = TILE_ROWS / 2;  // floats of a thread for a tile of scores
constexpr int HEAD = D / 2;            // and for a tile of D columns

// -- pieces -----------------------------------------------------------------------------------------------------------

// The warpgroup of this thread, in a form that the compiler knows to be the same in all lanes.
__device__ __forceinline__ int find_group() { return __shfl_sync(0xffffffff, threadIdx.x / GROUP_THREADS, 0); }

// ROWS rows from `first` of a matrix with rows `stride` elements apart, into tiles; zeros beyond `rows`.
template <int ROWS, int THREADS>
__device__ __forceinline__ void copy_rows(uint32 tile, const storage* matrix, int64 stride, int first, int rows) {
  constexpr int STEP = THREADS / Layout::CHUNKS;
  static_assert(THREADS % Layout::CHUNKS == 0 && STEP % 8 == 0, "threads must share out the tile");
  int row = threadIdx.x / Layout::CHUNKS, chunk = threadIdx.x % Layout::CHUNKS;
  const storage* from = matrix + (int64)(first + row) * stride + chunk * CHUNK;
#pragma unroll
  for (int i = 0; i < ROWS; i += STEP, row += STEP, from += STEP * stride) {
    if (ROWS % STEP != 0 && row >= ROWS) return;
    bool inside = first + row < rows;
    copy_chunk(tile + Layout::place(row, chunk), inside ? from : matrix, inside ? CHUNK_BYTES : 0);
  }
}

// Begins C = A X^T over D: A the warpgroup's own tile, X the rows of another. Own rows stay in shared memory: where
// registers kept them over the walk, the assembler of CUDA 13.0 packed P over them.
__device__ __forceinline__ void multiply_rows(float (&c)[SCORES], uint32 own, uint32 tile) {
#pragma unroll
  for (int k = 0; k < Layout::STEPS; ++k) multiply_shared(c, Layout::along(own, k), Layout::along(tile, k), k > 0);
  close_products();
}

// Begins C += P X over the 64 rows of a tile.
__device__ __forceinline__ void multiply_columns(float (&c)[HEAD], const uint32 (&p)[4][4], uint32 tile) {
#pragma unroll
  for (int k = 0; k < 4; ++k) multiply_down(c, p[k], Layout::down(tile, k));
  close_products();
}

// Scores as the left operand of the next product, whose k-steps are two blocks of 8 columns wide.
__device__ __forceinline__ void pack_scores(uint32 (&p)[4][4], const float (&s)[SCORES]) {
#pragma unroll
  for (int i = 0; i < SCORES / 2; ++i) p[i / 4][i % 4] = pack(s[2 * i], s[2 * i + 1]);
}

// Forbids keys after the query in the tile on the diagonal. Rows are queries, or keys when TRANSPOSED.
template <bool TRANSPOSED>
__device__ __forceinline__ void mask(float (&s)[SCORES]) {
  int lane = threadIdx.x % 32, own = threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < SCORES; ++i) {
    int row = own + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (TRANSPOSED ? row > column : column > row) s[i] = FORBIDDEN;
  }
}

// The warpgroup's rows of C, each times its factor, to a matrix, by way of its tile so that whole rows go out.
__device__ __forceinline__ void store_rows(const float (&c)[HEAD], float factor0, float factor1, uint32 tile,
                                           storage* matrix, int64 stride, int first, int rows) {
  int lane = threadIdx.x % 32, own = threadIdx.x / 32 % 4 * 16;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < HEAD / 2; ++i) {
    int row = own + lane / 4 + i % 2 * 8, chunk = i / 2;
    float factor = i % 2 ? factor1 : factor0;
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(tile + Layout::place(row, chunk) + lane % 4 * 4),
                 "r"(pack(c[2 * i] * factor, c[2 * i + 1] * factor))
                 : "memory");
  }
  __syncwarp();
#pragma unroll
  for (int i = lane; i < 16 * Layout::CHUNKS; i += 32) {
    int row = own + i / Layout::CHUNKS, chunk = i % Layout::CHUNKS;
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(tile + Layout::place(row, chunk))
                 : "memory");
    if (first + row < rows)
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(matrix + (int64)(first + row) * stride + chunk * CHUNK),
                   "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                   : "memory");
  }
}

// Waits until a step's copies are there for the products of all warpgroups, and every warpgroup is done with the step
// before. A step's copies are one group of each thread, closed even when they are none.
template <int STAGES>
__device__ __forceinline__ void await_step() {
  static_assert(STAGES >= 2, "a tile is copied while another is read");
  await_copies<STAGES - 2>();
  publish_shared();
  __syncthreads();
}

// -- forward ----------------------------------------------------------------------------------------------------------

// How far, in powers of 2, a row's largest score may rise above the base of its exponentials before they get a new base
// and what was summed is brought to it. Probabilities up to 2^8 are as exact as those up to 1, in fp16 too, and after the
// first keys few rows ever rise that far.
constexpr float SLACK = 8.0f;

// One step of the running softmax: scores become probabilities relative to 2^base, and join the rows' sums.
__device__ __forceinline__ void update_softmax(float (&s)[SCORES], float (&out)[HEAD], float (&base)[2],
                                               float (&sum)[2]) {
  float shrink[2];
  bool rises = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = s[2 * half];
#pragma unroll
    for (int i = 0; i < SCORES; ++i)
      if (i % 4 / 2 == half) top = fmaxf(top, s[i]);
    top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2)) * SCORE_SCALE_LOG2;
    bool row_rises = top > base[half] + SLACK;
    float next = row_rises ? top : base[half];
    shrink[half] = row_rises ? exp2_fast(base[half] - next) : 1.0f;
    base[half] = next;
    rises |= row_rises;
  }
  if (__any_sync(0xffffffff, rises)) {
#pragma unroll
    for (int i = 0; i < HEAD; ++i) out[i] *= shrink[i % 4 / 2];
    sum[0] *= shrink[0], sum[1] *= shrink[1];
  }
#pragma unroll
  for (int i = 0; i < SCORES; ++i) {
    s[i] = exp2_fast(s[i] * SCORE_SCALE_LOG2 - base[i % 4 / 2]);
    sum[i % 4 / 2] += s[i];
  }
}

extern "C" __global__ void __launch_bounds__(FORWARD_GROUPS * GROUP_THREADS, FORWARD_RESIDENT)
k_attn_fwd(const storage* __restrict__ qkv_bt3hd, storage* __restrict__ out_bthd, float* __restrict__ lse_bht,
           int batches, int tokens, int heads) {
  constexpr int THREADS = FORWARD_GROUPS * GROUP_THREADS, ROWS = FORWARD_GROUPS * TILE_ROWS, STAGES = FORWARD_STAGES;
  extern __shared__ __align__(1024) unsigned char shared[];
  uint32 query_tiles = shared_address(shared), stages = query_tiles + FORWARD_GROUPS * Layout::BYTES;

  int tiles = (tokens + ROWS - 1) / ROWS;
  Work work = find_work(batches, heads, tiles);
  int first = (tiles - 1 - work.tile) * ROWS, group = find_group();
  int own = first + group * TILE_ROWS;                 // the warpgroup's first query
  int last = own < tokens ? own / TILE_ROWS : -1;      // and its last step: the tile on the diagonal
  int steps = min(first / TILE_ROWS + FORWARD_GROUPS, (tokens + TILE_ROWS - 1) / TILE_ROWS);
  int64 stride = 3LL * heads * D;
  const storage* q = qkv_bt3hd + work.batch * (int64)tokens * stride + work.head * D;
  const storage* k = q + heads * D;
  const storage* v = k + heads * D;

  auto copy_step = [&](int step) {
    if (step < steps) {
      uint32 to = stages + step % STAGES * STAGE_BYTES;
      copy_rows<TILE_ROWS, THREADS>(to, k, stride, step * TILE_ROWS, tokens);
      copy_rows<TILE_ROWS, THREADS>(to + Layout::BYTES, v, stride, step * TILE_ROWS, tokens);
    }
    close_copies();
  };
  copy_rows<ROWS, THREADS>(query_tiles, q, stride, first, tokens);
#pragma unroll
  for (int step = 0; step < STAGES - 1; ++step) copy_step(step);

  uint32 query_tile = query_tiles + group * Layout::BYTES;
  float out[HEAD], base[2] = {FORBIDDEN, FORBIDDEN}, sum[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < HEAD; ++i) out[i] = 0.0f;

  for (int step = 0; step < steps; ++step) {
    uint32 key_tile = stages + step % STAGES * STAGE_BYTES, value_tile = key_tile + Layout::BYTES;
    await_step<STAGES>();
    copy_step(step + STAGES - 1);
    if (step > last) continue;  // every key lies after every query of this warpgroup

    float s[SCORES];
    uint32 p[4][4];
    open_products();
    multiply_rows(s, query_tile, key_tile);
    await_products<0>();
    pin(s);
    if (step == last) mask<false>(s);
    update_softmax(s, out, base, sum);
    pack_scores(p, s);
    pin(p), pin(out);
    open_products();
    multiply_columns(out, p, value_tile);
    await_products<0>();
    pin(out);
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 1);
    sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 2);
    int query = own + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + half * 8;
    if (threadIdx.x % 4 == 0 && query < tokens)
      lse_bht[((int64)work.batch * heads + work.head) * tokens + query] = base[half] * LN_2 + logf(sum[half]);
  }
  storage* o = out_bthd + (int64)work.batch * tokens * heads * D + work.head * D;
  store_rows(out, 1.0f / sum[0], 1.0f / sum[1], query_tile, o, (int64)heads * D, own, tokens);
}

// -- backward ---------------------------------------------------------------------------------------------------------

// Sum of dO * O over D for one row, by the four lanes of a quad.
__device__ __forceinline__ float row_product(const storage* x, const storage* y, int quarter) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < Layout::CHUNKS; i += 4) {
    uint4 left = *(const uint4*)(x + (i + quarter) * CHUNK), right = *(const uint4*)(y + (i + quarter) * CHUNK);
#pragma unroll
    for (int j = 0; j < CHUNK; ++j) sum += to_float(((storage*)&left)[j]) * to_float(((storage*)&right)[j]);
  }
  sum += __shfl_xor_sync(0xffffffff, sum, 1);
  return sum + __shfl_xor_sync(0xffffffff, sum, 2);
}

// dQ, a warpgroup for 64 queries; leaves for `k_attn_bwd` what both need of each row: the log-sum-exp in base 2, and the
// sum of dO * O.
extern "C" __global__ void __launch_bounds__(QUERY_GROUPS * GROUP_THREADS, QUERY_RESIDENT)
k_attn_bwd_query(const storage* __restrict__ qkv_bt3hd, const storage* __restrict__ out_bthd,
                 const float* __restrict__ lse_bht, const storage* __restrict__ dout_bthd,
                 storage* __restrict__ dqkv_bt3hd, float2* __restrict__ rows_bht, int batches, int tokens, int heads) {
  constexpr int THREADS = QUERY_GROUPS * GROUP_THREADS, ROWS = QUERY_GROUPS * TILE_ROWS, STAGES = QUERY_STAGES;
  extern __shared__ __align__(1024) unsigned char shared[];
  uint32 query_tiles = shared_address(shared), dout_tiles = query_tiles + QUERY_GROUPS * Layout::BYTES;
  uint32 stages = dout_tiles + QUERY_GROUPS * Layout::BYTES;

  int tiles = (tokens + ROWS - 1) / ROWS;
  Work work = find_work(batches, heads, tiles);
  int first = (tiles - 1 - work.tile) * ROWS, group = find_group();
  int own = first + group * TILE_ROWS;
  int last = own < tokens ? own / TILE_ROWS : -1;
  int steps = min(first / TILE_ROWS + QUERY_GROUPS, (tokens + TILE_ROWS - 1) / TILE_ROWS);
  int64 stride = 3LL * heads * D, out_stride = (int64)heads * D;
  const storage* q = qkv_bt3hd + work.batch * (int64)tokens * stride + work.head * D;
  const storage* k = q + heads * D;
  const storage* v = k + heads * D;
  int64 out_offset = (int64)work.batch * tokens * out_stride + work.head * D;
  const storage* dout = dout_bthd + out_offset;
  int64 row_offset = ((int64)work.batch * heads + work.head) * tokens;

  auto copy_step = [&](int step) {
    if (step < steps) {
      uint32 to = stages + step % STAGES * STAGE_BYTES;
      copy_rows<TILE_ROWS, THREADS>(to, k, stride, step * TILE_ROWS, tokens);
      copy_rows<TILE_ROWS, THREADS>(to + Layout::BYTES, v, stride, step * TILE_ROWS, tokens);
    }
    close_copies();
  };
  copy_rows<ROWS, THREADS>(query_tiles, q, stride, first, tokens);
  copy_rows<ROWS, THREADS>(dout_tiles, dout, out_stride, first, tokens);
#pragma unroll
  for (int step = 0; step < STAGES - 1; ++step) copy_step(step);

  float lse[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int query = own + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + half * 8;
    int64 at = min(query, tokens - 1);
    delta[half] = row_product(dout + at * out_stride, out_bthd + out_offset + at * out_stride, threadIdx.x % 4);
    lse[half] = lse_bht[row_offset + at] * LOG2_E;
    if (threadIdx.x % 4 == 0 && query < tokens) rows_bht[row_offset + query] = make_float2(lse[half], delta[half]);
  }

  uint32 query_tile = query_tiles + group * Layout::BYTES;
  uint32 own_dout = dout_tiles + group * Layout::BYTES;
  float dq[HEAD];
#pragma unroll
  for (int i = 0; i < HEAD; ++i) dq[i] = 0.0f;

  for (int step = 0; step < steps; ++step) {
    uint32 key_tile = stages + step % STAGES * STAGE_BYTES, value_tile = key_tile + Layout::BYTES;
    await_step<STAGES>();
    copy_step(step + STAGES - 1);
    if (step > last) continue;

    float s[SCORES], dp[SCORES];
    uint32 ds[4][4];
    open_products();
    multiply_rows(s, query_tile, key_tile);
    multiply_rows(dp, own_dout, value_tile);
    await_products<1>();
    pin(s);
    if (step == last) mask<false>(s);
#pragma unroll
    for (int i = 0; i < SCORES; ++i) s[i] = exp2_fast(s[i] * SCORE_SCALE_LOG2 - lse[i % 4 / 2]);
    await_products<0>();
    pin(dp);
#pragma unroll
    for (int i = 0; i < SCORES; ++i) s[i] *= dp[i] - delta[i % 4 / 2];
    pack_scores(ds, s);
    pin(ds), pin(dq);
    open_products();
    multiply_columns(dq, ds, key_tile);
    await_products<0>();
    pin(dq);
  }

  storage* to = dqkv_bt3hd + work.batch * (int64)tokens * stride + work.head * D;
  store_rows(dq, SCORE_SCALE, SCORE_SCALE, query_tile, to, stride, own, tokens);
}

// What two neighbouring queries of a step left behind: their log-sum-exp in base 2, and their sums of dO * O.
__device__ __forceinline__ void load_pair(float (&lse)[2], float (&delta)[2], uint32 at) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(lse[0]), "=f"(delta[0]), "=f"(lse[1]), "=f"(delta[1])
               : "r"(at)
               : "memory");
}

// dK and dV, a warpgroup for 64 keys, walking over the queries that see them. Everything is transposed: rows are keys,
// columns queries. Queries beyond the last token are zeros, log-sum-exp included, and add exact zeros.
extern "C" __global__ void __launch_bounds__(KEY_GROUPS * GROUP_THREADS, KEY_RESIDENT)
k_attn_bwd(const storage* __restrict__ qkv_bt3hd, const storage* __restrict__ dout_bthd,
           const float2* __restrict__ rows_bht, storage* __restrict__ dqkv_bt3hd, int batches, int tokens, int heads) {
  constexpr int THREADS = KEY_GROUPS * GROUP_THREADS, ROWS = KEY_GROUPS * TILE_ROWS, STAGES = KEY_STAGES;
  extern __shared__ __align__(1024) unsigned char shared[];
  uint32 key_tiles = shared_address(shared), value_tiles = key_tiles + KEY_GROUPS * Layout::BYTES;
  uint32 stages = value_tiles + KEY_GROUPS * Layout::BYTES, pairs = stages + STAGES * STAGE_BYTES;

  int tiles = (tokens + ROWS - 1) / ROWS;
  Work work = find_work(batches, heads, tiles);
  int first = work.tile * ROWS, group = find_group();
  int own = first + group * TILE_ROWS;  // the warpgroup's first key, and its first query
  int begin = first / TILE_ROWS, end = (tokens + TILE_ROWS - 1) / TILE_ROWS;
  int64 stride = 3LL * heads * D, out_stride = (int64)heads * D;
  const storage* q = qkv_bt3hd + work.batch * (int64)tokens * stride + work.head * D;
  const storage* dout = dout_bthd + (int64)work.batch * tokens * out_stride + work.head * D;
  const float2* rows = rows_bht + ((int64)work.batch * heads + work.head) * tokens;

  auto copy_step = [&](int step) {
    if (step < end) {
      uint32 to = stages + step % STAGES * STAGE_BYTES;
      int start = step * TILE_ROWS;
      copy_rows<TILE_ROWS, THREADS>(to, q, stride, start, tokens);
      copy_rows<TILE_ROWS, THREADS>(to + Layout::BYTES, dout, out_stride, start, tokens);
      if (threadIdx.x < TILE_ROWS) {
        int row = start + threadIdx.x;
        bool inside = row < tokens;
        copy_pair(pairs + (step % STAGES * TILE_ROWS + threadIdx.x) * 8, rows + (inside ? row : 0), inside ? 8 : 0);
      }
    }
    close_copies();
  };
  copy_rows<ROWS, THREADS>(key_tiles, q + heads * D, stride, first, tokens);
  copy_rows<ROWS, THREADS>(value_tiles, q + 2 * heads * D, stride, first, tokens);
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i) copy_step(begin + i);

  uint32 key_tile = key_tiles + group * Layout::BYTES, value_tile = value_tiles + group * Layout::BYTES;
  float dk[HEAD], dv[HEAD];
#pragma unroll
  for (int i = 0; i < HEAD; ++i) dk[i] = dv[i] = 0.0f;

  for (int step = begin; step < end; ++step) {
    uint32 query_tile = stages + step % STAGES * STAGE_BYTES, dout_tile = query_tile + Layout::BYTES;
    uint32 pair = pairs + (step % STAGES * TILE_ROWS + threadIdx.x % 4 * 2) * 8;
    await_step<STAGES>();
    copy_step(step + STAGES - 1);
    if (step * TILE_ROWS < own) continue;  // every query lies before every key of this warpgroup

    float s[SCORES], dp[SCORES], lse[2], delta[2];
    uint32 p[4][4], ds[4][4];
    open_products();
    multiply_rows(s, key_tile, query_tile);
    multiply_rows(dp, value_tile, dout_tile);
    await_products<1>();
    pin(s);
    if (step * TILE_ROWS == own) mask<true>(s);
#pragma unroll
    for (int i = 0; i < SCORES; ++i) {
      if (i % 4 == 0) load_pair(lse, delta, pair + i / 4 * 64);
      s[i] = exp2_fast(s[i] * SCORE_SCALE_LOG2 - lse[i % 2]);
    }
    pack_scores(p, s);
    pin(p), pin(dv);
    open_products();
    multiply_columns(dv, p, dout_tile);
    await_products<1>();
    pin(dp);
#pragma unroll
    for (int i = 0; i < SCORES; ++i) {
      if (i % 4 == 0) load_pair(lse, delta, pair + i / 4 * 64);
      s[i] *= dp[i] - delta[i % 2];
    }
    pack_scores(ds, s);
    pin(ds), pin(dk);
    open_products();
    multiply_columns(dk, ds, query_tile);
    await_products<0>();
    pin(dk), pin(dv);
  }

  storage* to = dqkv_bt3hd + work.batch * (int64)tokens * stride + work.head * D;
  store_rows(dk, SCORE_SCALE, SCORE_SCALE, key_tile, to + heads * D, stride, own, tokens);
  store_rows(dv, 1.0f, 1.0f, value_tile, to + 2 * heads * D, stride, own, tokens);
}
#endif
