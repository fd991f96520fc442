// Causal attention in exact float32, forward and backward: the same walk as attention.cu, with fused multiply-adds in
// place of tensor cores. Needs nothing beyond plain loads, so it runs on every card.
//
// A block owns FLOAT_TILE rows and walks over tiles of as many columns; 16 x 16 threads each hold the entries of C whose
// row is y + 16 i and column x + 16 j.
#include "types.cuh"
#if MULTIPLY_IS(float)
#include "attention.cuh"

#ifndef FLOAT_TILE
#define FLOAT_TILE 32
#endif

constexpr int D = HEAD_DIM;
constexpr int TILE = FLOAT_TILE;
constexpr int SIDE = 16;                      // threads along each side
constexpr int THREADS = SIDE * SIDE;
constexpr int PART = TILE / SIDE;             // rows, or columns of scores, of a thread
constexpr int D_PART = D / SIDE;              // columns over D of a thread
constexpr int WIDTH = D + 4;                  // floats of a row in shared memory; the 4 keep neighbours in other banks
constexpr int SCORE_WIDTH = TILE + 4;

__device__ __forceinline__ void load_tile(float* tile, const float* matrix, int64 stride, int first, int rows) {
  for (int i = threadIdx.x; i < TILE * (D / 4); i += THREADS) {
    int row = i / (D / 4), column = i % (D / 4) * 4;
    float4 x = make_float4(0, 0, 0, 0);
    if (first + row < rows) x = *(const float4*)(matrix + (int64)(first + row) * stride + column);
    *(float4*)(tile + row * WIDTH + column) = x;
  }
}

// c[i][j] = sum over D of A[y + 16 i] X[x + 16 j]
__device__ __forceinline__ void multiply_rows(float (&c)[PART][PART], const float* a, const float* x) {
  int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
#pragma unroll
  for (int i = 0; i < PART; ++i)
#pragma unroll
    for (int j = 0; j < PART; ++j) c[i][j] = 0.0f;
#pragma unroll 4
  for (int k = 0; k < D; k += 4) {
    float4 left[PART], right[PART];
#pragma unroll
    for (int i = 0; i < PART; ++i) left[i] = *(const float4*)(a + (ty + SIDE * i) * WIDTH + k);
#pragma unroll
    for (int j = 0; j < PART; ++j) right[j] = *(const float4*)(x + (tx + SIDE * j) * WIDTH + k);
#pragma unroll
    for (int i = 0; i < PART; ++i)
#pragma unroll
      for (int j = 0; j < PART; ++j) {
        c[i][j] = fmaf(left[i].x, right[j].x, c[i][j]);
        c[i][j] = fmaf(left[i].y, right[j].y, c[i][j]);
        c[i][j] = fmaf(left[i].z, right[j].z, c[i][j]);
        c[i][j] = fmaf(left[i].w, right[j].w, c[i][j]);
      }
  }
}

// c[i][j] += sum over a tile's rows k of P[y + 16 i][k] X[k][x + 16 j]
__device__ __forceinline__ void multiply_columns(float (&c)[PART][D_PART], const float* p, const float* x) {
  int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
#pragma unroll 2
  for (int k = 0; k < TILE; k += 4) {
    float left[PART][4];
#pragma unroll
    for (int i = 0; i < PART; ++i) *(float4*)left[i] = *(const float4*)(p + (ty + SIDE * i) * SCORE_WIDTH + k);
#pragma unroll
    for (int l = 0; l < 4; ++l)
#pragma unroll
      for (int j = 0; j < D_PART; ++j) {
        float right = x[(k + l) * WIDTH + tx + SIDE * j];
#pragma unroll
        for (int i = 0; i < PART; ++i) c[i][j] = fmaf(left[i][l], right, c[i][j]);
      }
  }
}

__device__ __forceinline__ void store_scores(float* to, const float (&c)[PART][PART]) {
  int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
#pragma unroll
  for (int i = 0; i < PART; ++i)
#pragma unroll
    for (int j = 0; j < PART; ++j) to[(ty + SIDE * i) * SCORE_WIDTH + tx + SIDE * j] = c[i][j];
}

__device__ __forceinline__ void store_rows(const float (&c)[PART][D_PART], float factor, float* matrix, int64 stride,
                                           int first, int rows) {
  int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
#pragma unroll
  for (int i = 0; i < PART; ++i) {
    int row = first + ty + SIDE * i;
    if (row >= rows) continue;
#pragma unroll
    for (int j = 0; j < D_PART; ++j) matrix[(int64)row * stride + tx + SIDE * j] = c[i][j] * factor;
  }
}

// Over the 16 threads that share a row.
__device__ __forceinline__ float row_sum(float x) {
#pragma unroll
  for (int lane = 1; lane < SIDE; lane *= 2) x += __shfl_xor_sync(0xffffffff, x, lane);
  return x;
}

