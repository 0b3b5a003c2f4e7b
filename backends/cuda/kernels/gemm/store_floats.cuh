// The epilogues of a product with floating-point sums: bias and epilogue, in float32. Results are gathered in shared
// memory, see store_tile.cuh, or stored directly from registers.

#include "gemm/store_tile.cuh"

__device__ __forceinline__ float2 neighbours(const float (&sums)[4], int row)
{
    return make_float2(sums[row * 2], sums[row * 2 + 1]);
}

__device__ __forceinline__ float2 neighbours(const u32 (&sums)[2], int row) { return halves_of(sums[row]); }

// Passes all sums of a thread to `take`, in pairs, with their row and column in the tile.
template <typename Sum, int COUNT, typename Take>
__device__ __forceinline__ void each_pair(const Sum (&sums)[TM][TN][COUNT], const Place& place, const Take& take)
{
    const int row = place.m + place.lane / 4, column = place.n + place.lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                take(row + i * 16 + half * 8, column + j * 8, neighbours(sums[i][j], half));
}

// Through shared memory: the block's own, or those of all blocks of the cluster.
struct StoreTile {
    // Operands of the epilogue are read before the products, if registers are left beside the sums.
    static constexpr bool EARLY = SPLIT == CLUSTER || Finish::ONCE;
    Finish finish;
    Finish::Several operands;
    Inbox<BM, BN / 8> inbox;

    __device__ __forceinline__ StoreTile(void* c, const Z* bias, const Z* z0, const Z* z1, int m, int n, int ldc,
                                         int batch_c)
        : finish{c, bias, z0, z1, m, n, ldc, batch_c, ROWS == MATRIX ? 0 : n}
    {
    }

    __device__ __forceinline__ void open(unsigned char* memory, const Block& block)
    {
        if constexpr (SPLIT != CLUSTER) return;
        inbox = {memory, block.split, block.splits};
        inbox.open();
    }
    __device__ __forceinline__ void prepare(LoaderA&) const {}
    __device__ __forceinline__ void begin(const Block& block)
    {
        int thread = threadIdx.x;
        pin(thread);  // behind the copies of `a`
        if constexpr (EARLY) finish.read(operands, first() + thread, last(), block);
    }

    __device__ __forceinline__ void store(const Sums& sums, unsigned char* shared, const Block& block,
                                          const Place& warp)
    {
        if constexpr (SPLIT == CLUSTER) {
            inbox.wait_open();
            each_pair(sums.of, warp, [&](int row, int column, float2 pair) {
                inbox.send(row, column / 8, column % 8, pair);
            });
            inbox.wait_received();
        } else {
            cp_async_wait<0>();
            __syncthreads();
            each_pair(sums.of, warp, [&](int row, int column, float2 pair) {
                *(float2*)((float*)shared + row * PITCH + column) = pair;
            });
            __syncthreads();
        }
        if constexpr (!EARLY) finish.read(operands, first() + threadIdx.x, last(), block);
        finish.store_all(operands, first(), last(), block, [&](float (&values)[8], int item) {
            if constexpr (SPLIT == CLUSTER) inbox.add(values, item);
            else finish.read_sums(values, (const float*)shared + finish.row_of_item(item) * PITCH + finish.column_of_item(item));
        });
    }

private:
    // The items that this block finishes.
    __device__ __forceinline__ int first() const { return SPLIT == CLUSTER ? inbox.begin() : 0; }
    __device__ __forceinline__ int last() const { return SPLIT == CLUSTER ? inbox.end() : ITEMS; }
};

// From the registers of the warps.
struct StoreRegisters {
    R* c;
    const Z *bias, *z0, *z1;
    int m, n, ldc, batch_c;

    __device__ __forceinline__ void open(unsigned char*, const Block&) const {}
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
