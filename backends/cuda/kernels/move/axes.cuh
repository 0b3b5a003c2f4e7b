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
