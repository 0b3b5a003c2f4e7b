// c[m][n] = epilogue(sum over k of a[m][k] * b[n][k] + bias[n]) in float32, on the tensor cores of Hopper;
// tf32x3.cuh and step_f16x3.cuh describe the split of numbers and the packed constants.
//
// Warp-specialized: the last four warps of a block are producers: they load windows of `a` by cp.async and tiles of
// the constants by one bulk copy per step, STAGES steps ahead. Each consumer warpgroup multiplies 64 rows of `a`: it
// reads them into registers, splits them there, and multiplies them with tiles of `b` (wgmma with its left operand in
// registers). Full and empty barriers in shared memory let the groups drift apart, so that one multiplies while another
// adds up or stores. Where registers allow it (OVERLAP), a group reads and splits the rows of a step while it
// multiplies those of the previous step. Persistent: a block processes tile after tile.
//
// Few tiles do not fill the GPU: then the `splits` blocks of a cluster share the sum of one tile, and send their sums to
// each other's shared memory (fragments.cuh).
//
// The kernel starts while the preceding one still runs: it loads constants, computes addresses, and then waits.
//
// Compile-time, besides those of tf32x3.cuh: F16X3, whether numbers are split into float16 instead; GROUPS, of
// consumers; STAGES; RESIDENT, blocks per multiprocessor; REGISTERS and LOADER_REGISTERS per thread; DECLARED, threads
// for which there are registers; OVERLAP; CONSTANT, whether `b` existed before the preceding kernels started; POOL,
// whether the maximum of every 2x2 pixels is stored. With TOTALS, a macro, totals are stored as well; see
// early_operands.cuh; with FACTORS, a macro, see steps_rs.cuh.

constexpr int BM = GROUPS * 64, CONSUMERS = GROUPS * 128, LOADERS = 128, THREADS = CONSUMERS + LOADERS;
constexpr bool ADDRESSES = false;  // of rows of `a`: loaders have few registers
constexpr int EARLY = 2;           // steps whose constants are requested before `a`: more of them would delay it

#include "ptx/pdl.cuh"
#include "order.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/load.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/cluster.cuh"
#include "ptx/pipeline.cuh"
#if F16X3
#include "gemm/halves.cuh"
#endif

constexpr int BYTES_A = BM * 128, BYTES_B = BN * 128, TN = BN / 8;
enum { WHOLE, PARTIAL, CLUSTER };

#include "gemm/operand_a.cuh"
#if F16X3
#include "gemm/step_f16x3.cuh"
#else
#include "gemm/tf32x3.cuh"
#include "gemm/step_tf32.cuh"
#endif
#include "gemm/epilogue.cuh"
constexpr bool FOURS = VECTOR_C == 4 && !POOL, ROOM = DECLARED == THREADS;
#include "gemm/store_registers.cuh"

constexpr int BYTES_STAGE = BYTES_A + TILES_B * BYTES_B, BARRIERS = STAGES * BYTES_STAGE, INBOX = BARRIERS + STAGES * 16;
constexpr int STEPS = 1;
#include "gemm/work_items.cuh"

// ── loading ─────────────────────────────────────────────────────────────────────────────────────

__device__ __forceinline__ void load(u32 shared, const T* a, const T* b, const Window* table,
                                     const Work& work, const Image& image)
{
    const Pipeline<STAGES> barriers(shared + BARRIERS);
    const int thread = threadIdx.x - CONSUMERS;
    const int steps = (work.k + BK - 1) / BK;
    const long long of_step = (long long)TILES_B * work.rows_b * BK;
    const auto load_b = [&](const Item& item, int step, int stage) {
        const int rows = min(BN, work.rows_b - item.n0);
        const T* from = b + (item.batch * (long long)steps + item.first + step) * of_step
                        + item.n0 * BK;
        const u32 to = shared + stage * BYTES_STAGE + BYTES_A, full = barriers.full(stage);
        mbarrier_expect_tx(full, TILES_B * rows * 128);
#pragma unroll
        for (int part = 0; part < TILES_B; ++part)
            bulk_copy(to + part * BYTES_B, from + (long long)part * work.rows_b * BK, rows * 128,
                      full);
    };

    Item item(blockIdx.x, work);
    int early = CONSTANT ? min(item.count, min(STAGES, EARLY)) : 0;
    if (thread == 0)
        for (int step = 0; step < early; ++step) load_b(item, step, step);
    const auto loader_of = [&](const Item& item) {
        LoaderA loader(thread, a + (long long)item.batch * work.batch_a, item.m0, work.m, work.lda, image);
        loader.fetch(item.first * BK, work.k, table);
        return loader;
    };
    LoaderA loader = loader_of(item);
    grid_dependency_sync();
    PipelineState<STAGES> pipe;
    for (int next = blockIdx.x;;) {
        for (int step = 0; step < item.count; ++step) {
            mbarrier_wait(barriers.empty(pipe.stage), pipe.parity ^ 1);
            if (early > 0) --early;
            else if (thread == 0) load_b(item, step, pipe.stage);
            loader.copy(shared + pipe.stage * BYTES_STAGE, (item.first + step) * BK, work.k, table);
            mbarrier_arrive_cp_async(barriers.full(pipe.stage));
            pipe.next();
        }
        next += gridDim.x;
        if (next >= work.items) break;
        item = Item(next, work);
        loader = loader_of(item);
    }
    cp_async_commit();
    cp_async_wait<0>();
}

