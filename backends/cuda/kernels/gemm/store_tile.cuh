// The epilogue of a product whose sums are gathered in shared memory, in float32: rows are stored in whole words, and
// the blocks of a cluster add up each other's sums.
//
// Compile-time, besides those of epilogue.cuh: BM x BN, the tile of a block, and PITCH, of its rows; THREADS, all of
// which store; SPLIT: WHOLE, PARTIAL or CLUSTER, see multistage.cu. `Block` gives the position of the tile.
//
// With two PRODUCTS, whose results the epilogue combines, they have every other eight columns of sums and of the bias.

constexpr int ITEMS = BM * BN / 8;  // of eight sums

#include "gemm/add_slices.cuh"
#include "gemm/inbox.cuh"

// What a kernel does to eight adjacent sums of a row before the epilogue, and to its results: nothing.
struct AsTheyAre {
    __device__ __forceinline__ void before(float (&values)[8], int row) const {}
    template <typename Results> __device__ __forceinline__ void after(const Results& results, int row, int column) const {}
    template <typename Results>
    __device__ __forceinline__ void store(R* to, const Results& results, int row, int column, int room) const
    {
        keep(to, results, room);
    }
};

// Sends the sums of a tile to the blocks of a cluster that add them up; `sums` gives four adjacent ones of a row.
template <typename Sums> __device__ __forceinline__ void send_tile(const Inbox<BM, BN / 8>& inbox, const Sums& sums)
{
    inbox.wait_open();
    for (int i = threadIdx.x; i < BM * BN / 4; i += THREADS) {
        const int row = i / (BN / 4), column = i % (BN / 4) * 4;
        inbox.send(row, column / 8, column % 8, sums(row, column));
    }
}

// Four adjacent sums of a tile in shared memory.
__device__ __forceinline__ float4 four_of_tile(const float* tile, int row, int column)
{
    return *(const float4*)(tile + row * PITCH + column);
}

// The row of the result that row `row` of a tile is.
template <typename Of> __device__ __forceinline__ int row_of_result(const Of& block, int row) { return block.m0 + row; }

