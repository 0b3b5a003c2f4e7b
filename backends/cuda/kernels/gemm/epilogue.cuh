// The epilogue of a product on tensor cores: adds the bias to adjacent results, applies the epilogue and stores them.
//
// Compile-time: Z, the type of operands, and R, of results; VECTOR_C; BIAS; Z0 and Z1, the layouts of the epilogue's
// operands: 0 none, 1 like the result, 2 one element per channel, 3 one element per row of a matrix, 4 like the result
// with rows elsewhere, of another distance or one for all rows of a sample, 6 one element per row of all matrices or
// pixel of all images: generated functions `place0` and `place1` say where 4 and 6 are. One of 7 is not
// read: there, `second::epilogue` of results is stored, at their positions. The macro SECOND is its name then.
// With SECOND_PAIRS, they are multiplied and shifted first: by pairs of float32, one per channel, that many bytes behind `bias`.

#include "gemm/neighbours.cuh"

typedef Neighbours<R, 8> Words;

// Reads adjacent elements, limited to `room`, a multiple of VECTOR_C.
template <int N> __device__ __forceinline__ Neighbours<Z, N> neighbours(const Z* from, int room)
{
    Neighbours<Z, N> found = {};
    if constexpr (VECTOR_C >= N) {
        found = *(const Neighbours<Z, N>*)from;
    } else {
#pragma unroll
        for (int q = 0; q < N; q += VECTOR_C)
            if (q < room) *(Neighbours<Z, VECTOR_C>*)(found.at + q) = *(const Neighbours<Z, VECTOR_C>*)(from + q);
    }
    return found;
}

template <int N, int KIND_OF>
__device__ __forceinline__ Neighbours<Z, N> operand(const Z* z, long long at, int row, int channel, int room)
{
    if constexpr (KIND_OF == 0 || KIND_OF == 7) return {};
    if constexpr (KIND_OF == 3 || KIND_OF == 6) {
        Neighbours<Z, N> found;
        const Z one = z[KIND_OF == 3 ? row : at];
#pragma unroll
        for (int q = 0; q < N; ++q) found.at[q] = one;
        return found;
    }
    return neighbours<N>(KIND_OF == 2 ? z + channel : z + at, room);
}

// Where second results of adjacent results go, and how many there are; their factors and shifts.
struct SecondPlace {
    R* to = nullptr;
    int room = 0;
    const float2* pairs = nullptr;
};

// The bias and the operands of adjacent results.
template <int N> struct Operands {
    Neighbours<Z, N> shift, first, second;
#ifdef SECOND
    SecondPlace also;
#endif
};

#ifdef SECOND
__device__ __forceinline__ SecondPlace second_place(long long at, int channel, int room, const Z* bias, const Z* z0, const Z* z1)
{
#ifdef SECOND_PAIRS
    return {(R*)SECOND + at, room, (const float2*)((const char*)bias + SECOND_PAIRS) + channel};
#else
    return {(R*)SECOND + at, room};
#endif
}

template <int N>
__device__ __forceinline__ Neighbours<R, N> second_at(const Neighbours<R, N>& results, const SecondPlace& place)
{
#ifdef SECOND_PAIRS
    Neighbours<float2, N> by = {};
    if constexpr (VECTOR_C >= N) {
        by = *(const Neighbours<float2, N>*)place.pairs;
    } else {
#pragma unroll
        for (int q = 0; q < N; ++q)
            if (q < place.room) by.at[q] = place.pairs[q];
    }
    Neighbours<R, N> found;
#pragma unroll
    for (int q = 0; q < N; ++q) {
        const float value = float(results.at[q]) * by.at[q].x + by.at[q].y;
        found.at[q] = second::epilogue(value, 0, 0, 0, nullptr, nullptr);
    }
    return found;
#else
    return second_of(results);
#endif
}
#endif

// Reads the operands of results at position `at`; `room` is the number of results.
template <int N>
__device__ __forceinline__ Operands<N> operands_at(long long at, int row, int channel, int room, const Z* bias,
                                                   const Z* z0, const Z* z1)
{
    return {operand<N, BIAS ? 2 : 0>(bias, at, row, channel, room),
            operand<N, Z0>(z0, Z0 >= 4 ? place0(at) : at, row, channel, room),
            operand<N, Z1>(z1, Z1 >= 4 ? place1(at) : at, row, channel, room),
#ifdef SECOND
            second_place(at, channel, room, bias, z0, z1)
#endif
    };
}

// Stores the second results of adjacent results, if these are there.
template <int N>
__device__ __forceinline__ void keep_second(const Neighbours<R, N>& results, const Operands<N>& with)
{
#ifdef SECOND
    if (with.also.to) keep(with.also.to, second_at(results, with.also), with.also.room);
#endif
}

// Returns epilogue(values + bias); each value has an element of every operand, however these are indexed.
template <int N>
__device__ __forceinline__ Neighbours<R, N> with_epilogue(const float (&values)[N], const Operands<N>& with)
{
    Neighbours<R, N> results;
#pragma unroll
    for (int q = 0; q < N; ++q) {
        const float sum = BIAS ? values[q] + float(with.shift.at[q]) : values[q];
        results.at[q] = epilogue(sum, q, q, q, with.first.at, with.second.at);
    }
    keep_second(results, with);
    return results;
}

template <int N>
__device__ __forceinline__ Neighbours<R, N> with_epilogue(const float (&values)[1][N], const Operands<N>& with)
{
    return with_epilogue(values[0], with);
}

// Returns the results of two products, which have their biases, combined by the epilogue.
template <int N>
__device__ __forceinline__ Neighbours<R, N> with_epilogue(const float (&values)[2][N], const Operands<N>& with)
{
    Neighbours<R, N> results;
#pragma unroll
    for (int q = 0; q < N; ++q)
        results.at[q] = epilogue(values[0][q], values[1][q], q, q, q, with.first.at, with.second.at);
    return results;
}

// Stores epilogue(values + bias) at position `at` of the result.
template <int N, typename Values>
__device__ __forceinline__ void epilogue_all(R* c, const Values& values, const Operands<N>& with,
                                           long long at, int room)
{
    keep(c + at, with_epilogue(values, with), room);
}
