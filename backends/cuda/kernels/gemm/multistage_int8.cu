// y[m][n] = with_epilogue(sum over k of (a[m][k] - a_zero) * (b[n][k] - b_zero[n])) on tensor cores: bytes,
// with signs or without, and sums in int32, which wrap around.
//
// Rows of `a`, tiles, steps and clusters are those of multistage.cu. The bytes are multiplied as they are, for
//     sum of (a - za) * (b - zb) = sum of a * b - zb * sum of a + za * (k * zb - sum of b).
// The sums of b come from before (`b_sums`), and those of a from products with ones, beside the others
// and only where b has zero points (ZERO_B). Outside of its image a window has zero points of a.
//
// T and U are the types of a and b, Y that of the results: int32, or bytes that the sums are requantized
// to; S is the type of scales. Compile-time: BM BN WARPS_M WARPS_N STAGES WGMMA; ROWS VECTOR VECTOR_C
// SPLIT as in multistage.cu, but not PARTIAL; ZERO_B; BY_ROW, whether rows have zero points or scales of their own.
// Generated: narrow, see quantize.cu.

#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/cluster.cuh"

constexpr int THREADS = WARPS_M * WARPS_N * 32, LOADERS = THREADS;
// A warp has tiles of 16 x 8 results. Hopper's own products are made by four warps, of 64 rows.
constexpr int TM = WGMMA ? 1 : BM / WARPS_M / 16, TN = BN / WARPS_N / 8;
constexpr int AHEAD = STAGES - 1;
constexpr int BYTES_A = BM * BK, BYTES_STAGE = (BM + BN) * BK;
constexpr int PITCH = BN + 8;  // of the sums in shared memory
constexpr bool QUANTIZED = sizeof(Y) == 1;
constexpr u32 ONES = 0x01010101;
static_assert(!WGMMA || !ZERO_B, "sums of a are products of single warps");
enum { WHOLE, PARTIAL, CLUSTER };

#include "gemm/operand_b.cuh"
#include "gemm/operand_a.cuh"
#include "gemm/neighbours.cuh"

// ── products ────────────────────────────────────────────────────────────────────────────────────