// The epilogue of a tile, eight adjacent results at a time.
template <int PRODUCTS> struct FinishProducts {
    static constexpr int RESULTS = ITEMS / PRODUCTS;  // items
    // Those of a thread, at most, and of these, whose operands are in flight at once.
    static constexpr int MOST = ((SPLIT == CLUSTER ? (RESULTS + 1) / 2 : RESULTS) + THREADS - 1) / THREADS;
    static constexpr int AT_ONCE = SPLIT == PARTIAL ? 2 : 4;  // partial sums have no operands
    static constexpr int BATCH = MOST < AT_ONCE ? MOST : AT_ONCE;
    static constexpr bool ONCE = MOST == BATCH, EVEN = SPLIT != CLUSTER && RESULTS % (BATCH * THREADS) == 0;
    void* c;
    const Z *bias, *z0, *z1;
    int m, n, ldc, batch_c;  // of results
    int channels;  // of a batch, if each has its own channels

    // Some items of a thread: where their results go, -1 if nowhere, and their operands.
    struct Several {
        long long at[BATCH];
        Operands<8> of[BATCH];
    };

    // Finds the places of items of a thread, `first` and following, before `end`, and reads their operands.
    __device__ __forceinline__ void read(Several& some, int first, int end, const Block& block) const
    {
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int item = first + i * THREADS, row = row_of(item, block), column = column_of(item, block);
            some.at[i] = -1;
            if ((!EVEN && item >= end) || row >= m || column >= n) continue;
            some.at[i] = place(row, column, block);
            if constexpr (SPLIT != PARTIAL)
                some.of[i] = operands_at<8>(some.at[i], row, block.batch * channels + column, n - column, bias, z0, z1);
        }
    }

    // Stores the results from item `begin` to `end`; `found` gives an item of sums. The first ones have been read.
    template <typename Found, typename Around = AsTheyAre>
    __device__ __forceinline__ void store_all(Several& some, int begin, int end, const Block& block,
                                              const Found& found, const Around& around = {}) const
    {
        int first = begin + threadIdx.x;
        do {
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                if (some.at[i] < 0) continue;
                const int item = first + i * THREADS, column = column_of(item, block);
                float values[PRODUCTS][8];
#pragma unroll
                for (int p = 0; p < PRODUCTS; ++p) found(values[p], item * PRODUCTS + p);
                if constexpr (SPLIT == PARTIAL) {
                    float* to = (float*)c + some.at[i];
                    for (int q = 0; q < 8; ++q)
                        if (column + q < n) to[q] = values[0][q];
                } else {
#pragma unroll
                    for (int p = 0; p < PRODUCTS; ++p) around.before(values[p], row_of_item(item * PRODUCTS));
                    if constexpr (PRODUCTS > 1 && BIAS) add_biases(values, bias + column * PRODUCTS);
                    const auto results = with_epilogue(values, some.of[i]);
                    around.after(results, row_of(item, block), column);
                    around.store((R*)c + some.at[i], results, row_of(item, block), column, n - column);
                }
            }
            if constexpr (ONCE) return;
            first += BATCH * THREADS;
            if (first < end) read(some, first, end, block);
        } while (first < end);
    }

    // Reads the operands of a thread's first items.
    __device__ __forceinline__ void begin(Several& some, const Inbox<BM, BN / 8>& inbox, const Block& block) const
    {
        if constexpr (SPLIT == CLUSTER) read(some, inbox.begin() / PRODUCTS + threadIdx.x, inbox.end() / PRODUCTS, block);
        else read(some, threadIdx.x, RESULTS, block);
    }

    // Stores the sums in shared memory. The blocks of a cluster send them to one another, and each stores its share.
    __device__ __forceinline__ void store(unsigned char* shared, const Inbox<BM, BN / 8>& inbox, const Block& block) const
    {
        Several some;
        store<true>(some, shared, inbox, block);
    }

    // The same; READS: the operands of the first items, too.
    template <bool READS, typename Around = AsTheyAre>
    __device__ __forceinline__ void store(Several& some, unsigned char* shared, const Inbox<BM, BN / 8>& inbox,
                                          const Block& block, const Around& around = {}) const
    {
        __syncthreads();
        if constexpr (SPLIT == CLUSTER)
            send_tile(inbox, [&](int row, int column) { return four_of_tile((const float*)shared, row, column); });
        if constexpr (READS) begin(some, inbox, block);
        if constexpr (SPLIT == CLUSTER) inbox.wait_received();
        const int first = SPLIT == CLUSTER ? inbox.begin() / PRODUCTS : 0;
        const int last = SPLIT == CLUSTER ? inbox.end() / PRODUCTS : RESULTS;
        store_all(some, first, last, block, [&](float (&values)[8], int item) {
            if constexpr (SPLIT == CLUSTER) inbox.add(values, item);
            else read_sums(values, (const float*)shared + row_of_item(item) * PITCH + column_of_item(item));
        }, around);
    }

    static __device__ __forceinline__ void read_sums(float (&values)[8], const float* from)
    {
        *(float4*)values = *(const float4*)from;
        *(float4*)(values + 4) = *(const float4*)(from + 4);
    }

    static __device__ __forceinline__ int row_of_item(u32 item) { return item / (BN / 8); }
    static __device__ __forceinline__ int column_of_item(u32 item) { return item % (BN / 8) * 8; }

private:
    // Where the results of an item are.
    static __device__ __forceinline__ int row_of(int item, const Block& block)
    {
        return row_of_result(block, row_of_item(item * PRODUCTS));
    }
    static __device__ __forceinline__ int column_of(int item, const Block& block)
    {
        return (block.n0 + column_of_item(item * PRODUCTS)) / PRODUCTS;
    }

    static __device__ __forceinline__ void add_biases(float (&values)[PRODUCTS][8], const Z* from)
    {
#pragma unroll
        for (int p = 0; p < PRODUCTS; ++p)
#pragma unroll
            for (int q = 0; q < 8; ++q) values[p][q] += float(from[p * 8 + q]);
    }

    __device__ __forceinline__ long long place(int row, int column, const Block& block) const
    {
        if constexpr (SPLIT == PARTIAL)
            return ((long long)(block.batch * block.splits + block.split) * m + row) * n + column;
        return (long long)block.batch * batch_c + (long long)row * ldc + column;
    }
};

typedef FinishProducts<1> Finish;
