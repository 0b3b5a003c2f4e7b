// c = epilogue(sum over k of a[m][k] * b[n][k]) on tensor cores, for every element type that they multiply. An atom
// (`MMA`, `wgmma`) is generated; multiply_step.cuh applies it to a step.
//
// As in simt.cu the rows of `a` are rows of a matrix, or windows of an image whose channels are innermost
// (implicit GEMM); `table` gives the offset of element k of a window. A block computes a tile of BM x BN
// results. cp.async copies tiles to shared memory, several steps of 128 bytes ahead, where either single
// warps multiply them (mma.sync) or, with WGMMA, warpgroups do so directly from shared memory (Hopper).
//
// Few tiles do not fill the GPU: then `splits` blocks share the sum of one tile. As a cluster
// (CLUSTER) they send their sums to each other's shared memory (inbox.cuh), otherwise they store partial sums
// (PARTIAL) for a kernel of reduce_splits*.cu; both are added in a fixed order.
//
// The kernel starts while the preceding one still runs: it computes offsets and loads weights,
// which are constants, and then waits.
//
// Types: T and U, the elements of `a` and `b`; Z, of the epilogue's operands; R, of results. Compile-time: BM BN
// WARPS_M WARPS_N STAGES WGMMA; ROWS, LINE: see operand_a.cuh; VECTOR, the elements of `a` per copy; PARTS, the number
// of tf32 numbers that represent one of `b`, 0 where it is stored unsplit; ACROSS, whether `b` is b[k][n]; VECTOR_B,
// the elements of such a `b` per copy; VECTOR_C, the results per store; MEANS, whether of all results only the means of
// columns are stored; SPLIT: 0 no, 1 PARTIAL, 2 CLUSTER; and those of the epilogue: BIAS; Z0 and Z1, the layouts of its
// operands: 0 none, 1 like the result, 2 one element per channel. A batch is a group of a convolution, or, with HEADS,
// a head of a sample. With TOTALS, a macro, the totals of the columns of each tile are stored as well; with FACTORS, a macro,
// the terms of each product of the batch are multiplied by numbers of its own.

#include "ptx/pdl.cuh"
#include "order.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/cluster.cuh"

constexpr int THREADS = WARPS_M * WARPS_N * 32, LOADERS = THREADS;
// A warp has tiles of 16 x 8 results. A wgmma is executed by four warps and has 64 rows.
constexpr int TM = WGMMA ? 1 : BM / WARPS_M / 16, TN = BN / WARPS_N / 8;
constexpr int AHEAD = STAGES - 1;
constexpr bool ADDRESSES = true;  // of rows of `a`, in registers
constexpr int BYTES_A = BM * 128, BYTES_B = BN * 128, BYTES_STAGE = BYTES_A + (PARTS > 1 ? PARTS : 1) * BYTES_B;
constexpr int PITCH = BN + 8;  // of the sums in shared memory
enum { WHOLE, PARTIAL, CLUSTER };

struct Block {  // the tile of a block, and which of the blocks that share it this one is
    int m0, n0, batch, split, splits;

    __device__ __forceinline__ Block(int tiles_n, int splits) : splits(splits)
    {
        const int tile = in_order(blockIdx.x, gridDim.x), tile_m = tile / tiles_n;
        m0 = tile_m * BM, n0 = (tile - tile_m * tiles_n) * BN;
        batch = blockIdx.z / splits, split = blockIdx.z - batch * splits;
    }
};

constexpr bool POOL = false;
#include "gemm/operand_a.cuh"
#include "gemm/operand_b.cuh"
#include "gemm/tf32x3.cuh"
#include "gemm/multiply_step.cuh"
#if INTEGER_SUMS
#include "gemm/store_integers.cuh"
#else
#include "gemm/epilogue.cuh"
#define IN_HALVES 0
constexpr int EIGHTS_AHEAD = 4;
constexpr bool FOURS = false;
#include "gemm/store_registers.cuh"
#include "gemm/store_floats.cuh"
#if TOTALS
#include "gemm/store_totals.cuh"
#endif
#endif

struct Product {  // one of the batch
    const T* a;
    const U* b;
    const Window* table;
    int m, n, k, lda, ldb;
};

// What multiplies the terms of `a`: nothing.
struct Plain {
    __device__ __forceinline__ void open(const LoaderA&, int, int) {}
    __device__ __forceinline__ void fetch(int) {}
    __device__ __forceinline__ void apply(unsigned char*, const LoaderA&) const {}
};

