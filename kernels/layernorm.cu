// Layer norm over the last axis, alone or after adding a branch to the residual stream, and its gradient.
//
// N rows of C elements. A thread owns WIDE neighbouring columns of NORM_ROWS rows at a time, so a block of ceil(C / WIDE)
// threads, rounded up to whole warps, reads every element once, sixteen bytes at a time: the forward into registers, the
// backward, which walks many rows, through shared memory, with the next rows on their way. Widths that are not a multiple
// of WIDE, that need more than MAX_THREADS, and addresses that are not aligned take the plain path. gamma and beta are the
// float32 parameters, or null for a norm without them.
#include "reduce.cuh"
#include "vector.cuh"

constexpr int NORM_ROWS = 2;
constexpr int MAX_THREADS = 512;  // leaves a thread 128 registers
using Row = Pack<storage, WIDE>;

template <typename... Pointers>
__device__ __forceinline__ bool fits_wide(int C, Pointers... pointers) {
  return C % WIDE == 0 && C / WIDE <= blockDim.x && aligned(pointers...);
}

// Sixteen bytes a time: one float a time would keep the first-level cache busier than memory.
__device__ __forceinline__ void load_affine(float (&values)[WIDE], const float* parameter, int first, bool active,
                                            float otherwise) {
#pragma unroll
  for (int i = 0; i < WIDE; i += 4) {
    Pack<float, 4> four = {otherwise, otherwise, otherwise, otherwise};
    if (parameter != nullptr && active) four = load<4>(parameter + first + i);
#pragma unroll
    for (int j = 0; j < 4; j++) values[i + j] = four.at[j];
  }
}

// -- forward ---------------------------------------------------------------------------------------------------------

template <bool ADD>
__device__ __forceinline__ void norm_wide(const storage* x_nc, const storage* branch_nc, const float* gamma_c,
                                          const float* beta_c, storage* sum_nc, storage* y_nc, float* mean_n,
                                          float* rstd_n, int64 N, int C, float epsilon) {
  __shared__ Parts<NORM_ROWS> of_mean, of_variance;
  const int first = threadIdx.x * WIDE;
  const bool active = first < C;
  const int64 row = (int64)blockIdx.x * NORM_ROWS;
  Row x[NORM_ROWS], branch[NORM_ROWS];
#pragma unroll
  for (int r = 0; r < NORM_ROWS; r++) {
    if (!active || row + r >= N) continue;
    x[r] = load<WIDE>(x_nc + (row + r) * C + first);
    if (ADD) branch[r] = load<WIDE>(branch_nc + (row + r) * C + first);
  }
  float total[NORM_ROWS] = {};
#pragma unroll
  for (int r = 0; r < NORM_ROWS; r++) {
    if (!active || row + r >= N) continue;
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
      if (ADD) x[r].at[i] = to_storage(to_float(x[r].at[i]) + to_float(branch[r].at[i]));
      total[r] += to_float(x[r].at[i]);
    }
    if (ADD) store(sum_nc + (row + r) * C + first, x[r]);
  }
  block_sums(total, of_mean);
  float square[NORM_ROWS] = {};
#pragma unroll
  for (int r = 0; r < NORM_ROWS; r++) {
    total[r] /= C;  // from here on the mean
    if (!active || row + r >= N) continue;
    keep_packed(x[r]);
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
      const float d = to_float(x[r].at[i]) - total[r];
      square[r] += d * d;
    }
  }
  block_sums(square, of_variance);
  float gamma[WIDE], beta[WIDE];
  load_affine(gamma, gamma_c, first, active, 1.0f);
  load_affine(beta, beta_c, first, active, 0.0f);
#pragma unroll
  for (int r = 0; r < NORM_ROWS; r++) {
    if (row + r >= N) continue;
    const float rstd = rsqrtf(square[r] / C + epsilon);
    if (threadIdx.x == 0) {
      mean_n[row + r] = total[r];
      rstd_n[row + r] = rstd;
    }
    if (!active) continue;
    keep_packed(x[r]);
#pragma unroll
    for (int i = 0; i < WIDE; i++)
      x[r].at[i] = to_operand((to_float(x[r].at[i]) - total[r]) * rstd * gamma[i] + beta[i]);
    store(y_nc + (row + r) * C + first, x[r]);
  }
}

