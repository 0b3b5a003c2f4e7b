// The epilogue of a product whose sums are stored directly from the registers of the warps.
//
// Compile-time, besides those of epilogue.cuh: SPLIT: 0 no, 1 partial sums, 2 cluster; EIGHTS_AHEAD, how many eights of
// columns a thread loads operands for at once: these come from far away; POOL, whether the maximum of every four rows is
// stored, to which the same operands apply; FOURS, whether four adjacent results are stored at a time. Macros: IN_HALVES,
// whether results are stored in halves, and PLAIN, whether as they are; PATCHES, see store_patches.cuh.

#include "elementwise/maximum.cuh"

#if IN_HALVES || PATCHES
#define BLOCKWISE 1
#include "gemm/store_halves.cuh"
#else
#define BLOCKWISE 0
#endif

// The epilogue's operands of the results of a tile, and the destination.
struct Results {
#if BLOCKWISE
    RowsInHalves halves;
#endif
    R* c;
    const Z *bias, *z0, *z1;
    int m, n, ldc;
    long long start;  // of the batch, in elements
    int channels;     // of the preceding batches, if each has its own channels
#if PATCHES
    Image image;
#endif
#if TOTALS
    float* totals;  // of columns
#endif

    template <int N> __device__ __forceinline__ Operands<N> operands(int row, int column) const
    {
        return operands_at<N>(place(row, column), row, channels + column, n - column, bias, z0, z1);
    }

    __device__ __forceinline__ long long place(int row, int column) const
    {
        return start + (long long)row * ldc + column;
    }

    template <int N>
    __device__ __forceinline__ void store(const float (&sums)[N], const Operands<N>& with, int row,
                                          int column) const
    {
        store(with_epilogue(sums, with), row, column);
    }

    template <int N>
    __device__ __forceinline__ void store(const Neighbours<R, N>& results, int row, int column) const
    {
        R* to = c + place(row, column);
        if constexpr (VECTOR_C >= N) {
            *(Neighbours<R, N>*)to = results;
        } else {
#pragma unroll
            for (int q = 0; q < N; ++q)
                if (column + q < n) to[q] = results.at[q];
        }
    }
};

// The maximum of adjacent results of every four rows, which are in lanes four apart.
__device__ __forceinline__ Neighbours<R, 2> over_squares(Neighbours<R, 2> results)
{
#pragma unroll
    for (int other = 4; other <= 8; other *= 2)
#pragma unroll
        for (int q = 0; q < 2; ++q)
            results.at[q] = maximum(results.at[q], __shfl_xor_sync(~0u, results.at[q], other));
    return results;
}

// Stores two adjacent results of these sums, or the maxima of those of every four rows, if they exist.
__device__ __forceinline__ void store_pair(const Results& results, const float (&sums)[2], const Operands<2>& with, int row,
                                           int column)
{
    const bool inside = row < results.m && column < results.n;
    if constexpr (POOL) {
        const Neighbours<R, 2> best = over_squares(with_epilogue(sums, with));
        if (inside && row % 4 == 0) results.store(best, row / 4, column);
    } else if (inside) {
        results.store<2>(sums, with, row, column);
    }
}

// Exchanges the sums of two eights of columns with the next lane: an even lane gets four adjacent ones of the first, an odd
// one of the second; `half` says in which row.
__device__ __forceinline__ void four_of_row(float (&four)[4], const float (&left)[4], const float (&right)[4], int half)
{
    const bool odd = threadIdx.x % 2;
#pragma unroll
    for (int q = 0; q < 2; ++q) {
        const float first = left[half * 2 + q], second = right[half * 2 + q];
        const float found = __shfl_xor_sync(~0u, odd ? first : second, 1);
        four[q] = odd ? found : first;
        four[2 + q] = odd ? second : found;
    }
}

