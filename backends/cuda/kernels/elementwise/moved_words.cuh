// Operands that are read through nodes that move elements: zeros where there is no element.

#include "elementwise/words.cuh"

// Where `index` points among `size` slices, `step` elements apart; -1 if there is none.
template <typename L, typename I> __device__ __forceinline__ I entry_at(L index, I size, I step)
{
    const long long at = index < 0 ? (long long)index + size : (long long)index;
    return at >= 0 && at < size ? I(at) * step : I(-1);
}

template <int INNER, typename A>
__device__ __forceinline__ Words<A> words_or_zeros(const A* from, bool inside)
{
    if (inside) return words<INNER>(from);
    Words<A> found;
    memset(&found, 0, sizeof(found));
    return found;
}
