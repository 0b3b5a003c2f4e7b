// c[m][n] = epilogue(sum over k of a[m][k] * b[n][k] + bias[n]) in float32 on tensor cores, with the
// products that every GPU from Ampere on has: tf32x3.cuh says how, and what the constants are.
//
// Tiles travel to shared memory by cp.async, several steps of 32 terms ahead. Few tiles do not fill the
// GPU: then `splits` blocks share the sum of one tile and leave partial sums for `gemm_reduce`.
//
// Compile-time, besides: BM BN WARPS_M WARPS_N STAGES.

constexpr int LOADERS = WARPS_M * WARPS_N * 32;

#include "gemm/tf32x3.cuh"

constexpr int TM = BM / WARPS_M / 16, TN = BN / WARPS_N / 8, AHEAD = STAGES - 1;

// The tiles of `b` of one step, of all parts.
__device__ __forceinline__ void copy_b(u32 tile, const T* b, int rows, int rows_b)
{
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
#pragma unroll
        for (int i = 0; i < (BN * 8 + LOADERS - 1) / LOADERS; ++i) {
            const int item = threadIdx.x + i * LOADERS;
            if (BN * 8 % LOADERS && item >= BN * 8) break;
            cp_async<4>(tile + part * BYTES_B + item * 16, b + item / 8 % rows * 32 + item % 8 * 4,
                          item / 8 < rows);
        }
        b += (long long)rows_b * BK;
    }
}

// Multiplies one step, small products first.
__device__ __forceinline__ void multiply(float (&totals)[TM][TN][4], u32 tile, int row, int column)
{
    const int lane = threadIdx.x % 32;
    const u32 tile_b = tile + BYTES_A;
    const int row_b = column + lane % 8 + lane / 16 * 8, chunk = lane / 8 % 2;
    float sums[TM][TN][4] = {};
    if constexpr (PARTS == 2) {
#pragma unroll
        for (int k = 0; k < BK / 8; ++k) {
            Parts parts[TM];
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                u32 found[4];
                ldmatrix_x4(found, tile + swizzled(row + i * 16 + lane % 16, k * 2 + lane / 16));
                cut(parts[i], found);
            }
#pragma unroll
            for (int j = 0; j < TN; j += 2) {
                u32 high[4], low[4];
                ldmatrix_x4(high, tile_b + swizzled(row_b + j * 8, k * 2 + chunk));
                ldmatrix_x4(low, tile_b + BYTES_B + swizzled(row_b + j * 8, k * 2 + chunk));
#pragma unroll
                for (int i = 0; i < TM; ++i) {
                    mma_m16n8k8(sums[i][j], parts[i].low, high[0], high[1]);
                    mma_m16n8k8(sums[i][j + 1], parts[i].low, high[2], high[3]);
                    mma_m16n8k8(sums[i][j], parts[i].cross, low[0], low[1]);
                    mma_m16n8k8(sums[i][j + 1], parts[i].cross, low[2], low[3]);
                }
            }
        }
    }
#pragma unroll
    for (int k = 0; k < BK / 8; ++k) {
        Parts parts[TM];
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            u32 found[4];
            ldmatrix_x4(found, tile + swizzled(row + i * 16 + lane % 16, k * 2 + lane / 16));
            cut(parts[i], found);
        }
#pragma unroll
        for (int j = 0; j < TN; j += 2) {
            u32 high[4];
            ldmatrix_x4(high, tile_b + swizzled(row_b + j * 8, k * 2 + chunk));
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                mma_m16n8k8(sums[i][j], parts[i].high, high[0], high[1]);
                mma_m16n8k8(sums[i][j + 1], parts[i].high, high[2], high[3]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int q = 0; q < 4; ++q) totals[i][j][q] += sums[i][j][q];
}

extern "C" __global__ void __launch_bounds__(LOADERS)
split_mma(const T* a, const T* b, R* c, const Window* table, const T* bias, const T* z0, const T* z1,
          int m, int n, int k, int lda, int ldc, int tiles_n, int batch_a, int batch_c, int rows_b,
          int splits, Image image)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 shared = shared_address(memory);
    const int tile_m = blockIdx.x / tiles_n;
    const int m0 = tile_m * BM, n0 = (blockIdx.x - tile_m * tiles_n) * BN;
    const int batch = blockIdx.z / splits, split = blockIdx.z - batch * splits;
    const int steps = (k + BK - 1) / BK;
    const int first = (int)((long long)steps * split / splits);
    const int count = (int)((long long)steps * (split + 1) / splits) - first;
    a += (long long)batch * batch_a;
    b += ((long long)batch * steps * PARTS * rows_b + n0) * BK;

    grid_dependency_sync();
    LoaderA loader(threadIdx.x, m0, m, lda, image);
    loader.fetch(first * BK, k, table);
    const auto load = [&](int step) {
        if (step < count) {
            const u32 tile = shared + step % STAGES * BYTES_STAGE;
            loader.copy(tile, a, (first + step) * BK, k, table);
            copy_b(tile + BYTES_A, b + (long long)(first + step) * PARTS * rows_b * BK,
                   min(BN, rows_b - n0), rows_b);
        }
        cp_async_commit();  // also an empty group, so that counting groups counts steps
    };

    const int warp = threadIdx.x / 32;
    const int row = warp / WARPS_N * TM * 16, column = warp % WARPS_N * TN * 8;
    float totals[TM][TN][4] = {};
#pragma unroll
    for (int step = 0; step < AHEAD; ++step) load(step);
    for (int step = 0; step < count; ++step) {
        cp_async_wait<AHEAD - 1>();
        __syncthreads();
        load(step + AHEAD);
        multiply(totals, shared + step % STAGES * BYTES_STAGE, row, column);
    }

    Results results = {c, bias, z0, z1, m, n, ldc, (long long)batch * batch_c,
                       ROWS == MATRIX ? 0 : batch * n};
    if constexpr (SPLIT == PARTIAL) {
        results.start = (long long)blockIdx.z * m * n;
        results.ldc = n;
    }
#pragma unroll
    for (int i = 0; i < TM; ++i)
        store_sums(results, totals[i], m0 + row + i * 16, n0 + column);
}
