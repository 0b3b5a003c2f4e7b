// c[m][n] = epilogue(sum over k of a[m][k] * w[n][k] + bias[n]) in float32, as three float16 products, on the tensor cores of
// Hopper: products of few rows of `a` with constant weights. K is a multiple of 64.
//
// Weights, in halves (step_f16x3.cuh), are the left operand of wgmma, so that few rows fill the right one. One thread requests
// them STAGES steps of 64 terms ahead, the first ones before the preceding kernel has ended. SLICES warpgroups multiply the
// same 64 rows of weights and alternate between the steps (sliced-K).
//
// Rows of `a` that are in halves, as store_halves.cuh says, come with the weights (A_IN_HALVES): those of a matrix, or, with
// WINDOWED, windows of an image tap by tap, or its pixels. Others each warpgroup loads a step ahead, and cuts while the products
// of the step before are under way; it has two tiles of shared memory for them.
//
// The blocks of a cluster share the sums of a tile (split-K) and add them up in a fixed order.
//
// If NORMALIZED, rows of `a` are normalized as they are multiplied, see normalized_halves.cuh.
//
// Compile-time: BM, rows of `a` of a block; SLICES; STAGES; EACH, steps of a block, at most; K; A_IN_HALVES; those of
// normalized_halves.cuh; SPLIT and the constants of the epilogue, see multistage.cu; POINTWISE, see pixel_halves.cuh. Macro: WINDOWED.

#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/load.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/cluster.cuh"
#include "ptx/pipeline.cuh"
#include "gemm/halves.cuh"

constexpr int STEP = 64, STEPS = K / STEP, HALVES = 2;  // terms of a step, which has one scale per row; tiles of 32 terms
constexpr int LOADERS = WINDOWED ? 64 : 32;  // of two warps, one brings scales
constexpr int BN = 64, CONSUMERS = SLICES * 128, THREADS = CONSUMERS + LOADERS, BUFFERS = 2;
constexpr int PITCH = BN + 4;  // of the sums in shared memory
constexpr int TILE_A = BM * 128, TILE_W = BN * 128, BYTES_A = HALVES * TILE_A, BYTES_W = HALVES * TILE_W;
constexpr int TILES_A = A_IN_HALVES ? STAGES : SLICES * BUFFERS;  // of a step
constexpr int OF_W = TILES_A * BYTES_A, BYTES_TILES = OF_W + STAGES * BYTES_W, BYTES_SUMS = SLICES * BM * PITCH * 4;
constexpr int SCALES = BYTES_TILES > BYTES_SUMS ? BYTES_TILES : BYTES_SUMS;  // of rows of each buffer
constexpr int BARRIERS = SCALES + TILES_A * BM * 4, MOMENTS = (BARRIERS + 2 * EACH * 8 + 15) / 16 * 16;  // of rows
constexpr int INBOX = MOMENTS + (NORMALIZED ? BM * 8 : 0);

#include "gemm/swapped.cuh"
#include "gemm/epilogue.cuh"
#include "gemm/store_tile.cuh"
#include "gemm/normalized_halves.cuh"
#if IN_HALVES
#include "gemm/store_halves.cuh"
#include "gemm/store_fours.cuh"
#endif
#if WINDOWED
#include "ptx/tma.cuh"
constexpr int ROWS = 2, AXES = 2;  // windows; see image_rows.cuh
constexpr bool POOL = false;
#define PATCHES 0
#include "gemm/pixel_halves.cuh"
#endif

// The barriers of each step: its weights are there, and are not needed any more.
struct Barriers {
    u32 start;
    __device__ __forceinline__ u32 full(int step) const { return start + step * 8; }
    __device__ __forceinline__ u32 empty(int step) const { return start + (EACH + step) * 8; }
};

#if WINDOWED
// Windows of an image in halves.
struct Source {
    const TensorMap* map;
    const float* scales;
    int pixels;  // of all images
    Image image;
    Taps taps;
    int m;
};

