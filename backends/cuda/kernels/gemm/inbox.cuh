// How the blocks of a cluster add up their sums of one tile: each of them finishes an equal share of the tile's rows, and
// all send theirs to its inbox, where a barrier counts the bytes. No block reads another's memory, so none waits for
// readers. Sums are added in the order of the blocks.
//
// An inbox is shared memory for nothing else: a barrier in 16 bytes, and as many items of eight adjacent sums as a share
// has, for each block. A tile has ROWS_OF rows (or groups of them that one block finishes) of WORDS items. Those of a block
// are in the order of rows or, BY_COLUMNS, of columns: then a warp sends what tensor cores leave it as adjacent bytes.

#include "gemm/exchange.cuh"

template <int ROWS_OF, int WORDS, bool BY_COLUMNS = false> struct Inbox {
    static constexpr int ITEMS = ROWS_OF * WORDS;
    unsigned char* memory;
    int split, splits;  // the number of this block in its cluster, and how many there are
    int rows;           // of a block; the last one has fewer
    float inverse;      // of `rows`

    Inbox() = default;
    __device__ __forceinline__ Inbox(unsigned char* memory, int split, int splits)
        : memory(memory), split(split), splits(splits),
          rows((ROWS_OF + splits - 1) / splits), inverse(1.0f / rows)
    {
    }

    __device__ __forceinline__ int begin() const { return min(ITEMS, rows * WORDS * split); }
    __device__ __forceinline__ int end() const { return min(ITEMS, rows * WORDS * (split + 1)); }

    // Opens the inbox; for all threads, which synchronize before they wait for sums.
    __device__ __forceinline__ void open() const
    {
        dsmem_expect(shared_address(memory), (end() - begin()) * splits * 32);
        cluster_arrive_relaxed();
    }

    // Waits until the inboxes of all blocks are open; for all threads that send.
    __device__ __forceinline__ void wait_open() const { cluster_wait(); }

    // Sends two or four adjacent sums of an item of a row, the first of which is its element `at`.
    template <typename Sums> __device__ __forceinline__ void send(int row, int item, int at, Sums sums) const
    {
        const int owner = int((row + 0.5f) * inverse);  // exact, as rows are few
        const u32 inbox = shared_address(memory);
        dsmem_send(inbox + place(row - owner * rows, item, split) + at * 4, inbox, owner, sums);
    }

    // Sends two rows of eight sums of a warp, of which each lane has two pairs: those of an item of row `upper`, and of one of
    // row `lower`.
    __device__ __forceinline__ void send_pairs(int upper, int lower, int of_upper, int of_lower, float2 first,
                                               float2 second) const
    {
        const bool odd = threadIdx.x % 2;
        send(odd ? lower : upper, odd ? of_lower : of_upper, threadIdx.x % 4 / 2 * 4, four_of_row(first, second));
    }

    // Waits for all sums of this block's share.
    __device__ __forceinline__ void wait_received() const { dsmem_wait(shared_address(memory)); }

    // Returns four sums of an item of this block's share, from a block.
    __device__ __forceinline__ float4 received(int item, int at, int block) const
    {
        return *(const float4*)(memory + place(item - begin(), block) + at * 4);
    }

    // Where the sums of an item of this block's share from the first block were: memory that is free once they are added up.
    __device__ __forceinline__ unsigned char* at(int item) const { return memory + place(item - begin(), 0); }

    // Adds up half an item of this block's share.
    __device__ __forceinline__ void add(float (&values)[4], int half) const
    {
        for (int q = 0; q < 4; ++q) values[q] = 0;
        for (int block = 0; block < splits; ++block) {
            const float4 found = received(half / 2, half % 2 * 4, block);
            values[0] += found.x, values[1] += found.y, values[2] += found.z, values[3] += found.w;
        }
    }

    // Adds up an item of this block's share.
    __device__ __forceinline__ void add(float (&values)[8], int item) const
    {
        for (int q = 0; q < 8; ++q) values[q] = 0;
#pragma unroll 4
        for (int block = 0; block < splits; ++block) {
            const float4 low = received(item, 0, block), high = received(item, 4, block);
            values[0] += low.x, values[1] += low.y, values[2] += low.z, values[3] += low.w;
            values[4] += high.x, values[5] += high.y, values[6] += high.z, values[7] += high.w;
        }
    }

private:
    // Where sums of an item of a share from a block are in the inbox. Columns are an odd number of items apart, so that
    // lanes that read those of a row find them in different banks.
    __device__ __forceinline__ int place(int row, int item, int block) const
    {
        if constexpr (BY_COLUMNS) return 16 + ((block * WORDS + item) * (rows | 1) + row) * 32;
        return 16 + ((block * rows + row) * WORDS + item) * 32;
    }
    __device__ __forceinline__ int place(int item, int block) const { return place(item / WORDS, item % WORDS, block); }
};
