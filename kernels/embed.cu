// Token and position lookup, and its gradient without atomics.
//
// N = B T positions, row b T + t. The gradient of a token is the sum over the positions where it stands, in their order:
// `order` lists the positions sorted by token (a stable sort, made on the host with the batch). Blocks take EMBED_CHUNK
// sorted positions each. A token whose positions all lie in one chunk is added there; one that crosses a border leaves a
// partial sum on either side, and a second kernel adds those in the order of the chunks.
#include "vector.cuh"

constexpr int EMBED_CHUNK = 64;
constexpr int EMBED_THREADS = 128;
constexpr int LOADS = 8;

// -- forward ---------------------------------------------------------------------------------------------------------

template <int W>
__device__ __forceinline__ void embed_row(const storage* token, const storage* position, storage* x, int C) {
#pragma unroll 4
  for (int c = threadIdx.x * W; c < C; c += 32 * W) {
    Pack<storage, W> a = load<W>(token + c);
    const Pack<storage, W> b = load<W>(position + c);
#pragma unroll
    for (int i = 0; i < W; i++) a.at[i] = to_storage(to_float(a.at[i]) + to_float(b.at[i]));
    store(x + c, a);
  }
}

// x = embed[id] + position[t]. Threads (32, 8): a warp takes a row. Grid ceil(N / 8).
extern "C" __global__ void __launch_bounds__(256, 6)
k_embed_fwd(const int* __restrict__ ids_n, const storage* __restrict__ embed_vc, const storage* __restrict__ position_tc,
            storage* __restrict__ x_nc, int64 N, int T, int C) {
  const int64 row = (int64)blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= N) return;
  const storage* token = embed_vc + (int64)ids_n[row] * C;
  const storage* position = position_tc + row % T * C;
  if (C % WIDE == 0 && aligned(embed_vc, position_tc, x_nc))
    embed_row<WIDE>(token, position, x_nc + row * C, C);
  else
    embed_row<1>(token, position, x_nc + row * C, C);
}

// -- gradient of the tokens ------------------------------------------------------------------------------------------

template <int W>
__device__ __forceinline__ void add_to(float* target, const float (&values)[W]) {
  constexpr int STEP = W < 4 ? W : 4;
#pragma unroll
  for (int i = 0; i < W; i += STEP) {
    Pack<float, STEP> sum = load<STEP>(target + i);
#pragma unroll
    for (int j = 0; j < STEP; j++) sum.at[j] += values[i + j];
    store(target + i, sum);
  }
}

template <int W>
__device__ __forceinline__ void put(float* target, float (&values)[W]) {
#pragma unroll
  for (int i = 0; i < W; i++) target[i] = values[i];
}

// Columns [c, c + W) of one chunk: runs of equal tokens are summed in order and handed on when they end.
template <int W>
__device__ __forceinline__ void embed_chunk(const storage* dx_nc, const int* rows, const int* tokens, int size,
                                            bool continued, bool continues, float* dembed_vc, float* partials_k2c,
                                            int C, int c) {
  float* partial = partials_k2c + (int64)blockIdx.x * 2 * C + c;
  float sum[W] = {};
  bool head = continued;  // the run began in an earlier chunk
  for (int base = 0; base < size; base += LOADS) {
    Pack<storage, W> dx[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++)
      if (base + i < size) dx[i] = load<W>(dx_nc + (int64)rows[base + i] * C + c);
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      const int at = base + i;
      if (at >= size) break;
#pragma unroll
      for (int j = 0; j < W; j++) sum[j] += to_float(dx[i].at[j]);
      const bool last = at + 1 == size;
      if (!last && tokens[at] == tokens[at + 1]) continue;
      if (head)
        put(partial, sum);  // slot 0: a run that came from the left, whether or not it goes on
      else if (last && continues)
        put(partial + C, sum);  // slot 1: a run that begins here and goes on
      else
        add_to(dembed_vc + (int64)tokens[at] * C + c, sum);
      head = false;
#pragma unroll
      for (int j = 0; j < W; j++) sum[j] = 0.0f;
    }
  }
}