__device__ __forceinline__ float row_maximum(float x) {
#pragma unroll
  for (int lane = 1; lane < SIDE; lane *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, lane));
  return x;
}

// -- forward ----------------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS)
k_attn_fwd(const float* __restrict__ qkv_bt3hd, float* __restrict__ out_bthd, float* __restrict__ lse_bht, int batches,
           int tokens, int heads) {
  extern __shared__ __align__(16) float shared[];
  float *query_tile = shared, *key_tile = query_tile + TILE * WIDTH, *value_tile = key_tile + TILE * WIDTH;
  float* scores = value_tile + TILE * WIDTH;
  int tiles = (tokens + TILE - 1) / TILE;
  Work work = find_work(batches, heads, tiles);
  int last = tiles - 1 - work.tile, first = last * TILE;
  int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
  int64 stride = 3LL * heads * D;
  const float* q = qkv_bt3hd + work.batch * (int64)tokens * stride + work.head * D;

  float out[PART][D_PART] = {}, highest[PART], sum[PART] = {};
#pragma unroll
  for (int i = 0; i < PART; ++i) highest[i] = FORBIDDEN;
  load_tile(query_tile, q, stride, first, tokens);
  for (int step = 0; step <= last; ++step) {
    load_tile(key_tile, q + heads * D, stride, step * TILE, tokens);
    load_tile(value_tile, q + 2 * heads * D, stride, step * TILE, tokens);
    __syncthreads();
    float s[PART][PART];
    multiply_rows(s, query_tile, key_tile);
#pragma unroll
    for (int i = 0; i < PART; ++i) {
      float top = highest[i];
#pragma unroll
      for (int j = 0; j < PART; ++j) {
        if (step == last && tx + SIDE * j > ty + SIDE * i) s[i][j] = FORBIDDEN;
        top = fmaxf(top, s[i][j]);
      }
      top = row_maximum(top);
      float shrink = exp2f((highest[i] - top) * SCORE_SCALE_LOG2), added = 0.0f;
      highest[i] = top;
#pragma unroll
      for (int j = 0; j < PART; ++j) added += s[i][j] = exp2f((s[i][j] - top) * SCORE_SCALE_LOG2);
      sum[i] = sum[i] * shrink + added;
#pragma unroll
      for (int j = 0; j < D_PART; ++j) out[i][j] *= shrink;
    }
    store_scores(scores, s);
    __syncthreads();
    multiply_columns(out, scores, value_tile);
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < PART; ++i) {
    sum[i] = row_sum(sum[i]);
    int query = first + ty + SIDE * i;
    if (tx == 0 && query < tokens)
      lse_bht[((int64)work.batch * heads + work.head) * tokens + query] = highest[i] * SCORE_SCALE + logf(sum[i]);
#pragma unroll
    for (int j = 0; j < D_PART; ++j) out[i][j] /= sum[i];
  }
  store_rows(out, 1.0f, out_bthd + (int64)work.batch * tokens * heads * D + work.head * D, (int64)heads * D, first,
             tokens);
}

// -- backward ---------------------------------------------------------------------------------------------------------

