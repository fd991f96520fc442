// Operands of matrix products in 8 bits: E4M3 (3 bits of fraction, up to 448) for activations and weights, E5M2 (2 bits,
// up to 57,344) for gradients. code = round(value x factor), to nearest even, what is too large to the largest.
//
// A tensor has one factor, a power of two, so that only the rounding to 8 bits loses anything. Weights take theirs from
// their own largest magnitude. Activations and gradients take it from the largest of the last updates, so that a tensor is
// read once: the kernel that casts it also notes its largest magnitude for the updates to come. Magnitudes are compared
// as the integers that their bits are, which has no order to depend on.
//
// Casts: n elements, a multiple of WIDE, at addresses that are multiples of 16; blocks of EACH_THREADS, grid
// ceil(n / EACH_BLOCK).
#include "elementwise.cuh"
#include "gelu.cuh"
#include "reduce.cuh"
#include "state.cuh"

#if __CUDA_ARCH__ < 890
#error "floats of 8 bits need sm_89"
#endif
static_assert(WIDE == 8, "made for storage of 16 bits");

using uint8 = unsigned char;
using Wide = Pack<storage, WIDE>;

enum Kind { E4M3, E5M2 };
constexpr int TOP_E4M3 = 8, TOP_E5M2 = 15;  // the largest value of either is 1.75 x 2^TOP

struct Scale {
  float factor;   // from a value to its code
  float inverse;  // and back, which is what the product is told
};

// The largest power of two by which `amax` may be multiplied and still be at most 1.75 x 2^top; 1 when nothing is known.
__device__ __forceinline__ Scale scale_of(uint32 amax, int top) {
  const int exponent = (int)(amax >> 23) - 127 + ((amax & 0x7fffffu) > 0x600000u);
  const int power = amax == 0 ? 0 : min(max(top - exponent, -100), 100);
  return {__uint_as_float((uint32)(127 + power) << 23), __uint_as_float((uint32)(127 - power) << 23)};
}

template <Kind KIND>
__device__ __forceinline__ uint32 two_codes(float low, float high) {
  unsigned short codes;
  if (KIND == E4M3)
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  else
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}

template <Kind KIND>
__device__ __forceinline__ uint2 codes_of(const Wide& x, float factor) {
  uint32 two[4];
#pragma unroll
  for (int i = 0; i < 4; i++)
    two[i] = two_codes<KIND>(to_float(x.at[2 * i]) * factor, to_float(x.at[2 * i + 1]) * factor);
  return {two[0] | two[1] << 16, two[2] | two[3] << 16};
}

__device__ __forceinline__ uint32 raised(uint32 top, const Wide& x) {
#pragma unroll
  for (int i = 0; i < WIDE; i++) top = max(top, __float_as_uint(fabsf(to_float(x.at[i]))));
  return top;
}

// Raises the tensor's largest magnitude to that of the block.
__device__ __forceinline__ void raise(uint32* amax, uint32 top) {
  __shared__ uint32 of_warp[EACH_THREADS / WARP];
  top = __reduce_max_sync(~0u, top);
  if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = top;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int w = 1; w < EACH_THREADS / WARP; w++) top = max(top, of_warp[w]);
  atomicMax(amax, top);
}

// -- activations and gradients ---------------------------------------------------------------------------------------

// Codes of what `make(read(offset), offset)` gives; all of a thread's reads come before the first use.
template <Kind KIND, typename Read, typename Make>
__device__ __forceinline__ void each_code(uint8* codes, const Scale* scale, uint32* amax, int64 n, Read read, Make make) {
  const int64 base = blockIdx.x * EACH_BLOCK + threadIdx.x * WIDE;
  const float factor = scale->factor;
  decltype(read(base)) held[EACH_UNROLL];
#pragma unroll
  for (int u = 0; u < EACH_UNROLL; u++) {
    const int64 at = base + u * EACH_THREADS * WIDE;
    if (at < n) held[u] = read(at);
  }
  uint32 top = 0;
#pragma unroll
  for (int u = 0; u < EACH_UNROLL; u++) {
    const int64 at = base + u * EACH_THREADS * WIDE;
    if (at >= n) continue;
    const Wide x = make(held[u], at);
    top = raised(top, x);
    *reinterpret_cast<uint2*>(codes + at) = codes_of<KIND>(x, factor);
  }
  raise(amax, top);
}

template <Kind KIND>
__device__ __forceinline__ void cast(const storage* x, uint8* codes, const Scale* scale, uint32* amax, int64 n) {
  each_code<KIND>(codes, scale, amax, n, [=](int64 at) { return load<WIDE>(x + at); },
                  [](const Wide& wide, int64) { return wide; });
}

extern "C" __global__ void __launch_bounds__(EACH_THREADS)
k_fp8_e4m3(const storage* x, uint8* codes, const Scale* scale, uint32* amax, int64 n) {
  cast<E4M3>(x, codes, scale, amax, n);
}

extern "C" __global__ void __launch_bounds__(EACH_THREADS)
k_fp8_e5m2(const storage* x, uint8* codes, const Scale* scale, uint32* amax, int64 n) {
  cast<E5M2>(x, codes, scale, amax, n);
}

// k_gelu_fwd and k_fp8_e4m3 of what it stores, in one pass.
extern "C" __global__ void __launch_bounds__(EACH_THREADS)
k_fp8_gelu_fwd(const storage* __restrict__ pre, storage* __restrict__ out, uint8* __restrict__ codes,
               const Scale* scale, uint32* amax, int64 n) {
  each_code<E4M3>(codes, scale, amax, n, [=](int64 at) { return load<WIDE>(pre + at); },
                  [=](Wide x, int64 at) {
#pragma unroll
                    for (int i = 0; i < WIDE; i++) x.at[i] = to_operand(to_float(x.at[i]) * gate(to_float(x.at[i])));
                    store(out + at, x);
                    return x;
                  });
}

