// One number an axis, and the place along it.

struct Ints {  // outermost first
    Index at[RANK];
};

// n / size. Indices of 32 bits are multiplied by a factor that the host has computed, and shifted.
__device__ __forceinline__ Index quotient(Index n, Index size, Index factor, Index shift)
{
    if constexpr (sizeof(Index) == 4)
        return (Index)((unsigned long long)(unsigned)n * (unsigned)factor >> shift);
    else
        return n / size;
}

// Passes each axis and the place of number n along it on to `visit`, innermost first.
template <int AXES = RANK, typename Sizes, typename Visit>
__device__ __forceinline__ void for_each_axis(Index n, const Sizes& sizes, const Sizes& factors, const Sizes& shifts,
                                              Visit visit)
{
#pragma unroll
    for (int axis = AXES - 1; axis >= 0; --axis) {
        const Index next = axis ? quotient(n, sizes.at[axis], factors.at[axis], shifts.at[axis]) : 0;
        visit(axis, n - next * sizes.at[axis]);
        n = next;
    }
}
