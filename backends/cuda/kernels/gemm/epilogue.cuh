// The end of a tensor-core product: eight neighbouring results get bias and tail, and are stored.

struct alignas(16) Words {
    T at[8];
};

// Reads eight neighbours, or as many as there is room for.
__device__ __forceinline__ Words neighbours(const T* from, int room)
{
    Words found = {};
    if constexpr (VECTOR_C == 8) {
        found = *(const Words*)from;
    } else {
#pragma unroll
        for (int q = 0; q < 8; ++q)
            if (q < room) found.at[q] = from[q];
    }
    return found;
}

template <int KIND_OF>
__device__ __forceinline__ Words operand(const T* z, long long at, int channel, int room)
{
    if constexpr (KIND_OF == 0) return {};
    return neighbours(KIND_OF == 1 ? z + at : z + channel, room);
}

// What eight neighbouring results need besides their sums.
struct Operands {
    Words shift, first, second;
};

// Reads the operands of results at place `at`; `room` says how many there are.
__device__ __forceinline__ Operands operands_at(long long at, int channel, int room, const T* bias,
                                                const T* z0, const T* z1)
{
    return {operand<BIAS ? 2 : 0>(bias, at, channel, room), operand<Z0>(z0, at, channel, room),
            operand<Z1>(z1, at, channel, room)};
}

// Returns finish(values + bias).
__device__ __forceinline__ Words finished(const float (&values)[8], const Operands& with, int row)
{
    Words results;
#pragma unroll
    for (int q = 0; q < 8; ++q) {
        const float sum = BIAS ? values[q] + float(with.shift.at[q]) : values[q];
        results.at[q] = finish(sum, q, row, q, with.first.at, with.second.at);
    }
    return results;
}

// Stores eight neighbours, or as many as there is room for.
__device__ __forceinline__ void keep(T* to, const Words& results, int room)
{
    if constexpr (VECTOR_C == 8) {
        *(Words*)to = results;
    } else {
#pragma unroll
        for (int q = 0; q < 8; ++q)
            if (q < room) to[q] = results.at[q];
    }
}

// Stores finish(values + bias) at place `at` of the result.
__device__ __forceinline__ void finish_all(T* c, const float (&values)[8], const Operands& with,
                                           long long at, int row, int room)
{
    keep(c + at, finished(values, with, row), room);
}
