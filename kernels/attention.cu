// Causal scaled dot-product attention on tensor cores, forward and backward, for storage of 16 bits and for tf32.
//
//   S = Q K^T / sqrt(D), masked to keys <= query;  P = softmax(S);  O = P V
//   dV = P^T dO;  dS = P * (dO V^T - rowsum(dO * O));  dQ = dS K / sqrt(D);  dK = dS^T Q / sqrt(D)
//
// Scores never leave the chip (Dao 2023, "FlashAttention-2"): a block keeps its queries (or keys) in registers and walks
// over the keys (or queries), and the product of one step becomes the left operand of the next without leaving the
// thread. Backward runs twice over the scores, once for dQ and once for dK and dV: two matrix products more than a
// single pass, but no sum crosses a block, so nothing depends on the order in which blocks run.
#include "types.cuh"
#if !MULTIPLY_IS(float)
#include "attention.cuh"
#include "mma.cuh"

// Tiles: WARPS warps own BLOCKS blocks of 16 rows each; the other side comes in tiles of TILE rows, of which a warp
// multiplies PART at once. KEEP says whether a warp's own rows stay in registers, RESIDENT how many blocks should fit a
// multiprocessor. `andrea.engine.attention` chooses them.
#ifndef FORWARD_WARPS
#define FORWARD_WARPS 4
#define FORWARD_BLOCKS 2
#define FORWARD_TILE 64
#define FORWARD_KEEP 1
#define FORWARD_RESIDENT 2
#define QUERY_WARPS 4
#define QUERY_BLOCKS 2
#define QUERY_TILE 64
#define QUERY_PART 16
#define QUERY_KEEP 1
#define QUERY_RESIDENT 2
#define KEY_WARPS 4
#define KEY_BLOCKS 1
#define KEY_TILE 64
#define KEY_PART 32
#define KEY_KEEP 1
#define KEY_RESIDENT 2
#endif

constexpr int D = HEAD_DIM;
constexpr int ROW_BYTES = D * sizeof(storage);
constexpr int ROW_CHUNKS = ROW_BYTES / CHUNK_BYTES;
constexpr int STEPS = D / K_STEP;  // k-steps of a product over D
constexpr int D_BLOCKS = D / 8;    // blocks of C over D

// -- pieces -----------------------------------------------------------------------------------------------------------

// Rows `first`.. of a matrix with rows `stride` elements apart, into a tile; zeros beyond `rows`.
template <int TILE, int THREADS>
__device__ __forceinline__ void copy_tile(uint32 tile, const storage* matrix, int64 stride, int first, int rows) {
  constexpr int STEP = THREADS / ROW_CHUNKS;
  static_assert(THREADS % ROW_CHUNKS == 0 && (TILE % STEP == 0 || STEP % TILE == 0), "threads must share out the tile");
  int row = threadIdx.x / ROW_CHUNKS, chunk = threadIdx.x % ROW_CHUNKS;
  if (STEP > TILE && row >= TILE) return;
  const storage* from = matrix + (int64)(first + row) * stride + chunk * CHUNK;
#pragma unroll
  for (int i = 0; i < TILE; i += STEP, row += STEP, from += STEP * stride) {
    bool inside = first + row < rows;
    copy_chunk(tile + tile_offset<ROW_BYTES>(row, chunk), inside ? from : matrix, inside ? CHUNK_BYTES : 0);
  }
}

// The left operand of a warp's rows, kept in registers for the whole walk or read again at every use.
template <int BLOCKS, bool KEEP>
struct Operand {
  uint32 kept[KEEP ? BLOCKS : 1][KEEP ? STEPS : 1][4];
  uint32 tile;
  int row, lane;

  __device__ __forceinline__ Operand(uint32 tile, int row, int lane) : tile(tile), row(row), lane(lane) {}

  __device__ __forceinline__ void load() {
    if constexpr (KEEP) {
#pragma unroll
      for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
        for (int k = 0; k < STEPS; ++k) load_a<ROW_BYTES>(kept[m][k], tile, row + m * 16, k, lane);
    }
  }

  __device__ __forceinline__ void get(uint32 (&a)[4], int m, int k) const {
    if constexpr (KEEP) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = kept[m][k][i];
    } else {
      load_a<ROW_BYTES>(a, tile, row + m * 16, k, lane);
    }
  }
};

