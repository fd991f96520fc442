// Layer norm over the last axis, alone or after adding a branch to the residual stream, and its gradient.
//
// N rows of C elements. A thread owns WIDE neighbouring columns of NORM_ROWS rows at a time, so ceil(C / WIDE) threads,
// rounded up to whole warps, read every element once, sixteen bytes at a time: the forward, where they are a block, into
// registers; the backward, which walks many rows, through shared memory, with the next rows on their way. Widths that are
// not a multiple of WIDE, that need more than MAX_THREADS, and addresses that are not aligned take the plain path. gamma
// and beta are the float32 parameters, or null for a norm without them.
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

// Memory is the limit only while instructions are few: what does not depend on the column is worked out once a row, and
// nothing is divided. Several groups of threads share a block, which leaves one share of dgamma and dbeta.

// Threads that have rows to themselves, in whole warps: the groups of a block wait for their own warps only.
struct Group {
  int threads, count, index, thread;

  __device__ __forceinline__ explicit Group(int threads)
      : threads(threads), count(blockDim.x / threads), index(threadIdx.x / threads), thread(threadIdx.x % threads) {}

  // Barrier 0 is the block's.
  __device__ __forceinline__ void wait() const {
    asm volatile("bar.sync %0, %1;" ::"r"(index + 1), "r"(threads) : "memory");
  }
};

constexpr int BACKWARD_BOUND = 768;  // more than a block has: leaves a thread 80 registers, so that 24 warps fit
using Four = Pack<float, 4>;

// Replaces each x[i] by its sum over the group. Lanes hand over half of what they hold at each of the first two
// distances, so four sums take 18 instructions instead of 40. A second use of the same room needs a barrier in between.
__device__ __forceinline__ void group_sums(float (&x)[4], Four* of_warp, const Group& group) {
  const int lane = threadIdx.x % WARP;
  const bool second_half = (lane & 16) != 0, odd = (lane & 8) != 0;
  float two[2];
#pragma unroll
  for (int i = 0; i < 2; i++)
    two[i] = (second_half ? x[2 + i] : x[i]) + __shfl_xor_sync(~0u, second_half ? x[i] : x[2 + i], 16);
  float one = (odd ? two[1] : two[0]) + __shfl_xor_sync(~0u, odd ? two[0] : two[1], 8);
#pragma unroll
  for (int offset = 4; offset > 0; offset /= 2) one += __shfl_xor_sync(~0u, one, offset);
  if (lane % 8 == 0) of_warp[threadIdx.x / WARP].at[lane / 8] = one;
  group.wait();
  of_warp += group.index * (group.threads / WARP);
  Four total = of_warp[0];
#pragma unroll 2
  for (int w = 1; w < group.threads / WARP; w++) {
    const Four part = of_warp[w];
#pragma unroll
    for (int i = 0; i < 4; i++) total.at[i] += part.at[i];
  }
#pragma unroll
  for (int i = 0; i < 4; i++) x[i] = total.at[i];
}

// Rows on their way from memory: one or two steps in shared memory, each NORM_ROWS rows of dy, x and dskip, a warp's
// own behind each other. A thread copies and reads its own sixteen bytes only, so the copies need no barrier, and no
// register waits for memory.
constexpr int STEP_PACKS = 3 * NORM_ROWS;  // of a thread

__device__ __forceinline__ Row& in_step(Row* step, int tensor, int row) {
  return step[(tensor * NORM_ROWS + row) * WARP];
}

// Rows and columns that do not exist are zeros, which add nothing to any sum.
__device__ __forceinline__ void fetch_rows(Row* step, const storage* dy_nc, const storage* x_nc,
                                           const storage* dskip_nc, int64 place, int C, bool first_there,
                                           bool second_there) {
#pragma unroll
  for (int r = 0; r < NORM_ROWS; r++, place += C) {
    if (r == 0 ? first_there : second_there) {
      copy_wide(&in_step(step, 0, r), dy_nc + place);
      copy_wide(&in_step(step, 1, r), x_nc + place);
      if (dskip_nc != nullptr) copy_wide(&in_step(step, 2, r), dskip_nc + place);
    } else {
      in_step(step, 0, r) = in_step(step, 1, r) = Row{};
    }
  }
  close_copies();
}

