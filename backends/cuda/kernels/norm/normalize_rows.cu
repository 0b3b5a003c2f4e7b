// epilogue((x - mean) / sqrt(variance + epsilon) * scale + shift) of every row, or, where there is no scale,
// epilogue(x / max(multiple * |x|, epsilon)), with a sum instead of the maximum, or the mean instead of |x|, read once: WARPS
// warps, or LANES threads of a warp, keep a row in registers, so that the variance is summed up of differences from the mean.
// X, S, T and R are the types of elements, of scale and shift, of the epilogue's operands, and of results; A of those that are
// normalized once more; sums are in float32.
// The row stride of x may exceed the length of a row.
// Such a row may consist of HEADS equal parts, each of which is a row here. They share scale and shift (PARAMETERS 0),
// or have one of each (1), or one per element (2).
// Rows may be those of `x` at `places`, and of the epilogue's operands as well; and be stored in `moved` as they are.
// Results may be rows that are normalized once more, and stored in `again`.
//
// Compile-time: WARPS and LANES, 32 if it has whole warps; ROWS of a block, 1 where a row has several
// warps; VECTOR, elements read at once, a divisor of the row; PER, such words of a thread; WHOLE, whether every thread of a
// row has as many; CENTRED, whether the mean is subtracted; BY_MEAN, whether it divides; ADDED, whether epsilon is added to
// what divides; SCALED and SHIFTED, whether there is a scale, and a shift; AHEAD, whether these are constants, which are
// loaded before the kernel waits; EARLY, whether others and the operands of the epilogue are loaded before the sums, which is
// sooner but takes registers, so that fewer blocks are resident; Z0 and Z1, how these operands are indexed, see
// epilogue.cuh; LAUNCHES, whether the next kernel may start, and load its weights, while this one waits; GATHERED, whether
// there are `places`, 2 if they are also those of operands; MOVED, whether there is `moved`; IN_HALVES and PLAIN, see
// store_halves.cuh; TWICE, whether there is `again`, MEAN_AGAIN, whether a mean is subtracted then, SHIFTED_AGAIN, whether
// there is a shift.

#include "reduce/block.cuh"
#include "ptx/pdl.cuh"
#if IN_HALVES
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "gemm/halves.cuh"
#include "gemm/store_halves.cuh"
#endif

template <typename V> struct alignas(sizeof(V) * VECTOR < 16 ? sizeof(V) * VECTOR : 16) Words {
    V at[VECTOR];
};

constexpr int OF_ROW = WARPS > 1 ? THREADS : LANES;

// Number of elements of rows, by one instruction.
__device__ __forceinline__ long long elements(uint32 rows, uint32 each) { return (unsigned long long)rows * each; }

// Adjacent elements of an operand of the epilogue.
template <int KIND_OF> __device__ __forceinline__ Words<T> operand(const T* z, long long at, int channel)
{
    if constexpr (KIND_OF == 0) return {};
    return *(const Words<T>*)(KIND_OF == 2 ? z + channel : z + at);
}

// All threads of a row get the sum.
template <bool FIRST> __device__ __forceinline__ float over_row(float value)
{
    if constexpr (LANES == 32) return over_block<FIRST>(value, Plus());
#pragma unroll
    for (int other = LANES / 2; other; other /= 2) value += __shfl_xor_sync(~0u, value, other);
    return value;
}

