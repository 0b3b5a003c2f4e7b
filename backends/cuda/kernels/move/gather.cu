// Elements read from, or written to, the positions that a tensor of indices gives. T is an unsigned
// integer of the elements' size, I the type of the indices, Index the type of element indices.
// Negative indices count from the end. Out-of-range indices read as 0 and are not written.

#include "ptx/pdl.cuh"

struct Ints {  // one number an axis, outermost first
    Index at[RANK];
};

// Returns the index counted from the front, or -1 if it is out of range.
__device__ __forceinline__ Index place(I index, Index size)
{
    const long long i = index < I(0) ? (long long)index + size : (long long)index;
    return i >= 0 && i < size ? Index(i) : Index(-1);
}

// y[outer][k][inner] = x[outer][indices[k]][inner], where each outer index is row_x and row_y elements after the one before
extern "C" __global__ void __launch_bounds__(256)
gather(const T* x, const I* indices, T* y, Index count, Index size, Index places, Index inner, Index row_x, Index row_y)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    const Index row = i / inner, outer = row / places, along = i - row * inner;
    grid_dependency_sync();
    const Index at = place(indices[row - outer * places], size);
    y[outer * row_y + (row - outer * places) * inner + along] = at < 0 ? T(0) : x[outer * row_x + at * inner + along];
}

// y[...][i][...] = x[...][indices[...][i][...]][...]
extern "C" __global__ void __launch_bounds__(256)
gather_elements(const T* x, const I* indices, T* y, Index count, Index size, int axis, Ints sizes,
                Ints strides)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    grid_dependency_sync();
    const Index at = place(indices[i], size);
    Index rest = i, from = at * strides.at[axis];
#pragma unroll
    for (int a = RANK - 1; a >= 0; --a) {
        const Index next = rest / sizes.at[a];
        if (a != axis) from += (rest - next * sizes.at[a]) * strides.at[a];
        rest = next;
    }
    y[i] = at < 0 ? T(0) : x[from];
}

// y[batch][k][inner] = x[batch][indices[batch][k][0]][indices[batch][k][1]]...[inner]; RANK is the
// number of coordinates.
extern "C" __global__ void __launch_bounds__(256)
gather_nd(const T* x, const I* indices, T* y, Index count, Index places, Index inner,
          Index of_batch, Ints sizes, Ints strides)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    const Index row = i / inner;
    Index from = row / places * of_batch + i - row * inner;
    grid_dependency_sync();
    bool inside = true;
#pragma unroll
    for (int a = 0; a < RANK; ++a) {
        const Index at = place(indices[row * RANK + a], sizes.at[a]);
        inside = inside && at >= 0;
        from += at * strides.at[a];
    }
    y[i] = inside ? x[from] : T(0);
}

// y[...][i][...] = values[1] where i is the index, values[0] elsewhere.
extern "C" __global__ void __launch_bounds__(256)
one_hot(const I* indices, const T* values, T* y, Index count, Index depth, Index inner)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    const Index row = i / inner, outer = row / depth;
    grid_dependency_sync();
    y[i] = values[place(indices[outer * inner + i - row * inner], depth) == row - outer * depth];
}
