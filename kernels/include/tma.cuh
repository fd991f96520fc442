// Hopper's copy engine (TMA): boxes of a matrix to and from shared memory, and the barriers that count their bytes.
//
// A TensorMap says where a matrix lies, how long its rows are and how large a box is; the host encodes it
// (`andrea.engine.gemm_hopper`). Boxes here have lines of 128 bytes, whose chunks of 16 bytes change places as mma.cuh's
// `tile_offset<128>` and the products have them. What a box has beyond the matrix is read as zeros, and is not written.
//
// A barrier is 8 bytes of shared memory. It turns to its next phase when all arrivals and all bytes that it was told to
// expect are there. Who waits names the parity of the phase: 0 for the first, 1 for the second, and so on; a barrier
// must never be a whole phase behind the one that is waited for, or the wait ends too early.
#pragma once
#include "types.cuh"

struct alignas(64) TensorMap {
  unsigned char opaque[128];
};

// -- barriers ---------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void make_barrier(uint32 barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Barriers made by this thread may be used by the whole cluster after it has met.
__device__ __forceinline__ void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void await_cluster() {
  asm volatile("barrier.cluster.arrive;\n\tbarrier.cluster.wait;" ::: "memory");
}

// Arrives, and announces bytes that the copy engine will bring.
__device__ __forceinline__ void arrive_expecting(uint32 barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Arrives at the barrier that lies at the same place in another block of the cluster.
__device__ __forceinline__ void arrive_at_block(uint32 barrier, int block) {
  asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n\t"
               "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(barrier), "r"(block)
               : "memory");
}

__device__ __forceinline__ void await_barrier(uint32 barrier, int parity) {
  uint32 done;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
  } while (!done);
}

// -- boxes ------------------------------------------------------------------------------------------------------------

// A map on its way to where the copy engine keeps those in use.
__device__ __forceinline__ void fetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ __forceinline__ void load_box(uint32 to, const TensorMap& map, uint32 barrier, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
               ::"r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y)
               : "memory");
}

// A box of three dimensions to the same place in all blocks of the cluster whose bits are set; each counts the bytes.
__device__ __forceinline__ void load_box_for(uint32 to, const TensorMap& map, uint32 barrier, int x, int y, int z,
                                             int blocks) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z),
               "h"((short)blocks)
               : "memory");
}

// A box on its way from memory to the L2 cache.
__device__ __forceinline__ void fetch_box(const TensorMap& map, int x, int y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(&map), "r"(x), "r"(y) : "memory");
}

// Out of shared memory. What the threads wrote there must have been published before (`publish_shared`).
__device__ __forceinline__ void store_box(const TensorMap& map, uint32 from, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map), "r"(from),
               "r"(x), "r"(y)
               : "memory");
}
__device__ __forceinline__ void close_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// All groups of this thread's stores but the last PENDING have been read from shared memory.
template <int PENDING>
__device__ __forceinline__ void await_stores() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
