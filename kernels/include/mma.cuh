// Tensor cores, one warp at a time: asynchronous copies into shared memory, fragments out of it, and m16n8 products.
//
// Everything counts in chunks of 16 bytes: 8 halves or 4 floats. A k-step is two chunks wide in every type (16 halves
// or 8 floats), so ldmatrix serves all of them alike. Lane letters: g = lane / 4 (row), t = lane % 4 (column).
//
//   A 16 x k   4 registers   (g, t) (g + 8, t) in the first chunk, then the same in the second
//   B k x 8    2 registers   column g; first chunk of k, second chunk of k
//   C 16 x 8   4 floats      (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1)
//
// sm_75 has ldmatrix and half the product, but copies through registers: fp16 runs there, only slower.
#pragma once
#include "types.cuh"

#define HAS_ASYNC (__CUDA_ARCH__ >= 800)

constexpr int CHUNK_BYTES = 16;
constexpr int CHUNK = CHUNK_BYTES / sizeof(storage);  // elements
constexpr int K_STEP = 2 * CHUNK;

__device__ __forceinline__ uint32 shared_address(const void* pointer) {
  return (uint32)__cvta_generic_to_shared(pointer);
}

__device__ __forceinline__ void store_chunk(uint32 to, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

// -- copies -----------------------------------------------------------------------------------------------------------

// 16 bytes from global to shared memory; only the first `valid` are read, zeros fill the rest.
__device__ __forceinline__ void copy_chunk(uint32 to, const void* from, int valid) {
#if HAS_ASYNC
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
#else
  uint4 x = make_uint4(0, 0, 0, 0);
  if (valid == CHUNK_BYTES) x = *(const uint4*)from;
  else {
#pragma unroll
    for (int i = 0; i < CHUNK; ++i)
      if (i * (int)sizeof(storage) < valid) ((storage*)&x)[i] = ((const storage*)from)[i];
  }
  store_chunk(to, x);
#endif
}

// 8 bytes, for the two numbers that a row of attention keeps.
__device__ __forceinline__ void copy_pair(uint32 to, const void* from, int valid) {
#if HAS_ASYNC
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
#else
  float2 x = valid ? *(const float2*)from : make_float2(0.0f, 0.0f);
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x.x), "f"(x.y) : "memory");
#endif
}

