// A stretch of `length` places of every batch entry of a cache [batch][outer][size][inner], from
// first[batch] on, or 0: past the end nothing is written, or, if CIRCULAR, the beginning. Places before the first count
// from the end.
//
// T, a word of an element or several, is moved; I is the type of `first`, Index counts words.

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