// The sum of `term` of a thread's elements, in four chains: an addition waits for the one before it.
template <typename Term> __device__ __forceinline__ float over_own(const float (&values)[PER][VECTOR], Term term)
{
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < PER * VECTOR; ++i) {
        const float value = term(values[i / VECTOR][i % VECTOR], i / VECTOR);
        sums[i % 4] = i < 4 ? value : sums[i % 4] + value;
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// sum / count, to the last digit but one; `each` is 1 / count.
__device__ __forceinline__ float mean_of(float sum, float count, float each)
{
    const float mean = sum * each, better = fmaf(fmaf(-mean, count, sum), each, mean);
    return better == better ? better : mean;  // of infinity
}

// The mean of equal numbers of elements, and the sum of squared differences from it.
struct Moments {
    float mean, square;
};

// Those of a row, of which each thread has `PER * VECTOR` elements: threads exchange both in as many steps as the mean
// alone would take.
__device__ __forceinline__ Moments moments_of(const float (&values)[PER][VECTOR])
{
    constexpr float OWN = PER * VECTOR;
    float mean = mean_of(over_own(values, [](float value, int) { return value; }), OWN, 1 / OWN);
    float square = over_own(values, [=](float value, int) { return (value - mean) * (value - mean); });
#pragma unroll
    for (int other = 1; other < LANES; other *= 2) {
        const float its = __shfl_xor_sync(~0u, mean, other), difference = its - mean;
        square += __shfl_xor_sync(~0u, square, other);
        square = fmaf(difference * difference, OWN / 2 * other, square);
        mean = 0.5f * (mean + its);
    }
    if constexpr (WARPS > 1) {
        __shared__ Moments parts[WARPS];
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = {mean, square};
        __syncthreads();
        mean = square = 0;
#pragma unroll
        for (int i = 0; i < WARPS; ++i) mean += parts[i].mean;
        mean = mean_of(mean, WARPS, 1.0f / WARPS);
#pragma unroll
        for (int i = 0; i < WARPS; ++i) {
            const float difference = parts[i].mean - mean;
            square += fmaf(difference * difference, OWN * 32, parts[i].square);
        }
    }
    return {mean, square};
}

// 1 / sqrt(value), to the last digits.
__device__ __forceinline__ float inverse_root(float value)
{
    const float root = rsqrtf(value), error = fmaf(-value * root, root, 1.0f);
    return error == error ? fmaf(0.5f * root, error, root) : root;  // of 0 and infinity
}

// Normalizes the results in a thread's registers, of which a row has `own`.
__device__ __forceinline__ void normalize_again(float (&values)[PER][VECTOR], A* to, const S* scale, const S* shift,
                                                float epsilon, int own, int lane, int count)
{
    static_assert(!TWICE || (HEADS == 1 && !GATHERED && !IN_HALVES), "whole rows, in order");
    float mean = 0, square = 0;
    Words<S> factors[PER] = {}, more[PER] = {};
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const int at = (lane + i * OF_ROW) * VECTOR;
        if (at >= own) break;
        factors[i] = *(const Words<S>*)(scale + at);
        if (SHIFTED_AGAIN) more[i] = *(const Words<S>*)(shift + at);
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) mean += values[i][e];
    }
    mean = MEAN_AGAIN ? over_row<false>(mean) / count : 0.0f;
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        if ((lane + i * OF_ROW) * VECTOR >= own) break;
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
            values[i][e] -= mean;
            square += values[i][e] * values[i][e];
        }
    }
    const float variance = over_row<false>(square) / count + epsilon;
    const float by = sizeof(A) == 2 ? rsqrtf(variance) : 1 / sqrtf(variance);
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const int at = (lane + i * OF_ROW) * VECTOR;
        if (at >= own) break;
        Words<A> words;
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
            const float value = values[i][e] * by * float(factors[i].at[e]);
            words.at[e] = A(SHIFTED_AGAIN ? value + float(more[i].at[e]) : value);
        }
        *(Words<A>*)(to + at) = words;
    }
}

