// Matrix products with GELU or its gradient on the way out, for Hopper's own instructions and storage of 16 bits:
//
//   k_gemm_gelu            aux = A B, y = gelu(aux)        A [m, k], B [k, n]
//   k_gemm_gelu_gradient   d = A B^T times gelu'(aux)      A [m, k], B [n, k]
//
// Row-major; n is a multiple of 192 and k of 64. gemm.cu has the same and all other products for every card.
//
// A block stays on its multiprocessor and takes one tile of 128 x 192 after another. It is three warpgroups. One thread
// of the first keeps the copy engine busy; the other two multiply, each a tile of its own, in turns: while one has a
// product, the other turns what it has into results and sends it away, so that the tensor cores never wait for GELU.
//
//   stages    STAGES places for 64 of k: 128 rows of A, 192 columns of B
//   full      a barrier a stage: its bytes are there
//   empty     a barrier a stage: every warp that read it, in every block that fills it, is done
//   boxes     16 rows x 64 columns of a result, BOXES for each warp, on their way out or (aux) in
//
// The CLUSTER blocks of a cluster have tiles one below the other. They need the same columns of B: each loads its share
// and the copy engine brings it to all. Sums run along k inside a tile, so bits depend on nothing but the operands.
#include "types.cuh"
#if (MULTIPLY_IS(half) || MULTIPLY_IS(bf16)) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "gelu.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

// `andrea.engine.gemm_hopper` chooses it and lays the shared memory out.
#ifndef CLUSTER
#define CLUSTER 2
#endif

constexpr int ROWS = 128, COLUMNS = 192, DEPTH = 64, STAGES = 4;
constexpr int LINE = 128;  // bytes: 64 elements
constexpr int LEFT_BYTES = ROWS * LINE, STAGE_BYTES = LEFT_BYTES + COLUMNS * LINE;
constexpr int SHARE_BYTES = COLUMNS * LINE / CLUSTER;  // of B, what one block of a cluster loads
constexpr int PANELS = COLUMNS / 64;

constexpr int MULTIPLIERS = 2, WARPS = 4 * MULTIPLIERS, THREADS = (1 + MULTIPLIERS) * GROUP_THREADS;
constexpr int BOX_ROWS = 16, BOX_BYTES = BOX_ROWS * LINE, BOXES = 4;
constexpr int TILE_BOXES = ROWS / 64 * PANELS;  // of one warp

// 512 registers for each lane of the three warpgroups: 192 of a multiplier's hold its sums.
constexpr int LOADER_REGISTERS = 24, MULTIPLIER_REGISTERS = 240;

struct Shared {
  uint32 stages, boxes, full, empty, aux;
};

__device__ __forceinline__ Shared find_shared() {
  extern __shared__ __align__(1024) unsigned char shared[];
  uint32 stages = shared_address(shared), boxes = stages + STAGES * STAGE_BYTES;
  uint32 full = boxes + WARPS * BOXES * BOX_BYTES, empty = full + STAGES * 8;
  return {stages, boxes, full, empty, empty + STAGES * 8};
}

__device__ __forceinline__ void make_barriers(const Shared& shared) {
  for (int i = 0; i < STAGES; ++i) {
    make_barrier(shared.full + i * 8, 1);
    make_barrier(shared.empty + i * 8, CLUSTER * 4);
  }
  for (int i = 0; i < WARPS * BOXES; ++i) make_barrier(shared.aux + i * 8, 1);
  publish_barriers();
}

// -- order of tiles ---------------------------------------------------------------------------------------------------

__device__ __forceinline__ int find_rank() { return CLUSTER == 1 ? 0 : blockIdx.x % CLUSTER; }
__device__ __forceinline__ int find_first() { return blockIdx.x / CLUSTER; }
__device__ __forceinline__ int find_stride() { return gridDim.x / CLUSTER; }

__device__ __forceinline__ int count_down(int m) { return (m + CLUSTER * ROWS - 1) / (CLUSTER * ROWS); }
__device__ __forceinline__ int count_tiles(int m, int n) { return count_down(m) * (n / COLUMNS); }

