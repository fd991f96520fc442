// Our own matrix product, for cards and machines without cuBLAS and for every precision:
//
//   D = op(A) op(B)        or D += op(A) op(B), or with GELU or its gradient on the way out
//
// Row-major. Suffix nt means: A is stored [m, k], B is stored [n, k]; t as the first letter, A is stored [k, m].
// A block owns a ROWS x COLUMNS tile of D and walks along k. When D has few tiles, k is split among blocks whose parts
// lie in a workspace and are added in a fixed order by k_gemm_reduce: no result depends on which block was first.
#include "types.cuh"

constexpr int ROWS = 128, COLUMNS = 128;

// What an element of D becomes on its way out.
constexpr int PLAIN = 0, GELU = 1, GELU_GRADIENT = 2;

struct Output {
  void* d;           // storage, or float when `wide`
  storage* aux;      // GELU: takes the product itself; GELU_GRADIENT: the forward's product
  float* parts;      // [splits, m, n] when k is split, else null
  int64 ldd;
  int m, n, wide, accumulate, epilogue;
};

__device__ __forceinline__ float tanh_of(float x) { return 1.0f - 2.0f / (__expf(2.0f * x) + 1.0f); }

__device__ __forceinline__ float gelu(float x) {
  return 0.5f * x * (1.0f + tanh_of(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

__device__ __forceinline__ float gelu_gradient(float x) {
  float t = tanh_of(0.7978845608028654f * (x + 0.044715f * x * x * x));
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.7978845608028654f * (1.0f + 3.0f * 0.044715f * x * x);
}

__device__ __forceinline__ void write_element(const Output& out, int row, int column, float x) {
  int64 at = row * out.ldd + column;
  if (out.epilogue == GELU) {
    out.aux[at] = to_storage(x);
    x = gelu(to_float(out.aux[at]));
  } else if (out.epilogue == GELU_GRADIENT) {
    x *= gelu_gradient(to_float(out.aux[at]));
  }
  if (out.wide) {
    float* d = (float*)out.d + at;
    *d = out.accumulate ? *d + x : x;
  } else {
    storage* d = (storage*)out.d + at;
    *d = to_storage(out.accumulate ? to_float(*d) + x : x);
  }
}

// Four neighbours of one row; the common cases go out as one store.
__device__ __forceinline__ void write_neighbours(const Output& out, int row, int column, const float (&x)[4]) {
  if (row >= out.m) return;
  int count = min(4, out.n - column);
  bool whole = count == 4 && out.ldd % 4 == 0 && out.epilogue == PLAIN;
  int64 at = row * out.ldd + column;
  if (out.parts) {
    float* part = out.parts + ((int64)blockIdx.y * out.m + row) * out.n + column;
    for (int i = 0; i < count; ++i) part[i] = x[i];
  } else if (whole && out.wide && (uint64)out.d % 16 == 0) {
    float4* d = (float4*)((float*)out.d + at);
    float4 old = out.accumulate ? *d : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    *d = make_float4(old.x + x[0], old.y + x[1], old.z + x[2], old.w + x[3]);
  } else if (whole && !out.accumulate && (uint64)out.d % 16 == 0) {
    struct alignas(4 * sizeof(storage)) Four { storage x[4]; };
    *(Four*)((storage*)out.d + at) = {to_storage(x[0]), to_storage(x[1]), to_storage(x[2]), to_storage(x[3])};
  } else {
    for (int i = 0; i < count; ++i) write_element(out, row, column + i, x[i]);
  }
}

// Half a block's tile, 64 rows from `row`, on its way out through shared memory, so that whole rows are written.
constexpr int HALF = 64, HALF_WIDTH = COLUMNS + 4;

template <int THREADS>
__device__ __forceinline__ void write_half(const Output& out, const float* half, int row, int column) {
#pragma unroll 1
  for (int i = threadIdx.x; i < HALF * COLUMNS / 4; i += THREADS) {
    int at = i / (COLUMNS / 4), place = i % (COLUMNS / 4) * 4;
    float4 x = *(const float4*)(half + at * HALF_WIDTH + place);
    write_neighbours(out, row + at, column + place, {x.x, x.y, x.z, x.w});
  }
}

// The tile of a block. Neighbouring blocks share rows of A and columns of B, so that both stay in the L2 cache.
__device__ __forceinline__ void find_tile(int m, int n, int& row, int& column) {
  constexpr int BAND = 8;
  int down = (m + ROWS - 1) / ROWS, across = (n + COLUMNS - 1) / COLUMNS;
  int band = blockIdx.x / (BAND * across);
  int height = min(BAND, down - band * BAND);
  int inside = blockIdx.x - band * BAND * across;
  row = (band * BAND + inside % height) * ROWS;
  column = inside / height * COLUMNS;
}

#if MULTIPLY_IS(float)
// -- exact float32 ----------------------------------------------------------------------------------------------------
// 16 x 16 threads, each 8 x 8 of D as 2 x 2 squares of 4 x 4; both tiles are kept [k][..], the next one waits in
// registers.

constexpr int DEPTH = 8, THREADS = 256, WIDTH = 128 + 4;
// Two blocks a multiprocessor leave 128 registers a thread: enough, but not for the compilers of CUDA 12 and 13.0 on
// sm_90.
constexpr int RESIDENT = __CUDACC_VER_MAJOR__ < 13 || __CUDA_ARCH__ == 900 ? 1 : 2;
constexpr int LOADS = 128 * DEPTH / 4 / THREADS;

// Four neighbours in memory of a matrix stored [rows, columns]; zeros beyond.
__device__ __forceinline__ float4 read_four(const float* x, int64 ld, int row, int column, int rows, int columns, bool aligned) {
  float4 result = make_float4(0, 0, 0, 0);
  if (row >= rows) return result;
  const float* from = x + row * ld + column;
  if (aligned && column + 4 <= columns) return *(const float4*)from;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (column + i < columns) ((float*)&result)[i] = from[i];
  return result;
}

// K_FIRST: the operand is stored [k, mn], else [mn, k]. `first` counts mn.
template <bool K_FIRST>
__device__ __forceinline__ void fetch(float4 (&held)[LOADS], const float* x, int64 ld, int first, int count, int k, int k_end, bool aligned) {
#pragma unroll
  for (int i = 0; i < LOADS; ++i) {
    int at = threadIdx.x + i * THREADS;
    if (K_FIRST) held[i] = read_four(x, ld, k + at / 32, first + at % 32 * 4, k_end, count, aligned);
    else held[i] = read_four(x, ld, first + at / (DEPTH / 4), k + at % (DEPTH / 4) * 4, count, k_end, aligned);
  }
}

template <bool K_FIRST>
__device__ __forceinline__ void put(float* tile, const float4 (&held)[LOADS]) {
#pragma unroll
  for (int i = 0; i < LOADS; ++i) {
    int at = threadIdx.x + i * THREADS;
    if (K_FIRST) {
      *(float4*)(tile + at / 32 * WIDTH + at % 32 * 4) = held[i];
    } else {
      int row = at / (DEPTH / 4), k = at % (DEPTH / 4) * 4;
#pragma unroll
      for (int j = 0; j < 4; ++j) tile[(k + j) * WIDTH + row] = ((const float*)&held[i])[j];
    }
  }
}

template <bool A_K_FIRST, bool B_K_FIRST>
__device__ __forceinline__ void multiply(const float* a, const float* b, const Output& out, int k_all, int k_part,
                                         int64 lda, int64 ldb) {
  __shared__ __align__(16) float shared[HALF * HALF_WIDTH];
  static_assert(4 * DEPTH * WIDTH <= HALF * HALF_WIDTH, "operands lie where half a tile goes out later");
  auto a_tile = [&](int stage) { return shared + stage * DEPTH * WIDTH; };
  auto b_tile = [&](int stage) { return shared + (2 + stage) * DEPTH * WIDTH; };
  int row, column;
  find_tile(out.m, out.n, row, column);
  int begin = blockIdx.y * k_part, end = min(k_all, begin + k_part);
  bool a_aligned = lda % 4 == 0 && (uint64)a % 16 == 0, b_aligned = ldb % 4 == 0 && (uint64)b % 16 == 0;
  // A warp covers 4 x 8 threads, so that its loads of either tile stay narrow.
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int ty = warp / 2 * 4 + lane / 8, tx = warp % 2 * 8 + lane % 8;

  float c[2][4][2][4] = {};
  float4 a_held[LOADS], b_held[LOADS];
  fetch<A_K_FIRST>(a_held, a, lda, row, out.m, begin, end, a_aligned);
  fetch<B_K_FIRST>(b_held, b, ldb, column, out.n, begin, end, b_aligned);
  put<A_K_FIRST>(a_tile(0), a_held);
  put<B_K_FIRST>(b_tile(0), b_held);
  __syncthreads();
  int stage = 0;
  for (int k = begin; k < end; k += DEPTH, stage ^= 1) {
    bool more = k + DEPTH < end;
    if (more) {
      fetch<A_K_FIRST>(a_held, a, lda, row, out.m, k + DEPTH, end, a_aligned);
      fetch<B_K_FIRST>(b_held, b, ldb, column, out.n, k + DEPTH, end, b_aligned);
    }
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
      float left[2][4], right[2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *(float4*)left[half] = *(const float4*)(a_tile(stage) + i * WIDTH + half * 64 + ty * 4);
        *(float4*)right[half] = *(const float4*)(b_tile(stage) + i * WIDTH + half * 64 + tx * 4);
      }
#pragma unroll
      for (int y = 0; y < 8; ++y)
#pragma unroll
        for (int x = 0; x < 8; ++x)
          c[y / 4][y % 4][x / 4][x % 4] = fmaf(left[y / 4][y % 4], right[x / 4][x % 4], c[y / 4][y % 4][x / 4][x % 4]);
    }
    if (more) {
      put<A_K_FIRST>(a_tile(stage ^ 1), a_held);
      put<B_K_FIRST>(b_tile(stage ^ 1), b_held);
    }
    __syncthreads();
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int y = 0; y < 4; ++y)
#pragma unroll
      for (int x = 0; x < 2; ++x)
        *(float4*)(shared + (ty * 4 + y) * HALF_WIDTH + x * 64 + tx * 4) = *(const float4*)c[half][y][x];
    __syncthreads();
    write_half<THREADS>(out, shared, row + half * HALF, column);
    __syncthreads();
  }
}

#else
// -- tensor cores -----------------------------------------------------------------------------------------------------
// 2 x 2 warps, each 64 x 64 of D: of both halves of the rows 32, and half of the columns. A stage holds 128 bytes of k of both operands: [mn][k] tiles have rows of 128 bytes,
// [k][mn] tiles rows of 128 elements.
#include "mma.cuh"

constexpr int THREADS = 128, RESIDENT = 2;
constexpr int STAGES = HAS_ASYNC ? 3 : 2;  // sm_75 has 64 KB for a block, every later card at least 99 KB
constexpr int DEPTH = 128 / sizeof(storage);  // of k in a stage
constexpr int TILE_BYTES = 128 * 128;
constexpr int WIDE_BYTES = 128 * sizeof(storage);
constexpr int M_BLOCKS = 4, N_BLOCKS = 8;  // of 16 rows and 8 columns, in a warp's part

// A tile of ROW_BYTES rows from a matrix stored [rows, columns]: `valid` elements of a chunk lie inside.
template <int ROW_BYTES>
__device__ __forceinline__ void copy_tile(uint32 tile, const storage* x, int64 ld, int row, int column, int rows,
                                          int columns, bool aligned) {
  constexpr int CHUNKS = ROW_BYTES / CHUNK_BYTES, LINES = TILE_BYTES / ROW_BYTES;
  int chunk = threadIdx.x % CHUNKS, at = column + chunk * CHUNK;
  int valid = max(0, min(CHUNK, columns - at));
  auto place = [&](int line) { return tile + tile_offset<ROW_BYTES>(line, chunk); };
  auto source = [&](int line, int inside) { return inside ? x + (row + line) * ld + at : x; };
  int first = threadIdx.x / CHUNKS;
  if (aligned) {
#pragma unroll
    for (int i = 0; i < LINES; i += THREADS / CHUNKS) {
      int inside = row + first + i < rows ? valid : 0;
      copy_chunk(place(first + i), source(first + i, inside), inside * (int)sizeof(storage));
    }
    return;
  }
#pragma unroll 1
  for (int line = first; line < LINES; line += THREADS / CHUNKS) {
    int inside = row + line < rows ? valid : 0;
    const storage* from = source(line, inside);
    alignas(16) storage held[CHUNK];
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) held[i] = i < inside ? from[i] : to_storage(0.0f);
    store_chunk(place(line), *(const uint4*)held);
  }
}

