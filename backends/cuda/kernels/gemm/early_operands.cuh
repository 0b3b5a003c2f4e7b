// What the epilogue of a tile in registers needs, read before the products: otherwise, a block that has one tile waits for it
// when these are done.
//
// Compile-time, besides those of store_registers.cuh: TN, eights of columns; F16X3, whether columns have factors; ROOM, whether
// threads have registers to spare. With TOTALS, a macro, also the totals of columns are stored, a row for every 16 rows.

// Of tiles of one block and of few columns, stored in fours.
constexpr bool EARLY_OPERANDS = ROOM && SPLIT == WHOLE && !BLOCKWISE && FOURS && TN <= 8;

#if TOTALS
// Stores the sums of the rows of a warp in four columns of each lane: one of those that have the same columns.
__device__ __forceinline__ void store_totals(const Results& results, float (&total)[4], int band, int column)
{
#pragma unroll
    for (int other = 4; other < 32; other *= 2)
#pragma unroll
        for (int q = 0; q < 4; ++q) total[q] += __shfl_xor_sync(~0u, total[q], other);
    if (threadIdx.x % 32 < 4 && band * 16 < results.m && column < results.n)
        *(float4*)(results.totals + results.place(band, column)) = make_float4(total[0], total[1], total[2], total[3]);
}
#endif

// Of the four adjacent results that a lane stores in every two eights of columns and in two rows; see store_fours.
struct EarlyOperands {
    static constexpr int PAIRS = EARLY_OPERANDS ? TN / 2 : 1;
    Neighbours<Z, 4> shift[PAIRS], first[PAIRS][2], second[PAIRS][2];
    float4 factors[PAIRS];

    // Reads those of 16 rows from `row` on; `columns` have factors.
    __device__ __forceinline__ void read(const Results& results, const float* scales, int row, int column, int columns)
    {
        const int lane = threadIdx.x % 32;
        row += lane / 4, column += lane % 4 / 2 * 4 + lane % 2 * 8;
#pragma unroll
        for (int j = 0; j < PAIRS; ++j) {
            const int at = column + j * 16, channel = results.channels + at, room = results.n - at;
            if (room <= 0) continue;
            shift[j] = operand<4, BIAS ? 2 : 0>(results.bias, 0, 0, channel, room);
            if constexpr (F16X3) factors[j] = *(const float4*)(scales + min(at, columns - 4));
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int line = row + half * 8;
                if (line >= results.m) continue;
                const long long place = results.place(line, at);
                first[j][half] = operand<4, Z0>(results.z0, Z0 >= 4 ? place0(place) : place, line, channel, room);
                second[j][half] = operand<4, Z1>(results.z1, Z1 >= 4 ? place1(place) : place, line, channel, room);
            }
        }
    }

    // Stores the results of these sums.
    __device__ __forceinline__ void store(const Results& results, const float (&sums)[TN][4], int row, int column) const
    {
        const int lane = threadIdx.x % 32;
#if TOTALS
        const int band = row / 16;
#endif
        row += lane / 4, column += lane % 4 / 2 * 4 + lane % 2 * 8;
#pragma unroll
        for (int j = 0; j < PAIRS; ++j) {
#if TOTALS
            float total[4] = {};
#endif
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float four[4];
                four_of_row(four, sums[2 * j], sums[2 * j + 1], half);
                if constexpr (F16X3) {
                    four[0] *= factors[j].x, four[1] *= factors[j].y;
                    four[2] *= factors[j].z, four[3] *= factors[j].w;
                }
                const int line = row + half * 8, at = column + j * 16;
                if (line >= results.m || at >= results.n) continue;
                Operands<4> with = {shift[j], first[j][half], second[j][half]};
#ifdef SECOND
                with.also = second_place(results.place(line, at), results.channels + at, results.n - at, results.bias, results.z0,
                                         results.z1);
#endif
                const auto found = with_epilogue(four, with);
                results.store(found, line, at);
#if TOTALS
#pragma unroll
                for (int q = 0; q < 4; ++q) total[q] += found.at[q];
#endif
            }
#if TOTALS
            store_totals(results, total, band, column + j * 16);
#endif
        }
    }
};