// Of large blocks that keep nothing but elements two are resident: one loads its row while the other normalizes its own.
extern "C" __global__ void __launch_bounds__(OF_ROW * ROWS, OF_ROW * ROWS == 512 && !AHEAD && !EARLY ? 2 : 0)
normalize_rows(const X* x, const S* scale, const S* shift, R* y, unsigned char* halves, const T* z0, const T* z1,
               uint32 rows, uint32 row_x, int count, float epsilon, float multiple, const long long* places, X* moved,
               const S* scale_again, const S* shift_again, float epsilon_again, A* again)
{
    const int lane = threadIdx.x % OF_ROW;
    if constexpr (LAUNCHES) grid_dependency_launch();
    constexpr bool ALONG = PARAMETERS != 1;  // whether elements of a row have separate scales
    constexpr bool NEAR = EARLY && !AHEAD && ALONG;
    if constexpr (NEAR && SCALED) prefetch_l2(scale, PARAMETERS ? HEADS * count : count, threadIdx.x, OF_ROW * ROWS);
    if constexpr (NEAR && SHIFTED) prefetch_l2(shift, PARAMETERS ? HEADS * count : count, threadIdx.x, OF_ROW * ROWS);
    if constexpr (TWICE) prefetch_l2(scale_again, count, threadIdx.x, OF_ROW * ROWS);
    if constexpr (TWICE && SHIFTED_AGAIN) prefetch_l2(shift_again, count, threadIdx.x, OF_ROW * ROWS);
    uint32 row = blockIdx.x * ROWS + threadIdx.x / OF_ROW;
    const bool own = row < rows;
    if (!own && LANES < 32) row = rows - 1;  // without a row, a thread takes part in the sums of others
    const long long from = !GATHERED ? (long long)(row / HEADS) : own || LANES < 32 ? places[row] : 0;  // a constant
    const auto is_own = [&](int i) { return WHOLE || (lane + i * OF_ROW) * VECTOR < count; };

    constexpr bool KEPT = AHEAD || EARLY;
    Words<S> factors[KEPT ? PER : 1] = {}, more[KEPT ? PER : 1] = {};
    Words<T> first[EARLY ? PER : 1] = {}, second[EARLY ? PER : 1] = {};
    const auto load_parameters = [&](int i, int at) {
        const long long place = PARAMETERS == 2 ? row % HEADS * count + at : at;
        if (SCALED && ALONG) factors[i] = *(const Words<S>*)(scale + place);
        if (SHIFTED && ALONG) more[i] = *(const Words<S>*)(shift + place);
    };
    const auto load_operands = [&](int i, int at) {
        const long long place = (GATHERED == 2 ? from * count : elements(row, count)) + at;
        first[i] = operand<Z0>(z0, Z0 == 4 ? place0(place) : place, at);
        second[i] = operand<Z1>(z1, Z1 == 4 ? place1(place) : place, at);
    };
    if constexpr (AHEAD) {
#pragma unroll
        for (int i = 0; i < PER; ++i)
            if (is_own(i)) load_parameters(i, (lane + i * OF_ROW) * VECTOR);
    }
    Words<X> read[PER] = {};
    x += (GATHERED ? from * row_x : elements(uint32(from), row_x)) + row % HEADS * count + lane * VECTOR;
    y += elements(row, count) + lane * VECTOR;
    grid_dependency_sync();
    if (LANES == 32 && !own) return;
#pragma unroll
    for (int i = 0; i < PER; ++i)
        if (is_own(i)) read[i] = *(const Words<X>*)(x + i * OF_ROW * VECTOR);
    const float each = 1.0f / (WHOLE ? PER * VECTOR * OF_ROW : count);
    float values[PER][VECTOR];
    const int head = PARAMETERS ? int(row % HEADS) : 0;
    const float factor = SCALED && !ALONG ? float(scale[head]) : 1.0f;
    const float addend = SHIFTED && !ALONG ? float(shift[head]) : 0.0f;
    if constexpr (EARLY) {  // these arrive while sums pass through the warps
#pragma unroll
        for (int i = 0; i < PER; ++i)
            if (is_own(i)) {
                if (!AHEAD) load_parameters(i, (lane + i * OF_ROW) * VECTOR);
                load_operands(i, (lane + i * OF_ROW) * VECTOR);
            }
    }
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        if (MOVED && own && is_own(i)) *(Words<X>*)(moved + elements(row, count) + (lane + i * OF_ROW) * VECTOR) = read[i];
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) values[i][e] = float(read[i].at[e]);
    }
    float mean = 0, square = 0;
    if constexpr (WHOLE && CENTRED && !BY_MEAN) {
        const Moments found = moments_of(values);
        mean = found.mean;
        square = found.square;
    } else {
        if constexpr (CENTRED || BY_MEAN)
            mean = mean_of(over_row<true>(over_own(values, [](float value, int) { return value; })), count, each);
        if constexpr (!BY_MEAN)
            square = over_row<!CENTRED>(over_own(values, [&](float value, int i) {
                return is_own(i) ? (value - mean) * (value - mean) : 0.0f;
            }));
    }
    const float measure = multiple * (BY_MEAN ? mean : sqrtf(square));
    const float by = SCALED ? (sizeof(R) == 2 ? rsqrtf(fmaf(square, each, epsilon))  // results have fewer digits
                                              : inverse_root(fmaf(square, each, epsilon)))
                     : ADDED ? 1 / (measure + epsilon)
                             : 1 / (measure < epsilon ? epsilon : measure);  // a NaN stays one
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const int at = (lane + i * OF_ROW) * VECTOR;
        if (!is_own(i)) break;
        if (!KEPT) load_parameters(0, at);
        if (!EARLY) load_operands(0, at);
        Words<R> words;
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
            float value = (BY_MEAN ? values[i][e] : values[i][e] - mean) * by;
            if (SCALED) value *= ALONG ? float(factors[KEPT ? i : 0].at[e]) : factor;
            if (SHIFTED) value += ALONG ? float(more[KEPT ? i : 0].at[e]) : addend;
            words.at[e] = epilogue(value, e, e, e, first[EARLY ? i : 0].at, second[EARLY ? i : 0].at);
        }
        if constexpr (IN_HALVES || TWICE) {
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) values[i][e] = words.at[e];
        }
        if (PLAIN && own) *(Words<R>*)(y + i * OF_ROW * VECTOR) = words;
    }
    if constexpr (TWICE)
        normalize_again(values, again + elements(row, count), scale_again, shift_again, epsilon_again, own ? count : 0, lane,
                        count);
#if IN_HALVES
    float most[PER];
#pragma unroll
    for (int i = 0; i < PER; ++i) most[i] = own && is_own(i) ? greatest_of(values[i]) : 0;
    over_blocks(most);
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const int at = (lane + i * OF_ROW) * VECTOR, all = int(rows + 7) / 8 * 8;
        const RowScale by(__float_as_uint(most[i]));
        store_scaled({halves, all, count}, values[i], by, own && at < count ? int(row) : all, at);
    }
#endif
}