template <bool K_FIRST>
__device__ __forceinline__ void copy_operand(uint32 tile, const storage* x, int64 ld, int first, int count, int k,
                                             int k_end, bool aligned) {
  if (K_FIRST) copy_tile<WIDE_BYTES>(tile, x, ld, k, first, k_end, count, aligned);
  else copy_tile<128>(tile, x, ld, first, k, count, k_end, aligned);
}

template <bool A_K_FIRST, bool B_K_FIRST>
__device__ __forceinline__ void multiply(const storage* a, const storage* b, const Output& out, int k_all, int k_part,
                                         int64 lda, int64 ldb) {
  constexpr bool PAIRED = A_K_FIRST && B_K_FIRST;
  extern __shared__ __align__(128) unsigned char shared[];
  uint32 tiles = shared_address(shared);
  int row, column;
  find_tile(out.m, out.n, row, column);
  int begin = blockIdx.y * k_part, end = min(k_all, begin + k_part);
  bool a_aligned = lda % CHUNK == 0 && (uint64)a % 16 == 0, b_aligned = ldb % CHUNK == 0 && (uint64)b % 16 == 0;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int own_column = warp % 2 * 64;
  auto own_row = [&](int block) { return block / 2 * HALF + warp / 2 * 32 + block % 2 * 16; };

  auto copy_stage = [&](int step) {
    int k = begin + step * DEPTH;
    if (k < end) {
      uint32 to = tiles + step % STAGES * 2 * TILE_BYTES;
      copy_operand<A_K_FIRST>(to, a, lda, row, out.m, k, end, a_aligned);
      copy_operand<B_K_FIRST>(to + TILE_BYTES, b, ldb, column, out.n, k, end, b_aligned);
    }
    close_copies();  // empty groups keep the count of groups equal to the count of steps
  };

  float c[M_BLOCKS][N_BLOCKS][4];
#pragma unroll
  for (int i = 0; i < M_BLOCKS; ++i)
#pragma unroll
    for (int j = 0; j < N_BLOCKS; ++j) c[i][j][0] = c[i][j][1] = c[i][j][2] = c[i][j][3] = 0.0f;
#pragma unroll 1
  for (int step = 0; step < STAGES - 1; ++step) copy_stage(step);
  int steps = (end - begin + DEPTH - 1) / DEPTH;
  for (int step = 0; step < steps; ++step) {
    await_copies<STAGES - 2>();
    __syncthreads();
    copy_stage(step + STAGES - 1);
    uint32 a_tile = tiles + step % STAGES * 2 * TILE_BYTES, b_tile = a_tile + TILE_BYTES;
#pragma unroll
    for (int k = 0; k < DEPTH / K_STEP; ++k) {
      uint32 left[M_BLOCKS][4], right[N_BLOCKS / 2][4];
#pragma unroll
      for (int i = 0; i < M_BLOCKS; ++i) {
        if (A_K_FIRST) load_a_transposed<WIDE_BYTES, PAIRED>(left[i], a_tile, k * K_STEP, own_row(i), lane);
        else load_a<128>(left[i], a_tile, own_row(i), k, lane);
      }
#pragma unroll
      for (int j = 0; j < N_BLOCKS / 2; ++j) {
        if (B_K_FIRST) load_b_transposed<WIDE_BYTES, PAIRED>(right[j], b_tile, k * K_STEP, own_column + j * 16, lane);
        else load_b<128>(right[j], b_tile, own_column + j * 16, k, lane);
      }
#pragma unroll
      for (int i = 0; i < M_BLOCKS; ++i)
#pragma unroll
        for (int j = 0; j < N_BLOCKS; ++j)
          multiply_add(c[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
    }
  }
  await_copies<0>();
  float* half_tile = (float*)shared;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    __syncthreads();
#pragma unroll
    for (int i = 2 * half; i < 2 * half + 2; ++i)
#pragma unroll
      for (int j = 0; j < N_BLOCKS; ++j) {
        float* at = half_tile + (own_row(i) - half * HALF + lane / 4) * HALF_WIDTH + own_column + j * 8 + lane % 4 * 2;
        *(float2*)at = make_float2(c[i][j][0], c[i][j][1]);
        *(float2*)(at + 8 * HALF_WIDTH) = make_float2(c[i][j][2], c[i][j][3]);
      }
    __syncthreads();
    write_half<THREADS>(out, half_tile, row + half * HALF, column);
  }
}
#endif

// -- kernels ----------------------------------------------------------------------------------------------------------
// grid (tiles of D, splits of k); k_part elements of k go to a split.

#define GEMM(NAME, A_K_FIRST, B_K_FIRST)                                                                               \
  extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)                                                      \
  NAME(const storage* __restrict__ a, const storage* __restrict__ b, void* d, storage* aux, float* parts, int m, int n, \
       int k, int k_part, int64 lda, int64 ldb, int64 ldd, int wide, int accumulate, int epilogue) {                    \
    Output out = {d, aux, parts, ldd, m, n, wide, accumulate, epilogue};                                               \
    multiply<A_K_FIRST, B_K_FIRST>(a, b, out, k, k_part, lda, ldb);                                                     \
  }

GEMM(k_gemm_nn, false, true)
GEMM(k_gemm_nt, false, false)
GEMM(k_gemm_tn, true, true)
GEMM(k_gemm_tt, true, false)

// Adds the parts of a split product, first to last.
extern "C" __global__ void __launch_bounds__(256)
k_gemm_reduce(const float* __restrict__ parts, void* d, int splits, int m, int n, int64 ldd, int wide, int accumulate) {
  int64 i = (int64)blockIdx.x * 256 + threadIdx.x, size = (int64)m * n;
  if (i >= size) return;
  float sum = 0.0f;
  for (int split = 0; split < splits; ++split) sum += parts[split * size + i];
  Output out = {d, nullptr, nullptr, ldd, m, n, wide, accumulate, PLAIN};
  write_element(out, (int)(i / n), (int)(i % n), sum);
}
