// The results of a warpgroup's products (wgmma), whose rows are pixels with channels innermost: stored in words of eight.
//
// Compile-time: R and T, of results and operands; POOL, whether the maximum of every 2 x 2 pixels is stored, which are
// neighbours in rows of eight; and what gemm/epilogue.cuh needs, which is included before.

// Four adjacent threads have two columns each of four groups of eight; afterwards each has one whole group.
__device__ __forceinline__ void exchange(float (&values)[8], const float (*sums)[4], int half, int lane)
{
    float pairs[4][2];
#pragma unroll
    for (int j = 0; j < 4; ++j) pairs[j][0] = sums[j][2 * half], pairs[j][1] = sums[j][2 * half + 1];
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2)
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            const int low = bit == 1 ? 2 * t : t, high = low + bit;
            const bool upper = lane & bit;
#pragma unroll
            for (int q = 0; q < 2; ++q) {
                const float sent = upper ? pairs[low][q] : pairs[high][q];
                const float found = __shfl_xor_sync(~0u, sent, bit);
                if (upper) pairs[low][q] = found;
                else pairs[high][q] = found;
            }
        }
#pragma unroll
    for (int j = 0; j < 4; ++j) values[2 * j] = pairs[j][0], values[2 * j + 1] = pairs[j][1];
}

// What 16 rows of a warp read and write besides sums, four groups of eight columns at a time.
struct Rows {
    int places[2];  // of two rows of a thread in the result, eight rows apart; -1 if discarded

    __device__ __forceinline__ void read(Operands<8> (&operands)[2], int column, int n, int ldc, const T* bias,
                                         const T* z0, const T* z1) const
    {
#pragma unroll
        for (int half = 0; half < 2; ++half)
            if (places[half] >= 0 && column < n)
                operands[half] = operands_at<8>((long long)places[half] * ldc + column, places[half], column,
                                                n - column, bias, z0, z1);
    }

    __device__ __forceinline__ void store(R* c, const float (*sums)[4], const Operands<8> (&operands)[2], int column,
                                          int n, int ldc) const
    {
        const int lane = threadIdx.x % 32, room = n - column;
        Words results[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float values[8];
            exchange(values, sums, half, lane);
            results[half] = with_epilogue(values, operands[half]);
        }
        if constexpr (POOL) {
            Words best = greater(results[0], results[1]), other;
#pragma unroll
            for (int q = 0; q < 4; ++q)
                ((u32*)&other)[q] = __shfl_xor_sync(~0u, ((u32*)&best)[q], 4);
            if (places[0] >= 0 && room > 0 && lane / 4 % 2 == 0)
                keep(c + (long long)places[0] * ldc + column, greater(best, other), room);
        } else {
#pragma unroll
            for (int half = 0; half < 2; ++half)
                if (places[half] >= 0 && room > 0)
                    keep(c + (long long)places[half] * ldc + column, results[half], room);
        }
    }
};