struct Two {
  Wide first, second;
};

// k_gelu_bwd and k_fp8_e5m2 of what it stores, in one pass; `out` may be `dact`.
extern "C" __global__ void __launch_bounds__(EACH_THREADS)
k_fp8_gelu_bwd(const storage* dact, const storage* pre, storage* out, uint8* codes, const Scale* scale, uint32* amax,
               int64 n) {
  each_code<E5M2>(codes, scale, amax, n, [=](int64 at) { return Two{load<WIDE>(dact + at), load<WIDE>(pre + at)}; },
                  [=](Two both, int64 at) {
                    Wide& d = both.first;
#pragma unroll
                    for (int i = 0; i < WIDE; i++)
                      d.at[i] = to_operand(to_float(d.at[i]) * gelu_slope(to_float(both.second.at[i])));
                    store(out + at, d);
                    return d;
                  });
}

constexpr int HISTORY = 16;  // updates that are remembered

// The scales of the next step, from the largest magnitudes of the last updates, an octave below what would just fit. With
// `record`, those of this step enter the history first, unless its update was skipped; either way they begin anew at 0.
// The first `forwards` tensors are E4M3, the others E5M2. A thread a tensor: grid ceil(tensors / 256).
extern "C" __global__ void __launch_bounds__(256)
k_fp8_scales(uint32* history, uint32* amax, Scale* scales, const TrainState* __restrict__ state, int tensors,
             int forwards, int record) {
  const int tensor = blockIdx.x * 256 + threadIdx.x;
  if (tensor >= tensors) return;
  uint32* mine = history + (int64)tensor * HISTORY;
  if (record != 0 && state->skipped == 0) mine[state->applied % HISTORY] = amax[tensor];
  amax[tensor] = 0;
  uint32 top = 0;
#pragma unroll
  for (int i = 0; i < HISTORY; i++) top = max(top, mine[i]);
  scales[tensor] = scale_of(top, (tensor < forwards ? TOP_E4M3 : TOP_E5M2) - 1);
}

// -- weights ---------------------------------------------------------------------------------------------------------

struct Matrix {
  int64 source;    // offset in the working weights, rows x columns
  int64 straight;  // offset of its codes as it is stored; -1: not wanted
  int64 turned;    // offset of the codes of its transpose; -1: not wanted
  int32 rows, columns;
};
static_assert(sizeof(Matrix) == 32, "as in Python");

// A block takes a tile of 64 x 64; a thread 8 neighbours of a row, and of the row 32 below. Rows and columns are multiples
// of 8. Grid (tiles of the largest matrix, matrices).
constexpr int TILE = 64;

struct Place {
  int row, column;  // of the tile
  int line, first;  // of the thread, inside it

  __device__ __forceinline__ explicit Place(const Matrix& matrix) {
    const int across = (matrix.columns + TILE - 1) / TILE;
    row = blockIdx.x / across * TILE;
    column = blockIdx.x % across * TILE;
    line = threadIdx.x / 8;
    first = threadIdx.x % 8 * 8;
  }
};

extern "C" __global__ void __launch_bounds__(EACH_THREADS)
k_fp8_weights_amax(const Matrix* __restrict__ matrices, const storage* __restrict__ weights, uint32* amax) {
  const Matrix matrix = matrices[blockIdx.y];
  const Place place(matrix);
  if (place.row >= matrix.rows) return;
  uint32 top = 0;
#pragma unroll
  for (int half = 0; half < TILE; half += TILE / 2) {
    const int row = place.row + half + place.line, column = place.column + place.first;
    if (row < matrix.rows && column < matrix.columns)
      top = raised(top, load<WIDE>(weights + matrix.source + (int64)row * matrix.columns + column));
  }
  raise(amax + blockIdx.y, top);
}

extern "C" __global__ void __launch_bounds__(EACH_THREADS)
k_fp8_weights(const Matrix* __restrict__ matrices, const storage* __restrict__ weights,
              const uint32* __restrict__ amax, Scale* scales, uint8* codes) {
  __shared__ alignas(8) uint8 tile[TILE][TILE + 8];
  const Matrix matrix = matrices[blockIdx.y];
  const Place place(matrix);
  if (place.row >= matrix.rows) return;
  const Scale scale = scale_of(amax[blockIdx.y], TOP_E4M3);
  if (blockIdx.x == 0 && threadIdx.x == 0) scales[blockIdx.y] = scale;
#pragma unroll
  for (int half = 0; half < TILE; half += TILE / 2) {
    const int row = place.row + half + place.line, column = place.column + place.first;
    if (row >= matrix.rows || column >= matrix.columns) continue;
    const int64 at = (int64)row * matrix.columns + column;
    const uint2 eight = codes_of<E4M3>(load<WIDE>(weights + matrix.source + at), scale.factor);
    if (matrix.straight >= 0) *reinterpret_cast<uint2*>(codes + matrix.straight + at) = eight;
    *reinterpret_cast<uint2*>(&tile[half + place.line][place.first]) = eight;
  }
  if (matrix.turned < 0) return;
  __syncthreads();
#pragma unroll
  for (int half = 0; half < TILE; half += TILE / 2) {
    const int row = place.row + place.first, column = place.column + half + place.line;
    if (row >= matrix.rows || column >= matrix.columns) continue;
    Pack<uint8, 8> eight;
#pragma unroll
    for (int i = 0; i < 8; i++) eight.at[i] = tile[place.first + i][half + place.line];
    store(codes + matrix.turned + (int64)column * matrix.rows + row, eight);
  }
}
