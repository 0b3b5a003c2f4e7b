// Adds eight adjacent sums of all blocks of the cluster, always in the same order.
__device__ __forceinline__ void add_blocks(float (&values)[8], u32 from, int blocks)
{
    for (int q = 0; q < 8; ++q) values[q] = 0;
#pragma unroll 4
    for (int block = 0; block < blocks; ++block) {
        const float4 low = dsmem_load(from, block), high = dsmem_load(from + 16, block);
        values[0] += low.x, values[1] += low.y, values[2] += low.z, values[3] += low.w;
        values[4] += high.x, values[5] += high.y, values[6] += high.z, values[7] += high.w;
    }
}
