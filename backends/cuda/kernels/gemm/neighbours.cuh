// Adjacent elements as one word of up to 16 bytes.
//
// Compile-time: VECTOR_C, the results per store.

template <typename E, int N> struct alignas(N * sizeof(E) < 16 ? N * sizeof(E) : 16) Neighbours {
    E at[N];
};

// Stores adjacent elements, limited to `room`.
template <typename E, int N>
__device__ __forceinline__ void keep(E* to, const Neighbours<E, N>& results, int room)
{
    if constexpr (VECTOR_C >= N) {
        *(Neighbours<E, N>*)to = results;
    } else {
#pragma unroll
        for (int q = 0; q < N; ++q)
            if (q < room) to[q] = results.at[q];
    }
}