// Those of a block, whose steps are requested in order.
struct ReadyRows {
    static constexpr int bytes = BYTES_A;  // of a step
    const Source& source;
    int m0;
    u32 shared;
    Begin begin;
    Corner corner;
    Tap tap;

    __device__ __forceinline__ ReadyRows(const Source& source, const Block& block, u32 shared)
        : source(source), m0(block.m0), shared(shared), begin(block.m0, source.image), corner(begin, source.image),
          tap(block.first * HALVES, source.taps)
    {
    }

    // Requests those of the next step.
    __device__ __forceinline__ void bring(int step, u32 full)
    {
#pragma unroll
        for (int half = 0; half < HALVES; ++half, tap.next(source.taps))
            copy_pixels(shared + step % STAGES * BYTES_A + half * TILE_A, source.map, full, corner, tap, source.taps, m0, source.m);
    }

    // The scales of all steps, from when `ready` on; a warp.
    template <typename Ready> __device__ __forceinline__ void bring_scales(int count, const Barriers& barriers, const Ready& ready)
    {
        const RowScales rows(begin, m0, source.m, source.image);
        ready();
        for (int step = 0; step < count; ++step) {
            if (step >= STAGES) mbarrier_wait(barriers.empty(step - STAGES), 0);
            rows.copy(shared + SCALES + step % STAGES * BM * 4, source.scales, source.pixels, tap, source.taps, source.image);
            mbarrier_arrive_cp_async(barriers.full(step));
            tap.next(source.taps), tap.next(source.taps);
        }
        cp_async_commit();
        cp_async_wait<0>();
    }
};
#else
// Rows of a matrix.
struct Source {
    const T* a;
    int lda;
};

// Rows of a block that are in halves already, and their scales.
struct ReadyRows {
    const T *from, *scales;
    int rows, all;
    u32 shared;
    int bytes;  // of a step

    __device__ __forceinline__ ReadyRows(const Source& source, const Block& block, u32 shared)
        : from(source.a + ((long long)block.first * HALVES * source.lda + block.m0) * BK),
          scales(source.a + (long long)source.lda * K + (long long)block.first * source.lda + block.m0),
          rows(min(BM, source.lda - block.m0)), all(source.lda), shared(shared), bytes(rows * (HALVES * 128 + 4))
    {
    }

    // Requests those of a step.
    __device__ __forceinline__ void bring(int step, u32 full) const
    {
        const int stage = step % STAGES;
#pragma unroll
        for (int half = 0; half < HALVES; ++half)
            bulk_copy(shared + stage * BYTES_A + half * TILE_A, from + (long long)(step * HALVES + half) * all * BK, rows * 128, full);
        bulk_copy(shared + SCALES + stage * BM * 4, scales + (long long)step * all, rows * 4, full);
    }
};
#endif

// Requests the weights of some steps, of the rows from `from` on.
struct Weights {
    const T* from;
    int rows, rows_w;
    u32 to;
    Barriers barriers;
    int of_a;  // bytes of a step of `a` that come with them

    __device__ __forceinline__ void bring(int step) const
    {
        mbarrier_expect_tx(barriers.full(step), HALVES * rows * 128 + of_a);
#pragma unroll
        for (int half = 0; half < HALVES; ++half)
            bulk_copy(to + step % STAGES * BYTES_W + half * TILE_W, from + (long long)(step * HALVES + half) * rows_w * BK,
                      rows * 128, barriers.full(step));
    }
};

// Rows of `a` of a step, as two float16 numbers each. Eight neighbouring threads have a row: in each tile of 32 terms, the
// first or last two of each of two neighbouring fours, which are a word of high parts and one of low ones.
struct Rows {
    static constexpr int AT_ONCE = 128 / 8, PER = (BM + AT_ONCE - 1) / AT_ONCE;
    const T* from;
    int lda, rows;  // of the tile, from this thread's first one on
    ShortWord found[PER][HALVES][2];

