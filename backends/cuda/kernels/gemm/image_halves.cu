// c[m][n] = epilogue(sum over k of a[m][k] * b[n][k] + bias[n]) in float32, on the tensor cores of Hopper, where the rows of
// `a` are windows of an image in halves (store_halves.cuh, OF_PIXELS), and `b` is in halves as packed constants. The main loop
// is that of halves.cu, with the terms of a window tap by tap. The channels of an image are a multiple of 64.
//
// Of the last warpgroup, one thread copies tiles of constants, one the pixels of a tap, and a warp their scales. The rows of
// a tile are adjacent results (im2col) or, with PATCHES, of which the maxima of every 2 x 2 are stored, a patch of eight
// pixels in each row.
//
// Compile-time: those of halves.cu; POINTWISE, whether windows are single pixels, all of them. Macros: those of store_registers.cuh, and PATCHES.

constexpr int BM = GROUPS * 64, CONSUMERS = GROUPS * 128, THREADS = CONSUMERS + 128;

#include "ptx/pdl.cuh"
#include "order.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/load.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/cluster.cuh"
#include "ptx/pipeline.cuh"
#include "ptx/tma.cuh"
#if IN_HALVES || PATCHES
#include "gemm/halves.cuh"
#endif

constexpr int BYTES_A = BM * 128, BYTES_B = BN * 128, TN = BN / 8;
constexpr int BYTES_STAGE = BYTES_A + BYTES_B, SCALES = STAGES * BYTES_STAGE, BARRIERS = SCALES + STAGES * BM * 4,
              INBOX = BARRIERS + STAGES * 16;
constexpr int STEPS = 2;  // that have one scale
enum { WHOLE, PARTIAL, CLUSTER };
constexpr bool POOL = false;

constexpr int EIGHTS_AHEAD = GROUPS < 3 ? 4 : IN_HALVES || SPLIT != CLUSTER ? 2 : 1;  // as registers allow
constexpr int ROWS = 2, AXES = 2;  // windows; see image_rows.cuh
#include "gemm/pixel_halves.cuh"
#include "gemm/epilogue.cuh"
constexpr bool FOURS = VECTOR_C == 4, ROOM = true;
#include "gemm/store_registers.cuh"
#include "gemm/work_items.cuh"

#include "gemm/multiply_halves.cuh"

// ── loading ─────────────────────────────────────────────────────────────────────────────────────

// Copies the constants of all items; one thread.
__device__ __forceinline__ void fetch_constants(u32 shared, const T* b, const Work& work)
{
    const Pipeline<STAGES> barriers(shared + BARRIERS);
    PipelineState<STAGES> pipe;
    for (int next = first_item(); next < work.items; next += gridDim.x * gridDim.y) {
        const Item item(next, work);
        const int rows = min(BN, work.rows_b - item.n0);
        for (int step = item.first; step < item.first + item.count; ++step) {
            const u32 full = barriers.full(pipe.stage);
            mbarrier_wait(barriers.empty(pipe.stage), pipe.parity ^ 1);
            mbarrier_expect_tx(full, rows * 128);
            bulk_copy(shared + pipe.stage * BYTES_STAGE + BYTES_A, b + ((long long)step * work.rows_b + item.n0) * BK,
                      rows * 128, full);
            pipe.next();
        }
    }
}

// Copies the pixels of the rows of all items; one thread.
__device__ __forceinline__ void fetch_pixels(u32 shared, const TensorMap* map, const Work& work, const Image& image,
                                             const Taps& taps)
{
    const Pipeline<STAGES> barriers(shared + BARRIERS);
    PipelineState<STAGES> pipe;
    bool waited = false;  // for the preceding kernel, which is done as late as possible
    for (int next = first_item(); next < work.items; next += gridDim.x * gridDim.y) {
        const Item item(next, work);
        const Corner corner(Begin(item.m0, image), image);
        Tap tap(item.first, taps);
        for (int step = 0; step < item.count; ++step) {
            const u32 full = barriers.full(pipe.stage), to = shared + pipe.stage * BYTES_STAGE;
            mbarrier_wait(barriers.empty(pipe.stage), pipe.parity ^ 1);
            mbarrier_expect_tx(full, BYTES_A);
            pipe.next();
            if (!waited) grid_dependency_sync(), waited = true;
            copy_pixels(to, map, full, corner, tap, taps, item.m0, work.m);
            tap.next(taps);
        }
    }
}

