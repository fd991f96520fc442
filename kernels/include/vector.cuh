// Sixteen bytes at a time: the widest access of a thread, and what it takes to use it.
#pragma once
#include "types.cuh"

// Elements of the storage type in one wide access.
constexpr int WIDE = 16 / sizeof(storage);

template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T at[N];
};

template <int N, typename T>
__device__ __forceinline__ Pack<T, N> load(const T* address) {
  return *reinterpret_cast<const Pack<T, N>*>(address);
}

template <int N, typename T>
__device__ __forceinline__ void store(T* address, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(address) = pack;
}

struct Floats {
  float at[WIDE];
};

// What one wide access read, as floats: an instruction an element, where two bf16 of a word taken apart first need two.
__device__ __forceinline__ Floats to_floats(const Pack<storage, WIDE>& pack) {
  Floats floats;
#if STORAGE_IS(bf16)
  const Pack<uint32, WIDE / 2>& words = reinterpret_cast<const Pack<uint32, WIDE / 2>&>(pack);
#pragma unroll
  for (int i = 0; i < WIDE; i++)
    floats.at[i] = __uint_as_float(i % 2 == 0 ? words.at[i / 2] << 16 : words.at[i / 2] & 0xffff0000u);
#else
#pragma unroll
  for (int i = 0; i < WIDE; i++) floats.at[i] = to_float(pack.at[i]);
#endif
  return floats;
}

// True when every address may be accessed sixteen bytes at a time; a null pointer may.
template <typename... Pointers>
__device__ __forceinline__ bool aligned(Pointers... pointers) {
  return (((uint64)pointers | ...) & 15) == 0;
}

// Makes the compiler forget what it derived from a pack, so that it keeps sixteen bytes in registers across a barrier and
// converts them again, rather than keep every converted element.
template <typename T, int N>
__device__ __forceinline__ void keep_packed(Pack<T, N>& pack) {
  static_assert(sizeof(pack) == 16, "one wide access");
  uint4& words = reinterpret_cast<uint4&>(pack);
  asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
}

// Copies of sixteen bytes from memory to shared memory that nobody waits for until they are needed. A group is what was
// copied since the last close_copies. Before sm_80 the copy goes through registers and is done at once.
#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ void copy_wide(void* shared, const void* source) {
  const uint32 address = (uint32)__cvta_generic_to_shared(shared);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(source) : "memory");
}
__device__ __forceinline__ void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `open` (0 to 3) of the latest groups are on their way.
__device__ __forceinline__ void wait_copies(int open) {
  if (open >= 3)
    asm volatile("cp.async.wait_group 3;" ::: "memory");
  else if (open == 2)
    asm volatile("cp.async.wait_group 2;" ::: "memory");
  else if (open == 1)
    asm volatile("cp.async.wait_group 1;" ::: "memory");
  else
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}
#else
__device__ __forceinline__ void copy_wide(void* shared, const void* source) {
  *reinterpret_cast<uint4*>(shared) = *reinterpret_cast<const uint4*>(source);
}
__device__ __forceinline__ void close_copies() {}
__device__ __forceinline__ void wait_copies(int) {}
#endif
