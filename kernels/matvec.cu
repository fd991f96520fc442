// Products of a few rows with a matrix, for text that is generated: a launch each, read once, every sum in one order.
//
// B rows, C inputs (K in general), O outputs. A matrix of a product lies as w_ko, neighbouring outputs next to each other;
// that of the head as w_oc, the inputs of an output next to each other. Kernels without a suffix take one row, those with
// `_rows` up to MANY; a row gives the same bits in both. Two ways save the launches between the products:
//
//   the norm goes in front   every block normalises the rows again, while its weights are on their way
//   the sum is left open     k_matvec_parts cuts K into PARTS, and what normalises next adds them to the residual stream
//
// What is stored between kernels that do one thing each is rounded here too: the branch, the stream, the norm's output and
// what GELU gets. Sizes that are no multiple of WIDE, and matrices that are not aligned, are read element by element.
#include "gelu.cuh"
#include "reduce.cuh"
#include "vector.cuh"

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / WARP;
constexpr int MANY = 8;
constexpr int PARTS = 4;
constexpr int CHUNKS = 4;  // sixteen bytes each: what a block reads of a row of w_ko
constexpr int COLUMNS = CHUNKS * WIDE;
constexpr int SLOTS = THREADS / CHUNKS;  // rows of w_ko that a block reads at once
constexpr int OF_WARP = 4;               // outputs of a warp of the head
using Chunk = Pack<storage, WIDE>;

extern __shared__ uint4 room[];  // the rows' inputs; then the warps' shares of the sums

// The first `count` elements, then zeros, as they lie: single elements would take a register each while they wait. What is
// read once stays out of the first-level cache.
__device__ __forceinline__ uint4 read_chunk(const storage* from, int count, bool wide) {
  uint4 words;
  if (wide && count >= WIDE) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(from));
    return words;
  }
  Chunk chunk;
#pragma unroll
  for (int i = 0; i < WIDE; i++) chunk.at[i] = i < count ? from[i] : to_storage(0.0f);
  return reinterpret_cast<const uint4&>(chunk);
}

__device__ __forceinline__ Chunk elements(const uint4& words) { return reinterpret_cast<const Chunk&>(words); }

// -- inputs ----------------------------------------------------------------------------------------------------------

// Where the input `column` of a row lies in shared memory.
struct Place {
  int of_row, of_column;
  __device__ __forceinline__ int operator()(int row, int column) const { return row * of_row + column * of_column; }
};

// The residual stream, to which the parts of a branch (or null) are to be added, and the norm's parameters (or null).
struct Stream {
  const storage* x_bc;
  const float* parts_pbc;
  const float *gamma_c, *beta_c;
  storage* total_bc;
  int B, C;
  float epsilon;
};

// x = norm(total), total = stream + branch, columns from C to `padded` 0; the first block stores `total`, which must not
// be `x_bc`: others may still read that. The norm's parameters wait behind x, so that nobody waits for them in between.
template <int ROWS>
__device__ __forceinline__ void normalise(const Stream& in, storage* x, Place place, int padded) {
  constexpr int EACH = ROWS == 1 ? 2 : 1;  // columns of a thread on their way at once
  __shared__ Parts<ROWS> of_mean, of_variance;
  float* gamma = reinterpret_cast<float*>(x + ROWS * padded);
  float* beta = gamma + padded;
  float mean[ROWS] = {}, rstd[ROWS] = {};
  for (int begin = threadIdx.x; begin < padded; begin += EACH * THREADS) {
    storage old[EACH][ROWS];
    float branch[EACH][ROWS] = {}, scale[EACH], shift[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      const int c = min(begin + e * THREADS, in.C - 1);
      scale[e] = in.gamma_c != nullptr ? in.gamma_c[c] : 1.0f;
      shift[e] = in.beta_c != nullptr ? in.beta_c[c] : 0.0f;
#pragma unroll
      for (int r = 0; r < ROWS; r++) old[e][r] = in.x_bc[min(r, in.B - 1) * in.C + c];
    }
    if (in.parts_pbc != nullptr) {
#pragma unroll
      for (int e = 0; e < EACH; e++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
          const float* part = in.parts_pbc + min(r, in.B - 1) * in.C + min(begin + e * THREADS, in.C - 1);
#pragma unroll
          for (int p = 0; p < PARTS; p++) branch[e][r] += part[p * in.B * in.C];
        }
    }
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      const int c = begin + e * THREADS;
      if (c >= padded) break;
      gamma[c] = scale[e], beta[c] = shift[e];
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        const bool real = r < in.B && c < in.C;
        const float sum = to_float(old[e][r]) + to_float(to_storage(branch[e][r]));
        const storage total = to_storage(real ? sum : 0.0f);
        if (real && blockIdx.x == 0) in.total_bc[r * in.C + c] = total;
        x[place(r, c)] = total;
        mean[r] += to_float(total);
      }
    }
  }
  block_sums(mean, of_mean);