    static __device__ __forceinline__ int first() { return threadIdx.x % 128 / 8; }

    __device__ __forceinline__ Rows(const T* a, const Block& block, int m, int lda)
        : from(a + (long long)(block.m0 + first()) * lda + block.first * STEP + threadIdx.x % 8 / 2 * 8 + threadIdx.x % 2 * 2),
          lda(lda), rows(min(BM, m - block.m0) - first())
    {
        if constexpr (!A_IN_HALVES) pin(from);
    }

    __device__ __forceinline__ void load(int step)
    {
#pragma unroll
        for (int i = 0; i < PER; ++i)
#pragma unroll
            for (int half = 0; half < HALVES; ++half)
#pragma unroll
                for (int four = 0; four < 2; ++four)
                    found[i][half][four] = global_short(
                        from + (long long)i * AT_ONCE * lda + step * STEP + half * 32 + four * 4, i * AT_ONCE < rows);
    }

    // Stores them in halves, and the inverses of their scales.
    __device__ __forceinline__ void cut(unsigned char* tiles, float* scales) const
    {
        const int part = threadIdx.x % 8;
        u32 most[PER] = {};
#pragma unroll
        for (int i = 0; i < PER; ++i)
#pragma unroll
            for (int half = 0; half < HALVES; ++half)
#pragma unroll
                for (int e = 0; e < 4; ++e) most[i] = max(most[i], found[i][half][e / 2].at[e % 2] & 0x7fffffff);
#pragma unroll
        for (int other = 1; other < 8; other *= 2)
#pragma unroll
            for (int i = 0; i < PER; ++i) most[i] = max(most[i], __shfl_xor_sync(~0u, most[i], other));
#pragma unroll
        for (int i = 0; i < PER; ++i) {
            const RowScale by(most[i]);
            const int row = first() + i * AT_ONCE;
            if (BM % AT_ONCE && row >= BM) continue;
            if (part == 0) scales[row] = by.inverse * LESS;
#pragma unroll
            for (int half = 0; half < HALVES; ++half) {
                u32 high[2], low[2];
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const float x = __uint_as_float(found[i][half][0].at[e]) * by.scale;
                    const float y = __uint_as_float(found[i][half][1].at[e]) * by.scale;
                    high[e] = pair_of_finite(x, y);
                    const float2 rounded = halves_of(high[e]);
                    low[e] = pair_of(x - rounded.x, y - rounded.y);
                }
                unsigned char* const to = tiles + half * TILE_A + part % 2 * 8;
                *(uint2*)(to + swizzled(row, part / 2)) = make_uint2(high[0], high[1]);
                *(uint2*)(to + swizzled(row, 4 + part / 2)) = make_uint2(low[0], low[1]);
            }
        }
    }
};

// Issues the products of a step, the small ones first.
__device__ __forceinline__ void multiply(Sums& sums, u32 of_w, u32 of_a)
{
    const uint64 w = smem_descriptor(of_w), rows = smem_descriptor(of_a);
    constexpr int NEXT_W = TILE_W / 16, NEXT_A = TILE_A / 16;
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 2 * HALVES; ++i) {
        const int at_w = i / 2 * NEXT_W + i % 2 * 2, at_a = i / 2 * NEXT_A + i % 2 * 2;
        wgmma(sums, w + (at_w + 4), rows + at_a, i > 0);
        wgmma(sums, w + at_w, rows + (at_a + 4), true);
    }
#pragma unroll
    for (int i = 0; i < 2 * HALVES; ++i)
        wgmma(sums, w + (i / 2 * NEXT_W + i % 2 * 2), rows + (i / 2 * NEXT_A + i % 2 * 2), true);
    wgmma_commit();
}