#if FACTORS
// Numbers that are the same in all rows: each thread multiplies what it has copied, before others read that.
struct Factors {
    static constexpr u32 ZEROS = 0x80008000;  // -0 twice, which leaves the sign of a product alone
    static_assert(VECTOR * sizeof(T) == 16 && LoaderA::LANES_M % 8 == 0, "a thread has words of one column");
    struct alignas(16) Word {
        u32 pairs[4];
    };
    const T* at;  // those of a step's words, and how many terms are left
    int left;
    Word next;

    __device__ __forceinline__ void open(const LoaderA& loader, int begin, int k)
    {
        at += begin + loader.k, left = k - begin - loader.k;
    }
    __device__ __forceinline__ void fetch(int step)
    {
        next = {};
        if (step * BK < left) next = *(const Word*)(at + step * BK);
    }
    __device__ __forceinline__ void apply(unsigned char* tile, const LoaderA& loader) const
    {
#pragma unroll
        for (int i = 0; i < LoaderA::COPIES; ++i) {
            Word* const place = (Word*)(tile + loader.to + i * LoaderA::LANES_M * 128);
            Word word = *place;
#pragma unroll
            for (int q = 0; q < 4; ++q) word.pairs[q] = pair_fma(word.pairs[q], next.pairs[q], ZEROS);
            *place = word;
        }
    }
};
#endif

// Adds up the products of a block, and passes the sums to `end`.
template <typename End, typename Scale>
__device__ __forceinline__ void multiply_all(const Product& p, const Image& image, const Block& block, End end, Scale scale)
{
    // The preceding kernel may have split numbers in parts, or computed rows of terms: an early start must not read
    // ahead of it.
    constexpr bool CONSTANT = PARTS == 0 && !ACROSS;
    extern __shared__ __align__(1024) unsigned char shared[];
    u32 tiles = shared_address(shared);
    pin(tiles);
    const int steps = (p.k + BK - 1) / BK;
    const int first = (int)((long long)steps * block.split / block.splits);
    const int count = (int)((long long)steps * (block.split + 1) / block.splits) - first;
    end.open(shared + min(STAGES, (steps + block.splits - 1) / block.splits) * BYTES_STAGE, block);

    const int begin = first * BK;
    LoaderB loader_b(p.b, begin, block.n0, p.n, p.k, p.ldb);
    if constexpr (!PARTS && !ACROSS) loader_b.pin_all();
    const auto load_b = [&](int step) {
        const u32 tile = tiles + step % STAGES * BYTES_STAGE + BYTES_A;
        if constexpr (ACROSS) copy_b_across(tile, p.b, first + step, block.n0, p.n, p.k, p.ldb);
        else if constexpr (PARTS) copy_parts(tile, p.b, first + step, block.n0, p.ldb);
        else loader_b.copy(tile, step * BK);
    };
    if constexpr (CONSTANT) {
#pragma unroll
        for (int step = 0; step < AHEAD; ++step)
            if (step < count) load_b(step);
    } else {
        grid_dependency_sync();
    }
    // Terms are counted from the block's first one on.
    const Window* table = ROWS == WINDOWS ? p.table + begin / VECTOR : nullptr;
    LoaderA loader_a(threadIdx.x, ROWS == WINDOWS ? p.a : p.a + begin, block.m0, p.m, p.lda, image);
    loader_a.fetch(0, p.k - begin, table);
    const auto load_a = [&](int step) {
        loader_a.copy(tiles + step % STAGES * BYTES_STAGE, step * BK, p.k - begin, table);
    };
    loader_a.pin_all();
    scale.open(loader_a, begin, p.k);
    if constexpr (CONSTANT) grid_dependency_sync();
    scale.fetch(0);
    end.prepare(loader_a);
#pragma unroll
    for (int step = 0; step < AHEAD; ++step) {
        if (step < count) {
            load_a(step);
            if constexpr (!CONSTANT) load_b(step);
        }
        cp_async_commit();  // also an empty group, so that counting groups counts steps
    }
    end.begin(block);

    Sums sums = {};
    const Place place;
    for (int step = 0; step < count; ++step) {
        cp_async_wait<AHEAD - 1>();
        scale.apply(shared + step % STAGES * BYTES_STAGE, loader_a);
        scale.fetch(step + 1);
#if WGMMA_CODE
        wgmma_wait<0>();  // of the previous step, whose buffer is filled next
        fence_proxy_async();
#endif
        __syncthreads();
        const u32 tile = tiles + step % STAGES * BYTES_STAGE;
        if constexpr (WGMMA) multiply_step(sums, tile, place);
        if (step + AHEAD < count) {
            load_a(step + AHEAD);
            load_b(step + AHEAD);
        }
        cp_async_commit();
        if constexpr (!WGMMA) multiply_step(sums, tile, place);
    }
#if WGMMA_CODE
    wgmma_wait<0>();
    settle(sums.of);
#endif
    end.store(sums, shared, block, place);
}

