// c[m][n] = epilogue(sum over k of a[m][k] * b[n][k] + bias[n]) in float32, on the tensor cores of Hopper, where both
// operands are in halves: `b` as packed constants (step_f16x3.cuh), `a` as store_halves.cuh says. So the main loop has
// nothing to convert: bulk copies bring both operands, and wgmma reads both from shared memory. K is a multiple of 64.
//
// Warp-specialized: two threads of the last warpgroup copy tiles, STAGES steps of 32 terms ahead. Each consumer warpgroup
// multiplies 64 rows of `a` by the tile of `b`. The sums of two steps, which have one scale per row, are added to the
// totals in float32: by one group while the others multiply or, with DEFER, while the same one multiplies the next two.
// Persistent: a block processes tile after tile. Few tiles are shared by the blocks of clusters, as in wgmma_rs.cu.
//
// Compile-time: GROUPS, of consumers; BN; STAGES; RESIDENT, blocks per multiprocessor; REGISTERS and LOADER_REGISTERS
// per thread; DEFER; and those of store_registers.cuh.

constexpr int BM = GROUPS * 64, CONSUMERS = GROUPS * 128, THREADS = CONSUMERS + 128;

#include "ptx/pdl.cuh"
#include "order.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/load.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/cluster.cuh"
#include "ptx/pipeline.cuh"
#if IN_HALVES
#include "gemm/halves.cuh"
#endif

constexpr int BYTES_A = BM * 128, BYTES_B = BN * 128, TN = BN / 8;
constexpr int STEPS = 2;  // that have one scale
enum { WHOLE, PARTIAL, CLUSTER };
enum { MATRIX };
constexpr int ROWS = MATRIX;
constexpr bool POOL = false;

constexpr int EIGHTS_AHEAD = GROUPS < 3 ? 4 : SPLIT == CLUSTER ? 1 : 2;  // as registers allow
#include "gemm/epilogue.cuh"
constexpr bool FOURS = VECTOR_C == 4 && !POOL, ROOM = true;
#include "gemm/store_registers.cuh"
#include "gemm/work_items.cuh"

constexpr int BYTES_STAGE = BYTES_A + BYTES_B, SCALES = STAGES * BYTES_STAGE, BARRIERS = SCALES + STAGES * BM * 4,
              INBOX = BARRIERS + STAGES * 16;

#include "gemm/multiply_halves.cuh"

// ── loading ─────────────────────────────────────────────────────────────────────────────────────

// Copies the tiles of all items, of `a` with the scales of its rows; one thread. `from` is in halves.
template <bool OF_A>
__device__ __forceinline__ void fetch(u32 shared, const T* from, int all_rows, const Work& work)
{
    constexpr int MOST = OF_A ? BM : BN;
    const Pipeline<STAGES> barriers(shared + BARRIERS);
    const long long of_matrix = (long long)all_rows * work.k;
    PipelineState<STAGES> pipe;
    bool waited = !OF_A;  // for the preceding kernel, which is done as late as possible
    for (int next = first_item(); next < work.items; next += gridDim.x * gridDim.y) {
        const Item item(next, work);
        const int row = OF_A ? item.m0 : item.n0, rows = min(MOST, all_rows - row);
        const T* matrix = from + item.batch * (OF_A ? (long long)work.batch_a : of_matrix);
        for (int step = item.first; step < item.first + item.count; ++step) {
            const u32 full = barriers.full(pipe.stage);
            const bool scaled = OF_A && step % STEPS == 0;
            mbarrier_wait(barriers.empty(pipe.stage), pipe.parity ^ 1);
            mbarrier_expect_tx(full, rows * (scaled ? 132 : 128));
            if (!waited) grid_dependency_sync(), waited = true;
            bulk_copy(shared + pipe.stage * BYTES_STAGE + (OF_A ? 0 : BYTES_A), matrix + ((long long)step * all_rows + row) * BK,
                      rows * 128, full);
            if (scaled)
                bulk_copy(shared + SCALES + pipe.stage * BM * 4, matrix + of_matrix + (long long)(step / STEPS) * all_rows + row,
                          rows * 4, full);
            pipe.next();
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
multiply_halves(const T* a, const T* b, const float* scales, R* c, unsigned char* halves, const T* bias, const T* z0,
                const T* z1, int ldc, Work work)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 shared = shared_address(memory);
    if (threadIdx.x == 0) Pipeline<STAGES>(shared + BARRIERS).begin(2, GROUPS * 4);
    __syncthreads();
    if constexpr (SPLIT == CLUSTER) Share(memory + INBOX, blockIdx.y, work.splits).inbox.open();
    if (threadIdx.x >= CONSUMERS) {
        setmaxnreg_dec<LOADER_REGISTERS>();
        if (threadIdx.x == GROUPS * 128) fetch<false>(shared, b, work.rows_b, work);  // constants, without waiting
        if (threadIdx.x == GROUPS * 128 + 32) fetch<true>(shared, a, work.lda, work);
    } else {
        setmaxnreg_inc<REGISTERS>();
#if IN_HALVES
        Results results = {{halves, work.lda, work.n}, c, bias, z0, z1, work.m, work.n, ldc, 0, 0};
#else
        Results results = {c, bias, z0, z1, work.m, work.n, ldc, 0, 0};
#endif
        const int row = threadIdx.x / 32 * 16;
        Consumer consumer(memory);
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