// Multiplies the steps of a slice.
__device__ __forceinline__ void multiply_all(Sums& totals, Rows& rows, unsigned char* shared, const Barriers& barriers, int slice,
                                             int count)
{
    unsigned char* const tiles = shared + slice * (BUFFERS * BYTES_A);
    float* const scales = (float*)(shared + SCALES) + slice * (BUFFERS * BM);
    const u32 of_w = shared_address(shared) + OF_W, of_a = shared_address(tiles);
    if (slice < count) rows.cut(tiles, scales);
    if (slice + SLICES < count) rows.load(slice + SLICES);
    int buffer = 0;
#pragma unroll 1
    for (int step = slice; step < count; step += SLICES, buffer ^= 1) {
        Sums sums;
        fence_proxy_async();
        named_barrier_sync<128>(2 + slice);  // all have cut their rows, and nothing reads the other buffer
        mbarrier_wait(barriers.full(step), 0);
        multiply(sums, of_w + step % STAGES * BYTES_W, of_a + buffer * BYTES_A);
        if (step + SLICES < count) {
            rows.cut(tiles + (buffer ^ 1) * BYTES_A, scales + (buffer ^ 1) * BM);
            if (step + 2 * SLICES < count) rows.load(step + 2 * SLICES);
        }
        wgmma_wait<0>();
        settle(sums);
        if (step + STAGES < count && threadIdx.x % 32 == 0) mbarrier_arrive(barriers.empty(step));
        __syncwarp();
#pragma unroll
        for (int j = 0; j < BM / 8; ++j) {
            const float2 by = *(const float2*)(scales + buffer * BM + j * 8 + threadIdx.x % 4 * 2);
#pragma unroll
            for (int q = 0; q < 4; ++q) totals[j][q] += sums[j][q] * (q % 2 ? by.y : by.x);
        }
    }
}

// The same of rows in halves.
__device__ __forceinline__ void multiply_ready(Sums& totals, unsigned char* shared, const Barriers& barriers, int slice, int count)
{
    const u32 of_a = shared_address(shared), of_w = of_a + OF_W;
#pragma unroll 1
    for (int step = slice; step < count; step += SLICES) {
        const int stage = step % STAGES;
        Sums sums;
        mbarrier_wait(barriers.full(step), 0);
        multiply(sums, of_w + stage * BYTES_W, of_a + stage * BYTES_A);
        float2 by[BM / 8];
#pragma unroll
        for (int j = 0; j < BM / 8; ++j)
            by[j] = *(const float2*)((float*)(shared + SCALES) + stage * BM + j * 8 + threadIdx.x % 4 * 2);
        wgmma_wait<0>();
        settle(sums);
        if (step + STAGES < count) {  // else nothing takes its place
            u32 loaded = 0;
#pragma unroll
            for (int j = 0; j < BM / 8; ++j) loaded |= __float_as_uint(by[j].x) | __float_as_uint(by[j].y);
            if (is_first_behind(loaded)) mbarrier_arrive(barriers.empty(step));
        }
#pragma unroll
        for (int j = 0; j < BM / 8; ++j)
#pragma unroll
            for (int q = 0; q < 4; ++q) totals[j][q] += sums[j][q] * (q % 2 ? by[j].y : by[j].x);
    }
}

// Returns four adjacent sums of all slices.
__device__ __forceinline__ float4 gathered(const float* parts, int row, int column)
{
    const float* const at = parts + row * PITCH + column;
    float4 sum = *(const float4*)at;
#pragma unroll
    for (int slice = 1; slice < SLICES; ++slice) {
        const float4 found = *(const float4*)(at + slice * (BM * PITCH));
        sum.x += found.x, sum.y += found.y, sum.z += found.z, sum.w += found.w;
    }
    return sum;
}