// One row after the other, one element at a time: any width, any alignment.
template <bool ADD>
__device__ __forceinline__ void norm_plain(const storage* x_nc, const storage* branch_nc, const float* gamma_c,
                                        const float* beta_c, storage* sum_nc, storage* y_nc, float* mean_n,
                                        float* rstd_n, int64 N, int C, float epsilon) {
  __shared__ Parts<1> parts[2];
  const int64 last = min(N, ((int64)blockIdx.x + 1) * NORM_ROWS);
  for (int64 row = (int64)blockIdx.x * NORM_ROWS; row < last; row++) {
    const storage* x = (ADD ? sum_nc : x_nc) + row * C;
    float total[1] = {}, square[1] = {};
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
      if (ADD) sum_nc[row * C + c] = to_storage(to_float(x_nc[row * C + c]) + to_float(branch_nc[row * C + c]));
      total[0] += to_float(x[c]);
    }
    block_sums(total, parts[0]);
    const float mean = total[0] / C;
    for (int c = threadIdx.x; c < C; c += blockDim.x) square[0] += (to_float(x[c]) - mean) * (to_float(x[c]) - mean);
    block_sums(square, parts[1]);
    const float rstd = rsqrtf(square[0] / C + epsilon);
    if (threadIdx.x == 0) {
      mean_n[row] = mean;
      rstd_n[row] = rstd;
    }
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
      const float gamma = gamma_c != nullptr ? gamma_c[c] : 1.0f, beta = beta_c != nullptr ? beta_c[c] : 0.0f;
      y_nc[row * C + c] = to_operand((to_float(x[c]) - mean) * rstd * gamma + beta);
    }
    __syncthreads();
  }
}

// y = (x - mean) rstd gamma + beta. Grid ceil(N / NORM_ROWS).
extern "C" __global__ void __launch_bounds__(MAX_THREADS, 2)
k_layernorm_fwd(const storage* x_nc, const float* gamma_c, const float* beta_c, storage* y_nc, float* mean_n,
                float* rstd_n, int64 N, int C, float epsilon) {
  if (fits_wide(C, x_nc, y_nc, gamma_c, beta_c))
    norm_wide<false>(x_nc, nullptr, gamma_c, beta_c, nullptr, y_nc, mean_n, rstd_n, N, C, epsilon);
  else
    norm_plain<false>(x_nc, nullptr, gamma_c, beta_c, nullptr, y_nc, mean_n, rstd_n, N, C, epsilon);
}

// sum = x + branch, then y = norm(sum), of the sum as it was stored. `sum` may be `x`. Grid ceil(N / NORM_ROWS).
extern "C" __global__ void __launch_bounds__(MAX_THREADS, 2)
k_residual_layernorm_fwd(const storage* x_nc, const storage* branch_nc, const float* gamma_c, const float* beta_c,
                         storage* sum_nc, storage* y_nc, float* mean_n, float* rstd_n, int64 N, int C, float epsilon) {
  if (fits_wide(C, x_nc, branch_nc, sum_nc, y_nc, gamma_c, beta_c))
    norm_wide<true>(x_nc, branch_nc, gamma_c, beta_c, sum_nc, y_nc, mean_n, rstd_n, N, C, epsilon);
  else
    norm_plain<true>(x_nc, branch_nc, gamma_c, beta_c, sum_nc, y_nc, mean_n, rstd_n, N, C, epsilon);
}

// -- backward --------------------------------------------------------------------------------------------------------

// Rows on their way from memory: a ring of `stages` steps in shared memory, each NORM_ROWS rows of dy, x and dskip. A
// thread copies and reads its own sixteen bytes only, so the copies need no barrier, and no register waits for memory.
struct Ring {
  Row* room;
  int stages;

  __device__ __forceinline__ Row& at(int stage, int tensor, int row) const {
    return room[((stage * 3 + tensor) * NORM_ROWS + row) * blockDim.x + threadIdx.x];
  }

  __device__ __forceinline__ void fetch(int stage, int tensor, int row, const storage* source) const {
    copy_wide(&at(stage, tensor, row), source);
  }
};

