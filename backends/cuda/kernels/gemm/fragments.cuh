// How the blocks of a cluster finish a tile whose sums are in registers: each sends fragments of 16 rows and eight columns,
// as warps have them, to the block that finishes them (inbox.cuh). So a warp sends 512 adjacent bytes at a time.
//
// Compile-time, besides those of store_registers.cuh: BM, BN, TN; CONSUMERS, threads; F16X3, whether columns have factors.

#include "gemm/inbox.cuh"

// Results of 16 rows and eight columns: two adjacent ones per thread, in two rows.
struct Fragment {
    float sums[4];
    Operands<2> with[2];
    float2 factors;
    int row, column;

    // Begins with sums of zero, and reads what the epilogue needs; `columns` have factors.
    __device__ __forceinline__ void begin(const Results& results, const float* scales, int first_row, int first_column,
                                          int columns)
    {
        row = first_row + threadIdx.x % 32 / 4, column = first_column + threadIdx.x % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (row + half * 8 < results.m && column < results.n)
                with[half] = results.operands<2>(row + half * 8, column);
            sums[half * 2] = sums[half * 2 + 1] = 0;
        }
        if constexpr (F16X3) factors = *(const float2*)(scales + min(column, columns - 2));
    }

    __device__ __forceinline__ void scale()
    {
        if constexpr (F16X3) sums[0] *= factors.x, sums[1] *= factors.y, sums[2] *= factors.x, sums[3] *= factors.y;
    }

    __device__ __forceinline__ void store(const Results& results)
    {
        scale();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float pair[2] = {sums[half * 2], sums[half * 2 + 1]};
            store_pair(results, pair, with[half], row + half * 8, column);
        }
    }

#if BLOCKWISE && !PATCHES
    // Returns the results, and stores them in float32 as well if that is asked for.
    __device__ __forceinline__ void finish(float (&values)[4], const Results& results)
    {
        scale();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float pair[2] = {sums[half * 2], sums[half * 2 + 1]};
            const Neighbours<R, 2> found = with_epilogue(pair, with[half]);
            values[half * 2] = found.at[0], values[half * 2 + 1] = found.at[1];
            const int line = row + half * 8;
            if (PLAIN && line < results.m) *(Neighbours<R, 2>*)(results.c + results.place(line, column)) = found;
        }
    }
#endif
};

__device__ __forceinline__ void add(float (&sums)[4], float4 x)
{
    sums[0] += x.x, sums[1] += x.y, sums[2] += x.z, sums[3] += x.w;
}

// A block's share of the tile of its cluster.
struct Share {
    static constexpr int WARPS = CONSUMERS / 32;
    static constexpr int TOGETHER = BLOCKWISE ? 8 : 1;  // fragments of a block of columns
    static constexpr int WORDS = 16;                    // of eight sums, of a fragment
    Inbox<WARPS * TN / TOGETHER, WORDS * TOGETHER> inbox;

    __device__ __forceinline__ Share(unsigned char* memory, int split, int splits) : inbox(memory, split, splits) {}

    __device__ __forceinline__ int begin() const { return inbox.begin() / WORDS; }
    __device__ __forceinline__ int end() const { return inbox.end() / WORDS; }

    // Sends the sums of a warp, of 16 rows.
    __device__ __forceinline__ void send(const float (&totals)[TN][4]) const
    {
        int number = threadIdx.x / 32 * TN;
        const int lane = threadIdx.x % 32;
        inbox.wait_open();
#pragma unroll
        for (int j = 0; j < TN; ++j, ++number) {
            settle(number);  // there are no registers for all places beside all sums
            inbox.send(number / TOGETHER, number % TOGETHER * WORDS + lane / 2, lane % 2 * 4,
                       make_float4(totals[j][0], totals[j][1], totals[j][2], totals[j][3]));
        }
    }

    // A thread's sums of a fragment of this share, from a block.
    __device__ __forceinline__ float4 received(int fragment, int block) const
    {
        return inbox.received(fragment * WORDS + threadIdx.x % 32 / 2, threadIdx.x % 2 * 4, block);
    }

