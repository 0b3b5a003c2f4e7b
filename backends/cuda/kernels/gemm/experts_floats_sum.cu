// y[n] = epilogue(sum over slots of weight * (sum over k of x[slot][k] * w[expert][n][k] + bias[expert][n])) for a single
// row and its experts, see experts.cuh, with weights of floats, see gemv_floats.cuh.

#include "gemm/gemv_floats.cuh"
#include "gemm/experts.cuh"
#include "gemm/experts_sum.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
experts_floats_sum(const T* w, const T* bias, const T* x, R* y, const L* router, const G* given, const T* z0, const T* z1,
                   int n)
{
    constexpr int APART = PARTS * STEPS * STEP;
    __shared__ float parts[WARPS][M][SUMS];
    __shared__ Experts experts;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n0 = blockIdx.x * RESULTS;
    const int place = lane % 4 * TERMS, from = warp % PARTS * (STEPS * STEP);
    grid_dependency_launch();
    grid_dependency_sync();
    int expert = choose(experts, router, given);
    const long long row = min(n0 + lane / 4, n - 1);
    Rows rows = {};
    if constexpr (EDGE) {
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e) rows.steps[e] = min(n0 + 8 * e + lane / 4, n - 1) - row;
    }
    float total[(ROWS + 31) / 32] = {};  // a lane's share of the rows
    __syncthreads();
    for (int slot = warp / PARTS; slot < TOP; slot += WARPS / PARTS) {
        if (slot != warp / PARTS) expert = experts.numbers[slot];
        rows.w[0] = w + (expert * (long long)n + row) * PITCH;
        const AdjacentRows values{x + (long long)slot * ROW};
        int at = from;
        Buffer now, next;
        load_weights(now, rows, at + place);
        load_weights(next, rows, at + place + APART);
        load_values(now, values, at + place);
        load_values(next, values, at + place + APART);
        Kind<sizeof(T)>::Sums sums = {};
        multiply_all<APART>(sums, now, next, rows, values, at, place);
        leave(parts[warp], sums);
        __syncwarp();
        for (int i = 0; i * 32 + lane < ROWS; ++i) total[i] += experts.weights[slot] * parts[warp][0][i * 32 + lane];
        __syncwarp();
    }
    for (int i = 0; i * 32 + lane < ROWS; ++i) parts[warp][0][i * 32 + lane] = total[i];
    finish_sum(parts, y, bias, experts, z0, z1, n0, n);
}
