// Reductions over the threads of a block of WARPS warps.

constexpr int THREADS = 32 * WARPS;

// All threads of a warp get the result.
template <typename V, typename Combine>
__device__ __forceinline__ V over_warp(V value, Combine combine)
{
#pragma unroll
    for (int other = 16; other; other /= 2)
        value = combine(value, __shfl_xor_sync(~0u, value, other));
    return value;
}

// All threads of the block get the result. The first time, nobody reads what another reduction has left.
template <bool FIRST = false, typename V, typename Combine>
__device__ __forceinline__ V over_block(V value, Combine combine)
{
    __shared__ V parts[WARPS];
    value = over_warp(value, combine);
    if constexpr (WARPS > 1) {
        if constexpr (!FIRST) __syncthreads();  // `parts` may still be read from the reduction before
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
        __syncthreads();
        value = parts[0];
        for (int i = 1; i < WARPS; ++i) value = combine(value, parts[i]);
    }
    return value;
}

struct Plus {
    template <typename V> __device__ __forceinline__ V operator()(V a, V b) const { return a + b; }
};

struct Larger {  // NaN stays
    template <typename V> __device__ __forceinline__ V operator()(V a, V b) const
    {
        return a > b || a != a ? a : b;
    }
};