#if INTEGER_SUMS
extern "C" __global__ void __launch_bounds__(THREADS)
mma_integer(const T* a, const U* b, R* c, const Window* table, const int* b_sums, const int* bias,
            const T* a_zero, const U* b_zero, const Z* a_scale, const Z* b_scale, const Z* y_scale,
            const R* y_zero, int m, int n, int k, int lda, int ldb, int ldc, int tiles_n,
            int batch_a, int batch_b, int batch_c, int splits, Steps by, Image image)
{
    const Block block(tiles_n, splits);
    const Product product = {a + (long long)block.batch * batch_a, b + (long long)block.batch * batch_b,
                             table, m, n, k, lda, ldb};
    StoreIntegers end = {c + (long long)block.batch * batch_c,
                               {a_zero, b_zero, b_sums + block.batch * (batch_b / ldb), bias, a_scale,
                                b_scale, y_scale, y_zero, by},
                               m, n, k, ldc};
    multiply_all(product, image, block, end, Plain());
}
#elif TOTALS
extern "C" __global__ void __launch_bounds__(THREADS)
mma_totals(const T* a, const U* b, R* c, float* totals, const Window* table, const Z* bias, const Z* z0, const Z* z1,
           int m, int n, int k, int lda, int ldb, int ldc, int tiles_n, int batch_a, int batch_b, int batch_c, int splits,
           Image image)
{
    const Block block(tiles_n, splits);
    const Product product = {a + (long long)block.batch * batch_a, b + (long long)block.batch * batch_b,
                             table, m, n, k, lda, ldb};
    if constexpr (SPLIT == WHOLE)
        multiply_all(product, image, block, StoreTotals(c, totals, bias, z0, z1, m, n, ldc, batch_c), Plain());
    else
        multiply_all(product, image, block, StoreTileTotals(c, totals, bias, z0, z1, m, n, ldc, batch_c), Plain());
}
#elif FACTORS
extern "C" __global__ void __launch_bounds__(THREADS)
mma_scaled(const T* a, const T* factors, const U* b, R* c, const Window* table, const Z* bias, const Z* z0, const Z* z1,
           int m, int n, int k, int lda, int ldb, int ldc, int tiles_n, int batch_a, int batch_b, int batch_c, int splits,
           Image image)
{
    const Block block(tiles_n, splits);
    const Product product = {a + (long long)block.batch * batch_a, b + (long long)block.batch * batch_b,
                             table, m, n, k, lda, ldb};
    const Factors scale = {factors + (long long)block.batch * k};
    if constexpr (SPLIT == WHOLE)
        multiply_all(product, image, block, StoreWords(c, bias, z0, z1, m, n, ldc, batch_c), scale);
    else
        multiply_all(product, image, block, StoreTile{c, bias, z0, z1, m, n, ldc, batch_c}, scale);
}
#else
extern "C" __global__ void __launch_bounds__(THREADS)
mma(const T* a, const U* b, void* c, const Window* table, const Z* bias, const Z* z0, const Z* z1,
    int m, int n, int k, int lda, int ldb, int ldc, int tiles_n, int batch_a, int batch_b,
    int batch_c, int heads, int head_a, int head_b, int splits, Image image)
{
    const Block block(tiles_n, splits);
    const int sample = HEADS ? block.batch / heads : block.batch, head = HEADS ? block.batch % heads : 0;
    const Product product = {a + (long long)sample * batch_a + (long long)head * head_a,
                             b + (long long)sample * batch_b + (long long)head * head_b, table, m, n, k, lda, ldb};
    if constexpr (MEANS)
        multiply_all(product, image, block, StoreMeans{(R*)c, bias, z0, z1, m, n, ldc, batch_c}, Plain());
    else if constexpr (PARTS)
        multiply_all(product, image, block, StoreRegisters{(R*)c, bias, z0, z1, m, n, ldc, batch_c}, Plain());
    else if constexpr (SPLIT == WHOLE)
        multiply_all(product, image, block, StoreWords((R*)c, bias, z0, z1, m, n, ldc, batch_c), Plain());
    else
        multiply_all(product, image, block, StoreTile{c, bias, z0, z1, m, n, ldc, batch_c}, Plain());
}
#endif
