// VECTOR adjacent elements.

template <typename A, int N = VECTOR>
struct alignas(sizeof(A) * N) Words {
    A at[N];
};

// Reads the operand of VECTOR results: adjacent elements, INNER at once, or one element for all of them if
// INNER is 0.
template <int INNER, typename A>
__device__ __forceinline__ Words<A> words(const A* from)
{
    Words<A> found;
    if constexpr (INNER) {
#pragma unroll
        for (int q = 0; q < VECTOR; q += INNER) *(Words<A, INNER>*)(found.at + q) = *(const Words<A, INNER>*)(from + q);
    } else {
#pragma unroll
        for (int q = 0; q < VECTOR; ++q) found.at[q] = *from;
    }
    return found;
}
