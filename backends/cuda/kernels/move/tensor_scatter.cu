// Writes `length` positions of every batch entry of a cache [batch][outer][size][inner], starting at first[batch] or 0.
// Positions past the end are not written or, if CIRCULAR, wrap around to the beginning. Negative positions count from
// the end.
//
// T is the type of the moved words, of one element or several; I is the type of `first`, Index that of word indices.

#include "ptx/pdl.cuh"

extern "C" __global__ void __launch_bounds__(256)
tensor_scatter(const I* first, const T* updates, T* y, Index count, Index outer, Index length,
               Index size, Index inner)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    const Index row = i / inner, line = row / length;
    grid_dependency_sync();
    if (i >= count) return;
    long long at = row - line * length + (first ? (long long)first[line / outer] : 0);
    if (CIRCULAR) at = (at % size + size) % size;
    else if (at < 0) at += size;
    if (at >= 0 && at < size) y[(line * size + Index(at)) * inner + i - row * inner] = updates[i];
}