#pragma unroll
  for (int r = 0; r < ROWS; r++) mean[r] /= in.C;
  for (int c = threadIdx.x; c < in.C; c += THREADS) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const float d = to_float(x[place(r, c)]) - mean[r];
      rstd[r] = fmaf(d, d, rstd[r]);
    }
  }
  block_sums(rstd, of_variance);
#pragma unroll
  for (int r = 0; r < ROWS; r++) rstd[r] = rsqrtf(rstd[r] / in.C + in.epsilon);
  for (int c = threadIdx.x; c < in.C; c += THREADS) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      storage& one = x[place(r, c)];
      one = to_operand(fmaf((to_float(one) - mean[r]) * rstd[r], gamma[c], beta[c]));
    }
  }
  __syncthreads();
}

// -- products with w_ko ----------------------------------------------------------------------------------------------

// A block's columns of K rows of a matrix: a thread has WIDE columns of every SLOTS-th row.
template <int ROWS>
struct Columns {
  static constexpr int AHEAD = ROWS == 1 ? 8 : 4;  // chunks of a thread on their way
  const storage* from;
  int64 stride;
  int K, count;
  bool wide;
  uint4 w[AHEAD];

  __device__ __forceinline__ Columns(const storage* w_ko, int K, int O) : stride(O), K(K) {
    const int first = blockIdx.x * COLUMNS + threadIdx.x % CHUNKS * WIDE;
    from = w_ko + first, count = min(WIDE, O - first), wide = O % WIDE == 0 && aligned(w_ko);
#pragma unroll
    for (int i = 0; i < AHEAD; i++) fetch(i, threadIdx.x / CHUNKS + i * SLOTS);
  }

  __device__ __forceinline__ void fetch(int i, int k) {
    if (k < K) w[i] = read_chunk(from + k * stride, count, wide);
  }

  // sum += x w over this thread's rows of the matrix, x[K][ROWS].
  __device__ __forceinline__ void multiply(float (&sum)[ROWS][WIDE], const storage* x) {
    for (int begin = threadIdx.x / CHUNKS; begin < K; begin += AHEAD * SLOTS) {
#pragma unroll
      for (int i = 0; i < AHEAD; i++) {
        const int k = begin + i * SLOTS;
        if (k >= K) break;
        const Pack<storage, ROWS> own = load<ROWS>(x + k * ROWS);
        const Chunk weights = elements(w[i]);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
          for (int j = 0; j < WIDE; j++) sum[r][j] = fmaf(to_float(own.at[r]), to_float(weights.at[j]), sum[r][j]);
        fetch(i, k + AHEAD * SLOTS);
      }
    }
  }
};

// Adds the sums of all threads that have the same columns. Thread row x COLUMNS + column gets its element.
template <int ROWS>
__device__ __forceinline__ float block_total(float (&sum)[ROWS][WIDE]) {
  static_assert(ROWS * COLUMNS <= THREADS, "an element a thread");
  float* shares = reinterpret_cast<float*>(room);
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  __syncthreads();  // the inputs have been read
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int j = 0; j < WIDE; j++) {
#pragma unroll
      for (int offset = CHUNKS; offset < WARP; offset *= 2) sum[r][j] += __shfl_xor_sync(~0u, sum[r][j], offset);
      if (lane < CHUNKS) shares[(warp * ROWS + r) * COLUMNS + lane * WIDE + j] = sum[r][j];
    }
  __syncthreads();
  float total = 0.0f;
  if (threadIdx.x < ROWS * COLUMNS) {
#pragma unroll
    for (int w = 0; w < WARPS; w++) total += shares[w * ROWS * COLUMNS + threadIdx.x];
  }
  return total;
}

