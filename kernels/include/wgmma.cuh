// Hopper's tensor cores, four warps at a time (wgmma, sm_90a): tiles that they read from shared memory, and m64 products.
//
// A tile is 64 rows of D elements of 16 bits. It consists of panels, each all 64 rows of up to 128 bytes (a line), so a
// row of 32 or 64 elements is one line and one of 128 elements is two, 64 lines apart. Chunks of 16 bytes change places
// within 8 lines, as the hardware's swizzle of 64 or 128 bytes wants it: bits 4.. of an address are XORed with bits 7..;
// tiles must start at multiples of 1024 bytes. The same tile serves as
//
//   K-major   rows are rows of A or columns of B, the product runs over D: a k-step is 32 bytes further in the line
//   MN-major  rows are what the product runs over, D the columns of B:     a k-step is 16 lines further
//
// A warpgroup is 128 threads. Fragments are mma.cuh's, warp w having rows 16 w.. of 64: C of n columns is n / 2 floats,
// four for each block of 8 columns, (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1).
#pragma once
#include "mma.cuh"

constexpr int GROUP_THREADS = 128;
constexpr int TILE_ROWS = 64;

template <int D>
struct Tile {
  static constexpr int ROW_BYTES = D * 2;
  static constexpr int LINE = ROW_BYTES < 128 ? ROW_BYTES : 128;
  static constexpr int PANEL = TILE_ROWS * LINE;
  static constexpr int BYTES = TILE_ROWS * ROW_BYTES;
  static constexpr int CHUNKS = ROW_BYTES / CHUNK_BYTES;
  static constexpr int LINE_CHUNKS = LINE / CHUNK_BYTES;
  static constexpr int STEPS = D / 16;  // k-steps of a product over D
  static_assert(LINE == 64 || LINE == 128, "lines are 64 or 128 bytes");

  // Byte offset of a chunk; rows from 64 on lie in the tiles that follow.
  static __device__ __forceinline__ int place(int row, int chunk) {
    return row / TILE_ROWS * BYTES + chunk / LINE_CHUNKS * PANEL +
           tile_offset<LINE>(row % TILE_ROWS, chunk % LINE_CHUNKS);
  }

  // How the hardware finds a matrix, `offset` bytes into a tile: start, leading offset (from panel to panel when MN-major,
  // unused when K-major) and stride offset (from 8 lines to the next 8), each in 16 bytes, and the swizzle.
  static __device__ __forceinline__ uint64 descriptor(uint32 tile, int offset) {
    constexpr uint32 SWIZZLE = LINE == 128 ? 1 : 2;
    uint32 low = (tile >> 4) + (PANEL / 16 << 16) + offset / 16;
    return (uint64)(SWIZZLE << 30 | 8 * LINE / 16) << 32 | low;
  }

  // Matrices of one k-step: over D, and over rows.
  static __device__ __forceinline__ uint64 along(uint32 tile, int k) {
    return descriptor(tile, k * 32 / LINE * PANEL + k * 32 % LINE);
  }
  static __device__ __forceinline__ uint64 down(uint32 tile, int k) { return descriptor(tile, k * 16 * LINE); }
};

// -- order ------------------------------------------------------------------------------------------------------------

// What this thread wrote to shared memory, copies that it awaited included, may be read by products after a barrier.
__device__ __forceinline__ void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Registers as they are now belong to the products that follow, until those have been awaited.
__device__ __forceinline__ void open_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// All groups of products but the last PENDING are done.
template <int PENDING>
__device__ __forceinline__ void await_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The compiler may not move reads or writes of these registers across: it does not know that products are asynchronous.
template <int N>
__device__ __forceinline__ void pin(float (&c)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(c[i])::"memory");
}

template <int M, int N>
__device__ __forceinline__ void pin(uint32 (&a)[M][N]) {
#pragma unroll
  for (int i = 0; i < M; ++i)
#pragma unroll
    for (int j = 0; j < N; ++j) asm volatile("" : "+r"(a[i][j])::"memory");
}

// -- products ---------------------------------------------------------------------------------------------------------

#if MULTIPLY_IS(half)
#define WGMMA_TYPES "k16.f32.f16.f16 "
#else
#define WGMMA_TYPES "k16.f32.bf16.bf16 "
#endif

#define WGMMA_LIST_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_LIST_32 WGMMA_LIST_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_LIST_64                                                             \
  WGMMA_LIST_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
                ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

#define WGMMA_C4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define WGMMA_C16(i) WGMMA_C4(i), WGMMA_C4(i + 4), WGMMA_C4(i + 8), WGMMA_C4(i + 12)
#define WGMMA_C32(i) WGMMA_C16(i), WGMMA_C16(i + 16)
#define WGMMA_C64(i) WGMMA_C32(i), WGMMA_C32(i + 32)

// One product of n columns: COUNT = n / 2 floats of C are operands 0.., those of A and B follow, then `add`.
#define WGMMA_SHARED(n, COUNT, a0, b0, add0)                                                                        \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %" add0 ", 0; wgmma.mma_async.sync.aligned.m64n" n WGMMA_TYPES       \
               "{" WGMMA_LIST_##COUNT "}, %" a0 ", %" b0 ", p, 1, 1, 0, 0; }"                                       \
               : WGMMA_C##COUNT(0)                                                                                  \
               : "l"(a), "l"(b), "r"((int)add))
#define WGMMA_REGISTERS(n, COUNT, a0, a1, a2, a3, b0, add0)                                                         \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %" add0 ", 0; wgmma.mma_async.sync.aligned.m64n" n WGMMA_TYPES       \
               "{" WGMMA_LIST_##COUNT "}, {%" a0 ",%" a1 ",%" a2 ",%" a3 "}, %" b0 ", p, 1, 1, 1; }"                  \
               : WGMMA_C##COUNT(0)                                                                                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add))

// C = A B, or C += A B when `add`, over one k-step: A and B K-major in shared memory, 64 columns.
__device__ __forceinline__ void multiply_shared(float (&c)[32], uint64 a, uint64 b, bool add) {
  WGMMA_SHARED("64", 32, "32", "33", "34");
}

// C += A B over one k-step: A in registers, B MN-major in shared memory, 2 COUNT columns.
template <int COUNT>
__device__ __forceinline__ void multiply_down(float (&c)[COUNT], const uint32 (&a)[4], uint64 b) {
  constexpr bool add = true;
  if constexpr (COUNT == 16) WGMMA_REGISTERS("32", 16, "16", "17", "18", "19", "20", "21");
  else if constexpr (COUNT == 32) WGMMA_REGISTERS("64", 32, "32", "33", "34", "35", "36", "37");
  else if constexpr (COUNT == 64) WGMMA_REGISTERS("128", 64, "64", "65", "66", "67", "68", "69");
  else static_assert(COUNT == 16, "products have 32, 64 or 128 columns");
}
