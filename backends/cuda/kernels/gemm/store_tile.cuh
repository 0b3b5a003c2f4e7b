// The epilogue of a product whose sums are gathered in shared memory, in float32: rows are stored in whole words, and
// the blocks of a cluster add up each other's sums.
//
// Compile-time, besides those of epilogue.cuh: BM x BN, the tile of a block, and PITCH, of its rows; THREADS, all of
// which store; SPLIT: WHOLE, PARTIAL or CLUSTER, see multistage.cu. `Block` gives the position of the tile.

constexpr int ITEMS = BM * BN / 8;

#include "gemm/add_blocks.cuh"

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

struct Finish {
    void* c;
    const Z *bias, *z0, *z1;
    int m, n, ldc, batch_c;
    int channels;  // of a batch, if each has its own channels

    // Adds up the sums, over all blocks of a cluster if there are several, and stores them.
    __device__ __forceinline__ void store(unsigned char* shared, const Block& block) const
    {
        const u32 tile = shared_address(shared);
        const int m0 = block.m0, n0 = block.n0, batch = block.batch, share = batch * block.splits + block.split;
        int begin = 0, end = ITEMS;
        if constexpr (SPLIT == CLUSTER) {
            cluster_sync();
            begin = ITEMS * block.split / block.splits;
            end = ITEMS * (block.split + 1) / block.splits;
        } else {
            __syncthreads();
        }
        // Loads of operands have a long latency: several are in flight at once.
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
                        const int channel = batch * channels + n0 + column;
                        operands[i] = operands_at<8>(at(row, column), m0 + row, channel, n - n0 - column, bias, z0,
                                                     z1);
                    }
            }
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                if (!place(i, row, column)) continue;
                float values[8];
                if constexpr (SPLIT == CLUSTER) {
                    add_blocks(values, tile + (row * PITCH + column) * 4, block.splits);
                } else {
                    const float* from = (const float*)shared + row * PITCH + column;
                    *(float4*)values = *(const float4*)from;
                    *(float4*)(values + 4) = *(const float4*)(from + 4);
                }
                if constexpr (SPLIT == PARTIAL) {
                    float* to = (float*)c + ((long long)share * m + m0 + row) * n + n0 + column;
                    for (int q = 0; q < 8; ++q)
                        if (n0 + column + q < n) to[q] = values[q];
                } else {
                    epilogue_all((R*)c, values, operands[i], at(row, column), n - n0 - column);
                }
            }
        }
        if constexpr (SPLIT == CLUSTER) cluster_sync();  // other blocks may still read this memory
    }
};
