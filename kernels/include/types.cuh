// Integer names, the storage type of the precision, and its conversions to and from float.
//
// ANDREA_STORAGE   float | half | bf16: type of activations, activation gradients and working weights
// ANDREA_MULTIPLY  float | tf32 | half | bf16: type in which matrix products take their operands
#pragma once

#define STORAGE_float 0
#define STORAGE_tf32 1
#define STORAGE_half 2
#define STORAGE_bf16 3
#define STORAGE_JOIN(name) STORAGE_##name
#define STORAGE_ID(name) STORAGE_JOIN(name)

#ifndef ANDREA_STORAGE
#define ANDREA_STORAGE float
#endif
#ifndef ANDREA_MULTIPLY
#define ANDREA_MULTIPLY ANDREA_STORAGE
#endif
#define STORAGE_IS(name) (STORAGE_ID(ANDREA_STORAGE) == STORAGE_##name)
#define MULTIPLY_IS(name) (STORAGE_ID(ANDREA_MULTIPLY) == STORAGE_##name)

using int32 = int;
using uint32 = unsigned int;
using int64 = long long;
using uint64 = unsigned long long;

#if STORAGE_IS(half)
#include <cuda_fp16.h>
using storage = __half;
__device__ __forceinline__ float to_float(storage x) { return __half2float(x); }
__device__ __forceinline__ storage to_storage(float x) { return __float2half_rn(x); }
#elif STORAGE_IS(bf16)
#include <cuda_bf16.h>
using storage = __nv_bfloat16;
__device__ __forceinline__ float to_float(storage x) { return __bfloat162float(x); }
__device__ __forceinline__ storage to_storage(float x) { return __float2bfloat16_rn(x); }
#else
using storage = float;
__device__ __forceinline__ float to_float(storage x) { return x; }
__device__ __forceinline__ storage to_storage(float x) { return x; }
#endif

// What a matrix product will read, rounded as its operands are: tf32 keeps 10 bits of the fraction, rounded to nearest
// with ties away from zero, where the tensor cores alone would cut the rest off.
#if MULTIPLY_IS(tf32)
__device__ __forceinline__ storage to_operand(float x) {
  uint32 bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
}
#else
__device__ __forceinline__ storage to_operand(float x) { return to_storage(x); }
#endif
