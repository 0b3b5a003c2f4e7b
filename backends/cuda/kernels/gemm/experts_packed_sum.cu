// y[n] = epilogue(sum over slots of weight * (sum over k of x[slot][k] * w[expert][n][k] + bias[expert][n])) for a single
// row and its experts, see experts.cuh, with weights of a few bits, see gemv_integers.cuh.

#include "gemm/gemv_integers.cuh"
#include "gemm/experts.cuh"
#include "gemm/experts_sum.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
experts_packed_sum(const unsigned char* w, const X* scales, const X* bias, const X* x, R* y, const L* router,
                   const G* given, const X* z0, const X* z1, int n)
{
    constexpr int BY_SLOT = ROWS * PITCH_SCALES, APART = PARTS * STEPS * STEP;
    __shared__ float parts[WARPS][COLUMNS][SUMS];
    __shared__ Experts experts;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n0 = blockIdx.x * RESULTS;
    grid_dependency_launch();
    grid_dependency_sync();
    int expert = choose(experts, router, given);
    const long long row = min(n0 + lane / 4, n - 1);
    Rows rows = {};
    if constexpr (EDGE) {
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e) rows.steps[e] = min(n0 + 8 * e + lane / 4, n - 1) - row;
    }
    const auto begin = [&] { rows.w[0] = w + (expert * (long long)n + row) * BYTES + lane % 4 * 16; };
    const int from = warp % PARTS * (STEPS * STEP);
    int slot = warp / PARTS;
    Buffer now, next;
    if (slot < TOP) {
        begin();
        load_weights(now, rows, from);
        load_weights(next, rows, from + APART);
    }
    __syncthreads();
    for (int i = 0; i < TOP; ++i) {
        const X* const own = (const X*)((const unsigned char*)scales + experts.numbers[i] * (long long)n * ROW_SCALES);
        copy_scales(own, own, n0, n, scale_memory() + i * BY_SLOT);
    }
    cp_async_wait<0>();
    __syncthreads();
    const Masks masks;
    float total[PAIRS][GROUPS][4] = {};
    for (; slot < TOP; slot += WARPS / PARTS) {
        const unsigned char* const of_rows = scale_memory() + slot * BY_SLOT;
        ChosenRows<GROUPS> values;
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) values.at[group] = x + (long long)slot * ROW;
        float sums[PAIRS][GROUPS][4] = {};
        multiply_all<APART>(sums, now, next, rows, values, from, masks, of_rows);
        const float weight = experts.weights[slot];
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair)
#pragma unroll
            for (int group = 0; group < GROUPS; ++group)
#pragma unroll
                for (int q = 0; q < 4; ++q) total[pair][group][q] += weight * sums[pair][group][q];
        if (slot + WARPS / PARTS >= TOP) break;
        expert = experts.numbers[slot + WARPS / PARTS];
        begin();
        load_weights(now, rows, from);
        load_weights(next, rows, from + APART);
    }
    leave_fragments(parts[warp], total);
    finish_sum(parts, y, bias, experts, z0, z1, n0, n);
}
