// Operators whose results depend on their positions. One thread per result, in memory order. T is the type of
// the elements, or an unsigned integer of their size.

#include "ptx/pdl.cuh"
#include "move/axes.cuh"

enum { CONSTANT, EDGE, REFLECT, WRAP };

// Maps an index of a padded axis to the index of the source element, or -1 if there is none.
__device__ __forceinline__ Index source(Index at, Index size)
{
    if (at >= 0 && at < size) return at;
    if (MODE == CONSTANT) return -1;
    if (MODE == EDGE) return at < 0 ? 0 : size - 1;
    const Index period = MODE == WRAP ? size : 2 * size - 2;
    if (period == 0) return 0;
    at = (at % period + period) % period;
    return at < size ? at : period - at;
}

// y = x padded: `before` elements are added before each axis of x, whose shape is `sizes`.
extern "C" __global__ void __launch_bounds__(256)
pad(const T* x, const T* value, T* y, Index count, Index offset, Ints results, Ints factors, Ints shifts,
    Ints before, Ints sizes, Ints strides, Ints places)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    Index from = offset, to = 0;
    bool inside = true;
    for_each_axis(i, results, factors, shifts, [&](int axis, Index place) {
        const Index at = source(place - before.at[axis], sizes.at[axis]);
        inside = inside && at >= 0;
        from += at * strides.at[axis];
        to += place * places.at[axis];
    });
    grid_dependency_sync();
    y[to] = inside ? x[from] : value ? *value : T(0);
}

// The triangle of matrices above diagonal *k (below it without UPPER).
extern "C" __global__ void __launch_bounds__(256)
triangle(const T* x, const long long* k, T* y, Index count, Index rows, Index columns)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    const Index row = i / columns;
    const long long above = i - row * columns - row % rows - (k ? *k : 0);
    y[i] = (UPPER ? above >= 0 : above <= 0) ? x[i] : T(0);
}

// Ones on diagonal k of a matrix.
extern "C" __global__ void __launch_bounds__(256)
diagonal(T* y, Index count, Index columns, long long k)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i < count) y[i] = T(i % columns - i / columns == k ? 1.0f : 0.0f);
}

// The first lengths[b] elements of each batch entry in reverse order; TIME_FIRST: [time][batch]
// [inner], otherwise [batch][time][inner].
extern "C" __global__ void __launch_bounds__(256)
reverse_sequence(const T* x, const long long* lengths, T* y, Index count, Index second, Index inner)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    const Index row = i / inner, a = row / second, b = row - a * second;
    const Index time = TIME_FIRST ? a : b, whole = TIME_FIRST ? count / inner / second : second;
    const long long given = lengths[TIME_FIRST ? b : a];
    const Index length = given < whole ? Index(given) : whole;
    const Index move = time < length ? length - 1 - 2 * time : 0;
    y[i] = x[i + move * (TIME_FIRST ? second * inner : inner)];
}

// y[i] = start + i * delta
extern "C" __global__ void __launch_bounds__(256)
range(const T* start, const T* delta, T* y, Index count)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i < count) y[i] = T(A(*start) + A(i) * A(*delta));
}
