// Feature transformations. X is the type of inputs, A that of comparisons, Y that of results; both are
// [rows, columns].

#include "reduce/block.cuh"
#include "ptx/pdl.cuh"

#define EACH(count)                                                                                \
    const long long i = blockIdx.x * 256LL + threadIdx.x;                                          \
    grid_dependency_sync();                                                                        \
    if (i >= count) return

// (x - offset) * scale in float, or in double of doubles; both have one element, or one per column.
extern "C" __global__ void __launch_bounds__(256)
scale(const X* x, const float* offsets, const float* scales, Y* y, long long count, int columns, int shifts, int factors)
{
    EACH(count);
    y[i] = Y(float((A(x[i]) - offsets[shifts == 1 ? 0 : i % columns]) * scales[factors == 1 ? 0 : i % columns]));
}

// x, or the replacement value of its column where x equals *missing (which may be NaN).
extern "C" __global__ void __launch_bounds__(256)
impute(const X* x, const X* values, const X* missing, X* y, long long count, int columns)
{
    EACH(count);
    const A own = A(x[i]), gap = A(*missing);
    const bool is_missing = own == gap || (gap != gap && own != own);
    y[i] = is_missing ? values[columns == 1 ? 0 : i % columns] : x[i];
}

extern "C" __global__ void __launch_bounds__(256)
binarize(const X* x, X* y, long long count, double threshold)
{
    EACH(count);
    y[i] = X(float(double(A(x[i])) > threshold));
}

// One-hot encoding: 1 at the category that equals the element.
extern "C" __global__ void __launch_bounds__(256)
encode(const X* x, const long long* categories, Y* y, long long count, int kinds)
{
    EACH(count);
    const A own = A(x[i / kinds]);
    y[i] = Y(float(own == own && (long long)own == categories[i % kinds]));
}

// The value at the key that equals the element; keys ascend, NaN comes after all others.
extern "C" __global__ void __launch_bounds__(256)
look_up(const X* x, const X* keys, const Y* values, const Y* fallback, Y* y, long long count, int size)
{
    EACH(count);
    const A own = A(x[i]);
    int first = 0, last = size;
    while (first < last) {
        const int middle = (first + last) / 2;
        const A key = A(keys[middle]);
        if (key < own || (own != own && key == key)) first = middle + 1;
        else last = middle;
    }
    const A key = first < size ? A(keys[first]) : A(0);
    const bool found = first < size && (key == own || (own != own && key != key));
    y[i] = found ? values[first] : *fallback;
}

// Copies the columns of one input, starting at column `first` of the result.
extern "C" __global__ void __launch_bounds__(256)
put_columns(const X* x, Y* y, long long count, int columns, int first, int all)
{
    EACH(count);
    y[i / columns * all + first + i % columns] = Y(A(x[i]));
}

// Rows divided by their norm; rows of zeros are unchanged. One warp per row. Compile-time: NORM.
enum { LARGEST, L1, L2 };
extern "C" __global__ void __launch_bounds__(256)
normalize(const X* x, Y* y, int rows, int columns)
{
    const int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    grid_dependency_sync();
    if (row >= rows) return;
    x += (long long)row * columns;
    y += (long long)row * columns;
    double norm = NORM == LARGEST ? -double(INFINITY) : 0;
    for (int c = lane; c < columns; c += 32) {
        const double own = A(x[c]);
        norm = NORM == LARGEST ? Larger()(norm, own) : norm + (NORM == L1 ? fabs(own) : own * own);
    }
    norm = NORM == LARGEST ? over_warp(norm, Larger()) : over_warp(norm, Plus());
    if (NORM == L2) norm = sqrt(norm);
    for (int c = lane; c < columns; c += 32) y[c] = Y(float(double(A(x[c])) / (norm == 0 ? 1 : norm)));
}
