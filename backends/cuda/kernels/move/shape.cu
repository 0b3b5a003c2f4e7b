// Kernels that move elements without computing. T is an unsigned integer of the elements' size:
// only the number of bytes matters.

#include "ptx/pdl.cuh"
#include "move/axes.cuh"

// y, in its memory order, = x[offset + sum of position * stride]: transposed, sliced, repeated.
// VECTOR elements at a time where both are contiguous along the innermost axis. GAPS says whether y is a
// slice of a larger tensor, so that its elements are addressed by strides.
struct alignas(sizeof(T) * VECTOR) Words {
    T at[VECTOR];
};

extern "C" __global__ void __launch_bounds__(256)
copy_strided(const T* x, T* y, Index count, Index offset, Ints sizes, Ints factors, Ints shifts, Ints strides,
             Ints places)
{
    const Index i = (blockIdx.x * (Index)256 + threadIdx.x) * VECTOR;
    if (i >= count) return;
    Index from = offset, to = 0;
    for_each_axis(i, sizes, factors, shifts, [&](int axis, Index position) {
        from += position * strides.at[axis];
        to += position * places.at[axis];
    });
    grid_dependency_sync();
    *(Words*)(y + (GAPS ? to : i)) = *(const Words*)(x + from);
}