__device__ __forceinline__ void fetch_rows(const Ring& ring, int stage, const storage* dy_nc, const storage* x_nc,
                                           const storage* dskip_nc, int64 row, int64 end, int C, int first) {
#pragma unroll
  for (int r = 0; r < NORM_ROWS; r++) {
    if (first >= C || row + r >= end) continue;
    const int64 offset = (row + r) * C + first;
    ring.fetch(stage, 0, r, dy_nc + offset);
    ring.fetch(stage, 1, r, x_nc + offset);
    if (dskip_nc != nullptr) ring.fetch(stage, 2, r, dskip_nc + offset);
  }
  close_copies();
}

__device__ __forceinline__ void norm_bwd_wide(const storage* dy_nc, const storage* x_nc, const float* mean_n,
                                              const float* rstd_n, const float* gamma_c, const storage* dskip_nc,
                                              storage* dx_nc, float* partials, int64 N, int C, int64 begin, int64 end,
                                              Ring ring) {
  __shared__ Parts<2 * NORM_ROWS> parts[2];
  const int first = threadIdx.x * WIDE;
  const bool active = first < C;
  float gamma[WIDE], dgamma[WIDE] = {}, dbeta[WIDE] = {};
  load_affine(gamma, gamma_c, first, active, 1.0f);
  for (int stage = 0; stage + 1 < ring.stages; stage++)
    fetch_rows(ring, stage, dy_nc, x_nc, dskip_nc, begin + stage * NORM_ROWS, end, C, first);
  int stage = 0, turn = 0;
  for (int64 row = begin; row < end; row += NORM_ROWS, turn ^= 1) {
    const int ahead = ring.stages - 1, next = stage == 0 ? ahead : stage - 1;
    fetch_rows(ring, next, dy_nc, x_nc, dskip_nc, row + ahead * NORM_ROWS, end, C, first);
    float mean[NORM_ROWS], rstd[NORM_ROWS];
#pragma unroll
    for (int r = 0; r < NORM_ROWS; r++) {
      mean[r] = row + r < end ? mean_n[row + r] : 0.0f;
      rstd[r] = row + r < end ? rstd_n[row + r] : 0.0f;
    }
    wait_copies(ahead);
    float sums[2 * NORM_ROWS] = {};  // of g and of g xhat, for each row
#pragma unroll
    for (int r = 0; r < NORM_ROWS; r++) {
      if (!active || row + r >= end) continue;
      const Row dy = ring.at(stage, 0, r), x = ring.at(stage, 1, r);
#pragma unroll
      for (int i = 0; i < WIDE; i++) {
        const float d = to_float(dy.at[i]), xhat = (to_float(x.at[i]) - mean[r]) * rstd[r];
        dbeta[i] += d;
        dgamma[i] += d * xhat;
        sums[2 * r] += d * gamma[i];
        sums[2 * r + 1] += d * gamma[i] * xhat;
      }
    }
    block_sums(sums, parts[turn]);
#pragma unroll
    for (int r = 0; r < NORM_ROWS; r++) {
      if (!active || row + r >= end) continue;
      const float mean_g = sums[2 * r] / C, slope = sums[2 * r + 1] / C;
      Row dy = ring.at(stage, 0, r), x = ring.at(stage, 1, r), skip = {};
      if (dskip_nc != nullptr) skip = ring.at(stage, 2, r);
      keep_packed(dy);
      keep_packed(x);
#pragma unroll
      for (int i = 0; i < WIDE; i++) {
        const float xhat = (to_float(x.at[i]) - mean[r]) * rstd[r];
        const float d = (to_float(dy.at[i]) * gamma[i] - mean_g - xhat * slope) * rstd[r];
        dy.at[i] = to_storage(d + to_float(skip.at[i]));
      }
      store(dx_nc + (row + r) * C + first, dy);
    }
    stage = stage + 1 == ring.stages ? 0 : stage + 1;
  }
  if (partials == nullptr || !active) return;
  float* mine = partials + (int64)blockIdx.x * 2 * C + first;
#pragma unroll
  for (int i = 0; i < WIDE; i++) mine[i] = dgamma[i];
#pragma unroll
  for (int i = 0; i < WIDE; i++) mine[C + i] = dbeta[i];
}