struct Place {
  int row, column;
};

// Clusters at work together share rows of A and columns of B, so that both stay in the L2 cache.
__device__ __forceinline__ Place find_place(int tile, int m, int n) {
  constexpr int BAND = 8;
  int across = n / COLUMNS, band = tile / (BAND * across), inside = tile - band * BAND * across;
  int height = min(BAND, count_down(m) - band * BAND);
  int down = band * BAND + inside % height;
  return {(down * CLUSTER + find_rank()) * ROWS, inside / height * COLUMNS};
}

// -- loads ------------------------------------------------------------------------------------------------------------

// Fills stage after stage with all of k of all tiles, as fast as they become empty. One thread.
template <bool K_FIRST>
__device__ __forceinline__ void load_tiles(const Shared& shared, const TensorMap& a, const TensorMap& b, int m, int n,
                                           int k) {
  int rank = find_rank(), tiles = count_tiles(m, n), step = 0;
  for (int tile = find_first(); tile < tiles; tile += find_stride()) {
    Place place = find_place(tile, m, n);
#pragma unroll 1
    for (int at = 0; at < k; at += DEPTH, ++step) {
      int stage = step % STAGES;
      uint32 left = shared.stages + stage * STAGE_BYTES, share = left + LEFT_BYTES + rank * SHARE_BYTES;
      uint32 full = shared.full + stage * 8;
      await_barrier(shared.empty + stage * 8, step / STAGES % 2 ^ 1);
      arrive_expecting(full, STAGE_BYTES);
      load_box(left, a, full, at, place.row);
      if (K_FIRST) load_box_for(share, b, full, 0, at + rank * (DEPTH / CLUSTER), place.column / 64, (1 << CLUSTER) - 1);
      else load_box_for(share, b, full, at, place.column + rank * (COLUMNS / CLUSTER), 0, (1 << CLUSTER) - 1);
    }
  }
}

// -- products ---------------------------------------------------------------------------------------------------------

// How the hardware finds 16 of k of B in a stage. K_FIRST: a share is DEPTH / CLUSTER lines of k in each of three panels
// of 64 columns. Else a line is a column, and shares follow one another.
template <bool K_FIRST>
__device__ __forceinline__ uint64 right_matrix(uint32 right, int step) {
  constexpr uint32 PANEL = DEPTH / CLUSTER * LINE, STEPS = DEPTH / CLUSTER / 16;
  if (!K_FIRST) return Tile<64>::along(right, step);
  uint32 start = right + step / STEPS * SHARE_BYTES + step % STEPS * 16 * LINE;
  return (uint64)(1u << 30 | 8 * LINE / 16) << 32 | ((start >> 4) + (PANEL / 16 << 16));
}

// Begins C += A B over the k of a stage, 64 rows at a time.
template <bool K_FIRST>
__device__ __forceinline__ void multiply_stage(float (&c)[2][96], uint32 left, bool first) {
  open_products();
#pragma unroll
  for (int step = 0; step < DEPTH / 16; ++step)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      multiply_wide<K_FIRST>(c[half], Tile<64>::along(left + half * Tile<64>::BYTES, step),
                             right_matrix<K_FIRST>(left + LEFT_BYTES, step), !first || step > 0);
  close_products();
}

// This warp has read a stage.
__device__ __forceinline__ void release_stage(const Shared& shared, int step) {
  int lane = threadIdx.x % 32;
  if (lane < CLUSTER) arrive_at_block(shared.empty + step % STAGES * 8, lane);
}

// The two multipliers take turns: barriers of the hardware, 1 and 2, at which one waits until the other has passed.
__device__ __forceinline__ void await_turn(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(2 * GROUP_THREADS) : "memory");
}
__device__ __forceinline__ void give_turn(int group) {
  asm volatile("bar.arrive %0, %1;" ::"r"(1 + group), "n"(2 * GROUP_THREADS) : "memory");
}

// -- GELU -------------------------------------------------------------------------------------------------------------

