// c[m][n] = epilogue(sum over k of a[m][k] * w[n][k] + bias[n]) in float32, as three float16 products, on the tensor cores of
// Hopper: products of few rows of `a` with constant weights. K is a multiple of four, of 64 if rows are in halves.
//
// Weights, in halves (step_f16x3.cuh), are the left operand of wgmma, so that few rows fill the right one. One thread requests
// them STAGES steps of 64 terms ahead, the first ones before the preceding kernel has ended. SLICES warpgroups multiply the
// same 64 rows of weights and alternate between the steps (sliced-K).
//
// Rows of `a` that are in halves, as store_halves.cuh says, come with the weights (A_IN_HALVES): those of a matrix, or, with
// WINDOWED, windows of an image tap by tap, or its pixels. Others each warpgroup loads a step ahead, and cuts while the products
// of the step before are under way; it has two tiles of shared memory for them. With BOXES all warpgroups cut the pixels of
// an image before they multiply, see cut_boxes.cuh.
//
// The blocks of a cluster share the sums of a tile (split-K) and add them up in a fixed order.
//
// If NORMALIZED, rows of `a` are normalized as they are multiplied, see normalized_halves.cuh.
//
// Compile-time: BM, rows of `a` of a block; SLICES; STAGES; EACH, steps of a block, at most; K; A_IN_HALVES; those of
// normalized_halves.cuh; SPLIT and the constants of the epilogue, see multistage.cu; POINTWISE, see pixel_halves.cuh; those of
// cut_boxes.cuh. Macros: WINDOWED; BOXES, 0 or their number.

#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/load.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/cluster.cuh"
#include "ptx/pipeline.cuh"
#include "gemm/halves.cuh"

constexpr int STEP = 64, HALVES = 2;  // terms of a step, which has one scale per row; tiles of 32 terms
#if BOXES
constexpr int TAPS = KH * KW;
#else
constexpr int TAPS = 1;  // one after another
#endif
constexpr int OF_TAP = (K / TAPS + 31) / 32, CHUNKS = (OF_TAP + 1) / 2, STEPS = TAPS * CHUNKS;  // tiles, and steps
constexpr int LOADERS = WINDOWED ? 64 : 32;  // of two warps, one brings scales
constexpr int BN = 64, CONSUMERS = SLICES * 128, THREADS = CONSUMERS + LOADERS, BUFFERS = 2;
constexpr int PITCH = BN + 4;  // of the sums in shared memory
constexpr int TILE_A = BM * 128, TILE_W = BN * 128, BYTES_A = HALVES * TILE_A, BYTES_W = HALVES * TILE_W;
constexpr int TILES_A = A_IN_HALVES ? STAGES : SLICES * BUFFERS;  // of a step
#if BOXES
constexpr int REACH_H = (KH - 1) * DH, REACH_W = (KW - 1) * DW;
constexpr int BOX_H = BM / 8 + REACH_H / SH, BOX_W = 8 + REACH_W / SW, OF_PLANE = BOX_H * BOX_W;
constexpr int PLANES_W = REACH_W + 1 < SW ? REACH_W + 1 : SW, PLANES = (REACH_H + 1 < SH ? REACH_H + 1 : SH) * PLANES_W;
constexpr int BOX_PIXELS = PLANES * OF_PLANE, ROW_A = BOX_W * 128, NEXT_A = (BOX_PIXELS * 128 + 1023) / 1024 * 1024;
constexpr int OF_W = BOXES * HALVES * NEXT_A, SCALED = BOXES * BOX_PIXELS;
#else
constexpr int NEXT_A = TILE_A, ROW_A = 1024, OF_W = TILES_A * BYTES_A, SCALED = TILES_A * BM;
#endif
constexpr int BYTES_TILES = OF_W + STAGES * BYTES_W, BYTES_SUMS = SLICES * BM * PITCH * 4;
constexpr int SCALES = BYTES_TILES > BYTES_SUMS ? BYTES_TILES : BYTES_SUMS;  // of rows of each buffer
constexpr int BARRIERS = (SCALES + SCALED * 4 + 7) / 8 * 8, MOMENTS = (BARRIERS + 2 * EACH * 8 + 15) / 16 * 16;
constexpr int INBOX = MOMENTS + (NORMALIZED ? BM * 8 : 0);