// Adds what the other groups of the block hold to what the first holds, group after group, and stores it. The room is
// apart from the rows': groups that are done leave their shares while others still read rows.
__device__ __forceinline__ void store_shares(float (&shares)[2][WIDE], float* partials, Four* room, const Group& group,
                                             int C) {
  constexpr int FOURS = WIDE / 4;
  const int others = blockDim.x - group.threads;
#pragma unroll
  for (int k = 0; k < 2 * FOURS; k++) {
    if (group.index > 0) room[k * others + threadIdx.x - group.threads] = load<4>(&shares[k / FOURS][k % FOURS * 4]);
  }
  __syncthreads();
  const int first = group.thread * WIDE;
  if (group.index > 0 || first >= C) return;
#pragma unroll
  for (int k = 0; k < 2 * FOURS; k++) {
    Four total = load<4>(&shares[k / FOURS][k % FOURS * 4]);
    for (int other = 0; other < others; other += group.threads) {
      const Four part = room[k * others + other + group.thread];
#pragma unroll
      for (int i = 0; i < 4; i++) total.at[i] += part.at[i];
    }
    store(partials + ((int64)blockIdx.x * 2 + k / FOURS) * C + first + k % FOURS * 4, total);
  }
}

// xhat = x rstd - mean rstd.
struct Statistics {
  float mean[NORM_ROWS], rstd[NORM_ROWS];
};

__device__ __forceinline__ Statistics read_statistics(const float* mean, const float* rstd, bool first_there,
                                                      bool second_there) {
  Statistics read = {};
#pragma unroll
  for (int r = 0; r < NORM_ROWS; r++) {
    if (r == 0 ? first_there : second_there) read.mean[r] = mean[r], read.rstd[r] = rstd[r];
  }
  return read;
}

// Adds a row's columns to the shares, and to its sums of g and of g xhat.
__device__ __forceinline__ void add_row(const Row& dy, const Row& x, const float (&gamma)[WIDE], float rstd,
                                        float shift, float (&shares)[2][WIDE], float& sum_g, float& sum_g_xhat) {
  const Floats d = to_floats(dy), given = to_floats(x);
#pragma unroll
  for (int i = 0; i < WIDE; i++) {
    const float xhat = fmaf(given.at[i], rstd, shift), g = d.at[i] * gamma[i];
    shares[0][i] = fmaf(d.at[i], xhat, shares[0][i]);
    shares[1][i] += d.at[i];
    sum_g += g;
    sum_g_xhat = fmaf(g, xhat, sum_g_xhat);
  }
}

// dskip + rstd (g - mean_g - xhat slope), as dskip + rstd g + along x + level.
__device__ __forceinline__ Row row_gradient(const Row& dy, const Row& x, const Row& dskip, const float (&gamma)[WIDE],
                                            float rstd, float shift, float mean_g, float slope) {
  const float along = -slope * rstd * rstd, level = -fmaf(slope, shift, mean_g) * rstd;
  const Floats d = to_floats(dy), given = to_floats(x), skipped = to_floats(dskip);
  Row dx;
#pragma unroll
  for (int i = 0; i < WIDE; i++) {
    const float rest = fmaf(given.at[i], along, level + skipped.at[i]);
    dx.at[i] = to_storage(fmaf(d.at[i] * gamma[i], rstd, rest));
  }
  return dx;
}

// Steps of `turn` rows from `begin` on, before N.
__device__ __forceinline__ int steps_from(int64 begin, int64 turn, int64 N) {
  return begin < N ? (int)((N - begin + turn - 1) / turn) : 0;
}