__device__ __forceinline__ void product(const Source& source, const T* w, const float* scales, R* c, unsigned char* halves,
                                        const Z* bias, const Z* z0, const Z* z1, int m, int n, int ldc, int rows_w, int tiles_m,
                                        float2* moments = nullptr, const float* columns = nullptr,
                                        const float* rows_a = nullptr, const float* scale = nullptr,
                                        const float* shift = nullptr, float* kept = nullptr, float epsilon = 0)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const Block block(tiles_m);
    const Barriers barriers{shared_address(shared) + BARRIERS};
    const int count = block.end - block.first;
    ReadyRows ready(source, block, shared_address(shared));
    const Weights weights{w + ((long long)block.first * HALVES * rows_w + block.n0) * BK, min(BN, rows_w - block.n0), rows_w,
                          shared_address(shared) + OF_W, barriers, A_IN_HALVES ? ready.bytes : 0};
    if (threadIdx.x == CONSUMERS) {
        for (int step = 0; step < count; ++step) {
            mbarrier_init(barriers.full(step), WINDOWED ? 1 + 32 : 1);
            mbarrier_init(barriers.empty(step), 4);
        }
        mbarrier_init_fence();
        for (int step = 0; step < min(count, STAGES); ++step) weights.bring(step);
    }
    const Inbox<BM, BN / 8> inbox(shared + INBOX, block.split, block.splits);
    if constexpr (SPLIT == CLUSTER) inbox.open();
    __syncthreads();

    const int begin = SPLIT == CLUSTER ? inbox.begin() : 0, end = SPLIT == CLUSTER ? inbox.end() : ITEMS;
    const Finish finish{c, bias, z0, z1, m, n, ldc, 0, 0};
    float2* const of_rows = (float2*)(shared + MOMENTS);
    KeptRows keeping(block, m, n);
#if IN_HALVES
    Fours some(begin * 2, end * 2);
    const Around<4> around(columns, of_rows, block.n0 + threadIdx.x % 16 * 4, n);
    constexpr bool EARLY = Fours::ONCE;  // operands of the epilogue are read before the products
    const auto read = [&] {
        if (threadIdx.x < CONSUMERS) some.read(finish, block);
    };
#else
    Finish::Several some;
    const Around<8> around(columns, of_rows, block.n0 + threadIdx.x % 8 * 8, n);
    constexpr bool EARLY = Finish::ONCE;
    const auto read = [&] { finish.read(some, begin + threadIdx.x, end, block); };
#endif
    if (threadIdx.x >= CONSUMERS) {
#if WINDOWED
        if (threadIdx.x == CONSUMERS) prefetch_map(source.map);
        if (threadIdx.x >= CONSUMERS + 32) ready.bring_scales(count, barriers, [] { grid_dependency_sync(); });
        else grid_dependency_sync();
#else
        grid_dependency_sync();
#endif
        if (threadIdx.x == CONSUMERS) {
            if constexpr (A_IN_HALVES)
                for (int step = 0; step < min(count, STAGES); ++step) ready.bring(step, barriers.full(step));
            for (int step = STAGES; step < count; ++step) {
                mbarrier_wait(barriers.empty(step - STAGES), 0);
                weights.bring(step);
                if constexpr (A_IN_HALVES) ready.bring(step, barriers.full(step));
            }
        }
        __syncwarp();
        if constexpr (EARLY) read();
    } else {
        const int slice = __reduce_max_sync(~0u, threadIdx.x / 128), lane = threadIdx.x % 32;
        const int column = threadIdx.x / 32 % 4 * 16;
        float of_column[2];
#pragma unroll
        for (int q = 0; q < 2; ++q) of_column[q] = scales[min(block.n0 + column + lane / 4 + q * 8, rows_w - 1)];
        Sums totals = {};
#if !WINDOWED
        Rows rows(source.a, block, m, source.lda);
#endif
        grid_dependency_sync();
#if !WINDOWED
        if (!A_IN_HALVES && slice < count) rows.load(slice);
#endif
        if constexpr (EARLY) read();
        if constexpr (NORMALIZED) {
            keeping.read(rows_a, scale, shift);
            RowMoments<0, CONSUMERS>::find(of_rows, moments, block.m0, m, epsilon, Nothing());
        }
#if WINDOWED
        multiply_ready(totals, shared, barriers, slice, count);
#else
        if constexpr (A_IN_HALVES) multiply_ready(totals, shared, barriers, slice, count);
        else multiply_all(totals, rows, shared, barriers, slice, count);
#endif
        named_barrier_sync<CONSUMERS>(1);  // the tiles are read, and sums take their place
        gather((float*)shared, totals, of_column, slice, column);
    }
    __syncthreads();
    if constexpr (SPLIT == CLUSTER) {
        inbox.wait_open();
        for (int i = threadIdx.x; i < BM * BN / 4; i += THREADS) {
            const int at = i / (BN / 4), four = i % (BN / 4) * 4;
            inbox.send(at, four / 8, four % 8, gathered((const float*)shared, at, four));
        }
    }
    if constexpr (KEPT > 0) keeping.store(kept, of_rows);