// Copies their scales, which two steps share; a warp.
__device__ __forceinline__ void fetch_scales(u32 shared, const float* scales, const Work& work, const Image& image,
                                             const Taps& taps)
{
    const Pipeline<STAGES> barriers(shared + BARRIERS);
    PipelineState<STAGES> pipe;
    for (int next = first_item(); next < work.items; next += gridDim.x * gridDim.y) {
        const Item item(next, work);
        const RowScales rows(Begin(item.m0, image), item.m0, work.m, image);
        Tap tap(item.first, taps);
        if (next == first_item()) grid_dependency_sync();
        for (int step = 0; step < item.count; ++step) {
            const u32 full = barriers.full(pipe.stage);
            mbarrier_wait(barriers.empty(pipe.stage), pipe.parity ^ 1);
            if (step % STEPS == 0) {
                rows.copy(shared + SCALES + pipe.stage * BM * 4, scales, work.lda, tap, taps, image);
                mbarrier_arrive_cp_async(full);
            } else {
                mbarrier_arrive(full);
            }
            pipe.next();
            tap.next(taps);
        }
    }
    cp_async_commit();
    cp_async_wait<0>();
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
convolve_halves(const __grid_constant__ TensorMap a, const unsigned char* image_halves, const T* b, const float* scales,
                R* c, unsigned char* halves, const T* bias, const T* z0, const T* z1, int ldc, Work work, Image image,
                Taps taps)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 shared = shared_address(memory);
    if (threadIdx.x == 0) Pipeline<STAGES>(shared + BARRIERS).begin(2 + 32, GROUPS * 4);
    __syncthreads();
    if constexpr (SPLIT == CLUSTER) Share(memory + INBOX, blockIdx.y, work.splits).inbox.open();
    if (threadIdx.x >= CONSUMERS) {
        setmaxnreg_dec<LOADER_REGISTERS>();
        const int warp = threadIdx.x / 32 - CONSUMERS / 32, lane = threadIdx.x % 32;
        if (warp == 0 && lane == 0) fetch_constants(shared, b, work);  // without waiting
        if (warp == 1 && lane == 0) {
            prefetch_map(&a);
            fetch_pixels(shared, &a, work, image, taps);
        }
        const long long pixels = work.lda, channels = taps.chunks * BK;
        const float* of_image = (const float*)(image_halves + pixels * channels * 4);
        if (warp == 2) fetch_scales(shared, of_image, work, image, taps);
    } else {
        setmaxnreg_inc<REGISTERS>();
        const int row = threadIdx.x / 32 * 16;
        Consumer consumer(memory);
        Results results = {
#if BLOCKWISE
            {halves, taps.stored, work.n},
#endif
            c, bias, z0, z1, work.m, work.n, ldc, 0, 0,
#if PATCHES
            image
#endif
        };
        prefetch_columns(bias, scales, first_item(), work);
        grid_dependency_sync();
        for (int next = first_item(); next < work.items; next += gridDim.x * gridDim.y) {
            const Item item(next, work);
            const EarlyOperands operands = begin_item(results, scales, row, item, work);
            float totals[TN][4] = {};
            consumer.add_all(totals, item.count / STEPS);
            finish_item(results, operands, totals, scales, {memory + INBOX, (int)blockIdx.y, work.splits}, row, item, work);
        }
    }
}
