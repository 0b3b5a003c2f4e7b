// Adjacent elements as one word of up to 16 bytes.
//
// Compile-time: VECTOR_C, the results per store. Macro: SECOND, see epilogue.cuh.

template <typename E, int N> struct alignas(N * sizeof(E) < 16 ? N * sizeof(E) : 16) Neighbours {
    E at[N];
};

// Stores adjacent elements, limited to `room`, a multiple of VECTOR_C.
template <typename E, int N>
__device__ __forceinline__ void keep(E* to, const Neighbours<E, N>& results, int room)
{
    if constexpr (VECTOR_C >= N) {
        *(Neighbours<E, N>*)to = results;
    } else {
#pragma unroll
        for (int q = 0; q < N; q += VECTOR_C)
            if (q < room) *(Neighbours<E, VECTOR_C>*)(to + q) = *(const Neighbours<E, VECTOR_C>*)(results.at + q);
    }
}

#ifdef SECOND
// Returns the second results of adjacent results.
template <typename E, int N>
__device__ __forceinline__ Neighbours<E, N> second_of(const Neighbours<E, N>& results)
{
    Neighbours<E, N> found;
#pragma unroll
    for (int q = 0; q < N; ++q) found.at[q] = second::epilogue(float(results.at[q]), 0, 0, 0, nullptr, nullptr);
    return found;
}
#endif
