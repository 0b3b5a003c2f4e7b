// The middle axis of [outer][size][inner] resampled: a result is a weighted sum of TAPS elements, whose indices
// and weights are in tables. One thread per result. Or two middle axes, of [outer][height][width][inner]: a
// result is a sum of ROW_TAPS * TAPS elements, and one thread computes VECTOR adjacent results.
//
// FROM and TO are the types of elements and results, A that of the arithmetic, T that of the epilogue's operands,
// Index that of element indices. Compile-time: WEIGHTED, otherwise a single element is copied; WHOLE and LOWEST,
// GREATEST, for integer results, which are truncated and clamped; GAPS, whether the innermost rows of x or y
// have gaps between them; EPILOGUE, whether there is one; CHANNELS_LAST, whether channels are innermost.

#include "ptx/pdl.cuh"

__device__ __forceinline__ TO narrow(A sum)
{
    if (!WHOLE) return TO(sum);
    // A number within rounding error of an integer counts as that integer.
    return TO(min(max(trunc(sum * A(1 + 1e-9)), A(LOWEST)), A(GREATEST)));
}

// What is stored of a sum, or of an element that is copied, as result `at` in memory.
template <typename V>
__device__ __forceinline__ TO stored(V value, Index at, int channel, const T* z0, const T* z1)
{
    if constexpr (EPILOGUE) return epilogue(value, at, 0, channel, z0, z1);
    if constexpr (WEIGHTED) return narrow(value);
    return TO(value);
}

struct Rows {
    int width, pitch;
    __device__ __forceinline__ Index operator()(Index element) const
    {
        return GAPS ? element / width * pitch + element % width : element;
    }
};

// An index of -1 reads as `outside`.
extern "C" __global__ void __launch_bounds__(256)
resample(const FROM* x, const int* indices, const A* weights, TO* y, Index count, int size,
         int places, int inner, A outside, Rows of_x, Rows of_y, const T* z0, const T* z1)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    const Index row = i / inner, outer = row / places;
    const int place = row - outer * places;
    const Index line = outer * size * inner + i - row * inner;
    const Index at = of_y(i);
    TO& result = y[at];
    const int first = indices[place * TAPS];
    if (first < 0) {
        result = EPILOGUE ? stored(outside, at, 0, z0, z1) : TO(outside);
    } else if (!WEIGHTED) {
        result = stored(x[of_x(line + (Index)first * inner)], at, 0, z0, z1);
    } else {
        A sum = 0;
#pragma unroll 4
        for (int k = 0; k < TAPS; ++k)
            sum += A(x[of_x(line + (Index)indices[place * TAPS + k] * inner)])
                   * weights[place * TAPS + k];
        result = stored(sum, at, 0, z0, z1);
    }
}

struct Plane {  // sizes before and after
    int height, width, rows, columns;
};

template <typename V>
struct alignas(sizeof(V) * VECTOR < 16 ? sizeof(V) * VECTOR : 16) Words {
    V at[VECTOR];
};

// Pixels of x and y are `pitch_x` and `pitch_y` elements apart; `inner` counts words.
extern "C" __global__ void __launch_bounds__(256)
resample_plane(const FROM* x, const int* row_indices, const A* row_weights,
               const int* column_indices, const A* column_weights, TO* y, Index count, int inner,
               Plane plane, A outside, int pitch_x, int pitch_y, int channels, const T* z0, const T* z1)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    const Index pixel = i / inner, line = pixel / plane.columns, image = line / plane.rows;
    const int word = int(i - pixel * inner) * VECTOR;
    const int row = int(line - image * plane.rows) * ROW_TAPS;
    const int column = int(pixel - line * plane.columns) * TAPS;
    x += image * plane.height * plane.width * pitch_x + word;
    const Index at = pixel * pitch_y + word;
    const int channel = CHANNELS_LAST ? word : int(image % channels);
    const auto channel_of = [&](int e) { return CHANNELS_LAST ? channel + e : channel; };
    Words<TO> result;
    grid_dependency_sync();
    if (row_indices[row] < 0 || column_indices[column] < 0) {
#pragma unroll
        for (int e = 0; e < VECTOR; ++e)
            result.at[e] = EPILOGUE ? stored(outside, at + e, channel_of(e), z0, z1) : TO(outside);
    } else {
        A sums[VECTOR] = {};
#pragma unroll
        for (int c = 0; c < TAPS; ++c) {
            A parts[VECTOR] = {};
#pragma unroll
            for (int r = 0; r < ROW_TAPS; ++r) {
                const Index from =
                    (Index)row_indices[row + r] * plane.width + column_indices[column + c];
                const Words<FROM> words = *(const Words<FROM>*)(x + from * pitch_x);
#pragma unroll
                for (int e = 0; e < VECTOR; ++e)
                    if constexpr (WEIGHTED)
                        parts[e] += A(words.at[e]) * row_weights[row + r];
                    else
                        result.at[e] = stored(words.at[e], at + e, channel_of(e), z0, z1);
            }
#pragma unroll
            for (int e = 0; e < VECTOR; ++e)
                if (WEIGHTED) sums[e] += parts[e] * column_weights[column + c];
        }
#pragma unroll
        for (int e = 0; e < VECTOR; ++e)
            if constexpr (WEIGHTED) result.at[e] = stored(sums[e], at + e, channel_of(e), z0, z1);
    }
    *(Words<TO>*)(y + at) = result;
}

// The same where columns are innermost, without pitches: VECTOR adjacent results are of one row.
extern "C" __global__ void __launch_bounds__(256)
resample_rows(const FROM* x, const int* row_indices, const A* row_weights, const int* column_indices,
              const A* column_weights, TO* y, Index count, Plane plane, A outside, int channels,
              const T* z0, const T* z1)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    const int words = plane.columns / VECTOR;
    const Index line = i / words, image = line / plane.rows;
    const int first = int(i - line * words) * VECTOR, row = int(line - image * plane.rows) * ROW_TAPS;
    const int channel = int(image % channels);
    x += image * plane.height * plane.width;
    const Index at = line * plane.columns + first;
    const FROM* rows[ROW_TAPS];
    A by[ROW_TAPS];
#pragma unroll
    for (int r = 0; r < ROW_TAPS; ++r) {
        rows[r] = x + (Index)row_indices[row + r] * plane.width;
        if (WEIGHTED) by[r] = row_weights[row + r];
    }
    Words<TO> result;
    grid_dependency_sync();
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) {
        const int column = (first + e) * TAPS;
        if (row_indices[row] < 0 || column_indices[column] < 0) {
            result.at[e] = EPILOGUE ? stored(outside, at + e, channel, z0, z1) : TO(outside);
            continue;
        }
        A sum = 0;
#pragma unroll
        for (int c = 0; c < TAPS; ++c) {
            A part = 0;
#pragma unroll
            for (int r = 0; r < ROW_TAPS; ++r) {
                const FROM element = rows[r][column_indices[column + c]];
                if constexpr (WEIGHTED)
                    part += A(element) * by[r];
                else
                    result.at[e] = stored(element, at + e, channel, z0, z1);
            }
            if (WEIGHTED) sum += part * column_weights[column + c];
        }
        if constexpr (WEIGHTED) result.at[e] = stored(sum, at + e, channel, z0, z1);
    }
    *(Words<TO>*)(y + at) = result;
}