    // Stores the results of this share; (m0, n0) is the place of the tile, `columns` have factors. Operands of the
    // epilogue are read while sums are on their way.
    __device__ __forceinline__ void store(const Results& results, const float* scales, int m0, int n0, int columns) const
    {
        bool waits = true;
#pragma unroll 1
        for (int number = begin() + threadIdx.x / 32; number < end(); number += WARPS) {
            Fragment fragment;
            fragment.begin(results, scales, m0 + number / TN * 16, n0 + number % TN * 8, columns);
            if (waits) inbox.wait_received();
            waits = false;
#pragma unroll 1
            for (int block = 0; block < inbox.splits; ++block) add(fragment.sums, received(number, block));
            fragment.store(results);
        }
        if (waits) inbox.wait_received();  // also without a share: no block may send to one that has ended
    }

#if BLOCKWISE
    // The same of blocks of 64 columns, each by a warp.
    __device__ __forceinline__ void store_blocks(const Results& results, const float* scales, int m0, int n0,
                                                    int columns) const
    {
        inbox.wait_received();
#pragma unroll 1
        for (int first = begin() + threadIdx.x / 32 * TOGETHER; first < end(); first += WARPS * TOGETHER) {
            float sums[TOGETHER][4] = {};
#pragma unroll 1
            for (int block = 0; block < inbox.splits; ++block)
#pragma unroll
                for (int j = 0; j < TOGETHER; ++j) add(sums[j], received(first + j, block));
            const int column = n0 + first % TN * 8;
            if constexpr (F16X3) scale_columns(sums, scales, column, columns);
            ::store_blocks(results, sums, m0 + first / TN * 16, column);
        }
    }
#endif

#if BLOCKWISE && !PATCHES
    // The same, each by the four warps of a group, as shares are few blocks. The greatest results of rows that they find take
    // the place of sums.
    __device__ __forceinline__ void store_blocks_together(const Results& results, const float* scales, int m0, int n0,
                                                          int columns) const
    {
        constexpr int PARTS = 4, COUNT = TOGETHER / PARTS;  // fragments of a warp
        const int lane = threadIdx.x % 32, part = threadIdx.x / 32 % PARTS, group = threadIdx.x / 128;
        bool waits = true;
#pragma unroll 1
        for (int first = begin() + group * TOGETHER; first < end(); first += GROUPS * TOGETHER) {
            const int row = m0 + first / TN * 16, column = n0 + first % TN * 8, own = first + part * COUNT;
            if (column >= results.n) continue;
            Fragment fragments[COUNT];
#pragma unroll
            for (int j = 0; j < COUNT; ++j)
                fragments[j].begin(results, scales, row, column + (part * COUNT + j) * 8, columns);
            if (waits) inbox.wait_received();
            waits = false;
#pragma unroll 1
            for (int block = 0; block < inbox.splits; ++block)
#pragma unroll
                for (int j = 0; j < COUNT; ++j) add(fragments[j].sums, received(own + j, block));
            float values[COUNT][4];
#pragma unroll
            for (int j = 0; j < COUNT; ++j) fragments[j].finish(values[j], results);
            const auto greatest_at = [&](int part, int half) {
                return (float*)inbox.at((first + part * COUNT) * WORDS) + lane / 4 + half * 8;
            };
            __syncwarp();
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float most = greatest_of_row<COUNT>(values, 0, half);
                if (lane % 4 == 0) *greatest_at(part, half) = most;
            }
            named_barrier_sync<128>(1 + group);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int line = row + lane / 4 + half * 8;
                float most = 0;
#pragma unroll
                for (int other = 0; other < PARTS; ++other) most = fmaxf(most, *greatest_at(other, half));
                const RowScale by(__float_as_uint(most));
                store_sixteen(results.halves, values[0] + half * 2, values[1] + half * 2, by, line,
                              column + part * COUNT * 8, results.m);
                if (part == 0 && lane % 4 == 0 && line < results.m)
                    results.halves.store_scale(line, column / BLOCK_TERMS, by.inverse);
            }
        }
        if (waits) inbox.wait_received();
    }
#endif
};