template <int ROWS>
__device__ __forceinline__ void norm_product(const Stream& in, const storage* w_co, storage* y_bo, int O, int gelu) {
  storage* x = reinterpret_cast<storage*>(room);
  Columns<ROWS> matrix(w_co, in.C, O);
  normalise<ROWS>(in, x, {1, ROWS}, (in.C + WIDE - 1) / WIDE * WIDE);
  float sum[ROWS][WIDE] = {};
  matrix.multiply(sum, x);
  const float total = block_total<ROWS>(sum);
  const int row = threadIdx.x / COLUMNS, column = blockIdx.x * COLUMNS + threadIdx.x % COLUMNS;
  if (row >= min(ROWS, in.B) || column >= O) return;
  const float u = to_float(to_storage(total));
  y_bo[(int64)row * O + column] = gelu ? to_operand(u * gate(u)) : to_storage(u);
}

template <int ROWS>
__device__ __forceinline__ void product_part(const storage* x_bk, const storage* w_ko, float* parts_pbo, int B, int K,
                                             int O) {
  storage* x = reinterpret_cast<storage*>(room);
  const int length = (K + PARTS - 1) / PARTS, begin = min(K, (int)blockIdx.y * length), mine = min(length, K - begin);
  Columns<ROWS> matrix(w_ko + (int64)begin * O, mine, O);
  for (int k = threadIdx.x; k < mine; k += THREADS) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) x[k * ROWS + r] = r < B ? x_bk[(int64)r * K + begin + k] : to_storage(0.0f);
  }
  __syncthreads();
  float sum[ROWS][WIDE] = {};
  matrix.multiply(sum, x);
  const float total = block_total<ROWS>(sum);
  const int row = threadIdx.x / COLUMNS, column = blockIdx.x * COLUMNS + threadIdx.x % COLUMNS;
  if (row < min(ROWS, B) && column < O) parts_pbo[((int64)blockIdx.y * B + row) * O + column] = total;
}

// y = norm(stream + branch) w, with `gelu` its GELU. Grid ceil(O / COLUMNS).
extern "C" __global__ void __launch_bounds__(THREADS, 2)
k_norm_matvec(const storage* __restrict__ x_bc, const float* __restrict__ parts_pbc, const float* __restrict__ gamma_c,
              const float* __restrict__ beta_c, storage* __restrict__ total_bc, const storage* __restrict__ w_co,
              storage* __restrict__ y_bo, int B, int C, int O, float epsilon, int gelu) {
  norm_product<1>({x_bc, parts_pbc, gamma_c, beta_c, total_bc, B, C, epsilon}, w_co, y_bo, O, gelu);
}

extern "C" __global__ void __launch_bounds__(THREADS)
k_norm_matvec_rows(const storage* __restrict__ x_bc, const float* __restrict__ parts_pbc,
                   const float* __restrict__ gamma_c, const float* __restrict__ beta_c, storage* __restrict__ total_bc,
                   const storage* __restrict__ w_co, storage* __restrict__ y_bo, int B, int C, int O, float epsilon,
                   int gelu) {
  norm_product<MANY>({x_bc, parts_pbc, gamma_c, beta_c, total_bc, B, C, epsilon}, w_co, y_bo, O, gelu);
}

// parts[p] = the p-th quarter of x times that of w, float32. Grid (ceil(O / COLUMNS), PARTS).
extern "C" __global__ void __launch_bounds__(THREADS, 2)
k_matvec_parts(const storage* __restrict__ x_bk, const storage* __restrict__ w_ko, float* __restrict__ parts_pbo, int B,
               int K, int O) {
  product_part<1>(x_bk, w_ko, parts_pbo, B, K, O);
}

