// Operands of matrix products in 8 bits: E4M3 (3 bits of fraction, up to 448) for activations and weights, E5M2 (2 bits,
// up to 57,344) for gradients. code = round(value x factor), to nearest even, what is too large to the largest.
//
// A tensor has one factor, a power of two, so that only the rounding to 8 bits loses anything. Weights take theirs from
// their own largest magnitude. Activations and gradients take it from the largest of the last updates, so that a tensor is
// read once: the kernel that casts it also notes its largest magnitude for the updates to come. Magnitudes are compared
// as the integers that their bits are, which has no order to depend on.
//
// Products want the numbers that they add up side by side: some want a tensor as it is stored, others its transpose. A
// block takes a tile of TILE_ROWS x TILE_COLUMNS and writes either or both; a null pointer is not wanted. Columns are a
// multiple of 8, rows too where the transpose is wanted, addresses of 16. Grid: tiles, those of a row side by side.
#include "gelu.cuh"
#include "reduce.cuh"
#include "state.cuh"
#include "vector.cuh"

#if __CUDA_ARCH__ < 890
#error "floats of 8 bits need sm_89"
#endif
static_assert(WIDE == 8, "made for storage of 16 bits");

using uint8 = unsigned char;
using Wide = Pack<storage, WIDE>;

constexpr int TILE_ROWS = 128, TILE_COLUMNS = 64;
constexpr int CAST_THREADS = 256;

enum Kind { E4M3, E5M2 };
constexpr int TOP_E4M3 = 8, TOP_E5M2 = 15;  // the largest value of either is 1.75 x 2^TOP

struct Scale {                 // cuBLASLt refuses factors that do not lie at a multiple of 16 bytes
  alignas(16) float factor;   // from a value to its code
  alignas(16) float inverse;  // and back, which is what the product is told
};
static_assert(sizeof(Scale) == 32, "as in Python");

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
  __shared__ uint32 of_warp[CAST_THREADS / WARP];
  top = __reduce_max_sync(~0u, top);
  if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = top;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int w = 1; w < CAST_THREADS / WARP; w++) top = max(top, of_warp[w]);
  atomicMax(amax, top);
}

// -- tiles -----------------------------------------------------------------------------------------------------------

// Codes of four rows and four columns, a word a row, become a word a column.
__device__ __forceinline__ void turn(uint32 (&words)[4]) {
  const uint32 a = __byte_perm(words[0], words[1], 0x5140), b = __byte_perm(words[2], words[3], 0x5140);
  const uint32 c = __byte_perm(words[0], words[1], 0x7362), d = __byte_perm(words[2], words[3], 0x7362);
  words[0] = __byte_perm(a, b, 0x5410);
  words[1] = __byte_perm(a, b, 0x7632);
  words[2] = __byte_perm(c, d, 0x5410);
  words[3] = __byte_perm(c, d, 0x7632);
}

