// c[m][n] = epilogue(sum over k of a[m][k] * b[n][k] + bias[n]) on tensor cores: 16-bit elements,
// accumulators in float32, or a block's in float16, too (HALF_SUMS, without WGMMA).
//
// As in simt.cu the rows of `a` are rows of a matrix, or windows of an image whose channels lie
// innermost (implicit GEMM); `table` says where element k of a window lies. A block computes a tile
// of BM x BN results. Tiles travel to shared memory by cp.async, several steps of 64 terms ahead,
// and meet there either in warps of their own (mma.sync) or, where WGMMA, in groups of four warps
// that the tensor cores of Hopper serve directly from shared memory.
//
// Few tiles do not fill the GPU: then `splits` blocks share the sum of one tile. As a cluster
// (CLUSTER) they add their sums from each other's shared memory, otherwise they leave partial sums
// (PARTIAL) for `mma_reduce`; both in a fixed order.
//
// The kernel begins while the one before it still runs: it computes its places and fetches weights,
// which are constants, and then waits.
//
// Compile-time: BM BN WARPS_M WARPS_N STAGES WGMMA; ROWS: 0 matrix, 1 pixels (1x1 windows),
// 2 windows; VECTOR, the elements of `a` copied at once (2, 4, 8); VECTOR_C, the results stored at
// once (8 or 1); HALF_SUMS; BIAS; Z0 and Z1, how the operands of the epilogue lie: 0 none, 1 like the result, 2 one a
// channel; SPLIT: 0 no, 1 PARTIAL, 2 CLUSTER. A batch is a group of a convolution.

#include "ptx/pdl.cuh"

constexpr int THREADS = WARPS_M * WARPS_N * 32, LOADERS = THREADS;
constexpr int WM = WGMMA ? 16 : BM / WARPS_M;  // rows of a warp's results
constexpr int TM = WM / 16;
constexpr int AHEAD = STAGES - 1;

#include "gemm/store_tile.cuh"
#include "gemm/operand_b.cuh"

__device__ __forceinline__ Place place_of_warp()
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if constexpr (WGMMA)
        return {warp / 4 / WARPS_N * 64 + warp % 4 * 16, warp / 4 % WARPS_N * TN * 8, lane};
    return {warp / WARPS_N * WM, warp % WARPS_N * TN * 8, lane};
}

template <bool> struct Four {  // sums of a thread
    typedef float At[4];
};

template <> struct Four<true> {  // in float16, two a word
    typedef u32 At[2];
};

typedef Four<HALF_SUMS>::At Sums[TM][TN];

#if WGMMA_CODE
// Begins the products of one step.
__device__ __forceinline__ void multiply(Sums& sums, u32 tile, const Place& place)
{
    const uint64 a = smem_descriptor(tile + place.m / 64 * 64 * BK * 2);
    const uint64 b = smem_descriptor(tile + BYTES_A + place.n * BK * 2);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BK / 16; ++k) wgmma(sums[0], a + k * 2, b + k * 2);
    wgmma_commit();
}
#else
__device__ __forceinline__ void multiply(Sums& sums, u32 tile, const Place& place)
{
    const int lane = place.lane;
#pragma unroll
    for (int k = 0; k < BK / 16; ++k) {
        u32 a[TM][4], b[TN / 2][4];
#pragma unroll
        for (int i = 0; i < TM; ++i)
            ldmatrix_x4(a[i], tile + swizzled(place.m + i * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
        for (int j = 0; j < TN / 2; ++j)
            ldmatrix_x4(b[j], tile + BYTES_A
                                + swizzled(place.n + j * 16 + lane % 8 + lane / 16 * 8,
                                           k * 2 + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN / 2; ++j) {
                mma_m16n8k16(sums[i][2 * j], a[i], b[j][0], b[j][1]);
                mma_m16n8k16(sums[i][2 * j + 1], a[i], b[j][2], b[j][3]);
            }
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
mma(const T* a, const T* b, void* c, const Window* table, const T* bias, const T* z0, const T* z1,
    int m, int n, int k, int lda, int ldb, int ldc, int tiles_n, int batch_a, int batch_b,
    int batch_c, int splits, Image image)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 tiles = shared_address(shared);
    const int tile_m = blockIdx.x / tiles_n;
    const int m0 = tile_m * BM, n0 = (blockIdx.x - tile_m * tiles_n) * BN;
    const int batch = blockIdx.z / splits, split = blockIdx.z - batch * splits;
    a += (long long)batch * batch_a;
    b += (long long)batch * batch_b;

    const int steps = (k + BK - 1) / BK;
    const int first = (int)((long long)steps * split / splits);
    const int count = (int)((long long)steps * (split + 1) / splits) - first;

    const auto load_b = [&](int step) {
        const u32 tile = tiles + step % STAGES * BYTES_STAGE + BYTES_A;
        copy_b(tile, b, (first + step) * BK, n0, n, ldb);
    };
#pragma unroll
    for (int step = 0; step < AHEAD; ++step)
        if (step < count) load_b(step);
    LoaderA loader(threadIdx.x, m0, m, lda, image);
    loader.fetch(first * BK, k, table);
    const auto load_a = [&](int step) {
        loader.copy(tiles + step % STAGES * BYTES_STAGE, a, (first + step) * BK, k, table);
    };
    grid_dependency_sync();
#pragma unroll
    for (int step = 0; step < AHEAD; ++step) {
        if (step < count) load_a(step);
        cp_async_commit();  // also an empty group, so that counting groups counts steps
    }

    Sums sums = {};
    const Place place = place_of_warp();
    for (int step = 0; step < count; ++step) {
        cp_async_wait<AHEAD - 1>();
#if WGMMA_CODE
        wgmma_wait<0>();  // of the step before, whose buffer is the next to be filled
        fence_proxy_async();
#endif
        __syncthreads();
        const u32 tile = tiles + step % STAGES * BYTES_STAGE;
        if constexpr (WGMMA) multiply(sums, tile, place);
        if (step + AHEAD < count) {
            load_a(step + AHEAD);
            load_b(step + AHEAD);
        }
        cp_async_commit();
        if constexpr (!WGMMA) multiply(sums, tile, place);
    }
#if WGMMA_CODE
    wgmma_wait<0>();
    settle(sums);
#endif
    cp_async_wait<0>();
    __syncthreads();
    gather((float*)shared, sums, place);
    conclude(shared, c, bias, z0, z1, m0, n0, m, n, ldc, batch, batch_c, split, splits);
}