template <int BLOCKS, int COLUMNS>
__device__ __forceinline__ void clear(float (&c)[BLOCKS][COLUMNS][4]) {
#pragma unroll
  for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
    for (int n = 0; n < COLUMNS; ++n) c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0.0f;
}

// C = A X^T over D: A the warp's rows, X the rows of a tile from `first`.
template <int BLOCKS, int COLUMNS, bool KEEP>
__device__ __forceinline__ void multiply_rows(float (&c)[BLOCKS][COLUMNS][4], const Operand<BLOCKS, KEEP>& operand,
                                              uint32 tile, int first) {
  clear(c);
#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
    uint32 a[BLOCKS][4];
#pragma unroll
    for (int m = 0; m < BLOCKS; ++m) operand.get(a[m], m, k);
#pragma unroll
    for (int n = 0; n < COLUMNS; n += 2) {
      uint32 b[4];
      load_b<ROW_BYTES>(b, tile, first + n * 8, k, operand.lane);
#pragma unroll
      for (int m = 0; m < BLOCKS; ++m) {
        multiply_add(c[m][n], a[m], b[0], b[1]);
        multiply_add(c[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// C += P X over the COLUMNS * 8 rows of a tile from `first`: P is the result of `multiply_rows`.
template <int BLOCKS, int COLUMNS>
__device__ __forceinline__ void multiply_columns(float (&c)[BLOCKS][D_BLOCKS][4], const float (&p)[BLOCKS][COLUMNS][4],
                                                 uint32 tile, int first, int lane) {
#pragma unroll
  for (int k = 0; k < COLUMNS; k += BLOCKS_OF_STEP) {
    uint32 a[BLOCKS][4];
#pragma unroll
    for (int m = 0; m < BLOCKS; ++m) accumulator_to_a(a[m], &p[m][k]);
#pragma unroll
    for (int n = 0; n < D_BLOCKS; n += 2) {
      uint32 b[4];
      load_b_transposed<ROW_BYTES>(b, tile, first + k * 8, n * 8, lane);
#pragma unroll
      for (int m = 0; m < BLOCKS; ++m) {
        multiply_add(c[m][n], a[m], b[0], b[1]);
        multiply_add(c[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Two neighbouring elements into a tile that a warp uses alone.
__device__ __forceinline__ void store_pair(uint32 tile, int row, int column, float x, float y) {
  uint32 at = tile + tile_offset<ROW_BYTES>(row, column / CHUNK) + column % CHUNK * sizeof(storage);
#if MULTIPLY_IS(tf32)
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
#else
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(pack(x, y)) : "memory");
#endif
}

// The warp's rows of C, each times its factor, to a matrix, by way of a tile so that whole rows go out. The tile's rows
// of this warp must be free.
template <int BLOCKS>
__device__ __forceinline__ void store_rows(const float (&c)[BLOCKS][D_BLOCKS][4], const float (&factor)[BLOCKS][2],
                                           uint32 tile, int row, int lane, storage* matrix, int64 stride, int first,
                                           int rows) {
  __syncwarp();  // other lanes may still read these rows as operands
#pragma unroll
  for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
    for (int n = 0; n < D_BLOCKS; ++n) {
      int column = n * 8 + lane % 4 * 2, at = row + m * 16 + lane / 4;
      store_pair(tile, at, column, c[m][n][0] * factor[m][0], c[m][n][1] * factor[m][0]);
      store_pair(tile, at + 8, column, c[m][n][2] * factor[m][1], c[m][n][3] * factor[m][1]);
    }
  __syncwarp();
#pragma unroll
  for (int i = lane; i < BLOCKS * 16 * ROW_CHUNKS; i += 32) {
    int at = row + i / ROW_CHUNKS, chunk = i % ROW_CHUNKS;
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(tile + tile_offset<ROW_BYTES>(at, chunk))
                 : "memory");
    if (first + at < rows) *(uint4*)(matrix + (int64)(first + at) * stride + chunk * CHUNK) = x;
  }
  __syncwarp();
}

// -- forward ----------------------------------------------------------------------------------------------------------

constexpr int FORWARD_ROWS = FORWARD_WARPS * FORWARD_BLOCKS * 16;
constexpr int FORWARD_COLUMNS = FORWARD_TILE / 8;

// One step of the running softmax: scores become probabilities relative to the rows' new maxima, and what was summed
// before is brought to the same base.
__device__ __forceinline__ void update_softmax(float (&s)[FORWARD_BLOCKS][FORWARD_COLUMNS][4],
                                               float (&out)[FORWARD_BLOCKS][D_BLOCKS][4],
                                               float (&highest)[FORWARD_BLOCKS][2], float (&sum)[FORWARD_BLOCKS][2]) {
#pragma unroll
  for (int m = 0; m < FORWARD_BLOCKS; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = highest[m][half];
#pragma unroll
      for (int n = 0; n < FORWARD_COLUMNS; ++n) top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
      float base = top * SCORE_SCALE_LOG2;
      float shrink = exp2_fast(highest[m][half] * SCORE_SCALE_LOG2 - base);
      highest[m][half] = top;
      float added = 0.0f;
#pragma unroll
      for (int n = 0; n < FORWARD_COLUMNS; ++n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          s[m][n][i] = exp2_fast(s[m][n][i] * SCORE_SCALE_LOG2 - base);
          added += s[m][n][i];
        }
      sum[m][half] = sum[m][half] * shrink + added;
#pragma unroll
      for (int n = 0; n < D_BLOCKS; ++n) out[m][n][2 * half] *= shrink, out[m][n][2 * half + 1] *= shrink;
    }
}

extern "C" __global__ void __launch_bounds__(FORWARD_WARPS * 32, FORWARD_RESIDENT)
k_attn_fwd(const storage* __restrict__ qkv_bt3hd, storage* __restrict__ out_bthd, float* __restrict__ lse_bht,
           int batches, int tokens, int heads) {
  constexpr int THREADS = FORWARD_WARPS * 32, TILE = FORWARD_TILE, BLOCKS = FORWARD_BLOCKS;
  extern __shared__ __align__(128) unsigned char shared[];
  uint32 query_tile = shared_address(shared), stages = query_tile + FORWARD_ROWS * ROW_BYTES;
  constexpr int STAGE = 2 * TILE * ROW_BYTES;

  int tiles = (tokens + FORWARD_ROWS - 1) / FORWARD_ROWS;
  Work work = find_work(batches, heads, tiles);
  int first = (tiles - 1 - work.tile) * FORWARD_ROWS;
  int lane = threadIdx.x % 32, own = threadIdx.x / 32 * BLOCKS * 16;  // the warp's first row in the tile
  int64 stride = 3LL * heads * D;
  const storage* q = qkv_bt3hd + work.batch * (int64)tokens * stride + work.head * D;
  const storage* k = q + heads * D;
  const storage* v = k + heads * D;

  copy_tile<FORWARD_ROWS, THREADS>(query_tile, q, stride, first, tokens);
  copy_tile<TILE, THREADS>(stages, k, stride, 0, tokens);
  copy_tile<TILE, THREADS>(stages + TILE * ROW_BYTES, v, stride, 0, tokens);
  close_copies();

  Operand<BLOCKS, FORWARD_KEEP> queries(query_tile, own, lane);
  float out[BLOCKS][D_BLOCKS][4], highest[BLOCKS][2], sum[BLOCKS][2];
  clear(out);
#pragma unroll
  for (int m = 0; m < BLOCKS; ++m) highest[m][0] = highest[m][1] = FORBIDDEN, sum[m][0] = sum[m][1] = 0.0f;

  int steps = (min(first + FORWARD_ROWS, tokens) + TILE - 1) / TILE;
  int last_query = first + own + BLOCKS * 16 - 1;
  for (int step = 0; step < steps; ++step) {
    uint32 key_tile = stages + step % 2 * STAGE, value_tile = key_tile + TILE * ROW_BYTES;
    await_copies<0>();
    __syncthreads();
    if (step + 1 < steps) {
      uint32 next = stages + (step + 1) % 2 * STAGE;
      copy_tile<TILE, THREADS>(next, k, stride, (step + 1) * TILE, tokens);
      copy_tile<TILE, THREADS>(next + TILE * ROW_BYTES, v, stride, (step + 1) * TILE, tokens);
      close_copies();
    }
    if (step == 0) queries.load();
    int first_key = step * TILE;
    if (first_key > last_query) continue;  // every key lies after every query of this warp

    float s[BLOCKS][FORWARD_COLUMNS][4];
    multiply_rows(s, queries, key_tile, 0);
    if (first_key + TILE - 1 > first + own) {
#pragma unroll
      for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
        for (int n = 0; n < FORWARD_COLUMNS; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            int query = first + own + m * 16 + lane / 4 + i / 2 * 8, key = first_key + n * 8 + lane % 4 * 2 + i % 2;
            if (key > query) s[m][n][i] = FORBIDDEN;
          }
    }
    update_softmax(s, out, highest, sum);
    multiply_columns(out, s, value_tile, 0, lane);
  }

#pragma unroll
  for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[m][half] += __shfl_xor_sync(0xffffffff, sum[m][half], 1);
      sum[m][half] += __shfl_xor_sync(0xffffffff, sum[m][half], 2);
      int query = first + own + m * 16 + half * 8 + lane / 4;
      if (lane % 4 == 0 && query < tokens)
        lse_bht[((int64)work.batch * heads + work.head) * tokens + query] =
            highest[m][half] * SCORE_SCALE + logf(sum[m][half]);
      sum[m][half] = 1.0f / sum[m][half];
    }
  storage* o = out_bthd + (int64)work.batch * tokens * heads * D + work.head * D;
  store_rows<BLOCKS>(out, sum, query_tile, own, lane, o, (int64)heads * D, first, tokens);
}

// -- backward ---------------------------------------------------------------------------------------------------------

constexpr int QUERY_ROWS = QUERY_WARPS * QUERY_BLOCKS * 16;
constexpr int QUERY_COLUMNS = QUERY_PART / 8;
constexpr int KEY_ROWS = KEY_WARPS * KEY_BLOCKS * 16;
constexpr int KEY_COLUMNS = KEY_PART / 8;

// Sum of dO * O over D for one row, by the four lanes of a quad.
__device__ __forceinline__ float row_product(const storage* x, const storage* y, int quarter) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < ROW_CHUNKS; i += 4) {
    const storage* a = x + (i + quarter) * CHUNK;
    const storage* b = y + (i + quarter) * CHUNK;
    uint4 left = *(const uint4*)a, right = *(const uint4*)b;
#pragma unroll
    for (int j = 0; j < CHUNK; ++j) sum += to_float(((storage*)&left)[j]) * to_float(((storage*)&right)[j]);
  }
  sum += __shfl_xor_sync(0xffffffff, sum, 1);
  return sum + __shfl_xor_sync(0xffffffff, sum, 2);
}

// dQ, one block a tile of queries; leaves for `k_attn_bwd` what both need of each row: the log-sum-exp in base 2, and
// the sum of dO * O.
extern "C" __global__ void __launch_bounds__(QUERY_WARPS * 32, QUERY_RESIDENT)
k_attn_bwd_query(const storage* __restrict__ qkv_bt3hd, const storage* __restrict__ out_bthd,
                 const float* __restrict__ lse_bht, const storage* __restrict__ dout_bthd,
                 storage* __restrict__ dqkv_bt3hd, float2* __restrict__ rows_bht, int batches, int tokens, int heads) {
  constexpr int THREADS = QUERY_WARPS * 32, TILE = QUERY_TILE, BLOCKS = QUERY_BLOCKS;
  extern __shared__ __align__(128) unsigned char shared[];
  uint32 query_tile = shared_address(shared), dout_tile = query_tile + QUERY_ROWS * ROW_BYTES;
  uint32 stages = dout_tile + QUERY_ROWS * ROW_BYTES;
  constexpr int STAGE = 2 * TILE * ROW_BYTES;

  int tiles = (tokens + QUERY_ROWS - 1) / QUERY_ROWS;
  Work work = find_work(batches, heads, tiles);
  int first = (tiles - 1 - work.tile) * QUERY_ROWS;
  int lane = threadIdx.x % 32, own = threadIdx.x / 32 * BLOCKS * 16;
  int64 stride = 3LL * heads * D, out_stride = (int64)heads * D;
  const storage* q = qkv_bt3hd + work.batch * (int64)tokens * stride + work.head * D;
  const storage* k = q + heads * D;
  const storage* v = k + heads * D;
  int64 out_offset = (int64)work.batch * tokens * out_stride + work.head * D;
  const storage* dout = dout_bthd + out_offset;
  int64 row_offset = ((int64)work.batch * heads + work.head) * tokens;

  copy_tile<QUERY_ROWS, THREADS>(query_tile, q, stride, first, tokens);
  copy_tile<QUERY_ROWS, THREADS>(dout_tile, dout, out_stride, first, tokens);
  copy_tile<TILE, THREADS>(stages, k, stride, 0, tokens);
  copy_tile<TILE, THREADS>(stages + TILE * ROW_BYTES, v, stride, 0, tokens);
  close_copies();

  float lse[BLOCKS][2], delta[BLOCKS][2];
#pragma unroll
  for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int query = first + own + m * 16 + half * 8 + lane / 4;
      int64 at = (int64)min(query, tokens - 1);
      delta[m][half] = row_product(dout + at * out_stride, out_bthd + out_offset + at * out_stride, lane % 4);
      lse[m][half] = lse_bht[row_offset + at] * LOG2_E;
      if (lane % 4 == 0 && query < tokens) rows_bht[row_offset + query] = make_float2(lse[m][half], delta[m][half]);
    }

  Operand<BLOCKS, QUERY_KEEP> queries(query_tile, own, lane), douts(dout_tile, own, lane);
  float dq[BLOCKS][D_BLOCKS][4];
  clear(dq);

  int steps = (min(first + QUERY_ROWS, tokens) + TILE - 1) / TILE;
  int last_query = first + own + BLOCKS * 16 - 1;
  for (int step = 0; step < steps; ++step) {
    uint32 key_tile = stages + step % 2 * STAGE, value_tile = key_tile + TILE * ROW_BYTES;
    await_copies<0>();
    __syncthreads();
    if (step + 1 < steps) {
      uint32 next = stages + (step + 1) % 2 * STAGE;
      copy_tile<TILE, THREADS>(next, k, stride, (step + 1) * TILE, tokens);
      copy_tile<TILE, THREADS>(next + TILE * ROW_BYTES, v, stride, (step + 1) * TILE, tokens);
      close_copies();
    }
    if (step == 0) queries.load(), douts.load();
#pragma unroll
    for (int part = 0; part < TILE; part += QUERY_PART) {
      int first_key = step * TILE + part;
      if (first_key > last_query) break;
      float s[BLOCKS][QUERY_COLUMNS][4], dp[BLOCKS][QUERY_COLUMNS][4];
      multiply_rows(s, queries, key_tile, part);
      multiply_rows(dp, douts, value_tile, part);
      bool masked = first_key + QUERY_PART - 1 > first + own;
#pragma unroll
      for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
        for (int n = 0; n < QUERY_COLUMNS; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float p = exp2_fast(s[m][n][i] * SCORE_SCALE_LOG2 - lse[m][i / 2]);
            s[m][n][i] = p * (dp[m][n][i] - delta[m][i / 2]);
            int query = first + own + m * 16 + lane / 4 + i / 2 * 8, key = first_key + n * 8 + lane % 4 * 2 + i % 2;
            if (masked && key > query) s[m][n][i] = 0.0f;
          }
      multiply_columns(dq, s, key_tile, part, lane);
    }
  }

  float factor[BLOCKS][2];
#pragma unroll
  for (int m = 0; m < BLOCKS; ++m) factor[m][0] = factor[m][1] = SCORE_SCALE;
  storage* to = dqkv_bt3hd + work.batch * (int64)tokens * stride + work.head * D;
  store_rows<BLOCKS>(dq, factor, query_tile, own, lane, to, stride, first, tokens);
}

// dK and dV, one block a tile of keys, walking over the queries that see them. Everything is transposed: rows are keys,
// columns queries. Queries beyond the last token are zeros, log-sum-exp included, and add exact zeros.
extern "C" __global__ void __launch_bounds__(KEY_WARPS * 32, KEY_RESIDENT)
k_attn_bwd(const storage* __restrict__ qkv_bt3hd, const storage* __restrict__ dout_bthd,
           const float2* __restrict__ rows_bht, storage* __restrict__ dqkv_bt3hd, int batches, int tokens, int heads) {
  constexpr int THREADS = KEY_WARPS * 32, TILE = KEY_TILE, BLOCKS = KEY_BLOCKS;
  extern __shared__ __align__(128) unsigned char shared[];
  uint32 key_tile = shared_address(shared), value_tile = key_tile + KEY_ROWS * ROW_BYTES;
  uint32 stages = value_tile + KEY_ROWS * ROW_BYTES;
  constexpr int STAGE = 2 * TILE * ROW_BYTES + TILE * 8;

  int tiles = (tokens + KEY_ROWS - 1) / KEY_ROWS;
  Work work = find_work(batches, heads, tiles);
  int first = work.tile * KEY_ROWS;
  int lane = threadIdx.x % 32, own = threadIdx.x / 32 * BLOCKS * 16;
  int64 stride = 3LL * heads * D, out_stride = (int64)heads * D;
  const storage* q = qkv_bt3hd + work.batch * (int64)tokens * stride + work.head * D;
  const storage* dout = dout_bthd + (int64)work.batch * tokens * out_stride + work.head * D;
  const float2* rows = rows_bht + ((int64)work.batch * heads + work.head) * tokens;

  auto copy_stage = [&](int step) {
    uint32 to = stages + step % 2 * STAGE;
    int start = step * TILE;
    copy_tile<TILE, THREADS>(to, q, stride, start, tokens);
    copy_tile<TILE, THREADS>(to + TILE * ROW_BYTES, dout, out_stride, start, tokens);
    for (int i = threadIdx.x; i < TILE; i += THREADS) {
      bool inside = start + i < tokens;
      copy_pair(to + 2 * TILE * ROW_BYTES + i * 8, rows + (inside ? start + i : 0), inside ? 8 : 0);
    }
    close_copies();
  };
  copy_tile<KEY_ROWS, THREADS>(key_tile, q + heads * D, stride, first, tokens);
  copy_tile<KEY_ROWS, THREADS>(value_tile, q + 2 * heads * D, stride, first, tokens);
  int begin = first / TILE, end = (tokens + TILE - 1) / TILE;
  copy_stage(begin);

  Operand<BLOCKS, KEY_KEEP> keys(key_tile, own, lane), values(value_tile, own, lane);
  float dk[BLOCKS][D_BLOCKS][4], dv[BLOCKS][D_BLOCKS][4];
  clear(dk);
  clear(dv);

  int first_key = first + own, last_key = first_key + BLOCKS * 16 - 1;
  for (int step = begin; step < end; ++step) {
    uint32 query_tile = stages + step % 2 * STAGE, dout_tile = query_tile + TILE * ROW_BYTES;
    uint32 row_tile = dout_tile + TILE * ROW_BYTES;
    await_copies<0>();
    __syncthreads();
    if (step + 1 < end) copy_stage(step + 1);
    if (step == begin) keys.load(), values.load();
#pragma unroll
    for (int part = 0; part < TILE; part += KEY_PART) {
      int first_query = step * TILE + part;
      if (first_query + KEY_PART - 1 < first_key) continue;  // every query lies before every key of this warp
      float p[BLOCKS][KEY_COLUMNS][4], ds[BLOCKS][KEY_COLUMNS][4];
      multiply_rows(p, keys, query_tile, part);
      multiply_rows(ds, values, dout_tile, part);
      bool masked = first_query < last_key;
#pragma unroll
      for (int n = 0; n < KEY_COLUMNS; ++n) {
        float lse[2], delta[2];
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(lse[0]), "=f"(delta[0]), "=f"(lse[1]), "=f"(delta[1])
                     : "r"(row_tile + (part + n * 8 + lane % 4 * 2) * 8)
                     : "memory");
#pragma unroll
        for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            p[m][n][i] = exp2_fast(p[m][n][i] * SCORE_SCALE_LOG2 - lse[i % 2]);
            int key = first_key + m * 16 + lane / 4 + i / 2 * 8, query = first_query + n * 8 + lane % 4 * 2 + i % 2;
            if (masked && key > query) p[m][n][i] = 0.0f;
            ds[m][n][i] = p[m][n][i] * (ds[m][n][i] - delta[i % 2]);
          }
      }
      multiply_columns(dv, p, dout_tile, part, lane);
      multiply_columns(dk, ds, query_tile, part, lane);
    }
  }

  float one[BLOCKS][2], factor[BLOCKS][2];
#pragma unroll
  for (int m = 0; m < BLOCKS; ++m) one[m][0] = one[m][1] = 1.0f, factor[m][0] = factor[m][1] = SCORE_SCALE;
  storage* to = dqkv_bt3hd + work.batch * (int64)tokens * stride + work.head * D;
  store_rows<BLOCKS>(dk, factor, key_tile, own, lane, to + heads * D, stride, first, tokens);
  store_rows<BLOCKS>(dv, one, value_tile, own, lane, to + 2 * heads * D, stride, first, tokens);
}
#endif