// Writes the codes of tile `number` of what `make(read(offset), offset)` gives; returns the thread's largest magnitude.
// A thread reads all it will use first: 8 neighbours of every 32nd row. Then it turns 8 rows of 4 columns.
template <Kind KIND, typename Read, typename Make>
__device__ __forceinline__ uint32 cast_tile(uint8* straight, uint8* turned, float factor, int rows, int columns,
                                            int number, Read read, Make make) {
  __shared__ uint32 tile[TILE_ROWS][TILE_COLUMNS / 4 + 1];  // a word more: no two rows that are turned share a bank
  constexpr int PASSES = TILE_ROWS / 32;
  const int across = (columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
  const int top_row = number / across * TILE_ROWS, left = number % across * TILE_COLUMNS;
  const int line = threadIdx.x / 8, column = left + threadIdx.x % 8 * 8;
  decltype(read(0)) held[PASSES];
#pragma unroll
  for (int p = 0; p < PASSES; p++) {
    const int row = top_row + line + p * 32;
    if (row < rows && column < columns) held[p] = read((int64)row * columns + column);
  }
  uint32 top = 0;
#pragma unroll
  for (int p = 0; p < PASSES; p++) {
    const int row = top_row + line + p * 32;
    if (row >= rows || column >= columns) continue;
    const int64 at = (int64)row * columns + column;
    const Wide x = make(held[p], at);
    const uint2 codes = codes_of<KIND>(x, factor);
    top = raised(top, x);
    if (straight != nullptr) *reinterpret_cast<uint2*>(straight + at) = codes;
    tile[line + p * 32][threadIdx.x % 8 * 2] = codes.x;
    tile[line + p * 32][threadIdx.x % 8 * 2 + 1] = codes.y;
  }
  if (turned == nullptr) return top;
  __syncthreads();
  const int four = threadIdx.x % 8 + threadIdx.x / 32 % 2 * 8, eight = threadIdx.x / 8 % 4 + threadIdx.x / 64 * 4;
  const int row = top_row + eight * 8, first = left + four * 4;
  if (row >= rows || first >= columns) return top;
  uint32 upper[4], lower[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    upper[i] = tile[eight * 8 + i][four];
    lower[i] = tile[eight * 8 + 4 + i][four];
  }
  turn(upper);
  turn(lower);
#pragma unroll
  for (int i = 0; i < 4; i++)
    *reinterpret_cast<uint2*>(turned + (int64)(first + i) * rows + row) = {upper[i], lower[i]};
  return top;
}

// -- activations and gradients ---------------------------------------------------------------------------------------

template <Kind KIND>
__device__ __forceinline__ void cast(const storage* x, uint8* codes, uint8* turned, const Scale* scale, uint32* amax,
                                     int rows, int columns) {
  raise(amax, cast_tile<KIND>(codes, turned, scale->factor, rows, columns, blockIdx.x,
                              [=](int64 at) { return load<WIDE>(x + at); },
                              [](const Wide& wide, int64) { return wide; }));
}

extern "C" __global__ void __launch_bounds__(CAST_THREADS)
k_fp8_e4m3(const storage* x, uint8* codes, uint8* turned, const Scale* scale, uint32* amax, int rows, int columns) {
  cast<E4M3>(x, codes, turned, scale, amax, rows, columns);
}

extern "C" __global__ void __launch_bounds__(CAST_THREADS)
k_fp8_e5m2(const storage* x, uint8* codes, uint8* turned, const Scale* scale, uint32* amax, int rows, int columns) {
  cast<E5M2>(x, codes, turned, scale, amax, rows, columns);
}

// k_gelu_fwd and k_fp8_e4m3 of what it stores, in one pass; `out` null: nobody reads it but as codes.
extern "C" __global__ void __launch_bounds__(CAST_THREADS)
k_fp8_gelu_fwd(const storage* pre, storage* out, uint8* codes, uint8* turned, const Scale* scale, uint32* amax,
               int rows, int columns) {
  raise(amax, cast_tile<E4M3>(codes, turned, scale->factor, rows, columns, blockIdx.x,
                              [=](int64 at) { return load<WIDE>(pre + at); },
                              [=](Wide x, int64 at) {
#pragma unroll
                                for (int i = 0; i < WIDE; i++)
                                  x.at[i] = to_operand(to_float(x.at[i]) * gate(to_float(x.at[i])));
                                if (out != nullptr) store(out + at, x);
                                return x;
                              }));
}

struct Two {
  Wide first, second;
};

// k_gelu_bwd and k_fp8_e5m2 of what it stores, in one pass; `out` may be `dact`, or null as above.
extern "C" __global__ void __launch_bounds__(CAST_THREADS, 3)
k_fp8_gelu_bwd(const storage* dact, const storage* pre, storage* out, uint8* codes, uint8* turned, const Scale* scale,
               uint32* amax, int rows, int columns) {
  raise(amax, cast_tile<E5M2>(codes, turned, scale->factor, rows, columns, blockIdx.x,
                              [=](int64 at) { return Two{load<WIDE>(dact + at), load<WIDE>(pre + at)}; },
                              [=](Two both, int64 at) {
                                Wide& d = both.first;
#pragma unroll
                                for (int i = 0; i < WIDE; i++)
                                  d.at[i] = to_operand(to_float(d.at[i]) * gelu_slope(to_float(both.second.at[i])));
                                if (out != nullptr) store(out + at, d);
                                return d;
                              }));
}

constexpr int HISTORY = 16;  // updates that are remembered

// The scales of the next step, from the largest magnitudes of the last updates, an octave below what would just fit. With
// `record`, those of this step enter the history first, unless its update was skipped or they are not finite; either way
// they begin anew at 0. The first `forwards` tensors are E4M3, the others E5M2. A thread a tensor: grid
// ceil(tensors / 256).
extern "C" __global__ void __launch_bounds__(256)
k_fp8_scales(uint32* history, uint32* amax, Scale* scales, const TrainState* __restrict__ state, int tensors,
             int forwards, int record) {
  const int tensor = blockIdx.x * 256 + threadIdx.x;
  if (tensor >= tensors) return;
  uint32* mine = history + (int64)tensor * HISTORY;
  const bool finite = amax[tensor] < 0x7f800000u;
  if (record != 0 && state->skipped == 0 && finite) mine[state->applied % HISTORY] = amax[tensor];
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

// Grid of both: (tiles of the largest matrix, matrices).
extern "C" __global__ void __launch_bounds__(CAST_THREADS)
k_fp8_weights_amax(const Matrix* __restrict__ matrices, const storage* __restrict__ weights, uint32* amax) {
  const Matrix matrix = matrices[blockIdx.y];
  const int64 size = (int64)matrix.rows * matrix.columns;
  const int64 base = (int64)blockIdx.x * (TILE_ROWS * TILE_COLUMNS) + threadIdx.x * WIDE;
  uint32 top = 0;
#pragma unroll
  for (int p = 0; p < TILE_ROWS / 32; p++) {
    const int64 at = base + p * CAST_THREADS * WIDE;
    if (at < size) top = raised(top, load<WIDE>(weights + matrix.source + at));
  }
  raise(amax + blockIdx.y, top);
}

extern "C" __global__ void __launch_bounds__(CAST_THREADS)
k_fp8_weights(const Matrix* __restrict__ matrices, const storage* __restrict__ weights,
              const uint32* __restrict__ amax, Scale* scales, uint8* codes) {
  const Matrix matrix = matrices[blockIdx.y];
  const Scale scale = scale_of(amax[blockIdx.y], TOP_E4M3);
  if (blockIdx.x == 0 && threadIdx.x == 0) scales[blockIdx.y] = scale;
  const storage* mine = weights + matrix.source;
  cast_tile<E4M3>(matrix.straight < 0 ? nullptr : codes + matrix.straight,
                  matrix.turned < 0 ? nullptr : codes + matrix.turned, scale.factor, matrix.rows, matrix.columns,
                  blockIdx.x, [=](int64 at) { return load<WIDE>(mine + at); },
                  [](const Wide& wide, int64) { return wide; });
}
