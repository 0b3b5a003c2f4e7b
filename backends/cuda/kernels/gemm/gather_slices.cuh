// The sums of mixed_input.cuh as rows of results; for kernels that include add_slices.cuh.

// Stores the sums of a warp in shared memory as rows of results, and adds up those of all slices.
__device__ __forceinline__ void gather(float* parts, const Sums& sums, int slice, int n)
{
    const int lane = threadIdx.x % 32;
    float* const own = parts + slice * (BM * PITCH) + lane % 4 * 2 * PITCH + n + lane / 4;
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair)
#pragma unroll
        for (int group = 0; group < GROUPS; ++group)
#pragma unroll
            for (int q = 0; q < 4; ++q)
                own[(group * 8 + q % 2) * PITCH + pair * 16 + q / 2 * 8] = sums[pair][group][q];
    if constexpr (SLICES > 1) {
        __syncthreads();
        add_slices<SLICES>(parts, threadIdx.x, THREADS);
    }
}
