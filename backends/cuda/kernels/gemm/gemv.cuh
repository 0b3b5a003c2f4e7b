// The common part of products of few rows with weights of any type: the assignment of terms to threads, and the
// reduction.
//
// A block has ROWS rows of weights, whose terms its warps divide. A lane has a word of 16 bytes of row lane / 4
// of every eight, and four lanes the 64 bytes of a row that are a step: the layout of the left operand of mma.sync
// with the terms permuted, equally on both sides. The columns of its right operand are rows of x, or their PLANES,
// numbers of fewer bits that add up to the row.
//
// With two PRODUCTS of the same x, whose results the epilogue combines, a block has equally many rows of both weights:
// every second group of eight belongs to the second product.
//
// Compile-time: M, the rows of x; PLANES; PRODUCTS; EIGHTS, of rows of weights; WARPS; RESIDENT, blocks per
// multiprocessor that the registers allow; BIAS; Y, the type of operands, and R, of results.

constexpr int THREADS = 32 * WARPS, ROWS = 8 * EIGHTS, PAIRS = (EIGHTS + 1) / 2;
constexpr int COLUMNS = M * PLANES, GROUPS = (COLUMNS + 7) / 8, RESULTS = ROWS / PRODUCTS;
static_assert(EIGHTS % PRODUCTS == 0, "products have equally many rows of a block");
// From the sums of a column to the next: lanes store to different banks, where that takes little memory.
constexpr int SUMS = COLUMNS > 1 && WARPS * COLUMNS * ROWS <= 8192 ? ROWS + 4 : ROWS;

#include "gemm/row_norm.cuh"

// Rows of x that are next to each other.
struct AdjacentRows {
    const Y* x;

    __device__ __forceinline__ const Y* row(int, int m) const { return x + (long long)m * ROW; }
};

// Applies the epilogue to the sums of one result.
template <typename Sums>
__device__ __forceinline__ R result_of(const Sums& sums, long long at, int m, int column, const Y* z0,
                                       const Y* z1)
{
    if constexpr (PRODUCTS == 1) return epilogue(sums[0], at, m, column, z0, z1);
    else return epilogue(sums[0], sums[1], at, m, column, z0, z1);
}

// Adds up the partial results of all warps of a block: four sums in the order of warps.
__device__ __forceinline__ void add_parts(float (&sums)[PRODUCTS], const float (&parts)[WARPS][COLUMNS][SUMS],
                                          unsigned m, unsigned result)
{
    float found[PRODUCTS][4] = {};
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp)
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane)
#pragma unroll
            for (int p = 0; p < PRODUCTS; ++p)
                found[p][warp % 4] += parts[warp][m * PLANES + plane][(result / 8 * PRODUCTS + p) * 8 + result % 8];
#pragma unroll
    for (int p = 0; p < PRODUCTS; ++p) sums[p] += (found[p][0] + found[p][1]) + (found[p][2] + found[p][3]);
}

__device__ __forceinline__ void clear(float (&sums)[PAIRS][GROUPS][4])
{
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair)
#pragma unroll
        for (int group = 0; group < GROUPS; ++group)
#pragma unroll
            for (int q = 0; q < 4; ++q) sums[pair][group][q] = 0;
}

// Stores the sums of a warp's fragments in shared memory.
__device__ __forceinline__ void leave_fragments(float (&part)[COLUMNS][SUMS],
                                                const float (&sums)[PAIRS][GROUPS][4])
{
    const int row = threadIdx.x % 32 / 4, first = threadIdx.x % 4 * 2;
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair)
#pragma unroll
        for (int group = 0; group < GROUPS; ++group)
#pragma unroll
            for (int q = 0; q < 4; ++q) {
                const int column = group * 8 + first + q % 2, e = 2 * pair + q / 2;
                if (column < COLUMNS && e < EIGHTS) part[column][8 * e + row] = sums[pair][group][q];
            }
}