#if WINDOWED || BOXES
#include "ptx/tma.cuh"
constexpr int ROWS = 2, AXES = 2;  // windows; see image_rows.cuh
constexpr bool POOL = false;
#define PATCHES (BOXES > 0)  // each tile
#include "gemm/pixel_halves.cuh"
#endif
#include "gemm/swapped.cuh"
#include "gemm/epilogue.cuh"
#include "gemm/store_tile.cuh"
#include "gemm/normalized_halves.cuh"
#if IN_HALVES
#include "gemm/store_halves.cuh"
#include "gemm/store_fours.cuh"
#endif

// The barriers of each step: its weights are there, and are not needed any more.
struct Barriers {
    u32 start;
    __device__ __forceinline__ u32 full(int step) const { return start + step * 8; }
    __device__ __forceinline__ u32 empty(int step) const { return start + (EACH + step) * 8; }
};

#if WINDOWED
#include "gemm/window_rows.cuh"
#elif !BOXES
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

// The tiles of a step of the weights: the first one, and how many there are.
struct TilesOfStep {
    int first, count;

    __device__ __forceinline__ explicit TilesOfStep(int step)
        : first(step % TAPS * OF_TAP + step / TAPS * HALVES), count(OF_TAP % HALVES && step / TAPS == CHUNKS - 1 ? 1 : HALVES)
    {
    }
};

// Requests the weights of some steps, of the rows from `from` on.
struct Weights {
    const T* from;
    int first, rows, rows_w;
    u32 to;
    Barriers barriers;
    int of_a;  // bytes of a step of `a` that come with them

    __device__ __forceinline__ void bring(int step) const
    {
        const TilesOfStep tiles(first + step);
        mbarrier_expect_tx(barriers.full(step), tiles.count * rows * 128 + of_a);
#pragma unroll
        for (int half = 0; half < HALVES; ++half)
            if (half < tiles.count)
                bulk_copy(to + step % STAGES * BYTES_W + half * TILE_W, from + (long long)(tiles.first + half) * rows_w * BK,
                          rows * 128, barriers.full(step));
    }
};

#include "gemm/swapped_rows.cuh"
#if BOXES
#include "gemm/cut_boxes.cuh"
#endif

// Issues the products of a step of so many tiles, the small ones first.
template <int TILES = HALVES> __device__ __forceinline__ void multiply(Sums& sums, u32 of_w, u32 of_a)
{
    const uint64 w = smem_descriptor(of_w), rows = smem_descriptor_apart<ROW_A>(of_a);
    constexpr int NEXT_W = TILE_W / 16, LATER = NEXT_A / 16;
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 2 * TILES; ++i) {
        const int at_w = i / 2 * NEXT_W + i % 2 * 2, at_a = i / 2 * LATER + i % 2 * 2;
        wgmma(sums, w + (at_w + 4), rows + at_a, i > 0);
        wgmma(sums, w + at_w, rows + (at_a + 4), true);
    }
#pragma unroll
    for (int i = 0; i < 2 * TILES; ++i)
        wgmma(sums, w + (i / 2 * NEXT_W + i % 2 * 2), rows + (i / 2 * LATER + i % 2 * 2), true);
    wgmma_commit();
}

// The same of a step whose number is not known.
__device__ __forceinline__ void multiply_step(Sums& sums, int step, u32 of_w, u32 of_a)
{
    if (OF_TAP % HALVES && TilesOfStep(step).count < HALVES) multiply<1>(sums, of_w, of_a);
    else multiply(sums, of_w, of_a);
}

// Multiplies the steps of a slice, of which the block's first one is `first`.
__device__ __forceinline__ void multiply_all(Sums& totals, Rows& rows, unsigned char* shared, const Barriers& barriers, int slice,
                                             int count, int first)
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
        multiply_step(sums, first + step, of_w + step % STAGES * BYTES_W, of_a + buffer * BYTES_A);
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

