// The middle axis of [outer][size][inner] resampled: a result is a weighted sum of TAPS elements, whose indices
// and weights are in tables. One thread per result. Or two middle axes, of [outer][height][width][inner]: a
// result is a sum of ROW_TAPS * TAPS elements, and one thread computes VECTOR adjacent results.
//
// FROM and TO are the types of elements and results, A that of the arithmetic, Index that of element
// indices. Compile-time: WEIGHTED, otherwise a single element is copied; WHOLE and LOWEST, GREATEST,
// for integer results, which are truncated and clamped; GAPS, whether the innermost rows of x or y
// have gaps between them.

#include "ptx/pdl.cuh"

__device__ __forceinline__ TO narrow(A sum)
{
    if (!WHOLE) return TO(sum);
    // A number within rounding error of an integer counts as that integer.
    return TO(min(max(trunc(sum * A(1 + 1e-9)), A(LOWEST)), A(GREATEST)));
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
         int places, int inner, A outside, Rows of_x, Rows of_y)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    const Index row = i / inner, outer = row / places;
    const int place = row - outer * places;
    const Index line = outer * size * inner + i - row * inner;
    TO& result = y[of_y(i)];
    const int first = indices[place * TAPS];
    if (first < 0) {
        result = TO(outside);
    } else if (!WEIGHTED) {
        result = TO(x[of_x(line + (Index)first * inner)]);
    } else {
        A sum = 0;
#pragma unroll 4
        for (int k = 0; k < TAPS; ++k)
            sum += A(x[of_x(line + (Index)indices[place * TAPS + k] * inner)])
                   * weights[place * TAPS + k];
        result = narrow(sum);
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
               Plane plane, A outside, int pitch_x, int pitch_y)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    const Index pixel = i / inner, line = pixel / plane.columns, image = line / plane.rows;
    const int word = int(i - pixel * inner) * VECTOR;
    const int row = int(line - image * plane.rows) * ROW_TAPS;
    const int column = int(pixel - line * plane.columns) * TAPS;
    x += image * plane.height * plane.width * pitch_x + word;
    Words<TO> result;
    grid_dependency_sync();
    if (row_indices[row] < 0 || column_indices[column] < 0) {
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) result.at[e] = TO(outside);
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
                    if (WEIGHTED)
                        parts[e] += A(words.at[e]) * row_weights[row + r];
                    else
                        result.at[e] = TO(words.at[e]);
            }
#pragma unroll
            for (int e = 0; e < VECTOR; ++e)
                if (WEIGHTED) sums[e] += parts[e] * column_weights[column + c];
        }
#pragma unroll
        for (int e = 0; e < VECTOR; ++e)
            if (WEIGHTED) result.at[e] = narrow(sums[e]);
    }
    *(Words<TO>*)(y + pixel * pitch_y + word) = result;
}
