// Rows that experts have chosen; for kernels that include gemv.cuh, whose epilogue is the activation.
//
// Compile-time, besides the constants of gemv.cuh and expert_tiles.cuh: SHARE, how many pairs read the same row of x, TOP
// or 1.

#include "gemm/expert_tiles.cuh"

// Where a lane reads rows of x.
template <int COUNT>
struct ChosenRows {
    const Y* at[COUNT];

    __device__ __forceinline__ const Y* row(int group, int) const { return at[group]; }
};

// Adds up the partial results of all warps, in their order, and stores them.
__device__ __forceinline__ void finish_pairs(const float (&parts)[WARPS][COLUMNS][SUMS], R* y, const Y* bias,
                                             const Tile& tile, const int (&pairs)[M], int n0, int n)
{
    __syncthreads();
    for (int i = threadIdx.x; i < tile.count * RESULTS; i += THREADS) {
        const int m = i / RESULTS, result = i % RESULTS, column = n0 + result;
        if (column >= n) continue;
        float sums[PRODUCTS] = {};
        add_parts(sums, parts, m, result);
        if constexpr (BIAS) {
#pragma unroll
            for (int p = 0; p < PRODUCTS; ++p)
                sums[p] += float(bias[((long long)tile.expert * PRODUCTS + p) * n + column]);
        }
        const long long at = (long long)pairs[m] * n + column;
        y[at] = result_of(sums, at, m, column, (const Y*)nullptr, (const Y*)nullptr);
    }
}
