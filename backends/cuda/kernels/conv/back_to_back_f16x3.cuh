// Products of float32 of back_to_back.cu, as three float16 products; see halves.cuh. Weights are in halves (step_f16x3.cuh), and
// rows are cut once, each block of 64 terms with a scale of its own.

#include "gemm/halves.cuh"
#if IN_HALVES
#include "gemm/store_halves.cuh"
#include "gemm/store_fours.cuh"
#endif

// What one thread requests of the copy engine, and where all else is.
struct Requests {
    const T *a, *w, *next;
    const float *scales, *next_scales;
    int lda, rows_w, rows_next;  // of weights, in eights
    u32 shared;
    int row, column;  // the first ones of the block

    __device__ __forceinline__ u32 full(int step) const { return shared + BARRIERS + step * 8; }

    // Brings `rows` of the weights of a step.
    static __device__ __forceinline__ void bring(u32 to, int tile, const T* from, int step, int all, int rows, u32 barrier)
    {
#pragma unroll
        for (int half = 0; half < HALVES; ++half)
            bulk_copy(to + half * tile, from + (long long)(step * HALVES + half) * all * BK, rows * 128, barrier);
    }

    // Brings weights of some steps of the second product.
    __device__ __forceinline__ void bring_next(int begin, int end) const
    {
        if (begin == end) return;
        const int rows = min(BN, rows_next);
        mbarrier_expect_tx(full(next_full(begin)), (end - begin) * HALVES * rows * 128);
        for (int step = begin; step < end; ++step)
            bring(shared + next_at(step), TILE_NEXT, next, column / STEP + step, rows_next, rows, full(next_full(step)));
    }

    // Brings weights of the first product, before the preceding kernel has ended.
    __device__ __forceinline__ void begin() const
    {
        for (int step = 0; step < STEPS; ++step) {
            mbarrier_expect_tx(full(step), BYTES_W);
            bring(shared + OF_W + step * BYTES_W, TILE_W, w + (long long)column * BK, step, rows_w, OWN, full(step));
        }
    }

    // Brings all else.
    __device__ __forceinline__ void end() const
    {
        bring_next(0, EARLY);
    }
};

// The factors of sums of a thread's columns.
__device__ __forceinline__ void find_scales(float (&to)[2], const float* scales, int column, int rows)
{
#pragma unroll
    for (int q = 0; q < 2; ++q) to[q] = scales[min(column + int(threadIdx.x % 32) / 4 + q * 8, rows - 1)];
}

// The inverses of the scales of rows of a step.
__device__ __forceinline__ float* scales_of(unsigned char* shared, int step) { return (float*)(shared + SCALES) + step * BM; }

// Products of tiles of 64 rows of weights, whose two halves of a step are TILE bytes apart.
template <int TILE> struct Products {
    Sums sums = {};

    // Adds those of a step, the small ones first.
    __device__ __forceinline__ void add(unsigned char* shared, u32 weights, u32 rows, int step)
    {
        Sums own;
        const uint64 w = smem_descriptor(weights), a = smem_descriptor(rows);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 2 * HALVES; ++i) {
            const int at_w = i / 2 * (TILE / 16) + i % 2 * 2, at_a = i / 2 * (TILE_A / 16) + i % 2 * 2;
            wgmma(own, w + (at_w + 4), a + at_a, i > 0);
            wgmma(own, w + at_w, a + (at_a + 4), true);
        }
#pragma unroll
        for (int i = 0; i < 2 * HALVES; ++i)
            wgmma(own, w + (i / 2 * (TILE / 16) + i % 2 * 2), a + (i / 2 * (TILE_A / 16) + i % 2 * 2), true);
        wgmma_commit();
        const float* const scales = scales_of(shared, step);
        float2 by[BM / 8];
#pragma unroll
        for (int j = 0; j < BM / 8; ++j) by[j] = *(const float2*)(scales + j * 8 + threadIdx.x % 4 * 2);
        wgmma_wait<0>();
        settle(own);
#pragma unroll
        for (int j = 0; j < BM / 8; ++j)
#pragma unroll
            for (int q = 0; q < 4; ++q) sums[j][q] += own[j][q] * (q % 2 ? by[j].y : by[j].x);
    }

    __device__ __forceinline__ void end() const {}
};

