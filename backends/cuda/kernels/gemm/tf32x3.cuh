// What the float32 products on tensor cores share: numbers cut in two, tiles of windows, and the end.
//
// Tensor cores take tf32, which has 11 bits of mantissa. A float32 number is the sum of two of those,
// high + low, up to 2^-22 of it; and a product is high * high' + high * low' + low * high', with sums in
// float32. What the tensor cores add they do not round but cut off. So a sum of tensor cores is at most
// 32 terms long, its small products come first, and the float32 units add it to the total.
//
// The constants `b` are cut in two on the host, and lie in memory as they come to lie in shared memory:
// [batch][step][part][row], rows of 32 terms (128 bytes) in swizzled order, zeros behind the last term.
// Infinities and NaNs in `a` stay what they are; an infinity in `b` gives NaN where a number of `a` has
// no low part. Tensor cores take a denormal part as zero, so that of numbers below 2^-102 less and less
// of the low part counts, and of those below 2^-114 none; numbers within 2^-22 of the greatest one may
// be rounded to infinity.
//
// Compile-time: PARTS, 2, or 1 for plain tf32; BM, BN; ROWS: 0 matrix, 1 pixels (1x1 windows),
// 2 windows; VECTOR, the elements of `a` copied at once (1, 2, 4); VECTOR_C, the results that can be
// stored at once (1, 2, 4); BIAS; Z0 and Z1, how the operands of the epilogue lie: 0 none, 1 like the result,
// 2 one a channel; SPLIT: 0 no, 1 partial sums, 2 cluster. LOADERS, the threads that copy `a`.

#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/cluster.cuh"
#include "gemm/operand_a.cuh"
#include "gemm/epilogue.cuh"

enum { WHOLE, PARTIAL, CLUSTER };

constexpr int BYTES_A = BM * 128, BYTES_B = BN * 128, BYTES_STAGE = BYTES_A + PARTS * BYTES_B;

// ── numbers in two parts ────────────────────────────────────────────────────────────────────────

struct Parts {
    u32 high[4], cross[4], low[4];  // `cross` is `high` in the product with the other's low part
};

// Cuts the numbers of a fragment in two. Products with infinities and NaNs must not meet a low part,
// which may be zero. The tensor cores ignore the lower 13 bits, so that adding half of what they stand
// for rounds.
__device__ __forceinline__ void cut(Parts& parts, const u32 (&found)[4])
{
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float value = __uint_as_float(found[i]);
        const bool finite = fabsf(value) < INFINITY;
        if constexpr (PARTS == 1) {
            parts.high[i] = finite ? found[i] + 0x1000 : found[i];
        } else {
            parts.high[i] = found[i] & 0xffffe000;
            parts.cross[i] = finite ? parts.high[i] : 0;
            const float rest = value - __uint_as_float(parts.high[i]);
            parts.low[i] = finite ? __float_as_uint(rest) + 0x1000 : 0;
        }
    }
}

// ── results ─────────────────────────────────────────────────────────────────────────────────────

// What the results of a tile are finished with and where they go.
struct Results {
    R* c;
    const T *bias, *z0, *z1;
    int m, n, ldc;
    long long start;  // of the batch, in elements
    int channels;     // of the batches before, where each has channels of its own

    template <int N> __device__ __forceinline__ Operands<N> operands(int row, int column) const
    {
        return operands_at<N>(place(row, column), channels + column, n - column, bias, z0, z1);
    }

    __device__ __forceinline__ long long place(int row, int column) const
    {
        return start + (long long)row * ldc + column;
    }

    template <int N>
    __device__ __forceinline__ void store(const float (&sums)[N], const Operands<N>& with, int row,
                                          int column) const
    {
        R* to = c + place(row, column);
        const Neighbours<R, N> results = with_epilogue(sums, with, row);
        if constexpr (VECTOR_C >= N) {
            *(Neighbours<R, N>*)to = results;
        } else {
#pragma unroll
            for (int q = 0; q < N; ++q)
                if (column + q < n) to[q] = results.at[q];
        }
    }
};

// Stores the sums of 16 x 8 * COUNT results, whose first is at (row, column), from the registers of a
// warp: two neighbours a thread, in every eight columns and in two rows.
template <int COUNT>
__device__ __forceinline__ void store_sums(const Results& results, const float (&sums)[COUNT][4],
                                           int row, int column)
{
    constexpr int AT_ONCE = COUNT < 4 ? COUNT : 4;  // operands come from far away
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
                const int at = column + (j0 + j) * 8;
                const float pair[2] = {sums[j0 + j][2 * half], sums[j0 + j][2 * half + 1]};
                if (row + half * 8 < results.m && at < results.n)
                    results.store<2>(pair, with[j][half], row + half * 8, at);
            }
    }
}
