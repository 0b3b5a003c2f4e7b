// y[pair][n] = activation(sum over k of x[pair / SHARE][k] * w[expert][n][k] + bias[expert][n]) for the pairs of rows and
// experts of experts.cuh, with weights of a few bits; or of two such sums, with rows n of w[expert][0] and w[expert][1].
// See gemv_integers.cuh.

#include "gemm/gemv_integers.cuh"
#include "gemm/experts.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
experts_packed(const unsigned char* w, const X* scales, const X* bias, const X* x, R* y, const L* router,
               const G* given, const int* order, const int* ends, int n)
{
    __shared__ float parts[WARPS][COLUMNS][SUMS];
    __shared__ int pairs[M];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n0 = blockIdx.x * RESULTS;
    grid_dependency_launch();
    grid_dependency_sync();
    const Tile tile = tile_of(router, given, ends, blockIdx.y);
    if (tile.count == 0) return;
    const auto pair_of = [&](int m) {
        const int at = tile.first + min(m, tile.count - 1);
        return SORTED ? order[at] : at;
    };
    const long long first_row = (long long)tile.expert * PRODUCTS * n;
    const X* const own_scales = (const X*)((const unsigned char*)scales + first_row * ROW_SCALES);
    const X* const other_scales = (const X*)((const unsigned char*)own_scales + (long long)n * ROW_SCALES);
    copy_scales(own_scales, other_scales, n0, n);
    const long long first = min(n0 + lane / 4, n - 1);
    Rows rows = {};
#pragma unroll
    for (int p = 0; p < PRODUCTS; ++p)
        rows.w[p] = w + (first_row + (long long)p * n + first) * BYTES + lane % 4 * 16;
    if constexpr (EDGE) {
#pragma unroll
        for (int e = 0; e < EIGHTS / PRODUCTS; ++e)
            rows.steps[e] = min(n0 + 8 * e + lane / 4, n - 1) - first;
    }
    int at = warp * (STEPS * STEP);
    Buffer now, next;
    load_weights(now, rows, at);
    load_weights(next, rows, at + STRIDE);
    for (int m = threadIdx.x; m < M; m += THREADS) pairs[m] = pair_of(m);
    ChosenRows<GROUPS> values;
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
        const int column = min(group * 8 + lane / 4, COLUMNS - 1);
        values.at[group] = x + (long long)(pair_of(column / PLANES) / SHARE) * ROW;
    }
    cp_async_wait<0>();
    __syncthreads();
    const Masks masks;
    float sums[PAIRS][GROUPS][4] = {};
    multiply_all<STRIDE>(sums, now, next, rows, values, at, masks);
    leave_fragments(parts[warp], sums);
    finish_pairs(parts, y, bias, tile, pairs, n0, n);
}