// Stores eight adjacent terms of a row in halves, in tiles of 32 terms; the first scale is that of a step. Eight neighbouring
// threads have the terms that share one.
__device__ __forceinline__ void put(unsigned char* shared, int tiles, int step, int row, int word,
                                    const Neighbours<float, 8>& terms, bool there)
{
    u32 most = 0;
#pragma unroll
    for (int q = 0; q < 8; ++q) most = max(most, __float_as_uint(terms.at[q]) & 0x7fffffff);
#pragma unroll
    for (int other = 1; other < 8; other *= 2) most = max(most, __shfl_xor_sync(~0u, most, other));
    const RowScale by(most);
    if (!there) return;
    Word high, low;
#pragma unroll
    for (int q = 0; q < 4; ++q) {  // in the order of packed weights
        const float x = terms.at[q] * by.scale, y = terms.at[q + 4] * by.scale;
        high.at[q] = pair_of_finite(x, y);
        const float2 rounded = halves_of(high.at[q]);
        low.at[q] = pair_of(x - rounded.x, y - rounded.y);
    }
    unsigned char* const to = shared + tiles + word / 8 * BYTES_A + word % 8 / 4 * TILE_A;
    *(Word*)(to + swizzled(row, word % 4)) = high;
    *(Word*)(to + swizzled(row, 4 + word % 4)) = low;
    if (word % 8 == 0) scales_of(shared, step + word / 8)[row] = by.inverse * LESS;
}

// Brings the rows of the block, and cuts them.
__device__ __forceinline__ void bring_rows(unsigned char* shared, const Requests& requests, int m)
{
    constexpr int WORDS = K / 8, ALL = BM * WORDS, MOST = (ALL + THREADS - 1) / THREADS;
    Neighbours<float, 8> found[MOST];
#pragma unroll
    for (int i = 0; i < MOST; ++i) {
        const int item = threadIdx.x + i * THREADS, row = item / WORDS;
        const bool there = item < ALL && requests.row + row < m;
        const T* const from = requests.a + (long long)(requests.row + row) * requests.lda + item % WORDS * 8;
#pragma unroll
        for (int q = 0; q < 8; q += 4) *(Word*)(found[i].at + q) = global_word(from + q, there);
    }
#pragma unroll
    for (int i = 0; i < MOST; ++i) {
        const int item = threadIdx.x + i * THREADS;
        put(shared, 0, 0, item / WORDS, item % WORDS, found[i], item < ALL);
    }
}

#if IN_HALVES
// The results of a block in halves, and, with PLAIN, as they are.
struct Stored {
    int begin, end;
    Fours some;

    __device__ __forceinline__ Stored(const Finish& finish, const Inbox<BM, BN / 8>& inbox, const Block& block)
        : begin(SPLIT == CLUSTER ? inbox.begin() : 0), end(SPLIT == CLUSTER ? inbox.end() : ITEMS), some(begin * 2, end * 2)
    {
        if (threadIdx.x < CONSUMERS) some.read(finish, block);
    }

    __device__ __forceinline__ void store(const Finish& finish, unsigned char* shared, const Inbox<BM, BN / 8>& inbox,
                                          const Block& block, unsigned char* halves) const
    {
        __syncthreads();
        const auto four = [&](int row, int column) { return four_of_tile((const float*)shared, row, column); };
        if constexpr (SPLIT == CLUSTER) send_tile(inbox, four);
        if (threadIdx.x >= CONSUMERS) return;
        const RowsInHalves to{halves, OF_PIXELS ? finish.m : (finish.m + 7) / 8 * 8, finish.n};
        if constexpr (SPLIT == CLUSTER) inbox.wait_received();
        some.store(finish, block, to, [&](float (&sums)[4], int item) {
            if constexpr (SPLIT == CLUSTER) inbox.add(sums, item);
            else *(float4*)sums = four(item / (BN / 4), item % (BN / 4) * 4);
        });
    }
};
#endif
