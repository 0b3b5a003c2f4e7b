// The epilogues of store_floats.cuh that also store the totals of the columns of a tile: a row of totals for each tile of
// rows, or for the share of it that a block of a cluster finishes.

// Adds up rows of totals in shared memory, and stores their sums as a row of the result.
template <int COUNT>
__device__ __forceinline__ void store_row(float* totals, const float* rows, int row, const Block& block, int n, int ldc,
                                          int batch_c)
{
    for (int column = threadIdx.x; column < BN && block.n0 + column < n; column += THREADS) {
        float total = 0;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) total += rows[i * BN + column];
        totals[(long long)row * ldc + block.batch * batch_c + block.n0 + column] = total;
    }
}

// Through shared memory.
struct StoreTileTotals : StoreTile {
    static constexpr int ACROSS = BN / 8;  // threads with all columns of a row
    static_assert(SPLIT != CLUSTER || THREADS % ACROSS == 0, "a thread has items of the same columns");
    float* totals;

    struct Adding : AsTheyAre {
        float* of;
        template <typename Results> __device__ __forceinline__ void after(const Results& results, int, int) const
        {
#pragma unroll
            for (int q = 0; q < 8; ++q) of[q] += float(results.at[q]);
        }
    };

    __device__ __forceinline__ StoreTileTotals(R* c, float* totals, const Z* bias, const Z* z0, const Z* z1, int m, int n,
                                               int ldc, int batch_c)
        : StoreTile(c, bias, z0, z1, m, n, ldc, batch_c), totals(totals)
    {
    }

    __device__ __forceinline__ void store(const Sums& sums, unsigned char* shared, const Block& block, const Place& warp)
    {
        float of[8] = {}, *const rows = (float*)shared;
        StoreTile::store(sums, shared, block, warp, Adding{{}, of});
        __syncthreads();
#pragma unroll
        for (int q = 0; q < 8; ++q) rows[threadIdx.x / ACROSS * BN + threadIdx.x % ACROSS * 8 + q] = of[q];
        __syncthreads();
        store_row<THREADS / ACROSS>(totals, rows, block.m0 / BM * block.splits + block.split, block, finish.n, finish.ldc,
                                    finish.batch_c);
    }
};

// From the registers of the warps.
struct StoreTotals : StoreWords {
    static constexpr int BANDS = BM / (TM * 16);  // of rows that a warp has
    float* totals;

    __device__ __forceinline__ StoreTotals(R* c, float* totals, const Z* bias, const Z* z0, const Z* z1, int m, int n,
                                           int ldc, int batch_c)
        : StoreWords(c, bias, z0, z1, m, n, ldc, batch_c), totals(totals)
    {
    }

    __device__ __forceinline__ void store(const Sums& sums, unsigned char* shared, const Block& block, const Place& place)
    {
        float* const bands = (float*)shared;
        float of[OF_ROWS][8] = {};
        cp_async_wait<0>();
        __syncthreads();  // the stages are read
        StoreWords::store(sums, block, place, [&](int word, const Neighbours<R, 8>& results) {
#pragma unroll
            for (int q = 0; q < 8; ++q) of[word % OF_ROWS][q] += float(results.at[q]);
        });
#pragma unroll
        for (int j = 0; j < OF_ROWS; ++j) {
            const int column = over_rows(of[j]) + place.n + (j * 2 + place.lane % 4 / 2) * 8;
            if (place.lane % 2 == 0) bands[place.m / (TM * 16) * BN + column] = of[j][0];
        }
        __syncthreads();
        store_row<BANDS>(totals, bands, block.m0 / BM, block, n, ldc, batch_c);
    }

private:
    // Adds up the rows of lanes with the same eight columns. Each lane gets the sum of one of these as its first number, and
    // which one that is as the result.
    static __device__ __forceinline__ int over_rows(float (&of)[8])
    {
        const int lane = threadIdx.x % 32;
        int column = 0;
#pragma unroll
        for (int other = 16, half = 4; half; other /= 2, half /= 2) {
            const bool upper = lane & other;
#pragma unroll
            for (int q = 0; q < half; ++q) {
                const float sent = upper ? of[q] : of[q + half], kept = upper ? of[q + half] : of[q];
                of[q] = kept + __shfl_xor_sync(~0u, sent, other);
            }
            column += upper ? half : 0;
        }
        of[0] += __shfl_xor_sync(~0u, of[0], 1);
        return column;
    }
};
