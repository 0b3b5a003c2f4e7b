// The main loop of products of few rows with weights of floats; see gemv.cuh.
//
// Bound by memory: the weights are read once, directly into registers, two buffers of STEPS steps ahead, the
// first ones while the preceding kernel still runs. Tensor cores multiply 16-bit floats, so that eight rows of x
// take no longer than one; float32 is multiplied on the CUDA cores.
//
// Compile-time, besides the constants of gemv.cuh: T; STEPS; K terms of a row, PITCH, the distance between rows of
// weights; EDGE, whether blocks extend past the last row.

#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/load.cuh"
using Y = T;
constexpr int SLICE = STEPS * 4 * (16 / sizeof(T));
constexpr int PLANES = 1;
#include "gemm/gemv.cuh"

constexpr bool TENSOR_CORES = sizeof(T) == 2;
constexpr int TERMS = 16 / sizeof(T), STEP = 4 * TERMS, STRIDE = WARPS * STEPS * STEP;

// The operands of STEPS steps of a thread; those of x as tensor cores read them.
struct Buffer {
    Word w[STEPS][EIGHTS], x[STEPS][GROUPS];
};

// Where a lane reads: its first row, and the distance to the rows of the other fragments of the same product.
struct Rows {
    const T* w[PRODUCTS];
    long long steps[EDGE ? EIGHTS / PRODUCTS : 1];

    __device__ __forceinline__ const T* row(int e) const
    {
        const int eight = e / PRODUCTS;
        return w[e % PRODUCTS] + (EDGE ? steps[EDGE ? eight : 0] : 8 * eight) * PITCH;
    }
};

// Reads weights from term `k` on.
__device__ __forceinline__ void load_weights(Buffer& to, const Rows& rows, int k)
{
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e)
            to.w[s][e] = constant_word(rows.row(e) + k + s * STEP, k + s * STEP < PITCH);
}

// A word of a row of x, zeros past its end.
__device__ __forceinline__ Word word_of(const T* row, int k)
{
    if constexpr (K % TERMS == 0) {
        if (NORMALIZED) return k < K ? *(const Word*)(row + k) : Word{};
        return global_word(row + k, k < K);
    }
    Word found = {};
#pragma unroll
    for (int q = 0; q < TERMS; ++q)
        if (k + q < K) ((T*)found.at)[q] = row[k + q];
    return found;
}

// Reads x as the right operand of tensor cores: row lane / 4 of every eight. Lanes past the last row read that row
// again, since their results are discarded. `x.row(group, m)` is where this lane reads row m, of a group of eight.
template <typename Source>
__device__ __forceinline__ void load_values(Buffer& to, const Source& x, int k)
{
    if constexpr (TENSOR_CORES) {
        const int row = threadIdx.x % 32 / 4;
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
#pragma unroll
            for (int group = 0; group < GROUPS; ++group) {
                const int m = min(group * 8 + row, M - 1);
                to.x[s][group] = word_of(x.row(group, m), k + s * STEP);
            }
    }
}

// Accumulators as tensor cores return them, and as sums of a thread's own terms.
struct Fragments {
    float of[PAIRS][GROUPS][4];
};
struct Partial {
    float of[EIGHTS][M];
};
template <int BYTES> struct Kind { typedef Partial Sums; };
template <> struct Kind<2> { typedef Fragments Sums; };

template <typename From, typename Source>
__device__ __forceinline__ void multiply(Fragments& sums, const From& from, const Source&, int)
{
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            const Word upper = from.w[s][2 * pair];
            const Word lower = 2 * pair + 1 < EIGHTS ? from.w[s][2 * pair + 1] : Word{};
#pragma unroll
            for (int half = 0; half < 4; half += 2) {
                const u32 a[4] = {upper.at[half], lower.at[half], upper.at[half + 1], lower.at[half + 1]};
#pragma unroll
                for (int group = 0; group < GROUPS; ++group)
                    mma_m16n8k16(sums.of[pair][group], a, from.x[s][group].at[half],
                                 from.x[s][group].at[half + 1]);
            }
        }
}

template <typename From, typename Source>
__device__ __forceinline__ void multiply(Partial& sums, const From& from, const Source& x, int k)
{
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
        for (int m = 0; m < M; ++m) {
            const Word values = word_of(x.row(m, m), k + s * STEP);
#pragma unroll
            for (int e = 0; e < EIGHTS; ++e)
#pragma unroll
                for (int q = 0; q < 4; ++q)
                    sums.of[e][m] += ((const float*)from.w[s][e].at)[q] * ((const float*)values.at)[q];
        }
}

// Adds the products of a warp's terms from `at` on, APART apart, the first of which two buffers have; lanes read from
// `place` on.
template <int APART, typename Sums, typename Source>
__device__ __forceinline__ void multiply_all(Sums& sums, Buffer& now, Buffer& next, const Rows& rows, const Source& x,
                                             int at, int place)
{
    for (; at < K; at += 2 * APART) {
        multiply(sums, now, x, at + place);
        load_weights(now, rows, at + place + 2 * APART);
        load_values(now, x, at + place + 2 * APART);
        multiply(sums, next, x, at + place + APART);
        load_weights(next, rows, at + place + 3 * APART);
        load_values(next, x, at + place + 3 * APART);
    }
}

__device__ __forceinline__ void leave(float (&part)[M][SUMS], const Fragments& sums)
{
    leave_fragments(part, sums.of);
}

__device__ __forceinline__ void leave(float (&part)[M][SUMS], const Partial& sums)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < EIGHTS; ++e)
#pragma unroll
        for (int m = 0; m < M; ++m) {
            float sum = sums.of[e][m];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            if (lane % 4 == 0) part[m][8 * e + lane / 4] = sum;
        }
}