// ── multiplying ─────────────────────────────────────────────────────────────────────────────────

#include "gemm/steps_rs.cuh"

__device__ __forceinline__ void multiply_all(unsigned char* memory, Results results, const float* scales, const Work& work,
                                             const ImageFactors& factors)
{
    const int row = threadIdx.x / 32 * 16;
    Steps steps(shared_address(memory), row);
    prefetch_columns(results.bias, scales, blockIdx.x, work);
    grid_dependency_sync();
    for (int next = blockIdx.x; next < work.items; next += gridDim.x) {
        const Item item(next, work);
        const EarlyOperands operands = begin_item(results, scales, row, item, work);
        float totals[TN][4] = {};
        factors.scale(steps, item.m0 + row, work.m, item.first * BK);
        steps.add_all(totals, item.count);
        finish_item(results, operands, totals, scales, {memory + INBOX, next % work.splits, work.splits}, row, item, work);
    }
}

// What all threads of a block do.
__device__ __forceinline__ void run(const T* a, const T* b, const float* scales, const Window* table, const Results& results,
                                    const Work& work, const Image& image, const ImageFactors& factors)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 shared = shared_address(memory);
    if (threadIdx.x == 0) Pipeline<STAGES>(shared + BARRIERS).begin(LOADERS + 1, GROUPS * 4);
    __syncthreads();
    if constexpr (SPLIT == CLUSTER) Share(memory + INBOX, blockIdx.x % work.splits, work.splits).inbox.open();
    if (threadIdx.x >= CONSUMERS) {
        setmaxnreg_dec<LOADER_REGISTERS>();
        load(shared, a, b, table, work, image);
    } else {
        setmaxnreg_inc<REGISTERS>();
        multiply_all(memory, results, scales, work, factors);
    }
}

#if TOTALS
static_assert(EARLY_OPERANDS, "tiles of other kinds leave no totals");

extern "C" __global__ void __launch_bounds__(DECLARED, RESIDENT)
split_wgmma_totals(const T* a, const T* b, const float* scales, R* c, float* totals, const Window* table, const T* bias,
                   const T* z0, const T* z1, int ldc, Work work, Image image)
{
    run(a, b, scales, table, {c, bias, z0, z1, work.m, work.n, ldc, 0, 0, totals}, work, image, ImageFactors());
}
#elif FACTORS
extern "C" __global__ void __launch_bounds__(DECLARED, RESIDENT)
split_wgmma_scaled(const T* a, const T* b, const float* scales, R* c, const Window* table, const T* bias, const T* z0,
                   const T* z1, int ldc, Work work, Image image, const float* factors, int pixels)
{
    run(a, b, scales, table, {c, bias, z0, z1, work.m, work.n, ldc, 0, 0}, work, image, {factors, work.k, pixels});
}
#else
extern "C" __global__ void __launch_bounds__(DECLARED, RESIDENT)
split_wgmma(const T* a, const T* b, const float* scales, R* c, unsigned char* halves, const Window* table, const T* bias,
            const T* z0, const T* z1, int ldc, Work work, Image image)
{
    const Results results = {
#if BLOCKWISE
        {halves, OF_PIXELS ? work.m : (work.m + 7) / 8 * 8, work.n},
#endif
        c, bias, z0, z1, work.m, work.n, ldc, 0, 0};
    run(a, b, scales, table, results, work, image, ImageFactors());
}
#endif