__device__ __forceinline__ void close_copies() {
#if HAS_ASYNC
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int PENDING>
__device__ __forceinline__ void await_copies() {
#if HAS_ASYNC
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// -- tiles ------------------------------------------------------------------------------------------------------------

// Byte offset of a chunk in a tile whose rows are ROW_BYTES long. Chunks change places within a row, so that the eight
// rows that ldmatrix reads together lie in different banks.
template <int ROW_BYTES>
__device__ __forceinline__ int tile_offset(int row, int chunk) {
  constexpr int CHUNKS = ROW_BYTES / CHUNK_BYTES;
  constexpr int ROWS_OF_ALL_BANKS = ROW_BYTES >= 128 ? 1 : 128 / ROW_BYTES;
  constexpr int MASK = (CHUNKS >= 8 ? 8 : CHUNKS) - 1;
  return row * ROW_BYTES + ((chunk ^ ((row / ROWS_OF_ALL_BANKS) & MASK)) * CHUNK_BYTES);
}

// -- fragments --------------------------------------------------------------------------------------------------------

// float32 bits rounded to the nearest tf32, ties away from zero; the tensor core would cut the low bits off instead.
__device__ __forceinline__ uint32 round_tf32(uint32 bits) {
  uint32 rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
  return rounded;
}

template <int N>
__device__ __forceinline__ void round_operand(uint32 (&x)[N]) {
#if MULTIPLY_IS(tf32)
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = round_tf32(x[i]);
#endif
}

__device__ __forceinline__ void load_matrices(uint32 (&x)[4], uint32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32 (&x)[4], uint32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ uint32 load_word(uint32 address) {
  uint32 x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}

// A: 16 rows from `row`, k-step `step`, of a tile stored [row][k].
template <int ROW_BYTES>
__device__ __forceinline__ void load_a(uint32 (&a)[4], uint32 tile, int row, int step, int lane) {
  load_matrices(a, tile + tile_offset<ROW_BYTES>(row + lane % 16, 2 * step + lane / 16));
  round_operand(a);
}

// B for two neighbouring blocks of 8 columns, from a tile stored [column][k]: b[0..1] the first, b[2..3] the second.
template <int ROW_BYTES>
__device__ __forceinline__ void load_b(uint32 (&b)[4], uint32 tile, int column, int step, int lane) {
  load_matrices(b, tile + tile_offset<ROW_BYTES>(column + (lane / 16) * 8 + lane % 8, 2 * step + (lane / 8) % 2));
  round_operand(b);
}

// Where lane letter t and its second half lie along k. float32 has no transposing load: when both operands of a product
// come from [k][..] tiles or from accumulators, k goes in pairs, which is the order that `accumulator_to_a` gives and
// keeps the words of a warp in different banks; beside an operand from `load_a` or `load_b` it is t and t + 4.
template <bool PAIRED>
__device__ __forceinline__ int k_of(int t, int half) {
  return PAIRED ? 2 * t + half : t + 4 * half;
}

// B as in `load_b`, from a tile stored [k][column].
template <int ROW_BYTES, bool PAIRED = true>
__device__ __forceinline__ void load_b_transposed(uint32 (&b)[4], uint32 tile, int k, int column, int lane) {
#if MULTIPLY_IS(tf32)
  int at = column + lane / 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int row = k + k_of<PAIRED>(lane % 4, i % 2), place = at + i / 2 * 8;
    b[i] = load_word(tile + tile_offset<ROW_BYTES>(row, place / 4) + place % 4 * 4);
  }
  round_operand(b);
#else
  load_matrices_transposed(b, tile + tile_offset<ROW_BYTES>(k + lane % 16, column / 8 + lane / 16));
#endif
}

// A as in `load_a`, from a tile stored [k][row].
template <int ROW_BYTES, bool PAIRED = true>
__device__ __forceinline__ void load_a_transposed(uint32 (&a)[4], uint32 tile, int k, int row, int lane) {
#if MULTIPLY_IS(tf32)
  int at = row + lane / 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int from = k + k_of<PAIRED>(lane % 4, i / 2), place = at + i % 2 * 8;
    a[i] = load_word(tile + tile_offset<ROW_BYTES>(from, place / 4) + place % 4 * 4);
  }
  round_operand(a);
#else
  load_matrices_transposed(a, tile + tile_offset<ROW_BYTES>(k + lane / 16 * 8 + lane % 8, row / 8 + lane / 8 % 2));
#endif
}

// Two floats as two neighbouring halves, the first in the low bits.
__device__ __forceinline__ uint32 pack(float low, float high) {
  uint32 packed = 0;
#if MULTIPLY_IS(half) && !HAS_ASYNC
  asm("{ .reg .f16 l, h; cvt.rn.f16.f32 l, %2; cvt.rn.f16.f32 h, %1; mov.b32 %0, {l, h}; }"
      : "=r"(packed)
      : "f"(high), "f"(low));
#elif MULTIPLY_IS(half)
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
#elif MULTIPLY_IS(bf16)
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
#endif
  return packed;
}

// Blocks of C that stand beside each other are the A of the next product: a k-step of halves is two blocks wide, one of
// floats a single block, whose columns 2t and 2t + 1 take the places t and t + 4.
constexpr int BLOCKS_OF_STEP = K_STEP / 8;
__device__ __forceinline__ void accumulator_to_a(uint32 (&a)[4], const float (*c)[4]) {
#if MULTIPLY_IS(tf32)
  a[0] = __float_as_uint(c[0][0]), a[1] = __float_as_uint(c[0][2]);
  a[2] = __float_as_uint(c[0][1]), a[3] = __float_as_uint(c[0][3]);
  round_operand(a);
#else
  a[0] = pack(c[0][0], c[0][1]), a[1] = pack(c[0][2], c[0][3]);
  a[2] = pack(c[1][0], c[1][1]), a[3] = pack(c[1][2], c[1][3]);
#endif
}

// -- product ----------------------------------------------------------------------------------------------------------

#if MULTIPLY_IS(half)
#define MMA_SHAPE "m16n8k16.row.col.f32.f16.f16.f32"
#elif MULTIPLY_IS(bf16)
#define MMA_SHAPE "m16n8k16.row.col.f32.bf16.bf16.f32"
#else
#define MMA_SHAPE "m16n8k8.row.col.f32.tf32.tf32.f32"
#endif

// C += A B, accumulated in float32.
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
#if HAS_ASYNC
  asm("mma.sync.aligned." MMA_SHAPE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b0));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}