#if IN_HALVES
    if (threadIdx.x >= CONSUMERS) return;
    const RowsInHalves to{halves, OF_PIXELS ? m : (m + 7) / 8 * 8, n};
    if constexpr (SPLIT == CLUSTER) inbox.wait_received();
    some.each(finish, block, [&](int item, int row, int term, bool there, const Operands<4>& with) {
        float results[4] = {};
        if (there) {
            float sums[4] = {};
            if constexpr (SPLIT == CLUSTER) {
                for (int other = 0; other < block.splits; ++other) {
                    const float4 four = inbox.received(item / 2, item % 2 * 4, other);
                    sums[0] += four.x, sums[1] += four.y, sums[2] += four.z, sums[3] += four.w;
                }
            } else {
                *(float4*)sums = gathered((const float*)shared, item / (BN / 4), term - block.n0);
            }
            around.before(sums, item / (BN / 4));
            const auto found = with_epilogue<4>(sums, with);
            if (PLAIN) keep(c + (long long)row * ldc + term, found, n - term);
#pragma unroll
            for (int q = 0; q < 4; ++q) results[q] = found.at[q];
        }
        if constexpr (MEASURED) measure(moments, results, row, term, n, there);
        store_halves(to, results, there ? row : to.rows, term);
    });
#else
    if constexpr (!EARLY) read();
    if constexpr (SPLIT == CLUSTER) inbox.wait_received();
    finish.store_all(some, begin, end, block, [&](float (&values)[8], int item) {
        if constexpr (SPLIT == CLUSTER) inbox.add(values, item);
        else
#pragma unroll
            for (int q = 0; q < 8; q += 4)
                *(float4*)(values + q) = gathered((const float*)shared, Finish::row_of_item(item), Finish::column_of_item(item) + q);
    }, around);
#endif
}

#if WINDOWED
extern "C" __global__ void __launch_bounds__(THREADS, 1)
swap_f16x3_windows(const __grid_constant__ TensorMap a, const unsigned char* image_halves, const T* w, const float* scales, R* c,
             unsigned char* halves, const Z* bias, const Z* z0, const Z* z1, int m, int n, int pixels, int ldc, int rows_w,
             int tiles_m, Image image, Taps taps)
{
    const float* const of_pixels = (const float*)(image_halves + (long long)pixels * taps.chunks * 128);
    product({&a, of_pixels, pixels, image, taps, m}, w, scales, c, halves, bias, z0, z1, m, n, ldc, rows_w, tiles_m);
}
#else
extern "C" __global__ void __launch_bounds__(THREADS, 1)
swap_f16x3(const T* a, const T* w, const float* scales, R* c, unsigned char* halves, const Z* bias, const Z* z0, const Z* z1,
           int m, int n, int lda, int ldc, int rows_w, int tiles_m, float2* moments, const float* columns, const float* rows_a,
           const float* scale, const float* shift, float* kept, float epsilon)
{
    product({a, lda}, w, scales, c, halves, bias, z0, z1, m, n, ldc, rows_w, tiles_m, moments, columns, rows_a, scale, shift, kept,
            epsilon);
}
#endif