#if BOXES
// Multiplies the steps of a slice; the boxes are there.
__device__ __forceinline__ void multiply_boxes(Sums& totals, unsigned char* shared, const Barriers& barriers, int slice, int count,
                                               int first)
{
    const u32 of_a = shared_address(shared), of_w = of_a + OF_W;
    const float* const scales = (const float*)(shared + SCALES) + threadIdx.x % 4 * 2;
#pragma unroll 1
    for (int step = slice; step < count; step += SLICES) {
        const int box = (first + step) / TAPS - first / TAPS, tap = (first + step) % TAPS;
        const int down = tap / KW * DH, across = tap % KW * DW;
        const int shift = (down % SH * PLANES_W + across % SW) * OF_PLANE + down / SH * BOX_W + across / SW;
        Sums sums;
        mbarrier_wait(barriers.full(step), 0);
        multiply_step(sums, first + step, of_w + step % STAGES * BYTES_W, of_a + box * (HALVES * NEXT_A) + shift * 128);
        float2 by[BM / 8];
#pragma unroll
        for (int j = 0; j < BM / 8; ++j) {
            const float* const at = scales + box * BOX_PIXELS + shift + j * BOX_W;
            by[j] = make_float2(at[0], at[1]);
        }
        wgmma_wait<0>();
        settle(sums);
        if (step + STAGES < count && threadIdx.x % 32 == 0) mbarrier_arrive(barriers.empty(step));
#pragma unroll
        for (int j = 0; j < BM / 8; ++j)
#pragma unroll
            for (int q = 0; q < 4; ++q) totals[j][q] += sums[j][q] * (q % 2 ? by[j].y : by[j].x);
    }
}
#endif

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
#if BOXES
    const Block block(tiles_m, source.image);
#else
    const Block block(tiles_m);
#endif
    const Barriers barriers{shared_address(shared) + BARRIERS};
    const int count = block.end - block.first;
    ReadyRows ready(source, block, shared_address(shared));
    const Weights weights{w + (long long)block.n0 * BK, block.first, min(BN, rows_w - block.n0), rows_w,
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
#if BOXES
        const BoxesToCut boxes(source, block);
#elif !WINDOWED
        Rows rows(source.a, block, m, source.lda);
#endif
        grid_dependency_sync();
#if !WINDOWED && !BOXES
        if (!A_IN_HALVES && slice < count) rows.load(slice);
#endif
        if constexpr (EARLY) read();
        if constexpr (NORMALIZED) {
            keeping.read(rows_a, scale, shift);
            RowMoments<0, CONSUMERS>::find(of_rows, moments, block.m0, m, epsilon, Nothing());
        }
#if BOXES
        boxes.cut(shared, block);
        fence_proxy_async();
        named_barrier_sync<CONSUMERS>(1);
        multiply_boxes(totals, shared, barriers, slice, count, block.first);
#elif WINDOWED
        multiply_ready(totals, shared, barriers, slice, count);
#else
        if constexpr (A_IN_HALVES) multiply_ready(totals, shared, barriers, slice, count);
        else multiply_all(totals, rows, shared, barriers, slice, count, block.first);
#endif
        named_barrier_sync<CONSUMERS>(1);  // the tiles are read, and sums take their place
        gather((float*)shared, totals, of_column, slice, column);
    }
    __syncthreads();
    const auto four = [&](int row, int column) { return gathered((const float*)shared, row, column); };
    if constexpr (SPLIT == CLUSTER) send_tile(inbox, four);
    if constexpr (KEPT > 0) keeping.store(kept, of_rows);
#if IN_HALVES
    if (threadIdx.x >= CONSUMERS) return;
    const RowsInHalves to{halves, OF_PIXELS ? m : (m + 7) / 8 * 8, n};
    if constexpr (SPLIT == CLUSTER) inbox.wait_received();
    some.store(finish, block, to, [&](float (&sums)[4], int item) {
        const int row = item / (BN / 4);
        if constexpr (SPLIT == CLUSTER) inbox.add(sums, item);
        else *(float4*)sums = four(row, item % (BN / 4) * 4);
        around.before(sums, row);
    }, [&](const float (&results)[4], int row, int column, bool there) {
        if constexpr (MEASURED) measure(moments, results, row, column, n, there);
    });
#else
    if constexpr (!EARLY) read();
    if constexpr (SPLIT == CLUSTER) inbox.wait_received();
    finish.store_all(some, begin, end, block, [&](float (&values)[8], int item) {
        if constexpr (SPLIT == CLUSTER) inbox.add(values, item);
        else
#pragma unroll
            for (int q = 0; q < 8; q += 4)
                *(float4*)(values + q) = four(Finish::row_of_item(item), Finish::column_of_item(item) + q);
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
#elif BOXES
extern "C" __global__ void __launch_bounds__(THREADS, 1)
swap_f16x3_boxes(const T* a, const T* w, const float* scales, R* c, unsigned char* halves, const Z* bias, const Z* z0, const Z* z1,
                 int m, int n, int lda, int channels, int ldc, int rows_w, int tiles_m, Image image)
{
    product({a, lda, channels, image}, w, scales, c, halves, bias, z0, z1, m, n, ldc, rows_w, tiles_m);
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

