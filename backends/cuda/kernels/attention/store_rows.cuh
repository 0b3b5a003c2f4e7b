// How attention by three float16 products stores the results of a warp's sixteen rows.
//
// Compile-time: EIGHTS and SIZE_V; PLAIN, whether `y` gets them; VECTOR_Y, results per store; IN_HALVES, whether `halves`
// gets them, in the format of store_halves.cuh.

// Stores the results of a head's rows from `first` on; `tiles` are the blocks of a head.
__device__ __forceinline__ void store_rows(float (&results)[EIGHTS][4], const float (&sum)[2], float* y, unsigned char* halves,
                                           const Steps& of_y, const Sizes& s, int n, int head, int first, int tiles)
{
    const int lane = threadIdx.x % 32, row = first + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float total = over_quad_sum(sum[half]);
        const float by = total == 0 ? 0.0f : 1 / total;
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) results[j][half * 2] *= by, results[j][half * 2 + 1] *= by;
        if (!PLAIN || row + half * 8 >= s.rows) continue;
        float* const to = y + n * of_y.batch + head * of_y.head + (row + half * 8) * of_y.row;
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) {
            const int column = j * 8 + lane % 4 * 2;
            const float2 pair = make_float2(results[j][half * 2], results[j][half * 2 + 1]);
            if (VECTOR_Y == 2) {
                if (column < s.size_v) *(float2*)(to + column) = pair;
            } else {
                if (column < s.size_v) to[column] = pair.x;
                if (column + 1 < s.size_v) to[column + 1] = pair.y;
            }
        }
    }
#if IN_HALVES
    const int of_sample = n * s.rows;
    const RowsInHalves to = {halves, (int(gridDim.x) / (tiles * s.heads) * s.rows + 7) / 8 * 8, s.heads * SIZE_V};
#pragma unroll
    for (int j = 0; j < EIGHTS; j += BLOCK_TERMS / 8)
        store_block_in_halves(to, results, j, of_sample + first, head * SIZE_V + j * 8, of_sample + s.rows);
#endif
}