// gelu.cuh's gate with the hardware's own exponential and reciprocal: rounding to 16 bits follows.
__device__ __forceinline__ float quick_gate(float x) {
  constexpr float LOG2_E = 1.4426950408889634f, LINEAR = -2.0f * SLOPE * LOG2_E;
  float e, s;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * fmaf(LINEAR * CUBE, x * x, LINEAR)));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + e));
  return s;
}

__device__ __forceinline__ float quick_slope(float x) {
  float s = quick_gate(x), tail = s - s * s;
  float rise = x * fmaf(6.0f * SLOPE * CUBE, x * x, 2.0f * SLOPE);
  return s + (tail == 0.0f ? 0.0f : tail * rise);  // far from 0 the rise may be infinite
}

__device__ __forceinline__ void unpack(float (&x)[2], uint32 word) {
  const storage* pair = (const storage*)&word;
  x[0] = to_float(pair[0]), x[1] = to_float(pair[1]);
}

// -- results ----------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void store_word(uint32 to, uint32 x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}

// A warp's results leave box by box: 16 rows of one half of the tile's rows, and a panel of columns.
struct Results {
  const TensorMap& d;
  const TensorMap& aux;
  uint32 boxes, barriers;  // this warp's
  int taken;               // boxes of aux that were waited for

  __device__ __forceinline__ void send(const TensorMap& map, uint32 box, Place place, int index) const {
    store_box(map, box, column(place, index), row(place, index));
  }
  static __device__ __forceinline__ int row(Place place, int index) {
    return place.row + index / PANELS * 64 + threadIdx.x / 32 % 4 * 16;
  }
  static __device__ __forceinline__ int column(Place place, int index) { return place.column + index % PANELS * 64; }

  // Lets the copy engine bring box `index` of aux, the `number`th of all.
  __device__ __forceinline__ void fetch(Place place, int index, int number) const {
    uint32 barrier = barriers + number % BOXES * 8;
    arrive_expecting(barrier, BOX_BYTES);
    load_box(boxes + number % BOXES * BOX_BYTES, aux, barrier, column(place, index), row(place, index));
  }
};

// Calls f(address, x) for each two neighbouring sums of box `index` and their word's address in a box.
template <typename F>
__device__ __forceinline__ void for_words(float (&c)[2][96], uint32 box, int index, F f) {
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float* x = &c[index / PANELS][index % PANELS * 32 + i * 2];
    f(box + tile_offset<LINE>(lane / 4 + i % 2 * 8, i / 2) + lane % 4 * 4, x);
  }
}

// Product and GELU: two boxes go out for every 16 x 64 sums, while the two before are still being read.
__device__ __forceinline__ void send_gelu(float (&c)[2][96], Results& results, Place place) {
  bool sender = threadIdx.x % 32 == 0;
#pragma unroll
  for (int index = 0; index < TILE_BOXES; ++index) {
    uint32 box = results.boxes + index % 2 * 2 * BOX_BYTES;
    if (sender) await_stores<1>();
    __syncwarp();
    for_words(c, box, index, [](uint32 at, const float* sums) {
      uint32 product = pack(sums[0], sums[1]);
      float x[2];
      unpack(x, product);
      store_word(at, product);
      store_word(at + BOX_BYTES, pack(x[0] * quick_gate(x[0]), x[1] * quick_gate(x[1])));
    });
    publish_shared();
    __syncwarp();
    if (sender) {
      results.send(results.aux, box, place, index);
      results.send(results.d, box + BOX_BYTES, place, index);
      close_stores();
    }
  }
}

// What `send_gelu_gradient` will read comes while the products run: four boxes, and the others as far as the L2 cache.
__device__ __forceinline__ void fetch_aux(const Results& results, Place place) {
  if (threadIdx.x % 32 != 0) return;
  await_stores<0>();
  for (int index = 0; index < BOXES; ++index) results.fetch(place, index, results.taken + index);
  for (int index = BOXES; index < TILE_BOXES; ++index)
    fetch_box(results.aux, Results::column(place, index), Results::row(place, index));
}

