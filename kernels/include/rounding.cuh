// From a float32 master weight to the working copy that matrix products read.
//
// ANDREA_ROUNDING  nearest | stochastic. Stochastic: up or down with a probability that keeps the mean, from bits that
// are a function of (applied update, element), so a resumed run rounds as the uninterrupted one did.
#pragma once
#include "types.cuh"

#define ROUNDING_nearest 0
#define ROUNDING_stochastic 1
#define ROUNDING_JOIN(name) ROUNDING_##name
#define ROUNDING_ID(name) ROUNDING_JOIN(name)
#ifndef ANDREA_ROUNDING
#define ANDREA_ROUNDING nearest
#endif

#if ROUNDING_ID(ANDREA_ROUNDING) == ROUNDING_stochastic
#if !STORAGE_IS(bf16)
#error "stochastic rounding is made for bf16 storage"
#endif

// Philox-4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw 2011): four words from a counter of 128 bits.
__device__ __forceinline__ uint4 philox(uint64 low, uint64 high) {
  uint4 x = {(uint32)low, (uint32)(low >> 32), (uint32)high, (uint32)(high >> 32)};
  uint32 key0 = 0x414e4452u, key1 = 0x45413137u;
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const uint32 high0 = __umulhi(0xd2511f53u, x.x), low0 = 0xd2511f53u * x.x;
    const uint32 high1 = __umulhi(0xcd9e8d57u, x.z), low1 = 0xcd9e8d57u * x.z;
    x = {high1 ^ x.y ^ key0, low1, high0 ^ x.w ^ key1, low0};
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  return x;
}

__device__ __forceinline__ storage round_with(float x, uint32 random) {
  uint32 bits = __float_as_uint(x);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits += random & 0xffffu;  // inf and NaN stay what they are
  return __ushort_as_bfloat16((unsigned short)(bits >> 16));
}

// The copies of W weights that begin at `element`; W is 1, or 4 where `element` is a multiple of 4.
template <int W>
__device__ __forceinline__ void to_working(storage (&copy)[W], const float (&weight)[W], int64 applied, int64 element) {
  const uint4 random = philox((uint64)element / 4, (uint64)applied);
  const uint32 words[4] = {random.x, random.y, random.z, random.w};
  if (W == 4) {
#pragma unroll
    for (int i = 0; i < W; i++) copy[i] = round_with(weight[i], words[i]);
  } else {
    const int word = element & 3;
    copy[0] = round_with(weight[0], word == 0 ? random.x : word == 1 ? random.y : word == 2 ? random.z : random.w);
  }
}
#else
template <int W>
__device__ __forceinline__ void to_working(storage (&copy)[W], const float (&weight)[W], int64, int64) {
#pragma unroll
  for (int i = 0; i < W; i++) copy[i] = to_operand(weight[i]);
}
#endif
