// Up to eight rows of 16-bit floats that are divided by their root mean square while they are multiplied: results are,
// once all terms of the rows have been read. Until then a power of two stands for it, so that no number gets too large
// or too small for its type; each step of a warp has its own. The factors of the elements are in shared memory.
//
// A product of x with itself has the sums of squares on its diagonal.
//
// Compile-time: those of gemv_integers.cuh.

struct ScaledRows {
    const X *x, *factors;
    float squares;  // of the terms that this warp has read, of row lane / 4

    static_assert(!SCALED || (GROUPS == 1 && PLANES == 1 && BITS == 4 && K % STEP == 0), "whole steps of up to eight rows");

    __device__ __forceinline__ const X* row(int, int m) const { return x + (long long)m * ROW; }

    // The sum of squares of the step's terms of row lane / 4.
    static __device__ __forceinline__ float squares_of(const u32 (&values)[4][1][4])
    {
        float found[2][4] = {};
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const u32 first = values[j][0][2 * i], second = values[j][0][2 * i + 1];
                const u32 a[4] = {first, 0, second, 0};
                mma_m16n8k16(found[i], a, first, second);
            }
        const int lane = threadIdx.x % 32;
        const float own = lane / 4 % 2 ? found[0][1] + found[1][1] : found[0][0] + found[1][0];
        return __shfl_sync(~0u, own, lane / 4 * 4 + lane / 8);
    }

    // Multiplies the terms of a step from k on by their factors and, in float16, by a power of two. Returns that of the
    // rows that are this lane's columns of results, to divide these by.
    __device__ __forceinline__ float2 scale(u32 (&values)[4][1][4], int k)
    {
        constexpr u32 NOTHING = 0x80008000;
        const int lane = threadIdx.x % 32;
        const float own = squares_of(values);
        squares += own;
        // Half of the exponent of the mean of 2^7 squares, as far as float16 has powers of two.
        const int mean = (__float_as_int(own) >> 23) - 127 - 7;
        const int exponent = BRAIN ? 0 : min(max(mean >> 1, -15), 14);
        const u32 by = (15 - exponent) << 10;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            u32 own[EACH / 2];
            load_values(own, factors, 0, first_of_lane(k + j * QUARTER));
#pragma unroll
            for (int i = 0; i < EACH / 2; ++i) {
                u32& value = values[j][0][i];
                if (!BRAIN) value = pair_fma(value, by * 0x10001, NOTHING);
                value = pair_fma(value, own[i], NOTHING);
            }
        }
        const float back = __int_as_float((127 + exponent) << 23);
        return {__shfl_sync(~0u, back, lane % 4 * 8), __shfl_sync(~0u, back, lane % 4 * 8 + 4)};
    }
};

template <> constexpr bool IS_SCALED<ScaledRows> = true;

// The factors in shared memory, behind the scales of a block.
__device__ __forceinline__ X* factor_memory() { return (X*)(scale_memory() + ROWS * PITCH_SCALES); }

// Starts to copy them; see `copy_scales`.
__device__ __forceinline__ void copy_factors(const X* factors)
{
#pragma unroll
    for (int base = 0; base < K; base += THREADS * 8) {
        const int k = base + threadIdx.x * 8;
        if (base + THREADS * 8 > K && k >= K) break;
        cp_async<8>(shared_address(factor_memory() + k), (const T*)factors + k, true);
    }
    cp_async_commit();
}

// Stores the sums of squares of a warp's terms.
template <typename Rows> __device__ __forceinline__ void leave_squares(Squares& to, const Rows& rows)
{
    if (threadIdx.x % 4 == 0) to.of[threadIdx.x % 32 / 4][threadIdx.x / 32] = rows.squares;
}
