// What products of few rows have in common, with weights of any type: who has which terms, and the end.
//
// A block has ROWS rows of weights, whose terms its warps share. A lane has a word of 16 bytes of row lane / 4
// of every eight, and four lanes the 64 bytes of a row that are a step: that is how mma.sync takes its left operand
// if terms change places, on both sides alike. Columns of its right operand are rows of x, or their PLANES,
// numbers of fewer bits whose sum such a row is.
//
// Compile-time: M, the rows of x; PLANES; EIGHTS, of rows of weights; WARPS; RESIDENT, blocks of a
// multiprocessor that there are registers for; BIAS; Y, the type of operands, and R, of results.

constexpr int THREADS = 32 * WARPS, ROWS = 8 * EIGHTS, PAIRS = (EIGHTS + 1) / 2;
constexpr int COLUMNS = M * PLANES, GROUPS = (COLUMNS + 7) / 8;

// Adds what all warps have of a block's results, in their order, and stores them.
__device__ __forceinline__ void finish_rows(const float (&parts)[WARPS][COLUMNS][ROWS], R* y,
                                            const Y* bias, const Y* z0, const Y* z1, int n0, int n)
{
    __syncthreads();
    for (int i = threadIdx.x; i < M * ROWS; i += THREADS) {
        const int m = i / ROWS, row = i % ROWS, column = n0 + row;
        if (column >= n) continue;
        float sum = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp)
#pragma unroll
            for (int plane = 0; plane < PLANES; ++plane) sum += parts[warp][m * PLANES + plane][row];
        const long long at = (long long)m * n + column;
        y[at] = epilogue(sum + (BIAS ? float(bias[column]) : 0.f), at, m, column, z0, z1);
    }
}

// Leaves the sums of a warp's fragments.
__device__ __forceinline__ void leave_fragments(float (&part)[COLUMNS][ROWS],
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
