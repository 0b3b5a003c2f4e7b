// VECTOR adjacent elements, read at once.

template <typename A>
struct alignas(sizeof(A) * VECTOR) Words {
    A at[VECTOR];
};

// Reads the operand of VECTOR results: adjacent elements (INNER is 1), or one element for all of them.
template <int INNER, typename A>
__device__ __forceinline__ Words<A> words(const A* from)
{
    if constexpr (INNER == 1) {
        return *(const Words<A>*)from;
    } else {
        Words<A> found;
#pragma unroll
        for (int q = 0; q < VECTOR; ++q) found.at[q] = *from;
        return found;
    }
}