// Stores the sums of several eights of columns: lanes exchange them in pairs, so that each has four adjacent ones, of the
// first of two eights or of the second, and a row of the warp stores 64 bytes of float32 at a time.
template <int EIGHTS>
__device__ __forceinline__ void store_fours(const Results& results, const float (&sums)[EIGHTS][4], int row, int column)
{
    const int lane = threadIdx.x % 32;
    row += lane / 4;
    column += lane % 4 / 2 * 4 + lane % 2 * 8;
    Operands<4> with[EIGHTS / 2][2];
#pragma unroll
    for (int j = 0; j < EIGHTS; j += 2)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int line = row + half * 8, at = column + j * 8;
            if (line < results.m && at < results.n) with[j / 2][half] = results.operands<4>(line, at);
        }
#pragma unroll
    for (int j = 0; j < EIGHTS; j += 2)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float four[4];
            four_of_row(four, sums[j], sums[j + 1], half);
            const int line = row + half * 8, at = column + j * 8;
            if (line < results.m && at < results.n) results.store<4>(four, with[j / 2][half], line, at);
        }
}

// Stores the sums of 16 x 8 * COUNT results, whose first is at (row, column), from the registers of a
// warp: two adjacent ones per thread, in every eight columns and in two rows.
template <int COUNT>
__device__ __forceinline__ void store_sums(const Results& results, const float (&sums)[COUNT][4],
                                           int row, int column)
{
    constexpr int AT_ONCE = COUNT < EIGHTS_AHEAD ? COUNT : EIGHTS_AHEAD;
    if constexpr (FOURS && AT_ONCE % 2 == 0) {
#pragma unroll
        for (int j = 0; j < COUNT; j += AT_ONCE)
            store_fours(results, *(const float (*)[AT_ONCE][4])(sums + j), row, column + j * 8);
        return;
    }
    row += threadIdx.x % 32 / 4;
    column += threadIdx.x % 4 * 2;
#pragma unroll
    for (int j0 = 0; j0 < COUNT; j0 += AT_ONCE) {
        Operands<2> with[AT_ONCE][2];
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int at = column + (j0 + j) * 8;
                if (row + half * 8 < results.m && at < results.n)
                    with[j][half] = results.operands<2>(row + half * 8, at);
            }
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float pair[2] = {sums[j0 + j][2 * half], sums[j0 + j][2 * half + 1]};
                store_pair(results, pair, with[j][half], row + half * 8, column + (j0 + j) * 8);
            }
    }
}

#if PATCHES
#include "gemm/store_patches.cuh"
#elif BLOCKWISE
// The same of blocks of 64 columns that are stored in halves as well or, unless PLAIN, instead.
template <int COUNT>
__device__ __forceinline__ void store_blocks(const Results& results, float (&sums)[COUNT][4], int row, int column)
{
    constexpr int EIGHTS = BLOCK_TERMS / 8;
    static_assert(COUNT % EIGHTS == 0, "whole blocks");
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j0 = 0; j0 < COUNT; j0 += EIGHTS) {
        if (column + j0 * 8 >= results.n) break;
#pragma unroll
        for (int j1 = j0; j1 < j0 + EIGHTS; j1 += EIGHTS_AHEAD) {
            Operands<2> with[EIGHTS_AHEAD][2];
#pragma unroll
            for (int i = 0; i < 2 * EIGHTS_AHEAD; ++i) {
                const int line = row + lane / 4 + i % 2 * 8, at = column + (j1 + i / 2) * 8 + lane % 4 * 2;
                if (line < results.m) with[i / 2][i % 2] = results.operands<2>(line, at);
            }
#pragma unroll
            for (int i = 0; i < 2 * EIGHTS_AHEAD; ++i) {
                float* of = sums[j1 + i / 2] + i % 2 * 2;
                const float pair[2] = {of[0], of[1]};
                const Neighbours<R, 2> found = with_epilogue(pair, with[i / 2][i % 2]);
                of[0] = found.at[0], of[1] = found.at[1];
                const int line = row + lane / 4 + i % 2 * 8, at = column + (j1 + i / 2) * 8 + lane % 4 * 2;
                if (PLAIN && line < results.m) *(Neighbours<R, 2>*)(results.c + results.place(line, at)) = found;
            }
        }
        store_block_in_halves(results.halves, sums, j0, row, column + j0 * 8, results.m);
    }
}
#endif
