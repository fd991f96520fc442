// GELU in its tanh form, and its slope. With s = 1 / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3):
//   (1 + tanh(u)) / 2 = s,  gelu(x) = x s,  gelu'(x) = s + 2 x s (1 - s) u',  u' = sqrt(2/pi) (1 + 3 0.044715 x^2).
#pragma once
#include "types.cuh"

constexpr float SLOPE = 0.7978845608028654f;
constexpr float CUBE = 0.044715f;

__device__ __forceinline__ float gate(float x) {
  const float e = __expf(-2.0f * SLOPE * x * (1.0f + CUBE * x * x));  // inf for very negative x: the gate is then 0
  return __fdividef(1.0f, 1.0f + e);
}

__device__ __forceinline__ float gelu_slope(float x) {
  const float s = gate(x);
  const float rise = SLOPE * (1.0f + 3.0f * CUBE * x * x);
  const float tail = s * (1.0f - s);
  return s + (tail == 0.0f ? 0.0f : 2.0f * x * tail * rise);
}