// dembed[token] += sums of the runs inside a chunk; sums of the others go to partials [grid, 2, C].
// Grid ceil(N / EMBED_CHUNK).
extern "C" __global__ void __launch_bounds__(EMBED_THREADS)
k_embed_bwd(const storage* __restrict__ dx_nc, const int* __restrict__ ids_n, const int* __restrict__ order_n,
            float* dembed_vc, float* partials_k2c, int64 N, int C) {
  __shared__ int rows[EMBED_CHUNK], tokens[EMBED_CHUNK];
  const int64 begin = (int64)blockIdx.x * EMBED_CHUNK;
  const int size = (int)min((int64)EMBED_CHUNK, N - begin);
  if (threadIdx.x < size) {
    rows[threadIdx.x] = order_n[begin + threadIdx.x];
    tokens[threadIdx.x] = ids_n[rows[threadIdx.x]];
  }
  __syncthreads();
  const bool continued = begin > 0 && ids_n[order_n[begin - 1]] == tokens[0];
  const bool continues = begin + size < N && ids_n[order_n[begin + size]] == tokens[size - 1];
  if (C % WIDE == 0 && aligned(dx_nc, dembed_vc)) {
    for (int c = threadIdx.x * WIDE; c < C; c += EMBED_THREADS * WIDE)
      embed_chunk<WIDE>(dx_nc, rows, tokens, size, continued, continues, dembed_vc, partials_k2c, C, c);
  } else {
    for (int c = threadIdx.x; c < C; c += EMBED_THREADS)
      embed_chunk<1>(dx_nc, rows, tokens, size, continued, continues, dembed_vc, partials_k2c, C, c);
  }
}

// Adds the parts of every run that crosses a border of chunks; the block of the chunk where the run begins does it.
// Grid (ceil(N / EMBED_CHUNK), ceil(C / EMBED_THREADS)).
extern "C" __global__ void __launch_bounds__(EMBED_THREADS)
k_embed_bwd_borders(const float* __restrict__ partials_k2c, const int* __restrict__ ids_n,
                    const int* __restrict__ order_n, float* dembed_vc, int64 N, int C) {
  const int64 chunks = gridDim.x, border = ((int64)blockIdx.x + 1) * EMBED_CHUNK;
  if (border >= N) return;
  const int token = ids_n[order_n[border - 1]];
  if (ids_n[order_n[border]] != token) return;  // nothing crosses
  const int64 begin = border - EMBED_CHUNK;
  if (begin > 0 && ids_n[order_n[begin - 1]] == token) return;  // sorted, so this run began further left
  int64 end = blockIdx.x + 1;  // one past the last chunk that the run reaches
  while (end < chunks && ids_n[order_n[end * EMBED_CHUNK]] == token) end++;
  const int c = blockIdx.y * EMBED_THREADS + threadIdx.x;
  if (c >= C) return;
  float sum = partials_k2c[((int64)blockIdx.x * 2 + 1) * C + c];
#pragma unroll 8
  for (int64 k = blockIdx.x + 1; k < end; k++) sum += partials_k2c[k * 2 * C + c];
  dembed_vc[(int64)token * C + c] += sum;
}

// -- gradient of the positions ---------------------------------------------------------------------------------------

template <int W>
__device__ __forceinline__ void position_columns(const storage* dx_btc, float* dposition_tc, int B, int64 TC, int64 at) {
  float sum[W] = {};
  for (int base = 0; base < B; base += LOADS) {
    Pack<storage, W> dx[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++)
      if (base + i < B) dx[i] = load<W>(dx_btc + (base + i) * TC + at);
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      if (base + i >= B) break;
#pragma unroll
      for (int j = 0; j < W; j++) sum[j] += to_float(dx[i].at[j]);
    }
  }
  add_to(dposition_tc + at, sum);
}

// dposition[t] += sum of dx[b, t] over b, in order. TC = T C elements; a thread takes WIDE of them.
// Grid ceil(T C / (EMBED_THREADS WIDE)).
extern "C" __global__ void __launch_bounds__(EMBED_THREADS)
k_embed_bwd_position(const storage* __restrict__ dx_btc, float* dposition_tc, int B, int64 TC) {
  const int64 first = ((int64)blockIdx.x * EMBED_THREADS + threadIdx.x) * WIDE;
  if (TC % WIDE == 0 && aligned(dx_btc, dposition_tc)) {
    if (first < TC) position_columns<WIDE>(dx_btc, dposition_tc, B, TC, first);
    return;
  }
  for (int64 at = first; at < min(TC, first + WIDE); at++) position_columns<1>(dx_btc, dposition_tc, B, TC, at);
}
