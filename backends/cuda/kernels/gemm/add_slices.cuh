// Sums of slices of K, which are gathered in shared memory in float32.
//
// Compile-time: BM x BN, the tile of a block, and PITCH, of its rows.

// Adds the sums of COUNT slices of K, each in rows of PITCH, to those of the first, always in the same order.
template <int COUNT> __device__ __forceinline__ void add_slices(float* parts, int thread, int threads)
{
    for (int i = thread; i < BM * BN / 4; i += threads) {
        float4* const at = (float4*)(parts + i / (BN / 4) * PITCH + i % (BN / 4) * 4);
        float4 sum = at[0];
#pragma unroll
        for (int other = 1; other < COUNT; ++other) {
            const float4 found = at[other * (BM * PITCH / 4)];
            sum.x += found.x, sum.y += found.y, sum.z += found.z, sum.w += found.w;
        }
        at[0] = sum;
    }
}
