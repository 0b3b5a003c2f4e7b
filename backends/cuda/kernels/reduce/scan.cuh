// Prefix sums over the threads of a block of WARPS warps.

// Returns `before` plus the values of the threads before this one; `before` becomes the total of all.
template <typename V, typename Combine>
__device__ __forceinline__ V up_to(V own, V& before, Combine combine)
{
    __shared__ V warps[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    V sum = own;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const V other = __shfl_sync(~0u, sum, lane >= distance ? lane - distance : lane);
        if (lane >= distance) sum = combine(other, sum);
    }
    __syncthreads();  // `warps` may still be read from the call before
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    V start = before;
#pragma unroll
    for (int other = 0; other < WARPS; ++other) {
        if (other == warp) start = before;
        before = combine(before, warps[other]);
    }
    const V left = __shfl_sync(~0u, sum, lane ? lane - 1 : 0);
    return lane ? combine(start, left) : start;
}