// dQ, and for `k_attn_bwd` each row's log-sum-exp and sum of dO * O.
extern "C" __global__ void __launch_bounds__(THREADS)
k_attn_bwd_query(const float* __restrict__ qkv_bt3hd, const float* __restrict__ out_bthd,
                 const float* __restrict__ lse_bht, const float* __restrict__ dout_bthd,
                 float* __restrict__ dqkv_bt3hd, float2* __restrict__ rows_bht, int batches, int tokens, int heads) {
  extern __shared__ __align__(16) float shared[];
  float *query_tile = shared, *dout_tile = query_tile + TILE * WIDTH, *key_tile = dout_tile + TILE * WIDTH;
  float *value_tile = key_tile + TILE * WIDTH, *scores = value_tile + TILE * WIDTH;
  int tiles = (tokens + TILE - 1) / TILE;
  Work work = find_work(batches, heads, tiles);
  int last = tiles - 1 - work.tile, first = last * TILE;
  int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
  int64 stride = 3LL * heads * D, out_stride = (int64)heads * D, row_offset = ((int64)work.batch * heads + work.head) * tokens;
  const float* q = qkv_bt3hd + work.batch * (int64)tokens * stride + work.head * D;
  const float* o = out_bthd + (int64)work.batch * tokens * out_stride + work.head * D;

  load_tile(query_tile, q, stride, first, tokens);
  load_tile(dout_tile, dout_bthd + (o - out_bthd), out_stride, first, tokens);
  __syncthreads();
  float lse[PART], delta[PART], dq[PART][D_PART] = {};
#pragma unroll
  for (int i = 0; i < PART; ++i) {
    int row = ty + SIDE * i, query = min(first + row, tokens - 1);
    delta[i] = 0.0f;
#pragma unroll
    for (int j = 0; j < D_PART; ++j)
      delta[i] = fmaf(dout_tile[row * WIDTH + tx + SIDE * j], o[query * out_stride + tx + SIDE * j], delta[i]);
    delta[i] = row_sum(delta[i]);
    lse[i] = lse_bht[row_offset + query] * LOG2_E;
    if (tx == 0 && first + row < tokens) rows_bht[row_offset + query] = make_float2(lse[i], delta[i]);
  }
  for (int step = 0; step <= last; ++step) {
    load_tile(key_tile, q + heads * D, stride, step * TILE, tokens);
    load_tile(value_tile, q + 2 * heads * D, stride, step * TILE, tokens);
    __syncthreads();
    float s[PART][PART], dp[PART][PART];
    multiply_rows(s, query_tile, key_tile);
    multiply_rows(dp, dout_tile, value_tile);
#pragma unroll
    for (int i = 0; i < PART; ++i)
#pragma unroll
      for (int j = 0; j < PART; ++j) {
        s[i][j] = exp2f(s[i][j] * SCORE_SCALE_LOG2 - lse[i]) * (dp[i][j] - delta[i]);
        if (step == last && tx + SIDE * j > ty + SIDE * i) s[i][j] = 0.0f;
      }
    store_scores(scores, s);
    __syncthreads();
    multiply_columns(dq, scores, key_tile);
    __syncthreads();
  }
  store_rows(dq, SCORE_SCALE, dqkv_bt3hd + (q - qkv_bt3hd), stride, first, tokens);
}

// dK and dV, transposed: rows are keys, columns queries; queries beyond the last token are zeros and add zeros.
extern "C" __global__ void __launch_bounds__(THREADS)
k_attn_bwd(const float* __restrict__ qkv_bt3hd, const float* __restrict__ dout_bthd,
           const float2* __restrict__ rows_bht, float* __restrict__ dqkv_bt3hd, int batches, int tokens, int heads) {
  extern __shared__ __align__(16) float shared[];
  float *key_tile = shared, *value_tile = key_tile + TILE * WIDTH, *query_tile = value_tile + TILE * WIDTH;
  float *dout_tile = query_tile + TILE * WIDTH, *scores = dout_tile + TILE * WIDTH;
  int tiles = (tokens + TILE - 1) / TILE;
  Work work = find_work(batches, heads, tiles);
  int first = work.tile * TILE;
  int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
  int64 stride = 3LL * heads * D, out_stride = (int64)heads * D;
  const float* q = qkv_bt3hd + work.batch * (int64)tokens * stride + work.head * D;
  const float* dout = dout_bthd + (int64)work.batch * tokens * out_stride + work.head * D;
  const float2* rows = rows_bht + ((int64)work.batch * heads + work.head) * tokens;

  load_tile(key_tile, q + heads * D, stride, first, tokens);
  load_tile(value_tile, q + 2 * heads * D, stride, first, tokens);
  float dk[PART][D_PART] = {}, dv[PART][D_PART] = {};
  for (int step = work.tile; step < tiles; ++step) {
    load_tile(query_tile, q, stride, step * TILE, tokens);
    load_tile(dout_tile, dout, out_stride, step * TILE, tokens);
    __syncthreads();
    float p[PART][PART], ds[PART][PART];
    multiply_rows(p, key_tile, query_tile);
    multiply_rows(ds, value_tile, dout_tile);
#pragma unroll
    for (int j = 0; j < PART; ++j) {
      int query = step * TILE + tx + SIDE * j;
      float2 row = query < tokens ? rows[query] : make_float2(0.0f, 0.0f);
#pragma unroll
      for (int i = 0; i < PART; ++i) {
        p[i][j] = exp2f(p[i][j] * SCORE_SCALE_LOG2 - row.x);
        if (step == work.tile && ty + SIDE * i > tx + SIDE * j) p[i][j] = 0.0f;
        ds[i][j] = p[i][j] * (ds[i][j] - row.y);
      }
    }
    store_scores(scores, p);
    __syncthreads();
    multiply_columns(dv, scores, dout_tile);
    __syncthreads();
    store_scores(scores, ds);
    __syncthreads();
    multiply_columns(dk, scores, query_tile);
    __syncthreads();
  }
  float* to = dqkv_bt3hd + (q - qkv_bt3hd);
  store_rows(dk, SCORE_SCALE, to + heads * D, stride, first, tokens);
  store_rows(dv, 1.0f, to + 2 * heads * D, stride, first, tokens);
}
#endif
