// What every attention kernel agrees on: layouts, the order of blocks, and the constants of the softmax.
//
//   qkv_bt3hd  [B, T, 3, H, D]  queries, keys and values as the projection leaves them; gradients in the same layout
//   out_bthd   [B, T, H, D]     what the heads give, side by side
//   lse_bht    [B, H, T]        natural logarithm of the sum of exponentials of a row of scaled scores, float32
//
// B rows, T tokens, H heads, D = HEAD_DIM. Rows must start at multiples of 16 bytes, which D >= 32 gives.
#pragma once
#include "types.cuh"

#ifndef HEAD_DIM
#define HEAD_DIM 64
#endif

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;
// 1 / sqrt(D), and the same for exponentials of base 2, which the hardware has.
constexpr float SCORE_SCALE = HEAD_DIM == 32 ? 0.17677669529663687f : HEAD_DIM == 64 ? 0.125f : 0.08838834764831845f;
constexpr float SCORE_SCALE_LOG2 = SCORE_SCALE * LOG2_E;
static_assert(HEAD_DIM == 32 || HEAD_DIM == 64 || HEAD_DIM == 128, "head dimensions are 32, 64 and 128");

// The score of a pair that the mask forbids: its exponential is exactly 0.
#define FORBIDDEN __int_as_float(0xff800000)  // minus infinity

// 2^x in one instruction; 2^-inf is 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Which tile of which head a block works on. Causal tiles differ in length, so in each group of heads the longest go
// first; a group is so small that its keys and values stay in the L2 cache until its last tile has read them.
struct Work {
  int batch, head, tile;  // tile 0 is the longest
};

__device__ __forceinline__ Work find_work(int batches, int heads, int tiles) {
  constexpr int GROUP = 32;
  int all = batches * heads;
  int group = blockIdx.x / (GROUP * tiles);
  int members = min(GROUP, all - group * GROUP);
  int inside = blockIdx.x - group * GROUP * tiles;
  int row = group * GROUP + inside % members;
  return {row / heads, row % heads, inside / members};
}
