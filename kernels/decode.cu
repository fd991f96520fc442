// The lookup of one more token of every row, each at a position of its own.
#include "types.cuh"

constexpr int THREADS = 128;

// x[row] = embed[ids[row]] + position[positions[row]]; a row whose position is -1 takes no part. Grid rows.
extern "C" __global__ void __launch_bounds__(THREADS)
k_decode_embed(const int32* __restrict__ ids_b, const int32* __restrict__ positions_b,
               const storage* __restrict__ embed_vc, const storage* __restrict__ position_tc,
               storage* __restrict__ x_bc, int32 C) {
  int row = blockIdx.x, at = positions_b[row];
  if (at < 0) return;
  const storage* token = embed_vc + (int64)ids_b[row] * C;
  const storage* place = position_tc + (int64)at * C;
  for (int c = threadIdx.x; c < C; c += THREADS) {
    x_bc[(int64)row * C + c] = to_storage(to_float(token[c]) + to_float(place[c]));
  }
}
