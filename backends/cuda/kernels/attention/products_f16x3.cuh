// The products of attention in halves by wgmma: queries and weights in registers, keys and values in eights (eights.cuh).
//
// Compile-time: SIZE_K; EIGHTS and SIZE_V; KEYS; and two wgmma instructions.

// Sixteen rows of queries of a warp in registers.
struct Queries {
    u32 high[SIZE_K / 16][4], low[SIZE_K / 16][4];

    __device__ __forceinline__ void read(u32 memory)
    {
        typedef Eights<SIZE_K> Q;
        const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane % 16;
#pragma unroll
        for (int c = 0; c < SIZE_K / 16; ++c) {
            const u32 from = memory + row / 8 * Q::BYTES + Q::slab(0, c / 4) + swizzled(row % 8, c % 4 * 2 + lane / 16);
            ldmatrix_x4(high[c], from);
            ldmatrix_x4(low[c], from + Q::slab(1, 0));
        }
    }
};

// The scores of a tile of keys; small products come first.
__device__ __forceinline__ void multiply_queries(float (&scores)[KEYS / 8][4], const Queries& queries, u32 keys)
{
    typedef Eights<SIZE_K> K;
    const auto part = [&](int p, int c) { return smem_descriptor_apart<K::BYTES>(keys + K::slab(p, c / 4)) + c % 4 * 2; };
    settle(scores);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < SIZE_K / 16; ++c) {
        wgmma(scores, queries.low[c], part(0, c), c > 0);
        wgmma(scores, queries.high[c], part(1, c), true);
    }
#pragma unroll
    for (int c = 0; c < SIZE_K / 16; ++c) wgmma(scores, queries.high[c], part(0, c), true);
    wgmma_commit();
    wgmma_wait<0>();
    settle(scores);
}

// Adds the weighted values of a tile to the results.
__device__ __forceinline__ void multiply_values(float (&results)[EIGHTS][4], const WeightHalves<KEYS>& weights, u32 values)
{
    typedef Eights<SIZE_V> V;
#pragma unroll
    for (int slab = 0; slab < V::SLABS; ++slab) {
        const auto part = [&](int p, int c) {
            return smem_descriptor_apart<V::BYTES>(values + V::slab(p, slab)) + c * (2 * V::BYTES >> 4);
        };
        float sums[8][4];
        settle(sums);
        wgmma_fence();
#pragma unroll
        for (int c = 0; c < KEYS / 16; ++c) {
            wgmma_across(sums, weights.low[c], part(0, c), c > 0);
            wgmma_across(sums, weights.high[c], part(1, c), true);
        }
#pragma unroll
        for (int c = 0; c < KEYS / 16; ++c) wgmma_across(sums, weights.high[c], part(0, c), true);
        wgmma_commit();
        wgmma_wait<0>();
        settle(sums);
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
            for (int q = 0; q < 4; ++q) results[slab * 8 + j][q] += sums[j][q] * weights.inverse[q / 2];
    }
}
