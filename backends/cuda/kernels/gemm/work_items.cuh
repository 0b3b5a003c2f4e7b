// The work items of a persistent kernel whose sums are in registers, as those of float32 on tensor cores are, and their
// end: sums are multiplied by the factors of their columns and stored, or added up over a cluster before.
//
// Compile-time, besides those of store_registers.cuh: those of fragments.cuh;
// STEPS, how many steps no two blocks share.

struct Work {  // the problem, for all blocks
    int m, n, k, lda, tiles_n, tiles, items, batch_a, batch_c, rows_b, splits;
};

struct Item {  // one work item of a block
    int m0, n0, batch, first, count;

    __device__ __forceinline__ Item(int item, const Work& work)
    {
        const int turn = item / work.splits, split = item - turn * work.splits;
        const int share = in_order(turn, work.items / work.splits);
        batch = share / work.tiles;
        const int tile = share - batch * work.tiles, tile_m = tile / work.tiles_n;
        m0 = tile_m * BM, n0 = (tile - tile_m * work.tiles_n) * BN;
        const int groups = (work.k + BK - 1) / BK / STEPS;
        first = (int)((long long)groups * split / work.splits) * STEPS;
        count = (int)((long long)groups * (split + 1) / work.splits) * STEPS - first;
    }
};

// Multiplies sums by the factors of their columns, padded to eights.
template <int COUNT>
__device__ __forceinline__ void scale_columns(float (&totals)[COUNT][4], const float* scales, int n0, int columns)
{
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
        const int column = min(n0 + j * 8 + (int)threadIdx.x % 4 * 2, columns - 2);
        const float2 scale = *(const float2*)(scales + column);
        totals[j][0] *= scale.x, totals[j][1] *= scale.y;
        totals[j][2] *= scale.x, totals[j][3] *= scale.y;
    }
}

#include "gemm/early_operands.cuh"
#include "gemm/fragments.cuh"

// Fetches what the epilogue of the first item needs for every column: nothing else reads it in time.
__device__ __forceinline__ void prefetch_columns(const Z* bias, const float* scales, int first, const Work& work)
{
    constexpr int LINE = 128 / sizeof(float);
    const Item item(first, work);
    const int column = item.n0 + (int)threadIdx.x * LINE;
    if (threadIdx.x * LINE >= BN || column >= work.n) return;
    if constexpr (BIAS) prefetch_l2(bias + (ROWS == MATRIX ? 0 : item.batch * work.n) + column);
    if constexpr (F16X3) prefetch_l2(scales + (long long)item.batch * work.rows_b + column);
}

// Begins an item, of 16 rows from `row` on per warp: returns what its epilogue reads before the products.
__device__ __forceinline__ EarlyOperands begin_item(Results& results, const float* scales, int row, const Item& item,
                                                    const Work& work)
{
    results.start = (long long)item.batch * work.batch_c;
    results.channels = ROWS == MATRIX ? 0 : item.batch * work.n;
    EarlyOperands operands;
    if constexpr (EARLY_OPERANDS)
        operands.read(results, scales + (long long)item.batch * work.rows_b, item.m0 + row, item.n0, work.rows_b);
    return operands;
}

// Stores the sums of an item that was begun, or this block's share of those of its cluster.
__device__ __forceinline__ void finish_item(const Results& results, const EarlyOperands& operands, float (&totals)[TN][4],
                                            const float* scales, const Share& share, int row, const Item& item,
                                            const Work& work)
{
    const float* of_columns = scales + (long long)item.batch * work.rows_b;
    if constexpr (SPLIT == CLUSTER) {
        share.send(totals);
#if BLOCKWISE && !PATCHES
        if constexpr (EIGHTS_AHEAD > 1) share.store_blocks_together(results, of_columns, item.m0, item.n0, work.rows_b);
        else share.store_blocks(results, of_columns, item.m0, item.n0, work.rows_b);
#elif BLOCKWISE
        share.store_blocks(results, of_columns, item.m0, item.n0, work.rows_b);
#else
        share.store(results, of_columns, item.m0, item.n0, work.rows_b);
#endif
    } else if constexpr (EARLY_OPERANDS) {
        operands.store(results, totals, item.m0 + row, item.n0);
    } else {
        if constexpr (F16X3) scale_columns(totals, of_columns, item.n0, work.rows_b);
#if BLOCKWISE
        store_blocks(results, totals, item.m0 + row, item.n0);
#else
        store_sums(results, totals, item.m0 + row, item.n0);
#endif
    }
}
