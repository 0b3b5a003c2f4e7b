// Rows that experts have chosen; for kernels that include gemv.cuh, whose epilogue is the activation.
//
// A *pair* is a row with one of its TOP experts: number row * TOP + slot. A block has up to M pairs of one expert, and
// rows of its weights. Pairs are sorted by expert in `order`, and those of expert e end before ends[e]. Without SORTED
// there is a single row, whose pairs are in their own order, and every warp chooses the experts for itself.
//
// Compile-time, besides the constants of gemv.cuh and route.cuh: SHARE, how many pairs read the same row of x, TOP or 1;
// SORTED.

#include "gemm/route.cuh"

// The pairs of a block: positions from `first` on of `order`.
struct Tile {
    int expert, first, count;
};

// The expert and the pairs of tile number `tile`; none past the last tile. All lanes of a warp return the same.
__device__ __forceinline__ Tile tile_of(const L* router, const L* given, const int* ends, int tile)
{
    if constexpr (!SORTED) {
        Tile found = {0, tile, 1};
        choose_experts(router, given, 0, [&](int slot, int expert, float) {
            if (slot == tile) found.expert = expert;
        });
        return found;
    }
    const int lane = threadIdx.x % 32;
    int tiles = 0;
    for (int base = 0; base < EXPERTS; base += 32) {
        const int e = base + lane, end = e < EXPERTS ? ends[e] : 0;
        const int begin = e < EXPERTS && e > 0 ? ends[e - 1] : 0, own = e < EXPERTS ? (end - begin + M - 1) / M : 0;
        int through = own;
#pragma unroll
        for (int apart = 1; apart < 32; apart *= 2) {
            const int before = __shfl_up_sync(~0u, through, apart);
            if (lane >= apart) through += before;
        }
        through += tiles;
        const unsigned past = __ballot_sync(~0u, through > tile);
        tiles = __shfl_sync(~0u, through, 31);
        if (!past) continue;
        const int source = __ffs(past) - 1;
        const int first = __shfl_sync(~0u, begin + (tile - (through - own)) * M, source);
        const int last = __shfl_sync(~0u, end, source);
        return Tile{base + source, first, min(M, last - first)};
    }
    return Tile{0, 0, 0};
}

// Where a lane reads rows of x.
template <int COUNT>
struct ChosenRows {
    const Y* at[COUNT];

    __device__ __forceinline__ const Y* row(int group, int) const { return at[group]; }
};

// Adds up the partial results of all warps, in their order, and stores them.
__device__ __forceinline__ void finish_pairs(const float (&parts)[WARPS][COLUMNS][ROWS], R* y, const Y* bias,
                                             const Tile& tile, const int (&pairs)[M], int n0, int n)
{
    __syncthreads();
    for (int i = threadIdx.x; i < tile.count * RESULTS; i += THREADS) {
        const int m = i / RESULTS, result = i % RESULTS, column = n0 + result;
        if (column >= n) continue;
        float sums[PRODUCTS] = {};
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp)
#pragma unroll
            for (int plane = 0; plane < PLANES; ++plane)
#pragma unroll
                for (int p = 0; p < PRODUCTS; ++p)
                    sums[p] += parts[warp][m * PLANES + plane][(result / 8 * PRODUCTS + p) * 8 + result % 8];
        if constexpr (BIAS) {
#pragma unroll
            for (int p = 0; p < PRODUCTS; ++p)
                sums[p] += float(bias[((long long)tile.expert * PRODUCTS + p) * n + column]);
        }
        const long long at = (long long)pairs[m] * n + column;
        y[at] = result_of(sums, at, m, column, (const Y*)nullptr, (const Y*)nullptr);
    }
}