__device__ __forceinline__ void norm_bwd_plain(const storage* dy_nc, const storage* x_nc, const float* mean_n,
                                            const float* rstd_n, const float* gamma_c, const storage* dskip_nc,
                                            storage* dx_nc, float* partials, int64 N, int C, int64 begin, int64 end) {
  __shared__ Parts<2> parts;
  float* mine = partials + (int64)blockIdx.x * 2 * C;
  if (partials != nullptr)
    for (int c = threadIdx.x; c < C; c += blockDim.x) mine[c] = mine[C + c] = 0.0f;
  for (int64 row = begin; row < end; row++) {
    const float mean = mean_n[row], rstd = rstd_n[row];
    float sums[2] = {};
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
      const float d = to_float(dy_nc[row * C + c]), xhat = (to_float(x_nc[row * C + c]) - mean) * rstd;
      const float g = gamma_c != nullptr ? d * gamma_c[c] : d;
      sums[0] += g;
      sums[1] += g * xhat;
      if (partials == nullptr) continue;
      mine[c] += d * xhat;
      mine[C + c] += d;
    }
    block_sums(sums, parts);
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
      const float d = to_float(dy_nc[row * C + c]), xhat = (to_float(x_nc[row * C + c]) - mean) * rstd;
      const float g = gamma_c != nullptr ? d * gamma_c[c] : d;
      const float dx = (g - sums[0] / C - xhat * sums[1] / C) * rstd;
      dx_nc[row * C + c] = to_storage(dskip_nc != nullptr ? dx + to_float(dskip_nc[row * C + c]) : dx);
    }
    __syncthreads();
  }
}

// dx = dskip + rstd (g - mean(g) - xhat mean(g xhat)) with g = dy gamma; `dskip` null: nothing skipped. `dx` may be `dy`
// or `dskip`. Each block walks rows_per_block rows and leaves its share of dgamma and dbeta in partials [grid, 2, C]
// (null: not wanted). Dynamic shared memory: stages x 3 NORM_ROWS x 16 bytes a thread. Grid ceil(N / rows_per_block).
extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1)
k_layernorm_bwd(const storage* dy_nc, const storage* x_nc, const float* mean_n, const float* rstd_n,
                const float* gamma_c, const storage* dskip_nc, storage* dx_nc, float* partials, int64 N, int C,
                int rows_per_block, int stages) {
  extern __shared__ uint4 room[];
  const int64 begin = (int64)blockIdx.x * rows_per_block, end = min(N, begin + rows_per_block);
  if (fits_wide(C, dy_nc, x_nc, dskip_nc, dx_nc, gamma_c))
    norm_bwd_wide(dy_nc, x_nc, mean_n, rstd_n, gamma_c, dskip_nc, dx_nc, partials, N, C, begin, end,
                  Ring{reinterpret_cast<Row*>(room), stages});
  else
    norm_bwd_plain(dy_nc, x_nc, mean_n, rstd_n, gamma_c, dskip_nc, dx_nc, partials, N, C, begin, end);
}

// Adds the blocks' shares of all norms, [norms, shares, 2, C], to their dgamma and dbeta, which begin at the elements
// places [norms, 2] of the gradients. A block of (32, 32) threads sums 32 of a norm's 2 C columns: every y takes each
// 32nd share, then y = 0 adds the 32 sums in order. Grid (ceil(2 C / 32), norms).
extern "C" __global__ void __launch_bounds__(1024)
k_layernorm_bwd_final(const float* __restrict__ partials, int shares, float* gradients,
                      const int64* __restrict__ places, int C) {
  __shared__ float sums[32][33];
  const int norm = blockIdx.y;
  partials += (int64)norm * shares * 2 * C;
  const int column = blockIdx.x * 32 + threadIdx.x;
  float total = 0.0f;
  if (column < 2 * C) {
#pragma unroll 8
    for (int share = threadIdx.y; share < shares; share += 32) total += partials[(int64)share * 2 * C + column];
  }
  sums[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || column >= 2 * C) return;
  total = 0.0f;
#pragma unroll
  for (int y = 0; y < 32; y++) total += sums[y][threadIdx.x];
  const int64 place = column < C ? places[2 * norm] + column : places[2 * norm + 1] + column - C;
  gradients[place] += total;
}