#if WGMMA_CODE
// Begins the products of one step.
__device__ __forceinline__ void multiply(int (&sums)[TM][TN][4], int (&)[TM][4], u32 tile, int row,
                                         int column)
{
    const uint64 a = smem_descriptor(tile + row / 64 * 64 * BK);
    const uint64 b = smem_descriptor(tile + BYTES_A + column * BK);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BK / 32; ++k) wgmma(sums[0], a + k * 2, b + k * 2);
    wgmma_commit();
}
#else
// Adds the products of one step to `sums`, and the terms of a to `sums_a`, the same in all columns.
__device__ __forceinline__ void multiply(int (&sums)[TM][TN][4], int (&sums_a)[TM][4], u32 tile,
                                         int row, int column)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < BK / 32; ++k) {
        u32 a[TM][4], b[TN / 2][4];
#pragma unroll
        for (int i = 0; i < TM; ++i)
            ldmatrix_x4(a[i], tile + swizzled(row + i * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
        for (int j = 0; j < TN / 2; ++j)
            ldmatrix_x4(b[j], tile + BYTES_A
                                + swizzled(column + j * 16 + lane % 8 + lane / 16 * 8,
                                           k * 2 + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < TM; ++i) {
#pragma unroll
            for (int j = 0; j < TN / 2; ++j) {
                mma_m16n8k32(sums[i][2 * j], a[i], b[j][0], b[j][1]);
                mma_m16n8k32(sums[i][2 * j + 1], a[i], b[j][2], b[j][3]);
            }
            if constexpr (ZERO_B) mma_m16n8k32(sums_a[i], a[i], ONES, ONES);
        }
    }
}
#endif

// ── what makes results of sums ──────────────────────────────────────────────────────────────────

struct Steps {  // 1 where there is one a row of a or a column of b, 0 where there is one for all
    int a_zero, b_zero, a_scale, b_scale, y_scale, y_zero;
};

struct Parameters {  // of the product; null where there are none
    const T* a_zero;
    const U* b_zero;
    const int *b_sums, *bias;
    const S *a_scale, *b_scale, *y_scale;
    const Y* y_zero;
    Steps by;
};

struct OfRow {
    int zero;
    float scale, y_scale, y_zero;
};

struct OfColumn {
    int zero, weight, shift;  // b's zero point; what a's is multiplied with; what is added
    float scale;              // where not BY_ROW, of the sums as steps of y
};

__device__ __forceinline__ OfRow of_row(const Parameters& p, int row)
{
    OfRow found = {p.a_zero ? int(p.a_zero[row * p.by.a_zero]) : 0};
    if constexpr (QUANTIZED) {
        found.scale = float(p.a_scale[row * p.by.a_scale]);
        found.y_scale = float(p.y_scale[row * p.by.y_scale]);
        found.y_zero = float(p.y_zero[row * p.by.y_zero]);
    }
    return found;
}

__device__ __forceinline__ OfColumn of_column(const Parameters& p, int column, int k)
{
    OfColumn found;
    found.zero = ZERO_B ? int(p.b_zero[column * p.by.b_zero]) : 0;
    found.weight = (int)((u32)k * found.zero - p.b_sums[column]);
    found.shift = p.bias ? p.bias[column] : 0;
    found.scale = QUANTIZED ? float(p.b_scale[column * p.by.b_scale]) : 1.f;
    if constexpr (!BY_ROW) {
        const OfRow row = of_row(p, 0);
        found.shift = (int)(found.shift + (u32)row.zero * found.weight);
        if constexpr (QUANTIZED) found.scale = row.scale * found.scale / row.y_scale;
    }
    return found;
}

__device__ __forceinline__ Y with_epilogue(int sum, const OfRow& row, const OfColumn& column)
{
    const int whole = (int)((u32)sum + column.shift + (BY_ROW ? (u32)row.zero * column.weight : 0));
    if constexpr (QUANTIZED) {
        const float factor = BY_ROW ? row.scale * column.scale / row.y_scale : column.scale;
        return narrow(float(whole) * factor, row.y_zero);
    } else {
        return whole;
    }
}

template <int N> using Some = Neighbours<int, N>;  // neighbouring sums

// Gathers the block's sums in shared memory, in rows, less what b's zero points take from them.
__device__ __forceinline__ void gather(int* target, const int (&sums)[TM][TN][4],
                                       const int (&sums_a)[TM][4], const OfColumn* columns, int row,
                                       int column)
{
    const int lane = threadIdx.x % 32;
    row += lane / 4;
    column += lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int own = column + j * 8;
                Some<2> pair;
#pragma unroll
                for (int q = 0; q < 2; ++q) {
                    u32 sum = sums[i][j][half * 2 + q];
                    if constexpr (ZERO_B) sum -= (u32)sums_a[i][half * 2] * columns[own + q].zero;
                    pair.at[q] = (int)sum;
                }
                *(Some<2>*)(target + (row + i * 16 + half * 8) * PITCH + own) = pair;
            }
}

// Reads eight neighbouring sums, or adds up those of all blocks of the cluster.
__device__ __forceinline__ Some<8> collect(const int* from, int blocks)
{
    if constexpr (SPLIT != CLUSTER) return *(const Some<8>*)from;
    Some<8> sums = {};
#pragma unroll 4
    for (int block = 0; block < blocks; ++block)
#pragma unroll
        for (int q = 0; q < 8; q += 4) {
            const float4 found = dsmem_load(shared_address(from + q), block);
            sums.at[q] += __float_as_int(found.x), sums.at[q + 1] += __float_as_int(found.y);
            sums.at[q + 2] += __float_as_int(found.z), sums.at[q + 3] += __float_as_int(found.w);
        }
    return sums;
}

extern "C" __global__ void __launch_bounds__(THREADS)
mma_integer(const T* a, const U* b, Y* y, const Window* table, const int* b_sums, const int* bias,
            const T* a_zero, const U* b_zero, const S* a_scale, const S* b_scale, const S* y_scale,
            const Y* y_zero, int m, int n, int k, int lda, int ldb, int ldc, int tiles_n,
            int batch_a, int batch_b, int batch_c, int splits, Steps by, Image image)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ OfColumn columns[BN];
    const u32 tiles = shared_address(shared);
    const int tile_m = blockIdx.x / tiles_n;
    const int m0 = tile_m * BM, n0 = (blockIdx.x - tile_m * tiles_n) * BN;
    const int batch = blockIdx.z / splits, split = blockIdx.z - batch * splits;
    a += (long long)batch * batch_a;
    b += (long long)batch * batch_b;
    y += (long long)batch * batch_c;
    b_sums += batch * (batch_b / ldb);

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
    if (ROWS == WINDOWS && a_zero) loader.outside = (unsigned char)*a_zero * ONES;
#pragma unroll
    for (int step = 0; step < AHEAD; ++step) {
        if (step < count) load_a(step);
        cp_async_commit();  // also an empty group, so that counting groups counts steps
    }
    const int group = ROWS == MATRIX ? 0 : batch * n;  // its first filter
    const Parameters parameters = {a_zero, b_zero, b_sums - group, bias, a_scale, b_scale, y_scale,
                                   y_zero, by};
    for (int i = threadIdx.x; i < BN; i += THREADS)
        columns[i] = n0 + i < n ? of_column(parameters, group + n0 + i, k) : OfColumn{};

    int sums[TM][TN][4] = {}, sums_a[TM][4] = {};
    const int warp = threadIdx.x / 32;
    const int row = WGMMA ? warp / 4 / WARPS_N * 64 + warp % 4 * 16 : warp / WARPS_N * TM * 16;
    const int column = (WGMMA ? warp / 4 : warp) % WARPS_N * TN * 8;
    for (int step = 0; step < count; ++step) {
        cp_async_wait<AHEAD - 1>();
#if WGMMA_CODE
        wgmma_wait<0>();  // of the step before, whose buffer is the next to be filled
        fence_proxy_async();
#endif
        __syncthreads();
        const u32 tile = tiles + step % STAGES * BYTES_STAGE;
        if constexpr (WGMMA) multiply(sums, sums_a, tile, row, column);
        if (step + AHEAD < count) {
            load_a(step + AHEAD);
            load_b(step + AHEAD);
        }
        cp_async_commit();
        if constexpr (!WGMMA) multiply(sums, sums_a, tile, row, column);
    }
#if WGMMA_CODE
    wgmma_wait<0>();
    settle(sums);
#endif
    cp_async_wait<0>();
    __syncthreads();
    gather((int*)shared, sums, sums_a, columns, row, column);
    if constexpr (SPLIT == CLUSTER)
        cluster_sync();
    else
        __syncthreads();

    constexpr int ITEMS = BM * BN / 8;
    OfRow by_row = of_row(parameters, 0);
    const int end = ITEMS * (split + 1) / splits;
    for (int item = ITEMS * split / splits + threadIdx.x; item < end; item += THREADS) {
        const int i = item / (BN / 8), j = item % (BN / 8) * 8;
        if (m0 + i >= m || n0 + j >= n) continue;
        if constexpr (BY_ROW) by_row = of_row(parameters, m0 + i);
        const Some<8> found = collect((const int*)shared + i * PITCH + j, splits);
        Neighbours<Y, 8> results;
#pragma unroll
        for (int q = 0; q < 8; ++q) results.at[q] = with_epilogue(found.at[q], by_row, columns[j + q]);
        keep(y + (long long)(m0 + i) * ldc + n0 + j, results, n - n0 - j);
    }
    if constexpr (SPLIT == CLUSTER) cluster_sync();  // others may still read what is here
}
