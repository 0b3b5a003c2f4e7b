// What the matrix products on tensor cores share: how tiles come to shared memory, and what happens with
// the sums. multistage.cu says what the constants are.
//
// THREADS is the number of threads, and a warp has TM times 16 rows of results.

#include "gemm/epilogue.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/cluster.cuh"
#include "gemm/operand_a.cuh"

enum { WHOLE, PARTIAL, CLUSTER };

constexpr int TN = BN / WARPS_N / 8;  // columns of a warp's results, in eights
constexpr int BYTES_A = BM * BK * 2, BYTES_STAGE = (BM + BN) * BK * 2;
constexpr int PITCH = BN + 8;  // of the sums in shared memory, in floats
constexpr int ITEMS = BM * BN / 8;

// Where the results of a warp lie in the tile.
struct Place {
    int m, n, lane;
};

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

// Adds eight neighbouring sums of all blocks of the cluster, always in the same order.
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

// Adds up the sums that lie in shared memory, of all blocks where there are several, and stores them.
__device__ __forceinline__ void conclude(unsigned char* shared, void* c, const T* bias, const T* z0,
                                         const T* z1, int m0, int n0, int m, int n, int ldc,
                                         int batch, int batch_c, int split, int splits)
{
    const u32 tiles = shared_address(shared);
    int begin = 0, end = ITEMS;
    if constexpr (SPLIT == CLUSTER) {
        cluster_sync();
        begin = ITEMS * split / splits;
        end = ITEMS * (split + 1) / splits;
    } else {
        __syncthreads();
    }
    // Operands come from far away: several are under way at once.
    constexpr int BATCH = 4;
    for (int item = begin + threadIdx.x; item < end; item += BATCH * THREADS) {
        Operands<8> operands[BATCH];
        const auto place = [&](int i, int& row, int& column) {
            const int own = item + i * THREADS;
            row = own / (BN / 8);
            column = own % (BN / 8) * 8;
            return own < end && m0 + row < m && n0 + column < n;
        };
        const auto at = [&](int row, int column) {
            return (long long)batch * batch_c + (long long)(m0 + row) * ldc + n0 + column;
        };
        int row, column;
        if constexpr (SPLIT != PARTIAL) {
#pragma unroll
            for (int i = 0; i < BATCH; ++i)
                if (place(i, row, column)) {
                    const int channel = (ROWS == MATRIX ? 0 : batch * n) + n0 + column;
                    operands[i] = operands_at<8>(at(row, column), channel, n - n0 - column, bias, z0, z1);
                }
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            if (!place(i, row, column)) continue;
            float values[8];
            if constexpr (SPLIT == CLUSTER) {
                add_blocks(values, tiles + (row * PITCH + column) * 4, splits);
            } else {
                const float* from = (const float*)shared + row * PITCH + column;
                *(float4*)values = *(const float4*)from;
                *(float4*)(values + 4) = *(const float4*)(from + 4);
            }
            if constexpr (SPLIT == PARTIAL) {
                float* to = (float*)c + ((long long)blockIdx.z * m + m0 + row) * n + n0 + column;
                for (int q = 0; q < 8; ++q)
                    if (n0 + column + q < n) to[q] = values[q];
            } else {
                epilogue_all((R*)c, values, operands[i], at(row, column), m0 + row, n - n0 - column);
            }
        }
    }
    if constexpr (SPLIT == CLUSTER) cluster_sync();  // others may still read what is here
}
