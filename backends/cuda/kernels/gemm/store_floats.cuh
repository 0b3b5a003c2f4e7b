// The epilogues of a product with floating-point sums: bias and epilogue, in float32. Results are gathered in shared
// memory, see store_tile.cuh, or stored directly from registers.

#include "gemm/store_tile.cuh"

__device__ __forceinline__ float2 neighbours(const float (&sums)[4], int row)
{
    return make_float2(sums[row * 2], sums[row * 2 + 1]);
}

__device__ __forceinline__ float2 neighbours(const u32 (&sums)[2], int row) { return halves_of(sums[row]); }

// Gathers the block's sums in shared memory, in rows.
template <typename Sum, int COUNT>
__device__ __forceinline__ void gather(float* target, const Sum (&sums)[TM][TN][COUNT], const Place& place)
{
    float* mine = target + (place.m + place.lane / 4) * PITCH + place.n + place.lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            float* at = mine + i * 16 * PITCH + j * 8;
            *(float2*)at = neighbours(sums[i][j], 0);
            *(float2*)(at + 8 * PITCH) = neighbours(sums[i][j], 1);
        }
}

// Through shared memory.
struct StoreTile {
    Finish finish;

    __device__ __forceinline__ StoreTile(void* c, const Z* bias, const Z* z0, const Z* z1, int m, int n, int ldc,
                                         int batch_c)
        : finish{c, bias, z0, z1, m, n, ldc, batch_c, ROWS == MATRIX ? 0 : n}
    {
    }

    __device__ __forceinline__ void prepare(LoaderA&) const {}
    __device__ __forceinline__ void begin(const Block&) const {}

    __device__ __forceinline__ void store(const Sums& sums, unsigned char* shared, const Block& block,
                                          const Place& warp) const
    {
        cp_async_wait<0>();
        __syncthreads();
        gather((float*)shared, sums.of, warp);
        finish.store(shared, block);
    }
};

// From the registers of the warps.
struct StoreRegisters {
    R* c;
    const Z *bias, *z0, *z1;
    int m, n, ldc, batch_c;

    __device__ __forceinline__ void prepare(LoaderA&) const {}
    __device__ __forceinline__ void begin(const Block&) const {}

    template <typename S>
    __device__ __forceinline__ void store(const S& sums, unsigned char*, const Block& block, const Place& warp) const
    {
        Results results = {c, bias, z0, z1, m, n, ldc, (long long)block.batch * batch_c,
                           ROWS == MATRIX ? 0 : block.batch * n};
        if constexpr (SPLIT == PARTIAL) {
            results.start = (long long)blockIdx.z * m * n;
            results.ldc = n;
        }
#pragma unroll
        for (int i = 0; i < TM; ++i)
            store_sums(results, sums.of[i], block.m0 + warp.m + i * 16, block.n0 + warp.n);
    }
};
