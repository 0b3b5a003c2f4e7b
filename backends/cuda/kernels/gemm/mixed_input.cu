// c[m][n] = epilogue(sum over k of a[m][k] * w(n, k) + bias[n]): products of 16-bit floats with weights of a few bits; see
// mixed_input.cuh.
//
// Sums of slices, and of the blocks that share a tile (`splits`: a cluster, or partial sums for reduce_splits_f16.cu),
// are added up in a fixed order.
//
// The kernel starts while the preceding one still runs: it copies weights, which are constants, and then waits.
//
// Types, besides those of mixed_input.cuh: Z, of the epilogue's operands; R, of results. Compile-time: RESIDENT; EDGE,
// whether blocks extend past the last row of weights; PRODUCTS, one, or two whose weights take turns, see store_tile.cuh;
// INBOX, where that of inbox.cuh begins; SPLIT and the constants of the epilogue, see multistage.cu; LEAVES and DIVIDES,
// which it does not, see measured_tiles.cuh.

#include "gemm/mixed_input.cuh"

enum { WHOLE, PARTIAL, CLUSTER };

struct Block {  // the tile of a block, and which of the blocks that share it this one is
    int m0, n0, split, splits;
    static constexpr int batch = 0;

    // Tiles of the same weights are adjacent.
    __device__ __forceinline__ Block(int tiles_m) : split(blockIdx.y), splits(gridDim.y)
    {
        const int tile_n = blockIdx.x / tiles_m;
        n0 = tile_n * BN, m0 = (blockIdx.x - tile_n * tiles_m) * BM;
    }
};

#include "gemm/epilogue.cuh"
#include "gemm/store_tile.cuh"
#include "gemm/gather_slices.cuh"
#include "gemm/measured_tiles.cuh"

// Where a lane reads: its first row, and how many rows follow it.
struct Rows {
    const unsigned char* first;
    int left;

    __device__ __forceinline__ Rows(const unsigned char* w, int row, int n)
    {
        const int lane = threadIdx.x % 32, at = min(row + lane / 4, n - 1);
        first = w + (long long)at * BYTES + lane % 4 * 16;
        left = n - 1 - at;
        hold(first);
    }

    // Copies the words of a lane for a step, those of all lanes of a row of eight side by side.
    __device__ __forceinline__ void copy(u32 to, int step) const
    {
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e) {
            const long long row = EDGE ? min(8 * e, left) : 8 * e;
            cp_async<16 / sizeof(T)>(to + e * 512, (const T*)(first + row * BYTES + step * 64), true);
        }
    }
};

// Copies the scales of the steps of a block.
__device__ __forceinline__ void copy_factors(unsigned char* to, const T* scales, int n0, int n, int first, int end)
{
    constexpr int PIECES = FACTORS_BYTES / COPY;  // at most
    const int begin = piece_at(first), bytes = min(ROW_FACTORS, factors_at(end - 1) + SPAN) - begin;
#pragma unroll 1
    for (int item = threadIdx.x; item < BN * PIECES; item += THREADS) {
        const int row = item / PIECES, byte = item % PIECES * COPY;
        if (byte >= bytes) continue;
        const unsigned char* const from = (const unsigned char*)scales + (long long)min(n0 + row, n - 1) * ROW_FACTORS;
        cp_async<COPY / sizeof(T)>(shared_address(to + row * FACTORS_BYTES + byte), (const T*)(from + begin + byte),
                                   true);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
mixed_input(const T* a, const unsigned char* w, const T* scales, void* c, const Z* bias, const Z* z0, const Z* z1,
            int m, int n, int tiles_m, R* rows_left, const R* factors_left, float* squares_left)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const Block block(tiles_m);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slice = warp / WARPS_N, warp_n = warp % WARPS_N;
    const int own_n = warp_n * (EIGHTS * 8);
    const int first = STEPS * block.split / block.splits, end = STEPS * (block.split + 1) / block.splits;
    const int begin = first + slice;  // the steps of a slice are SLICES apart

    const Rows rows(w, block.n0 + own_n, n);
    // The last row stands for those past it, whose sums are not stored.
    const Terms terms(a, [&](int row) { return min(block.m0 + row, m - 1); });
    unsigned char* const factors = shared + SLICES * STAGES * BYTES_STAGE;
    unsigned char* const stages = shared + slice * (STAGES * BYTES_STAGE);
    const u32 own_stages = shared_address(stages);
    u32 own_words = own_stages + BYTES_A + warp_n * BYTES_W + lane * 16;
    hold(own_words);
    const auto load_words = [&](int stage, int step) {
        if (step < end) rows.copy(own_words + stage * BYTES_STAGE, step);
    };
    const auto load_rows = [&](int stage, int step) {
        if (step < end) terms.copy(own_stages + stage * BYTES_STAGE, step);
        cp_async_commit();  // also an empty group, so that counting groups counts stages
    };
    const Inbox<BM, BN / 8> inbox(shared + INBOX, block.split, block.splits);
    const Measuring measuring(nullptr, rows_left, factors_left, squares_left, block.n0, n);
    grid_dependency_launch();
    if constexpr (SPLIT == CLUSTER) inbox.open();
    copy_factors(factors, scales, block.n0, n, first, end);
    cp_async_commit();
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) load_words(stage, begin + stage * SLICES);
    grid_dependency_sync();
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) load_rows(stage, begin + stage * SLICES);
    cp_async_wait<STAGES - 1>();
    __syncthreads();  // scales are there

    const Masks masks;
    Sums sums = {};
    const unsigned char* const own_factors = factors + (own_n + lane / 4) * FACTORS_BYTES - piece_at(first);
    int stage = 0;
    for (int step = begin; step < end; step += SLICES) {
        cp_async_wait<STAGES - 2>();
        if constexpr (WARPS_N == 1) __syncwarp();
        else named_barrier(1 + slice);
        const int freed = stage == 0 ? STAGES - 1 : stage - 1;  // all warps of the slice have multiplied it
        load_words(freed, step + (STAGES - 1) * SLICES);
        load_rows(freed, step + (STAGES - 1) * SLICES);
        const unsigned char* const own = stages + stage * BYTES_STAGE;
        multiply(sums, own, own + BYTES_A + warp_n * BYTES_W, own_factors + factors_at(step), masks);
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    cp_async_wait<0>();
    __syncthreads();
    gather((float*)shared, sums, slice, own_n);
    const FinishProducts<PRODUCTS> finish{c, bias, z0, z1, m, n / PRODUCTS, n / PRODUCTS, 0, 0};
    if constexpr (LEAVES) {
        typename FinishProducts<PRODUCTS>::Several some;
        finish.template store<true>(some, shared, inbox, block, measuring);
    } else finish.store(shared, inbox, block);
}