// Product times GELU's gradient, in the place of aux. The next box of aux is asked for one box late, when the place of
// the box before has been read.
__device__ __forceinline__ void send_gelu_gradient(float (&c)[2][96], Results& results, Place place) {
  bool sender = threadIdx.x % 32 == 0;
#pragma unroll
  for (int index = 0; index < TILE_BOXES; ++index, ++results.taken) {
    uint32 box = results.boxes + results.taken % BOXES * BOX_BYTES;
    await_barrier(results.barriers + results.taken % BOXES * 8, results.taken / BOXES % 2);
    for_words(c, box, index, [](uint32 at, const float* sums) {
      float x[2];
      unpack(x, load_word(at));
      store_word(at, pack(sums[0] * quick_slope(x[0]), sums[1] * quick_slope(x[1])));
    });
    publish_shared();
    __syncwarp();
    if (sender) {
      results.send(results.d, box, place, index);
      close_stores();
      if (index >= 1 && index - 1 + BOXES < TILE_BOXES) {
        await_stores<1>();
        results.fetch(place, index - 1 + BOXES, results.taken - 1 + BOXES);
      }
    }
  }
}

// -- kernels ----------------------------------------------------------------------------------------------------------

// Every second tile of the block, and what becomes of it. `full` has passed every phase that the other group waited for
// when it gives the turn, so no wait here is for a phase further than the next.
template <bool GRADIENT>
__device__ __forceinline__ void multiply_tiles(const Shared& shared, int group, const TensorMap& d, const TensorMap& aux,
                                               int m, int n, int k) {
  int warp = threadIdx.x / 32 - 4, tiles = count_tiles(m, n), steps = k / DEPTH, begin = group * steps;
  Results results = {d, aux, shared.boxes + warp * BOXES * BOX_BYTES, shared.aux + warp * BOXES * 8, 0};
  for (int tile = find_first() + group * find_stride(); tile < tiles; tile += MULTIPLIERS * find_stride()) {
    Place place = find_place(tile, m, n);
    if (GRADIENT) fetch_aux(results, place);
    if (begin > 0) await_turn(group);
    float c[2][96];
#pragma unroll 1
    for (int step = begin; step < begin + steps; ++step) {
      await_barrier(shared.full + step % STAGES * 8, step / STAGES % 2);
      multiply_stage<!GRADIENT>(c, shared.stages + step % STAGES * STAGE_BYTES, step == begin);
      await_products<1>();
      if (step > begin) release_stage(shared, step - 1);
    }
    if (tile + find_stride() < tiles) give_turn(1 - group);
    await_products<0>();
    pin(c[0]), pin(c[1]);
    release_stage(shared, begin + steps - 1);
    if (GRADIENT) send_gelu_gradient(c, results, place);
    else send_gelu(c, results, place);
    begin += MULTIPLIERS * steps;
  }
  await_stores<0>();
}

template <bool GRADIENT>
__device__ __forceinline__ void multiply(const TensorMap& a, const TensorMap& b, const TensorMap& d,
                                         const TensorMap& aux, int m, int n, int k) {
  Shared shared = find_shared();
  if (threadIdx.x == 0) {
    fetch_map(a), fetch_map(b), fetch_map(d), fetch_map(aux);
    make_barriers(shared);
  }
  await_cluster();
  int group = __shfl_sync(0xffffffff, threadIdx.x / GROUP_THREADS, 0);
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LOADER_REGISTERS));
    if (threadIdx.x == 0) load_tiles<!GRADIENT>(shared, a, b, m, n, k);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MULTIPLIER_REGISTERS));
    multiply_tiles<GRADIENT>(shared, group - 1, d, aux, m, n, k);
  }
  await_cluster();  // no block ends while another may still reach into its shared memory
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
k_gemm_gelu(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
            const __grid_constant__ TensorMap d, const __grid_constant__ TensorMap aux, int m, int n, int k) {
  multiply<false>(a, b, d, aux, m, n, k);
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
k_gemm_gelu_gradient(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                     const __grid_constant__ TensorMap d, const __grid_constant__ TensorMap aux, int m, int n, int k) {
  multiply<true>(a, b, d, aux, m, n, k);
}
#endif