extern "C" __global__ void __launch_bounds__(THREADS)
k_matvec_parts_rows(const storage* __restrict__ x_bk, const storage* __restrict__ w_ko, float* __restrict__ parts_pbo,
                    int B, int K, int O) {
  product_part<MANY>(x_bk, w_ko, parts_pbo, B, K, O);
}

// -- the head --------------------------------------------------------------------------------------------------------

template <int ROWS>
__device__ __forceinline__ void norm_head(const Stream& in, const storage* w_oc, storage* y_bo, int O) {
  constexpr int AHEAD = ROWS == 1 ? 2 : 1;  // chunks of an output on their way
  constexpr int STEP = WARP * WIDE;
  storage* x = reinterpret_cast<storage*>(room);
  const int C = in.C, padded = (C + WIDE - 1) / WIDE * WIDE, lane = threadIdx.x % WARP;
  const int first = (blockIdx.x * WARPS + threadIdx.x / WARP) * OF_WARP;
  const bool wide = C % WIDE == 0 && aligned(w_oc);
  uint4 w[AHEAD][OF_WARP];
  auto fetch = [&](uint4(&into)[OF_WARP], int c) {
#pragma unroll
    for (int o = 0; o < OF_WARP; o++)
      if (c < C) into[o] = read_chunk(w_oc + (int64)(first + o) * C + c, first + o < O ? C - c : 0, wide);
  };
#pragma unroll
  for (int i = 0; i < AHEAD; i++) fetch(w[i], lane * WIDE + i * STEP);
  normalise<ROWS>(in, x, {padded, 1}, padded);
  float sum[ROWS][OF_WARP] = {};
  for (int begin = lane * WIDE; begin < C; begin += AHEAD * STEP) {
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      const int c = begin + i * STEP;
      if (c >= C) break;
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        const Chunk own = load<WIDE>(x + r * padded + c);
#pragma unroll
        for (int o = 0; o < OF_WARP; o++)
#pragma unroll
          for (int j = 0; j < WIDE; j++) sum[r][o] = fmaf(to_float(own.at[j]), to_float(elements(w[i][o]).at[j]), sum[r][o]);
      }
      fetch(w[i], c + AHEAD * STEP);
    }
  }
  static_assert(ROWS * OF_WARP <= WARP, "an element a lane");
  float mine = 0.0f;
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int o = 0; o < OF_WARP; o++) {
      const float total = warp_sum(sum[r][o]);
      if (lane == r * OF_WARP + o) mine = total;
    }
  const int row = lane / OF_WARP, output = first + lane % OF_WARP;
  if (row < min(ROWS, in.B) && output < O) y_bo[(int64)row * O + output] = to_storage(mine);
}

// y = norm(stream + branch) w', w_oc. Grid ceil(O / (WARPS OF_WARP)).
extern "C" __global__ void __launch_bounds__(THREADS, 2)
k_norm_matvec_head(const storage* __restrict__ x_bc, const float* __restrict__ parts_pbc,
                   const float* __restrict__ gamma_c, const float* __restrict__ beta_c, storage* __restrict__ total_bc,
                   const storage* __restrict__ w_oc, storage* __restrict__ y_bo, int B, int C, int O, float epsilon) {
  norm_head<1>({x_bc, parts_pbc, gamma_c, beta_c, total_bc, B, C, epsilon}, w_oc, y_bo, O);
}

extern "C" __global__ void __launch_bounds__(THREADS)
k_norm_matvec_head_rows(const storage* __restrict__ x_bc, const float* __restrict__ parts_pbc,
                        const float* __restrict__ gamma_c, const float* __restrict__ beta_c,
                        storage* __restrict__ total_bc, const storage* __restrict__ w_oc, storage* __restrict__ y_bo,
                        int B, int C, int O, float epsilon) {
  norm_head<MANY>({x_bc, parts_pbc, gamma_c, beta_c, total_bc, B, C, epsilon}, w_oc, y_bo, O);
}
