// The ends of a product with sums in floating point: bias and epilogue, in float32. They come together in shared memory,
// where rows are whole words, and from where the blocks of a cluster add up each other's; or are stored from registers.

constexpr int ITEMS = BM * BN / 8;

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

// By way of shared memory.
struct StoreTile {
    void* c;
    const Z *bias, *z0, *z1;
    int m, n, ldc, batch_c;

    __device__ __forceinline__ void prepare(LoaderA&) const {}
    __device__ __forceinline__ void begin(const Block&) const {}

    // Adds up the sums, of all blocks where there are several, and stores them.
    __device__ __forceinline__ void store(const Sums& sums, unsigned char* shared, const Block& block,
                                          const Place& warp) const
    {
        cp_async_wait<0>();
        __syncthreads();
        gather((float*)shared, sums.of, warp);
        const u32 tile = shared_address(shared);
        const int m0 = block.m0, n0 = block.n0, batch = block.batch;
        int begin = 0, end = ITEMS;
        if constexpr (SPLIT == CLUSTER) {
            cluster_sync();
            begin = ITEMS * block.split / block.splits;
            end = ITEMS * (block.split + 1) / block.splits;
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
                    add_blocks(values, tile + (row * PITCH + column) * 4, block.splits);
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
