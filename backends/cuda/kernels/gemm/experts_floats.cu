// y[pair][n] = activation(sum over k of x[pair / SHARE][k] * w[expert][n][k] + bias[expert][n]) for the pairs of rows and
// experts of experts.cuh; or of two such sums, with rows n of w[expert][0] and w[expert][1]. See gemv_floats.cuh.

#include "gemm/gemv_floats.cuh"
#include "gemm/experts.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
experts_floats(const T* w, const T* bias, const T* x, R* y, const L* router, const G* given,
               const int* order, const int* ends, int n)
{
    __shared__ float parts[WARPS][M][SUMS];
    __shared__ int pairs[M];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n0 = blockIdx.x * RESULTS;
    const int place = lane % 4 * TERMS;
    grid_dependency_launch();
    grid_dependency_sync();
    const Tile tile = tile_of(router, given, ends, blockIdx.y);
    if (tile.count == 0) return;
    const auto pair_of = [&](int m) {
        const int at = tile.first + min(m, tile.count - 1);
        return SORTED ? order[at] : at;
    };
    const long long first_row = (long long)tile.expert * PRODUCTS * n, first = min(n0 + lane / 4, n - 1);
    Rows rows = {};
#pragma unroll
    for (int p = 0; p < PRODUCTS; ++p) rows.w[p] = w + (first_row + (long long)p * n + first) * PITCH;
    if constexpr (EDGE) {
#pragma unroll
        for (int e = 0; e < EIGHTS / PRODUCTS; ++e)
            rows.steps[e] = min(n0 + 8 * e + lane / 4, n - 1) - first;
    }
    int at = warp * (STEPS * STEP);
    Buffer now, next;
    load_weights(now, rows, at + place);
    load_weights(next, rows, at + place + STRIDE);
    for (int m = threadIdx.x; m < M; m += THREADS) pairs[m] = pair_of(m);
    ChosenRows<TENSOR_CORES ? GROUPS : M> values;
#pragma unroll
    for (int i = 0; i < (TENSOR_CORES ? GROUPS : M); ++i)
        values.at[i] = x + (long long)(pair_of(TENSOR_CORES ? i * 8 + lane / 4 : i) / SHARE) * ROW;
    load_values(now, values, at + place);
    load_values(next, values, at + place + STRIDE);
    Kind<sizeof(T)>::Sums sums = {};
    multiply_all<STRIDE>(sums, now, next, rows, values, at, place);
    leave(parts[warp], sums);
    finish_pairs(parts, y, bias, tile, pairs, n0, n);
}
