// How warps that have whole rows store them: the threads of a quad exchange their pairs, so that each stores eight adjacent
// results. See warp_parts.cuh, also for the compile-time constants.

// Transposes four words of each thread of a quad: the one of number i gets word i of each.
__device__ __forceinline__ void transpose_in_quad(u32 (&words)[4])
{
    const bool high = threadIdx.x & 2, odd = threadIdx.x & 1;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const u32 found = __shfl_xor_sync(~0u, high ? words[i] : words[i + 2], 2);
        if (high) words[i] = found;
        else words[i + 2] = found;
    }
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const u32 found = __shfl_xor_sync(~0u, odd ? words[i] : words[i + 1], 1);
        if (odd) words[i] = found;
        else words[i + 1] = found;
    }
}

// Stores the results of a warp's rows, from `first` of `rows` on, of those that exist; `y` is that of their sample.
__device__ __forceinline__ void store_transposed(const Accumulators& from, T* y, int first, int rows, const Sizes& s,
                                             const Steps& by)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        T* to[2];
        u32 words[2][SIZE_V / 8];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const Row& at = from.rows[i][half];
            const float total = over_quad_sum(from.sum[i][half]), factor = total == 0 ? 0.0f : 1 / total;
            to[half] = y + at.head * by.head + at.query * by.row;
#pragma unroll
            for (int j = 0; j < SIZE_V / 8; ++j) {
                const float(&found)[4] = from.results[i][j];
                words[half][j] = pair_of(found[half * 2] * factor, found[half * 2 + 1] * factor);
            }
        }
        const int left = rows - first - i * 16 - lane / 4;
        if constexpr (VECTOR_Y == 8) {
#pragma unroll
            for (int j = 0; j < SIZE_V / 8; j += 2) {  // a thread of a quad stores an eight of one of two rows
                alignas(16) u32 own[4] = {words[0][j], words[0][j + 1], words[1][j], words[1][j + 1]};
                transpose_in_quad(own);
                const int half = lane % 4 / 2, column = (j + lane % 2) * 8;
                if (half * 8 < left && column < s.size_v)
                    *(Elements<8>*)((half ? to[1] : to[0]) + column) = *(const Elements<8>*)own;
            }
        } else {
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int j = 0; j < SIZE_V / 8; ++j) {
                    const int column = j * 8 + lane % 4 * 2;
                    const Elements<2> pair = *(const Elements<2>*)&words[half][j];
                    if (half * 8 < left && column < s.size_v) to[half][column] = pair.at[0];
                    if (half * 8 < left && column + 1 < s.size_v) to[half][column + 1] = pair.at[1];
                }
        }
    }
}
