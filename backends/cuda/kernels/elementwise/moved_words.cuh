// Operands that are read through nodes that move elements: zeros where there is no element.

#include "elementwise/words.cuh"

template <int INNER, typename A>
__device__ __forceinline__ Words<A> words_or_zeros(const A* from, bool inside)
{
    if (inside) return words<INNER>(from);
    Words<A> found;
    memset(&found, 0, sizeof(found));
    return found;
}
