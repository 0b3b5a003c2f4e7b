// The work items of a persistent kernel whose sums are in registers, as those of float32 on tensor cores are, and their
// end: sums are multiplied by the factors of their columns and stored, or added up over a cluster before.
//
// Compile-time, besides those of store_registers.cuh: BM, BN, TN; GROUPS, of consumers; F16X3, whether there are factors;
// STEPS, how many steps no two blocks share.

constexpr int PITCH = BN + 8;  // of the sums in shared memory, in floats

struct Work {  // the problem, for all blocks
    int m, n, k, lda, tiles_n, tiles, items, batch_a, batch_c, rows_b, splits;
};

struct Item {  // one work item of a block
    int m0, n0, batch, first, count;

    __device__ __forceinline__ Item(int item, const Work& work)
    {
        const int share = item / work.splits, split = item - share * work.splits;
        batch = share / work.tiles;
        const int tile = share - batch * work.tiles, tile_m = tile / work.tiles_n;
        m0 = tile_m * BM, n0 = (tile - tile_m * work.tiles_n) * BN;
        const int groups = (work.k + BK - 1) / BK / STEPS;
        first = (int)((long long)groups * split / work.splits) * STEPS;
        count = (int)((long long)groups * (split + 1) / work.splits) * STEPS - first;
    }
};

// Multiplies sums by the factors of their columns, padded to eights.
__device__ __forceinline__ void scale_columns(float (&totals)[TN][4], const float* scales, int n0,
                                              int columns)
{
#pragma unroll
    for (int j = 0; j < TN; ++j) {
        const int column = min(n0 + j * 8 + (int)threadIdx.x % 4 * 2, columns - 2);
        const float2 scale = *(const float2*)(scales + column);
        totals[j][0] *= scale.x, totals[j][1] *= scale.y;
        totals[j][2] *= scale.x, totals[j][3] *= scale.y;
    }
}

// Adds up the sums of a cluster, each block a share of the tile, and stores them.
__device__ __forceinline__ void add_blocks(const Results& results, const float* scales, u32 shared,
                                           const Item& item, int split, int splits)
{
    constexpr int SIDE = POOL ? 4 : 1;  // rows of an item
    constexpr int ITEMS = BM * BN / 4 / SIDE, WARPS = ITEMS / 32;  // a warp has whole blocks of columns in halves
    const int end = WARPS * (split + 1) / splits * 32;
    for (int i = WARPS * split / splits * 32 + threadIdx.x; i < end; i += GROUPS * 128) {
        const int row = i / (BN / 4) * SIDE, column = i % (BN / 4) * 4;
        const bool inside = item.m0 + row < results.m && item.n0 + column < results.n;
        float sums[4] = {};
        if (inside) {
            const auto with = results.operands<4>(item.m0 + row, item.n0 + column);
            float4 scale;
            if constexpr (F16X3) scale = *(const float4*)(scales + item.n0 + column);
            Neighbours<R, 4> best;
#pragma unroll
            for (int down = 0; down < SIDE; ++down) {
#pragma unroll
                for (int q = 0; q < 4; ++q) sums[q] = 0;
#pragma unroll 4
                for (int block = 0; block < splits; ++block) {
                    const float4 found = dsmem_load(shared + ((row + down) * PITCH + column) * 4, block);
                    sums[0] += found.x, sums[1] += found.y, sums[2] += found.z, sums[3] += found.w;
                }
                if constexpr (F16X3) sums[0] *= scale.x, sums[1] *= scale.y, sums[2] *= scale.z, sums[3] *= scale.w;
                if constexpr (POOL) {
                    const Neighbours<R, 4> found = with_epilogue(sums, with);
#pragma unroll
                    for (int q = 0; q < 4; ++q) best.at[q] = down ? maximum(best.at[q], found.at[q]) : found.at[q];
                }
            }
#if IN_HALVES
            const Neighbours<R, 4> found = with_epilogue(sums, with);
            if (PLAIN) *(Neighbours<R, 4>*)(results.c + results.place(item.m0 + row, item.n0 + column)) = found;
#pragma unroll
            for (int q = 0; q < 4; ++q) sums[q] = found.at[q];
#else
            if constexpr (POOL) results.store(best, (item.m0 + row) / SIDE, item.n0 + column);
            else results.store<4>(sums, with, item.m0 + row, item.n0 + column);
#endif
        }
#if IN_HALVES
        store_halves(results.halves, sums, inside ? item.m0 + row : results.halves.rows, item.n0 + column);
#endif
    }
}

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

// Stores the sums of an item, of 16 rows from `row` on per warp, or those of all blocks of the cluster.
__device__ __forceinline__ void finish_item(Results& results, float (&totals)[TN][4], const float* scales, u32 shared,
                                            int row, const Item& item, int number, const Work& work)
{
    results.start = (long long)item.batch * work.batch_c;
    results.channels = ROWS == MATRIX ? 0 : item.batch * work.n;
    const float* of_columns = scales + (long long)item.batch * work.rows_b;
    if constexpr (SPLIT == CLUSTER) {
        named_barrier_sync<1, GROUPS * 128>();  // all reads of the tiles are complete
        const u32 at = shared + ((row + threadIdx.x % 32 / 4) * PITCH + threadIdx.x % 4 * 2) * 4;
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            write_pair(at + j * 32, totals[j][0], totals[j][1]);
            write_pair(at + j * 32 + PITCH * 32, totals[j][2], totals[j][3]);
        }
        cluster_sync();
        add_blocks(results, of_columns, shared, item, number % work.splits, work.splits);
    } else {
        if constexpr (F16X3) scale_columns(totals, of_columns, item.n0, work.rows_b);
#if IN_HALVES
        store_in_halves(results, totals, item.m0 + row, item.n0);
#else
        store_sums(results, totals, item.m0 + row, item.n0);
#endif
    }
}