// Rows go to the groups in turns, so that all of them read and write close to each other.
__device__ __forceinline__ void norm_bwd_wide(const storage* dy_nc, const storage* x_nc, const float* mean_n,
                                              const float* rstd_n, const float* gamma_c, const storage* dskip_nc,
                                              storage* dx_nc, float* partials, int64 N, int C, int threads, Row* room,
                                              int stages) {
  static_assert(NORM_ROWS == 2, "group_sums takes two sums of two rows");
  __shared__ Four parts[2][MAX_THREADS / WARP];
  const Group group(threads);
  const int first = group.thread * WIDE, ahead = stages - 1;
  const int64 begin = ((int64)group.index * gridDim.x + blockIdx.x) * NORM_ROWS;
  const int64 turn = (int64)group.count * gridDim.x * NORM_ROWS;
  const int steps = steps_from(begin, turn, N);
  int there[NORM_ROWS];  // steps in which this thread has something of the row
#pragma unroll
  for (int r = 0; r < NORM_ROWS; r++) there[r] = first < C ? steps_from(begin + r, turn, N) : 0;
  Row* now = room + threadIdx.x / WARP * WARP * STEP_PACKS + threadIdx.x % WARP;
  Row* next = now + ahead * (int)blockDim.x * STEP_PACKS;
  const float of_one = 1.0f / C;
  float gamma[WIDE], shares[2][WIDE] = {};  // of dgamma and dbeta
  load_affine(gamma, gamma_c, first, first < C, 1.0f);
  int64 place = begin * C + first;
  int64 row = begin;
  if (ahead > 0) fetch_rows(now, dy_nc, x_nc, dskip_nc, place, C, 0 < there[0], 0 < there[1]);
  Statistics soon = read_statistics(mean_n + row, rstd_n + row, 0 < there[0], 0 < there[1]);
  for (int step = 0; step < steps; step++, place += turn * C) {
    fetch_rows(next, dy_nc, x_nc, dskip_nc, place + ahead * turn * C, C, step + ahead < there[0],
               step + ahead < there[1]);
    row += turn;
    const Statistics of = soon;
    soon = read_statistics(mean_n + row, rstd_n + row, step + 1 < there[0], step + 1 < there[1]);
    wait_copies(ahead > 0 ? 1 : 0);
    float shift[NORM_ROWS], sums[2 * NORM_ROWS] = {};
#pragma unroll
    for (int r = 0; r < NORM_ROWS; r++) {
      shift[r] = -of.mean[r] * of.rstd[r];
      add_row(in_step(now, 0, r), in_step(now, 1, r), gamma, of.rstd[r], shift[r], shares, sums[2 * r],
              sums[2 * r + 1]);
    }
    group_sums(sums, parts[step % 2], group);
#pragma unroll
    for (int r = 0; r < NORM_ROWS; r++) {
      if (step >= there[r]) continue;
      const Row dskip = dskip_nc != nullptr ? in_step(now, 2, r) : Row{};
      const Row dx = row_gradient(in_step(now, 0, r), in_step(now, 1, r), dskip, gamma, of.rstd[r], shift[r],
                                  sums[2 * r] * of_one, sums[2 * r + 1] * of_one);
      store(dx_nc + place + r * C, dx);
    }
    Row* const read = now;
    now = next;
    next = read;
  }
  Row* const behind = room + stages * (int)blockDim.x * STEP_PACKS;
  if (partials != nullptr) store_shares(shares, partials, reinterpret_cast<Four*>(behind), group, C);
}

__device__ __forceinline__ void norm_bwd_plain(const storage* dy_nc, const storage* x_nc, const float* mean_n,
                                            const float* rstd_n, const float* gamma_c, const storage* dskip_nc,
                                            storage* dx_nc, float* partials, int64 N, int C) {
  __shared__ Parts<2> parts;
  float* mine = partials + (int64)blockIdx.x * 2 * C;
  if (partials != nullptr)
    for (int c = threadIdx.x; c < C; c += blockDim.x) mine[c] = mine[C + c] = 0.0f;
  for (int64 row = blockIdx.x; row < N; row += gridDim.x) {
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
// or `dskip`. Blocks take rows in turns, each leaves its share of dgamma and dbeta in partials [grid, 2, C] (null: not
// wanted). A row takes `threads` of a block: ceil(C / WIDE) in whole warps. Dynamic shared memory: stages (1 or 2) x 3
// NORM_ROWS x 16 bytes a thread, and 8 WIDE bytes a thread behind the first row's. Any grid.
extern "C" __global__ void __launch_bounds__(BACKWARD_BOUND)
k_layernorm_bwd(const storage* dy_nc, const storage* x_nc, const float* mean_n, const float* rstd_n,
                const float* gamma_c, const storage* dskip_nc, storage* dx_nc, float* partials, int64 N, int C,
                int threads, int stages) {
  extern __shared__ uint4 room[];
  if (fits_wide(C, dy_nc, x_nc, dskip_nc, dx_nc, gamma_c, partials))
    norm_bwd_wide(dy_nc, x_nc, mean_n, rstd_n, gamma_c, dskip_nc, dx_nc, partials, N, C, threads,
                  reinterpret_cast<Row*>(room), stages);
  else
    norm_bwd_plain(dy_nc, x_nc, mean_n, rstd_n, gamma_c, dskip_nc, dx_nc, partials, N, C);
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
